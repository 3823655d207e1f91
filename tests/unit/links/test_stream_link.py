"""What a client's connection and one to another broker do alike with their streams."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pytest

from harness import Harness
from headrace.links.stream_link import PENDING_BYTES_MAX, StreamLink
from headrace.mqtt import codec
from headrace.mqtt.packets import Connect
from headrace.net.connection import Connection, ConnectionSet
from unit.bridge.remote import FakeTransport, Remote


class Transport(FakeTransport):
    """`waiting` bytes were written and not read by the peer; with `broken` a write raises."""

    waiting = 0
    broken = False

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if self.broken:
            raise ValueError("write")
        super().write(data)

    def get_write_buffer_size(self) -> int:
        return self.waiting


@dataclass
class Stream:
    """A connection that is let in, and a packet of the peer that may come any number of times."""

    harness: Harness
    link: StreamLink
    transport: Transport
    packet: bytes

    def hear(self, data: bytes) -> None:
        self.harness.clock.stale = False
        self.link.data_received(data)


def of_a_client() -> Stream:
    harness, transport = Harness(), Transport()
    link = Connection(harness.worker, ConnectionSet(10, 1000))
    link.connection_made(transport)
    stream = Stream(harness, link, transport, codec.PINGREQ)
    stream.hear(codec.encode_connect(Connect(4, "c", keep_alive_s=0)))
    harness.sync()
    return stream


def of_a_bridge() -> Stream:
    harness, transport = Harness(), Transport()
    remote = Remote(harness, version=4, rules=[])
    remote.link.connection_made(transport)
    remote.transport = transport
    remote.accept()
    return Stream(harness, remote.link, transport, codec.PINGRESP)


both = pytest.mark.parametrize("make", [of_a_client, of_a_bridge])
Make = Callable[[], Stream]


def in_silence(make: Make) -> Stream:
    """A stream whose greeting has left: what is written from now on is the test's."""
    stream = make()
    stream.harness.worker.end_tick()
    stream.transport.written = b""
    return stream


@both
@pytest.mark.parametrize("size", [1, 1000, 100_000])
def test_what_is_more_than_a_share_waits_and_nothing_is_read_meanwhile(make: Make, size: int) -> None:
    stream = make()
    stream.hear(stream.packet * size)
    passes = 0
    while not stream.transport.reading:
        assert stream.link.deaf()
        stream.harness.worker.end_tick()
        passes += 1
        assert passes < 1000
    assert not stream.link.deaf()
    assert (passes > 5) == (size == 100_000)
    assert not stream.transport.closed


@both
def test_nothing_is_parsed_between_hold_and_release(make: Make) -> None:
    stream = make()
    stream.hear(stream.packet[:1])
    stream.link.hold()
    assert not stream.transport.reading
    stream.hear(stream.packet[1:] + b"\xff\xff")  # not MQTT, but nobody looks
    stream.harness.sync()
    for release in (False, True):
        if release:
            stream.link.release()
            stream.harness.sync()
        assert stream.transport.closed is release


@both
def test_who_is_paused_in_its_turn_reads_on_where_it_was(make: Make) -> None:
    stream = make()
    stream.hear(stream.packet * 100_000)
    stream.link.pause_reading()
    for _ in range(100):
        stream.harness.worker.end_tick()
    assert not stream.transport.reading
    stream.link.resume_reading()
    for _ in range(1000):
        stream.harness.worker.end_tick()
    assert stream.transport.reading


@both
def test_what_is_said_leaves_once_per_tick(make: Make) -> None:
    stream = in_silence(make)
    stream.link.puback(1)
    stream.link.puback(2)
    assert stream.transport.written == b""
    stream.harness.worker.end_tick()
    assert stream.transport.written == codec.encode_puback(4, 1) + codec.encode_puback(4, 2)


@both
def test_a_peer_that_does_not_read_is_cut_off_at_the_limit(make: Make) -> None:
    stream = make()
    stream.link.pause_writing()
    for waiting, cut in ((PENDING_BYTES_MAX, False), (PENDING_BYTES_MAX + 1, True)):
        stream.transport.waiting = waiting
        stream.link.puback(1)
        stream.harness.worker.end_tick()
        assert stream.transport.aborted is cut


@both
def test_a_write_that_fails_costs_the_connection(make: Make) -> None:
    stream = make()
    stream.transport.broken = True
    stream.link.puback(1)
    stream.harness.worker.end_tick()
    assert stream.transport.aborted


@both
def test_what_is_closed_says_the_last_word_and_lingers_for_a_while(make: Make) -> None:
    stream = in_silence(make)
    stream.link.puback(1)
    stream.link.close()
    for said in (b"", codec.encode_puback(4, 1)):
        assert (stream.transport.written, stream.transport.closed) == (said, said != b"")
        stream.harness.worker.end_tick()
    for seconds, cut in ((4, False), (2, True)):
        stream.harness.advance(seconds)
        assert stream.transport.aborted is cut


@both
def test_what_is_closed_again_and_again_lingers_no_longer_for_that(make: Make) -> None:
    stream = in_silence(make)
    stream.link.puback(1)
    stream.link.close()
    stream.harness.worker.end_tick()
    for _ in range(4):
        assert not stream.transport.aborted
        stream.harness.advance(1.5)
        stream.link.close()
    assert stream.transport.aborted


@both
def test_nothing_comes_behind_the_end(make: Make) -> None:
    stream = in_silence(make)
    stream.hear(stream.packet * 100_000)
    stream.link.connection_lost(None)
    stream.link.puback(1)
    for _ in range(10):
        stream.harness.worker.end_tick()
    assert stream.link.closed
    assert stream.transport.written == b""
