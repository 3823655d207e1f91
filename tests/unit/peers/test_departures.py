"""The queue before a road to another worker: its order, its bounds, who is refused."""

from __future__ import annotations

import asyncio

import pytest

from headrace.core.ports.clock import Clock
from headrace.core.ports.elsewhere import Departing, Elsewhere, Refuser
from headrace.core.ports.settings import BrokerSettings
from headrace.core.worker import Worker
from headrace.errors import ProtocolError
from headrace.mqtt import codec
from headrace.mqtt.packets import Connect
from headrace.net.connection import Connection, ConnectionSet
from headrace.peers.departures import AT_ONCE, Departures, NotNow, Road, parcel_of
from headrace.peers.parcel import BadParcel, Parcel
from headrace.storage.memory import ManualScheduler
from machine import run, until


class Refusing(Refuser):
    def __init__(self) -> None:
        self.told: list[tuple[str, str]] = []

    def refuse_departing(self, departing: Departing, error: ProtocolError) -> None:
        self.told.append((departing.client_id, error.message))
        departing.link.closed = True


class OneRoad(Road):
    """Takes connections while it is open; `error` is what else is wrong with it."""

    def __init__(self) -> None:
        self.open = True
        self.error: Exception | None = None
        self.sent: list[bytes] = []
        self.given_up = 0

    def send(self, link: Connection) -> None:
        if self.error is not None:
            raise self.error
        if not self.open:
            raise NotNow("closed")
        self.sent.append(link.unparsed())

    def give_up(self) -> None:
        self.given_up += 1


class Bench:
    def __init__(self) -> None:
        self.road = OneRoad()
        self.departures = Departures(self.road, asyncio.get_running_loop())
        self.refuser = Refusing()
        self.worker = Worker(ManualScheduler(), Clock(), BrokerSettings())  # of no shard
        self.worker.arrivals.elsewhere = Others()
        self.set = ConnectionSet(10, 1000)
        self.set.url = "tcp://127.0.0.1:1883"

    def departing(self, name: str, behind: bytes = b"") -> Departing:
        link = Connection(self.worker, self.set, "127.0.0.1:5")
        self.worker.clock.stale = False
        link.data_received(codec.encode_connect(Connect(4, name, True)) + behind)
        return Departing(self.refuser, link, 1, name)


class Others(Elsewhere):
    """The other workers, where everybody is at home: a test says when they take whom."""

    def take(self, departing: Departing) -> None:
        """Leave it to the test."""


def test_they_leave_in_the_order_they_came_however_many() -> None:
    async def body() -> None:
        bench = Bench()
        leaving = [bench.departing(f"c{number}") for number in range(3 * AT_ONCE)]
        for one in leaving:
            bench.departures.add(one)
        await until(lambda: len(bench.departures) == 0)
        assert bench.road.sent == [one.link.unparsed() for one in leaving]
        assert (bench.departures.sent, bench.departures.refused) == (3 * AT_ONCE, 0)

    run(body)


def test_a_road_that_opens_again_goes_on_at_once() -> None:
    async def body() -> None:
        bench = Bench()
        bench.road.open = False
        bench.departures.add(bench.departing("c"))
        await asyncio.sleep(0)
        assert (len(bench.departures), bench.road.sent) == (1, [])
        bench.road.open = True
        bench.departures.open_again()
        assert len(bench.road.sent) == 1

    run(body)


@pytest.mark.parametrize("error", [BadParcel("too long"), OSError(9, "Bad file descriptor"), MemoryError()])
def test_who_cannot_be_sent_at_all_is_refused_and_the_next_one_leaves(error: Exception) -> None:
    async def body() -> None:
        bench = Bench()
        bench.road.error = error
        bench.departures.add(bench.departing("a"))
        await until(lambda: bench.refuser.told == [("a", str(error) or "MemoryError")])
        bench.road.error = None
        bench.departures.add(bench.departing("b"))
        await until(lambda: len(bench.road.sent) == 1)
        assert (bench.departures.sent, bench.departures.refused) == (1, 1)

    run(body)


def test_those_behind_one_who_cannot_even_be_refused_leave(monkeypatch: pytest.MonkeyPatch) -> None:
    async def body() -> None:
        bench = Bench()
        raised: list[object] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, told: raised.append(told["exception"]))

        def fail(_departing: Departing, _error: ProtocolError) -> None:
            bench.road.error = None
            raise MemoryError

        monkeypatch.setattr(bench.refuser, "refuse_departing", fail)
        bench.road.error = BadParcel("too long")
        for name in "abc":
            bench.departures.add(bench.departing(name))
        await until(lambda: len(bench.road.sent) == 2)
        assert (len(bench.departures), [type(one) for one in raised]) == (0, [MemoryError])

    run(body)


def test_who_has_waited_too_long_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headrace.peers.departures.WAIT_S", 0.05)

    async def body() -> None:
        bench = Bench()
        bench.road.open = False
        for name in "ab":
            bench.departures.add(bench.departing(name))
        await until(lambda: len(bench.departures) == 0)
        assert [name for name, _ in bench.refuser.told] == ["a", "b"]
        assert bench.road.given_up >= 2

    run(body)


def test_too_many_are_refused_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headrace.peers.departures.WAITING_MAX", 2)

    async def body() -> None:
        bench = Bench()
        bench.road.open = False
        for name in "abc":
            bench.departures.add(bench.departing(name))
        assert [name for name, _ in bench.refuser.told] == ["c"]
        bench.departures.close()
        assert [name for name, _ in bench.refuser.told] == ["c", "a", "b"]

    run(body)


def test_too_many_bytes_are_refused_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headrace.peers.departures.WAITING_BYTES_MAX", 1000)

    async def body() -> None:
        bench = Bench()
        bench.road.open = False
        for name in "abc":
            bench.departures.add(bench.departing(name, bytes(400)))
        assert [name for name, _ in bench.refuser.told] == ["c"]
        bench.road.open = True
        bench.departures.open_again()
        bench.departures.add(bench.departing("d", bytes(400)))  # there is room again
        await until(lambda: len(bench.road.sent) == 3)

    run(body)


def test_who_has_hung_up_is_forgotten() -> None:
    async def body() -> None:
        bench = Bench()
        bench.road.open = False
        one, two = bench.departing("a"), bench.departing("b")
        for each in (one, two):
            bench.departures.add(each)
        one.link.closed = True
        bench.road.open = True
        bench.departures.open_again()
        assert bench.road.sent == [two.link.unparsed()]
        assert bench.refuser.told == []

    run(body)


def test_what_goes_with_a_connection() -> None:
    async def body() -> None:
        bench = Bench()
        link = bench.departing("a", b"\xc0\x00").link
        assert isinstance(link, Connection)
        packet = codec.encode_connect(Connect(4, "a", True))
        assert parcel_of(link) == Parcel(bench.set.url, "127.0.0.1:5", "", packet + b"\xc0\x00")

    run(body)
