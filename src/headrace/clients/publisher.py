"""The publisher of `headrace bench`: keeps its window full, or sends when it is told to.

Compiled with the core.
"""

from __future__ import annotations

from typing import Final

from librt.strings import write_i16_be, write_i64_be
from mypy_extensions import i16, i64

from headrace.clients.load import HEAD_BYTES, LoadClient, Turn
from headrace.clients.tally import Tally
from headrace.core.state.inflight import NOT_IN_FLIGHT, Window
from headrace.mqtt import codec
from headrace.mqtt.data_types import text, varint
from headrace.mqtt.packets import VERSION_5, Connect

_IDS: Final = 65_535


class Publisher(LoadClient):
    """One publisher of a run. Keeps, once `filling`, `window` messages unacknowledged. `left` is how many it may still
    send then, negative without a limit. `unacked` holds the send time of each under its serial number, of which the
    packet id is a view."""

    def __init__(
        self,
        tally: Tally,
        turn: Turn,
        connect: Connect,
        topic: str,
        qos: int,
        number: int,
        window: int,
        padding: bytes,
    ) -> None:
        super().__init__(tally, turn, connect, topic, qos)
        self.number = number
        self.window = window
        self.filling = False
        self.left: int = -1
        self.unacked = Window()
        self.serial: i64 = 0
        self._before_id, self._behind_id = _around_id(connect.version, topic, qos, len(padding))
        self._padding = padding

    def answer(self) -> None:
        if self.filling:
            self.fill()
        self.flush()

    def fill(self) -> None:
        """Send until the window is full, now and whenever there is room again."""
        self.filling = True
        if self.tally.stopping:
            return
        count = self.window - int(self.unacked.count)
        if 0 <= self.left < count:
            count = self.left
        if self.left > 0:
            self.left -= count
        self.send(count)

    def send(self, count: i64) -> None:
        """Put that many messages into the output; `flush` writes it."""
        tally = self.tally
        out = self.out
        now_ns: i64 = self.clock()
        first = tally.sequences[self.number]
        mark: i64 = self.number << 32 | first
        for _ in range(count):
            out.write(self._before_id)
            if self.qos:
                write_i16_be(out, self._next_id(now_ns))
            out.write(self._behind_id)
            write_i64_be(out, now_ns)
            write_i64_be(out, mark)
            out.write(self._padding)
            mark += 1
        tally.sequences[self.number] = first + int(count)
        tally.sent += int(count)

    def _next_id(self, now_ns: i64) -> i16:
        """Return the packet id of the message sent now, as the two bytes that it is."""
        packet_id: i64 = self.serial % _IDS + 1
        self.serial += 1
        self.unacked.put(self.serial, now_ns)
        return i16(packet_id - 0x10000 if packet_id > 0x7FFF else packet_id)

    def on_puback(self, packet_id: int, reason_code: int) -> None:
        self._done(packet_id)

    def on_pubrec(self, packet_id: int, reason_code: int) -> None:
        self.out.write(codec.encode_pubrel(self.version, packet_id))

    def on_pubcomp(self, packet_id: int, reason_code: int) -> None:
        self._done(packet_id)

    def _done(self, packet_id: i64) -> None:
        serial: i64 = self.serial - (self.serial - packet_id) % _IDS
        sent_ns = self.unacked.get(serial)
        tally = self.tally
        tally.acked += 1
        if sent_ns != NOT_IN_FLIGHT:
            self.unacked.remove(serial)
            if tally.measuring:
                tally.acknowledgement.add((self.now_ns - sent_ns) // 1000)


def _around_id(version: int, topic: str, qos: int, padding_bytes: int) -> tuple[bytes, bytes]:
    """Return what is the same in every PUBLISH up to its packet id, and between that and the payload: no properties."""
    properties = b"\0" if version == VERSION_5 else b""
    name = text(topic)
    size = len(name) + (2 if qos else 0) + len(properties) + HEAD_BYTES + padding_bytes
    return bytes((0x30 | qos << 1,)) + varint(size) + name, properties
