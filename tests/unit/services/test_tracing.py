"""Which connections and rows a trace wants, how much it keeps, and when it ends."""

from __future__ import annotations

import asyncio

import pytest

from headrace.services.tracing import (
    IDLE_S,
    ROWS_MAX,
    ROWS_PER_S,
    TRACES_MAX,
    InvalidTrace,
    Trace,
    Tracing,
)


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.mark.parametrize(
    ("kind", "pattern", "client", "peer", "wanted"),
    [
        ("client", "sensor-*", "sensor-7", "192.0.2.1:5", True),
        ("client", "sensor-*", "Sensor-7", "192.0.2.1:5", False),
        ("client", "a", "b", "", False),
        ("address", "192.0.2.0/24", "x", "192.0.2.9:1", True),
        ("address", "192.0.2.9", "x", "192.0.2.8:1", False),
        ("address", "2001:db8::/32", "x", "[2001:db8::1]:80", True),
        ("address", "192.0.2.9", "x", "[::ffff:192.0.2.9]:80", True),
        ("address", "unix", "x", "unix", True),
        ("address", "10.0.0.0/8", "x", "unix", False),
    ],
)
def test_who_is_wanted(kind: str, pattern: str, client: str, peer: str, wanted: bool) -> None:
    trace = Trace(kind, pattern, 60, Clock())
    assert trace.wants_client(client, peer) is wanted
    assert trace.wants({"client": client}, peer) is wanted
    assert trace.wants_all_of(client, peer) is wanted


def test_who_has_not_said_a_name_is_listened_to_until_it_does() -> None:
    trace = Trace("client", "a", 60, Clock())
    assert trace.wants_all_of("", "192.0.2.1:5")
    assert not trace.wants({"client": ""}, "192.0.2.1:5")


def test_a_topic_is_a_filter() -> None:
    trace = Trace("topic", "a/+", 60, Clock())
    assert trace.wants({"topic": "a/b"}, "")
    assert not trace.wants({"topic": "a/b/c"}, "")
    assert not trace.wants({"packet": "PINGREQ"}, "")


def test_rows_are_bounded_in_rate_and_number_and_what_is_left_out_is_counted() -> None:
    clock = Clock()
    trace = Trace("topic", "#", 60, clock)
    for number in range(ROWS_PER_S + 5):
        trace.add({"n": number})
    rows, left_out = trace.take()
    assert (len(rows), left_out) == (ROWS_PER_S, 5)
    for second in range(1, 5):
        clock.now = float(second)
        for number in range(ROWS_PER_S):
            trace.add({"n": number})
    rows, left_out = trace.take()
    assert (len(rows), left_out) == (ROWS_MAX, 4 * ROWS_PER_S - ROWS_MAX)
    assert trace.take() == ([], 0)


def test_a_trace_ends_with_its_time_or_with_its_reader() -> None:
    clock = Clock()
    trace = Trace("topic", "#", 8, clock)
    clock.now = IDLE_S
    assert not trace.ends()
    clock.now += 0.1
    assert trace.ends()
    assert not trace.over
    trace.take()
    assert not trace.ends()
    clock.now = 8.0
    assert trace.ends()
    assert trace.over


def test_the_last_rows_of_a_trace_are_there_for_its_reader_and_nobody_waits_for_one_that_has_left() -> None:
    async def body() -> None:
        clock = Clock()
        tracing = Tracing(list, asyncio.get_running_loop(), clock)
        trace = tracing.begin("topic", "#", 1.0)
        tracing.packet({"topic": "a"}, "")
        clock.now = 1.5
        tracing._watch()
        assert tracing.traces == []
        tracing.packet({"topic": "too late"}, "")
        assert tracing.find(trace.id) is trace
        assert trace.take() == ([{"topic": "a"}], 0)
        assert trace.over
        for _ in range(TRACES_MAX):  # it takes the place of no other one
            tracing.begin("topic", "#", 60.0)
        clock.now += IDLE_S + 0.1
        tracing._watch()
        assert tracing.find(trace.id) is None
        assert tracing.traces == []

    asyncio.run(body())


def test_what_makes_no_sense_is_refused_and_there_are_not_many() -> None:
    async def body() -> None:
        tracing = Tracing(list, asyncio.get_running_loop(), Clock())
        for kind, pattern, seconds in (
            ("user", "x", 1),
            ("client", "", 1),
            ("topic", "a/#/b", 1),
            ("topic", "a", 0),
            ("topic", "a", 1e9),
            ("client", "x" * 2000, 1),
            ("address", "192.0.2.0/99", 1),
            ("address", "2001:db8::/x", 1),
        ):
            with pytest.raises(InvalidTrace):
                tracing.begin(kind, pattern, seconds)
        traces = [tracing.begin("client", "x", 1) for _ in range(TRACES_MAX)]
        with pytest.raises(InvalidTrace, match="as many as"):
            tracing.begin("client", "x", 1)
        assert tracing.find(traces[1].id) is traces[1]
        tracing.end(traces[1])
        assert tracing.find(traces[1].id) is None
        tracing.begin("client", "x", 1)

    asyncio.run(body())
