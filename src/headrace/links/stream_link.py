"""A link over a byte stream: what every connection does with its transport, whoever of the two said CONNECT.

What is read goes to the parser, which calls the link; who sends without a pause gets a share of each pass of the loop
(decision 44), and what is behind it waits in its place while nothing more is read. What is written leaves once per tick,
and who does not read it is cut off. `net.connection` adds what is special about clients, `bridge.link` about other
brokers. Compiled with the core (decision 27): asyncio takes any object with these methods as a protocol.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

from mypy_extensions import i64

from headrace.core.ports.link import WorkerPort
from headrace.core.ports.timers import Alarm
from headrace.links.mqtt_link import MqttLink
from headrace.sockets.plain import PlainTransport, Receiver
from headrace.stream import MORE, WHOLE, ByteStream

if TYPE_CHECKING:
    import asyncio

_LINGER_MS: Final = 5000
PENDING_BYTES_MAX: Final = 16 << 20
_STILL_US: Final = 250_000  # the node's timer sets the clock more often: after so long the loop stood still


class StreamLink(MqttLink, Receiver):
    """A link over one byte stream and its parser, `_stream`, which a subclass sets before the transport comes.

    `share_bytes` is what gets parsed of it in a pass of the loop; how many packets at most is a question of how many
    others there are (`core.inbound.turns`).
    """

    _stream: ByteStream

    def __init__(self, worker: WorkerPort, pending_bytes_max: int, share_bytes: int) -> None:
        super().__init__(worker)
        self._transport: PlainTransport | asyncio.Transport | None = None
        self._pending_bytes_max = pending_bytes_max
        self._share_bytes: i64 = share_bytes
        self._closing = False
        self._held = False
        self._aside: bytes | None = None  # read, and not parsed yet; b"" when that is in the parser
        self._aside_at: i64 = 0
        self._in_turn = False

    # What a subclass says

    def failed(self, error: Exception) -> None:
        """End this connection after an exception that nobody expected; it costs nobody else anything."""
        raise NotImplementedError

    def cut_unread(self) -> None:
        """End the connection: more is written than may wait for a peer that does not read it."""
        raise NotImplementedError

    def note_partial(self) -> None:
        """Note that what was read ends within a packet."""

    # asyncio.Protocol

    def connection_made(self, transport: PlainTransport | asyncio.Transport) -> None:
        self._transport = transport
        transport.set_write_buffer_limits(high=self.worker.settings.write_buffer_high)

    def data_received(self, data: bytes) -> None:
        worker = self.worker
        clock = worker.clock
        if clock.stale:
            clock.stale = False
            now_us = time.time_ns() // 1000
            if not 0 <= now_us - clock.now_us <= _STILL_US:
                clock.mono_ms = time.monotonic_ns() // 1_000_000
            clock.now_us = now_us
            worker.request_tick()
        worker.bytes_received += len(data)
        if self.meter is not None:
            self.meter.read(len(data))
        try:
            if self._aside is None and len(data) <= self._share_bytes:
                stream = self._stream
                stream.packets_at_once = worker.share
                stream.receive_data(data)
                if stream.outcome == WHOLE:
                    self.last_seen_ms = clock.mono_ms
                else:
                    self._unfinished()
            else:
                self._set_aside(data)
        except Exception as error:  # noqa: BLE001  it must not cost the others, whatever the transport makes of it
            self.failed(error)

    def eof_received(self) -> bool:
        return False

    def connection_lost(self, error: Exception | None) -> None:
        self.closed = True
        self._aside = None
        self.out = None
        self._transport = None
        self._stream.stop()
        self._stop_timer()

    def pause_writing(self) -> None:
        self.paused = True

    def resume_writing(self) -> None:
        self.paused = False
        self.broker.on_writable(self)

    # Reading, a share of a pass at a time

    def _unfinished(self) -> None:
        """Note that the parser has handled its share of packets, or holds a part of one: no sign of life
        [MQTT-3.1.2-22]."""
        if self._stream.outcome != MORE:
            self.note_partial()
            return
        self.last_seen_ms = self.worker.clock.mono_ms
        if self._aside is None:
            self._keep_aside(b"")
            self._take_turn()

    def _set_aside(self, data: bytes) -> None:
        """Keep what is more than a share of a pass: read no more, and take turns with the others."""
        aside = self._aside
        if aside is not None:
            self._aside = aside[self._aside_at :] + data
            self._aside_at = 0
            return
        self._keep_aside(data)
        self._read_on()

    def _keep_aside(self, data: bytes) -> None:
        self._aside = data
        self._aside_at = 0
        if self._transport is not None and not self._held:
            self._transport.pause_reading()

    def _take_turn(self) -> None:
        if self._in_turn:  # held until now, in its place
            self.worker.request_tick()
        else:
            self._in_turn = True
            self.worker.take_turns(self)

    def read_on(self) -> None:
        try:
            self._read_on()
        except Exception as error:  # noqa: BLE001  it must not cost the others their turns
            self.failed(error)

    def _read_on(self) -> None:
        aside = self._aside
        self._in_turn = False
        if aside is None or self._held:
            return
        stream = self._stream
        start: i64 = self._aside_at
        stream.packets_at_once = self.worker.share
        if stream.outcome == MORE:
            stream.parse_on()
        else:
            self._aside_at = min(start + self._share_bytes, len(aside))
            stream.receive_data(aside[start : self._aside_at])
        if stream.outcome == WHOLE:
            self.last_seen_ms = self.worker.clock.mono_ms
        else:
            self._unfinished()
        aside = self._aside
        if aside is None:
            return
        if stream.outcome == MORE or self._aside_at < len(aside):
            self._take_turn()
            return
        self._aside = None
        self._read_again()

    def _read_again(self) -> None:
        transport = self._transport
        if transport is not None and not self._held and not self._closing:
            transport.resume_reading()

    def deaf(self) -> bool:
        return self._held or self._aside is not None or self.holds != 0

    def pause_reading(self) -> None:
        transport = self._transport
        if transport is not None and not self._held:
            self._held = True
            if self._aside is None:
                transport.pause_reading()

    def resume_reading(self) -> None:
        if self._held:
            self._held = False
            self.last_seen_ms = self.worker.clock.mono_ms
            if self._aside is not None:
                self._take_turn()
            else:
                self._read_again()

    def hold(self) -> None:
        """Parse and read nothing more until `release`: the answer to CONNECT needs time."""
        self._stream.hold()
        self.pause_reading()

    def release(self) -> None:
        self.resume_reading()
        self._stream.packets_at_once = self.worker.share
        self._stream.release()
        if self._stream.outcome != WHOLE:
            self._unfinished()

    def leave(self) -> None:
        self._stream.leave()
        self.pause_reading()

    def unparsed(self) -> bytes:
        aside = self._aside
        return self._stream.unparsed + (b"" if aside is None else aside[self._aside_at :])

    # Writing, and the end

    def flush(self) -> None:
        out = self.out
        if out is None:
            return
        self.out = None
        transport = self._transport
        if transport is not None:
            self.worker.bytes_sent += len(out)
            try:
                transport.write(out.getvalue())
            except Exception as error:  # noqa: BLE001  the others have something to write, too
                self.failed(error)
            self.worker.buffers.give_back(out)
            if self._closing:
                transport.close()
            else:
                self.bound_pending()

    def bound_pending(self) -> None:
        """Cut off a peer that does not read: deliveries stop at the high mark, and what still grows are its answers."""
        transport = self._transport
        if (
            self.paused
            and not self._closing
            and transport is not None
            and transport.get_write_buffer_size() > self._pending_bytes_max
        ):
            self.cut_unread()

    def close(self) -> None:
        if self._closing and self.timer is not None:
            return  # it lingers already: who is closed again and again must not stay for that
        self._stream.stop()
        self._closing = True
        self._stop_timer()
        transport = self._transport
        if transport is None:
            return
        if self.out is None:
            transport.close()
        # A peer that never reads must not keep the socket: cut it off after the linger time.
        self.timer = Alarm(self.abort)
        self.worker.timers.schedule(self.worker.clock.mono_ms + _LINGER_MS, self.timer)

    def abort(self) -> None:
        transport = self._transport
        if transport is not None:
            transport.abort()

    def _stop_timer(self) -> None:
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None
