"""Channels of bytes: windows of credit, pauses at both ends, and every way to end."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from headrace.peers.channel import AT_ONCE_BYTES, WINDOW_BYTES, Carrier, Channel
from headrace.peers.peer_frames import CLOSE, CREDIT, DATA, BrokenLink, decode_number


class Side(Carrier):
    """One end of a link, whose frames wait until they are carried over."""

    def __init__(self) -> None:
        super().__init__(1 << 20)
        self.said: list[tuple[int, bytes]] = []
        self.calls: list[Callable[[], None]] = []
        self.waiting: list[Channel] = []
        self.forgotten = 0
        self.errors: list[Exception] = []
        self.channel = Channel(self, 1, 1)
        self.channel.on_bytes = self.on_bytes
        self.channel.on_writable = lambda: self.events.append("writable")
        self.channel.on_closed = lambda: self.events.append("closed")
        self.received = bytearray()
        self.events: list[str] = []

    def on_bytes(self, data: bytes) -> None:
        self.received += data

    def send(self, kind: int, channel: int, body: bytes) -> None:
        self.said.append((kind, body))

    def later(self, call: Callable[[], None]) -> None:
        self.calls.append(call)

    def wait_for(self, channel: Channel) -> None:
        self.waiting.append(channel)

    def forget(self, number: int) -> None:
        self.forgotten += 1

    def failed(self, error: Exception) -> None:
        self.errors.append(error)


class Pair:
    """Both ends of a channel."""

    def __init__(self) -> None:
        self.near, self.far = Side(), Side()

    def carry(self) -> None:
        """All that was said arrives, and what was put off is done."""
        while any((side.said or side.calls) for side in (self.near, self.far)):
            self._carry(self.near, self.far)
            self._carry(self.far, self.near)

    def _carry(self, source: Side, target: Side) -> None:
        said, source.said = source.said, []
        for kind, body in said:
            if kind == DATA:
                target.channel.came(body)
            elif kind == CREDIT:
                target.channel.credited(decode_number(body))
            else:
                assert kind == CLOSE
                target.channel.ended()
        calls, source.calls = source.calls, []
        for call in calls:
            call()


def test_bytes_arrive_in_order_however_many() -> None:
    pair = Pair()
    data = bytes(range(256)) * (4 * WINDOW_BYTES // 256)
    assert not pair.near.channel.send(data)
    assert pair.near.channel.buffered == len(data) - WINDOW_BYTES
    assert max(len(body) for _, body in pair.near.said) == AT_ONCE_BYTES
    pair.carry()
    assert pair.far.received == data
    assert pair.near.events == ["writable"]
    assert pair.near.channel.buffered == 0
    assert pair.near.channel.send(b"more")


def test_who_does_not_read_is_sent_a_window_and_no_more() -> None:
    pair = Pair()
    pair.far.channel.pause_reading()
    pair.near.channel.send(b"x" * (2 * WINDOW_BYTES))
    pair.carry()
    assert pair.far.received == b""
    assert pair.near.channel.buffered == WINDOW_BYTES
    assert pair.near.events == []
    pair.far.channel.resume_reading()
    assert pair.far.received == b"", "nothing is handed out from within a call"
    pair.carry()
    assert len(pair.far.received) == 2 * WINDOW_BYTES
    assert pair.near.events == ["writable"]


def test_who_pauses_again_is_handed_nothing_behind_it() -> None:
    pair = Pair()
    pair.far.channel.pause_reading()
    pair.near.channel.send(b"one")
    pair.carry()

    def read_one(data: bytes) -> None:
        pair.far.on_bytes(data)
        pair.far.channel.pause_reading()

    pair.far.channel.on_bytes = read_one
    pair.far.channel.resume_reading()
    pair.carry()
    pair.near.channel.send(b"two")
    pair.carry()
    assert pair.far.received == b"one"


def test_what_was_sent_before_the_end_is_handed_out_before_it() -> None:
    pair = Pair()
    pair.far.channel.pause_reading()
    pair.near.channel.send(b"last")
    pair.near.channel.close()
    pair.carry()
    assert bytes(pair.far.received) == b""
    assert not pair.far.events
    pair.far.channel.resume_reading()
    pair.carry()
    assert bytes(pair.far.received) == b"last"
    assert pair.far.events == ["closed"]
    assert pair.far.channel.closed
    assert not pair.far.channel.send(b"more")


def test_what_waits_is_sent_before_the_channel_closes() -> None:
    pair = Pair()
    data = b"y" * (WINDOW_BYTES + 5)
    pair.near.channel.send(data)
    pair.near.channel.close()
    assert pair.near.events == []
    pair.carry()
    assert pair.far.received == data
    assert pair.near.channel.closed
    assert (pair.near.events, pair.far.events) == ([], ["closed"])


def test_an_abort_loses_what_waits() -> None:
    pair = Pair()
    pair.near.channel.send(b"z" * (WINDOW_BYTES + 5))
    pair.near.channel.abort()
    pair.carry()
    assert len(pair.far.received) == WINDOW_BYTES
    assert pair.far.events == ["closed"]


def test_a_full_link_holds_its_channels_back() -> None:
    pair = Pair()
    pair.near.full = True
    assert not pair.near.channel.send(b"a")
    assert not pair.near.channel.send(b"b")
    assert pair.near.waiting == [pair.near.channel], "told once"
    pair.near.full = False
    pair.near.channel.writable()
    assert pair.near.events == ["writable"]


def test_a_link_that_ends_closes_its_channels_once() -> None:
    pair = Pair()
    pair.near.channel.lost()
    pair.near.channel.lost()
    pair.near.channel.close()
    assert pair.near.events == ["closed"]
    assert pair.near.said == [], "nobody is there to be told"


def test_more_than_was_granted_is_garbage() -> None:
    side = Side()
    side.channel.pause_reading()
    side.channel.came(b"x" * WINDOW_BYTES)
    with pytest.raises(BrokenLink):
        side.channel.came(b"x")
    with pytest.raises(BrokenLink):
        Side().channel.credited(1)


def test_what_its_user_raises_costs_the_channel_alone() -> None:
    pair = Pair()

    def raising(data: bytes) -> None:
        raise ValueError("no")

    pair.far.channel.on_bytes = raising
    pair.near.channel.send(b"x")
    pair.carry()
    assert [str(error) for error in pair.far.errors] == ["no"]
    assert pair.far.channel.closed
    assert pair.near.events == ["closed"]
