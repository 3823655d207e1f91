"""A broker on a full disk: publishers wait or are refused, subscribers drain, and space that returns ends it."""

from __future__ import annotations

import errno
import time
from collections.abc import Callable

import pytest

from broker_process import BrokerProcess, wait_until
from e2e.raw import RawClient, SilenceError
from e2e.wire import PUBACK, PUBREC
from e2e.workers import Crew
from faults.broker.conftest import Faults, SmallDisk
from headrace.core.homes import Homes
from headrace.core.ports.identity import DEFAULT_TENANT

pytestmark = pytest.mark.slow

Brokers = Callable[..., BrokerProcess]
Clients = Callable[..., RawClient]
PAYLOAD = 8000


def publish_until(
    publisher: RawClient, stopped: Callable[[], bool], topic: str = "t", qos: int = 1
) -> list[int]:
    """Publishes with a window of 20 until no answer comes any more; the numbers that were acknowledged."""
    acknowledged: list[int] = []
    waiting: dict[int, int] = {}
    number = 0
    until = time.monotonic() + 60
    while time.monotonic() < until:
        while len(waiting) < 20:
            waiting[publisher.publish(topic, b"%08d" % number + bytes(PAYLOAD), qos)] = number
            number += 1
        try:
            found = publisher.read(1.0)
        except SilenceError:
            if stopped():
                return acknowledged
            continue
        assert found.kind == PUBACK
        if found.reason >= 0x80:  # 0x10 only says that nobody subscribes
            assert found.reason == 0x97
            return acknowledged
        acknowledged.append(waiting.pop(found.packet_id))
    raise TimeoutError("the disk does not become full")


def drain(subscriber: RawClient) -> list[int]:
    numbers = []
    try:
        while True:
            found = subscriber.receive(2.0)
            numbers.append(int(found.payload[:8]))
    except SilenceError:
        return numbers


def test_hold_until_space_returns(small_disk: SmallDisk, brokers: Brokers, clients: Clients) -> None:
    broker = brokers({}, small_disk.folder).start()
    for client_id in (
        "away",
        "never back",
    ):  # what the second one is owed stays, and with it the disk is full
        away = clients(broker, client_id, clean=False)
        away.subscribe("t", qos=1)
        away.close()
    small_disk.fill(2 << 20)
    publisher = clients(broker, "p", keep_alive_s=2)
    acknowledged = publish_until(publisher, lambda: broker.get("/readyz").status == 503)
    assert len(acknowledged) > 1000
    answer = broker.get("/readyz")
    assert "disk is full: No space left on device" in answer.body
    assert broker.metrics()["headrace_journal_full"] == 1

    # The subscriber drains: everything acknowledged, in order, and its progress is kept.
    away = clients(broker, "away", clean=False)
    drained = drain(away)
    assert set(acknowledged) <= set(drained)
    assert drained == sorted(drained)
    away.disconnect()
    away = clients(broker, "away", clean=False)
    away.expect_nothing(0.5)
    # Held back beyond its keep alive, and not thrown out; QoS 0 goes on for everybody else.
    publisher.expect_nothing(3.5)
    live = clients(broker, "live")
    live.subscribe("q0")
    clients(broker, "other").publish("q0", b"through")
    assert live.receive().payload == b"through"

    small_disk.free()
    wait_until(lambda: broker.get("/readyz").status == 200, "ready again")
    for _ in range(20):
        assert publisher.read().kind == PUBACK
    assert len(drain(away)) <= 20
    publisher.deliver("t", b"%08d" % 99_999_999)
    assert drain(away) == [99_999_999]
    assert broker.metrics()["headrace_journal_full"] == 0
    broker.stop()


SMALL_SEGMENTS: dict[str, object] = {"journal.segment_bytes_max": 1 << 20, "journal.reserve_bytes": 1 << 20}


@pytest.mark.parametrize("settings", [{}, SMALL_SEGMENTS])
def test_it_recovers_by_itself_when_sessions_have_drained(
    settings: dict[str, object], small_disk: SmallDisk, brokers: Brokers, clients: Clients
) -> None:
    """By the limits of retention nothing may go yet, and in one case all is in the segment that is being written."""
    broker = brokers(settings, small_disk.folder).start()
    away = clients(broker, "away", clean=False)
    away.subscribe("t", qos=1)
    away.close()
    small_disk.fill(8 << 20)
    publisher = clients(broker, "p", keep_alive_s=0)
    acknowledged = publish_until(publisher, lambda: broker.get("/readyz").status == 503)
    away = clients(broker, "away", clean=False)
    drained = drain(away)
    assert set(acknowledged) <= set(drained)
    wait_until(lambda: broker.get("/readyz").status == 200, "ready again", 60)
    for _ in range(20):
        assert publisher.read().kind == PUBACK
    publisher.deliver("t", b"%08d" % 99_999_999)
    assert drain(away)[-1] == 99_999_999
    away.close()
    broker.kill()
    broker.start()
    assert drain(clients(broker, "away", clean=False)) in ([], [99_999_999])
    broker.stop()


def test_workers_recover_by_themselves_when_sessions_have_drained(
    small_disk: SmallDisk, brokers: Brokers, clients: Clients
) -> None:
    """Each shard keeps what the other has not taken: far fewer records than a position may be behind in a journal."""
    broker = brokers({"workers": 2, "journal.segment_bytes_max": 1 << 20}, small_disk.folder).start()
    writer, reader = (
        next(
            name
            for name in (f"{part}{number}" for number in range(99))
            if Homes(2).of_client(DEFAULT_TENANT, name) == shard
        )
        for shard, part in enumerate(("p", "away"))
    )
    away = clients(broker, reader, clean=False)
    away.subscribe("t", qos=1)
    away.close()
    publisher = clients(broker, writer, keep_alive_s=0)
    acknowledged = publish_until(publisher, lambda: broker.get("/readyz").status == 503)
    drained: list[int] = []
    while not drained or drained[-1] < acknowledged[-1]:
        away = clients(broker, reader, clean=False)
        drained += drain(away)
        away.close()
    assert set(acknowledged) <= set(drained)
    wait_until(lambda: broker.get("/readyz").status == 200, "ready again", 60)
    for _ in range(20):
        assert publisher.read().kind == PUBACK
    publisher.deliver("t", b"%08d" % 99_999_999)
    assert drain(clients(broker, reader, clean=False))[-1] == 99_999_999
    broker.stop()


def fill_while_one_stands_still(crew: Crew, clients: Clients) -> tuple[RawClient, list[int]]:
    """Start two workers, and stop the second one, which has a session that is away, while a client of the first one
    publishes for it until the disk is full. Return that client, and the numbers that were acknowledged."""
    crew.start()
    here, there = crew.workers
    away = clients(there, crew.name_in(1, "away"), clean=False)
    away.subscribe("t", qos=1)
    away.close()
    there.pause()
    publisher = clients(here, crew.name_in(0, "p"), keep_alive_s=0)
    return publisher, publish_until(publisher, lambda: here.get("/readyz").status == 503)


def drain_until_ready(crew: Crew, name: str, acknowledged: list[int], clients: Clients) -> None:
    """Drain the session of the second worker, until it had all that was acknowledged and both can be written."""
    drained: list[int] = []
    until = time.monotonic() + 120
    while (not drained or drained[-1] < acknowledged[-1]) and time.monotonic() < until:
        away = clients(crew.workers[1], name, clean=False)
        drained += drain(away)
        away.close()
    assert sorted(set(drained)) == list(range(drained[-1] + 1))
    assert set(acknowledged) <= set(drained)
    wait_until(lambda: crew.workers[0].get("/readyz").status == 200, "ready again", 60)
    wait_until(lambda: crew.workers[1].get("/readyz").status == 200, "ready again", 60)


@pytest.mark.parametrize(
    "settings", [{}, pytest.param({"journal.segment_bytes_max": 1 << 20}, marks=pytest.mark.deep)]
)
def test_a_shard_takes_what_fills_the_disk_that_it_shares(
    settings: dict[str, object], small_disk: SmallDisk, clients: Clients
) -> None:
    """Its worker stood still while all was published. To take it the shard has to write, which nothing frees before."""
    crew = Crew(small_disk.folder, 2, 2, settings)
    try:
        publisher, acknowledged = fill_while_one_stands_still(crew, clients)
        assert len(acknowledged) > 5000
        crew.workers[1].resume()
        drain_until_ready(crew, crew.name_in(1, "away"), acknowledged, clients)
        for _ in range(20):
            assert publisher.read().kind == PUBACK
    finally:
        crew.end()


@pytest.mark.parametrize("took", [False, pytest.param(True, marks=pytest.mark.deep)])
def test_a_shard_that_starts_again_on_a_full_disk_leaves_others_what_they_need(
    took: bool, small_disk: SmallDisk, clients: Clients
) -> None:
    """`took`: the other shard has taken what it found room for, and is full itself."""
    crew = Crew(small_disk.folder, 2, 2)
    try:
        there, here = crew.workers[1], crew.workers[0]
        publisher, acknowledged = fill_while_one_stands_still(crew, clients)
        publisher.close()
        if took:
            there.resume()
            wait_until(lambda: there.get("/readyz").status == 503, "full, too", 60)
            there.pause()
        here.kill()
        here.start()
        other = clients(here, crew.name_in(0, "q"), keep_alive_s=0)
        waits = publish_until(other, lambda: here.get("/readyz").status == 503, "u")
        there.resume()
        drain_until_ready(crew, crew.name_in(1, "away"), acknowledged, clients)
        for _ in range(20):
            assert other.read().kind == PUBACK
        assert len(waits) < 2000
    finally:
        crew.end()


def test_refuse_in_version_5(small_disk: SmallDisk, brokers: Brokers, clients: Clients) -> None:
    broker = brokers({"journal.full_disk": "refuse"}, small_disk.folder).start()
    away = clients(broker, "never back", clean=False)  # what it is owed keeps the disk full
    away.subscribe("t", qos=1)
    away.close()
    small_disk.fill(1 << 20)
    publisher = clients(broker, "p5", 5)
    publish_until(publisher, lambda: False)
    while (found := publisher.read()).reason != 0x97:
        assert found.kind == PUBACK
    publisher.leave()
    fresh = clients(broker, "q5", 5)
    first = fresh.publish("t", b"x", 2)
    found = fresh.read()
    assert (found.kind, found.packet_id, found.reason) == (PUBREC, first, 0x97)
    old = clients(broker, "p4", 4)
    old.publish("t", b"x", 1)
    old.expect_nothing(0.5)
    small_disk.free()
    wait_until(lambda: broker.get("/readyz").status == 200, "ready again")
    assert old.read().kind == PUBACK
    fresh.deliver("t", b"y", 2, packet_id=first)
    broker.stop()


def test_kill_on_a_full_disk_loses_nothing(small_disk: SmallDisk, brokers: Brokers, clients: Clients) -> None:
    broker = brokers({}, small_disk.folder).start()
    away = clients(broker, "away", clean=False)
    away.subscribe("t", qos=1)
    away.close()
    small_disk.fill(1 << 20)
    publisher = clients(broker, "p")
    acknowledged = publish_until(publisher, lambda: broker.get("/readyz").status == 503)
    broker.kill()
    broker.start()  # on the same full disk
    drained = drain(clients(broker, "away", clean=False))
    assert set(acknowledged) <= set(drained)
    assert drained == sorted(set(drained))
    small_disk.free()
    wait_until(lambda: broker.get("/readyz").status == 200, "ready again")
    clients(broker, "q").deliver("t", b"%08d" % 7)
    broker.stop()


@pytest.mark.parametrize("call", ["pwritev", "fallocate"])
def test_a_disk_that_says_full_without_being_full(
    call: str, faults: Faults, brokers: Brokers, clients: Clients
) -> None:
    settings: dict[str, object] = {"journal.segment_bytes_max": 1 << 20, "journal.reserve_bytes": 1 << 20}
    broker = brokers(settings, environment=faults.environment).start()
    publisher = clients(broker, "p")
    publisher.deliver("t", b"before")
    faults.set(call, errno.ENOSPC)
    started = time.monotonic()
    acknowledged = publish_until(publisher, lambda: broker.get("/readyz").status == 503)
    assert not acknowledged or call == "fallocate"  # what is preallocated can be written
    assert time.monotonic() - started < 30
    faults.clear()
    wait_until(lambda: broker.get("/readyz").status == 200, "ready again")
    for _ in range(20):
        assert publisher.read().kind == PUBACK
    broker.stop()
