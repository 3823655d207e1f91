"""A worker and its supervisor hear each other, and each hears the end of the other."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Mapping

import pytest

from headrace.workers.control import (
    GO,
    MESSAGE_BYTES_MAX,
    PREPARED,
    READY,
    STARTING,
    TROUBLE_CHARACTERS_MAX,
    Control,
    Report,
    pack_values,
)


def pair() -> tuple[socket.socket, socket.socket]:
    return socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)


def test_a_report_says_everything() -> None:
    report = Report(READY, "shard 1: the journal's disk is full")
    assert Report.unpack(report.pack()) == report
    assert len(Report.unpack(Report(READY, "x" * 9999).pack()).trouble) == TROUBLE_CHARACTERS_MAX


def test_numbers_come_with_a_report_and_what_makes_no_sense_is_none() -> None:
    report = Report(READY, numbers={"bytes/sent": 1 << 40})
    assert Report.unpack(report.pack()) == report
    for wrong in (b"[1]", b'{"a": "b"}', b"3"):
        assert Report.unpack(b'{"state": "ready", "numbers": %s}' % wrong) == Report(READY)


def test_bridges_come_with_a_report_as_many_as_fit_into_one() -> None:
    report = Report(READY, bridges={"b": 1, "c": 0})
    assert Report.unpack(report.pack()) == report
    data = Report(READY, bridges={f"{'long' * 20}{number}": 1 for number in range(1000)}).pack()
    assert len(data) < MESSAGE_BYTES_MAX
    assert 100 < len(Report.unpack(data).bridges) < 1000
    assert Report.unpack(b'{"state": "ready", "bridges": {"b": "up"}}') == Report(READY)


def test_a_worker_hears_the_values_of_the_node() -> None:
    async def life() -> list[object]:
        ours, theirs = pair()
        control = Control(theirs)
        told: list[object] = []
        heard = asyncio.Event()
        ours.send(pack_values({"early": "1"}))  # nobody to tell it to
        control.numbers = lambda: {"a": 1}
        ours.setblocking(False)
        loop = asyncio.get_running_loop()
        async with asyncio.timeout(60):
            while Report.unpack(await loop.sock_recv(ours, 4096)).numbers != {"a": 1}:
                pass

        def hear(values: Mapping[str, str]) -> None:
            told.append(values)
            heard.set()

        control.told = hear
        for data in (b"[]", b'{"a": 1}', b"{", pack_values({"uptime": "3 seconds"})):
            ours.send(data)
        async with asyncio.timeout(60):
            await heard.wait()
        control.close()
        ours.close()
        return told

    assert asyncio.run(life()) == [{"uptime": "3 seconds"}]


@pytest.mark.parametrize("data", [b"", b"{}", b"[]", b'{"state": "asleep"}', b"\xff", b'{"state": 3}'])
def test_what_is_no_report_is_refused(data: bytes) -> None:
    with pytest.raises(ValueError, match=r"."):
        Report.unpack(data)


def test_a_worker_tells_how_far_it_is_and_may_serve_when_told() -> None:
    async def life() -> list[Report]:
        ours, theirs = pair()
        control = Control(theirs)
        control.trouble = lambda: "why not"
        control.tell(PREPARED)
        ours.send(b"what a later supervisor may say")
        ours.send(GO)
        async with asyncio.timeout(60):
            await control.may_serve.wait()
        control.tell(READY)
        found = [Report.unpack(ours.recv(4096)) for _ in range(3)]
        control.close()
        assert ours.recv(4096) == b""
        ours.close()
        return found

    assert asyncio.run(life()) == [Report(STARTING), Report(PREPARED, "why not"), Report(READY, "why not")]


def test_it_is_heard_again_and_again() -> None:
    async def life() -> None:
        ours, theirs = pair()
        control = Control(theirs)
        ours.setblocking(False)
        loop = asyncio.get_running_loop()
        async with asyncio.timeout(60):
            for _ in range(3):
                assert Report.unpack(await loop.sock_recv(ours, 4096)).state == STARTING
        control.close()
        ours.close()

    asyncio.run(life())


def test_what_is_raised_at_one_heartbeat_costs_none_of_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker that says nothing any more is taken for one that hangs, and ended."""
    monkeypatch.setattr("headrace.workers.control.HEARTBEAT_S", 0.01)

    async def life() -> list[object]:
        ours, theirs = pair()
        control = Control(theirs)
        loop = asyncio.get_running_loop()
        raised: list[object] = []
        loop.set_exception_handler(lambda _, told: raised.append(told["exception"]))
        wanting = [MemoryError()]

        def trouble() -> str:
            if wanting:
                raise wanting.pop()
            return "well again"

        control.trouble = trouble
        ours.setblocking(False)
        async with asyncio.timeout(20):
            while Report.unpack(await loop.sock_recv(ours, 4096)).trouble != "well again":
                pass
        control.close()
        ours.close()
        return raised

    assert [type(one) for one in asyncio.run(life())] == [MemoryError]


def test_a_supervisor_that_reads_nothing_stops_nobody() -> None:
    async def life() -> None:
        ours, theirs = pair()
        control = Control(theirs)
        for _ in range(10_000):
            control.tell(READY)
        control.close()
        ours.close()

    asyncio.run(life())


def test_the_end_of_the_supervisor_is_noticed() -> None:
    async def life() -> None:
        ours, theirs = pair()
        control = Control(theirs)
        lost = asyncio.Event()
        control.lost = lost.set
        ours.close()
        async with asyncio.timeout(60):
            await lost.wait()
        assert control.is_lost
        control.tell(READY)  # to nobody
        control.close()

    asyncio.run(life())
