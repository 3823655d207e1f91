"""The subscriber of `headrace bench`: acknowledges what comes, and checks that it is all there and in order.

Compiled with the core.
"""

from __future__ import annotations

from librt.strings import read_i64_be, write_i32_be
from mypy_extensions import i32, i64

from headrace.clients.load import HEAD_BYTES, LoadClient, Turn
from headrace.clients.tally import Tally
from headrace.errors import MalformedPacket
from headrace.mqtt import codec
from headrace.mqtt.data_types import read_u16, varint_size
from headrace.mqtt.packets import VERSION_5, Connect, Suback, SubscriptionRequest
from headrace.mqtt.properties import area_length


class Subscriber(LoadClient):
    """One subscriber of a run. `expected` is the next sequence number of each publisher it has heard of.

    One that comes back for its session must find it: without it what waited is gone.
    """

    def __init__(self, tally: Tally, turn: Turn, connect: Connect, topic: str, qos: int) -> None:
        super().__init__(tally, turn, connect, topic, qos)
        self.expected: dict[int, int] = {}
        self.subscribed = False

    def connected(self, session_present: bool) -> None:
        if self.subscribed and not self.connect_packet.clean_start:
            self.tally.refused += not session_present
            self.tally.ready += 1
            return
        self.out.write(codec.encode_subscribe(self.version, 1, [SubscriptionRequest(self.topic, self.qos)]))

    def on_suback(self, packet: Suback) -> None:
        if packet.reason_codes[0] > 2:
            self.tally.refused += 1
        self.subscribed = True
        self.tally.ready += 1

    def on_message(self, first: i64, data: bytes, pos: i64, end: i64) -> None:
        pos += 2 + read_u16(data, pos, end)
        qos: i64 = first >> 1 & 3
        if qos:
            answer: i64 = codec.PUBACK if qos == 1 else codec.PUBREC
            write_i32_be(self.out, i32(answer << 24 | 0x20000 | read_u16(data, pos, end)))
            pos += 2
        if self.version == VERSION_5:
            length = area_length(data, pos, end)
            pos += varint_size(length) + length
        if pos + HEAD_BYTES > end:
            raise MalformedPacket("a PUBLISH that no publisher of this run sent")
        tally = self.tally
        tally.received += 1
        if tally.measuring:
            sent_ns: i64 = read_i64_be(data, pos)
            # What waited for its subscriber is measured from the return.
            since_ns: i64 = sent_ns if sent_ns > self.opened_ns else self.opened_ns
            tally.delivery.add((self.now_ns - since_ns) // 1000)
        mark: i64 = read_i64_be(data, pos + 8)
        self._note(mark >> 32, mark & 0xFFFF_FFFF, first & 8 != 0)

    def _note(self, publisher: i64, sequence: i64, dup: bool) -> None:
        if sequence >= self.expected.get(publisher, 0):
            self.expected[publisher] = sequence + 1
        elif dup:
            self.tally.repeats += 1
        else:
            self.tally.reordered += 1

    def on_pubrel(self, packet_id: int, reason_code: int) -> None:
        self.out.write(codec.encode_pubcomp(self.version, packet_id))
