"""The remote side of a bridge, played by a test: what the link wrote, and what it is answered. No sockets, no clock."""

from __future__ import annotations

import asyncio
from typing import Any

from harness import Harness
from headrace.bridge.counters import BridgeCounters
from headrace.bridge.link import RemoteLink
from headrace.bridge.rendering import trace_of
from headrace.bridge.suspect import Suspect
from headrace.bridge.terms import Terms
from headrace.bridge.topics import Rule, TopicMap, subscriptions
from headrace.mqtt import codec
from headrace.mqtt.packets import Connect
from headrace.mqtt.properties import Properties

RULES = [Rule("up/#", "out", 2, "", "there/"), Rule("down/#", "in", 2, "here/", "")]
TRACE = trace_of("ourselves")
CONNECT, PUBLISH, PUBACK, PUBREC, PUBREL, PUBCOMP, SUBSCRIBE, PINGREQ, DISCONNECT = (
    1,
    3,
    4,
    5,
    6,
    7,
    8,
    12,
    14,
)


class FakeTransport(asyncio.Transport):
    def __init__(self) -> None:
        super().__init__()
        self.written = b""
        self.closed = False
        self.aborted = False
        self.reading = True

    def write(self, data: bytes | bytearray | memoryview) -> None:
        assert not self.closed
        self.written += bytes(data)

    def close(self) -> None:
        self.closed = True

    def abort(self) -> None:
        self.closed = self.aborted = True

    def is_closing(self) -> bool:
        return self.closed

    def pause_reading(self) -> None:
        self.reading = False

    def resume_reading(self) -> None:
        self.reading = True

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None: ...

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return ("127.0.0.1", 1)


class Remote:
    """One connection of the bridge of `harness`, seen from the other end."""

    def __init__(
        self,
        harness: Harness,
        version: int = 5,
        rules: list[Rule] | None = None,
        state_topic: str = "",
        keep_alive_s: int = 0,
        suspect: Suspect | None = None,
    ) -> None:
        self.harness = harness
        self.version = version
        rules = RULES if rules is None else rules
        bridging = harness.broker.bridging()
        outward = subscriptions(rules, outward=True)
        self.session = bridging.open("b", outward)
        harness.sync()
        self.counters = BridgeCounters()
        self.early: list[tuple[int, bytes]] = []
        self.up: list[bool] = []
        self.ended: list[str] = []
        self.drops: list[tuple[str, str, str]] = []
        terms = Terms(
            TopicMap(rules),
            subscriptions(rules, outward=False),
            max(outward.values(), default=0),
            state_topic,
            TRACE,
            100,
            1 << 20,
        )
        connect = Connect(version, "us", False, keep_alive_s)
        if version == 5:
            connect.properties.topic_alias_maximum = 10
        self.link = RemoteLink(
            harness.broker,
            bridging,
            self.session,
            connect,
            terms,
            self.counters,
            suspect or Suspect(),
            self.up.append,
            self.ended.append,
            lambda *drop: self.drops.append(drop),
        )
        self.transport = FakeTransport()
        self.link.connection_made(self.transport)

    def feed(self, data: bytes, sync: bool = True) -> None:
        self.harness.clock.stale = False  # it is the time of the harness
        self.link.data_received(data)
        if sync:
            self.harness.sync()

    def accept(self, present: bool = False, properties: Properties | None = None) -> None:
        """CONNACK, and SUBACK for whatever is asked for; what else was sent until then is kept for `take`."""
        self.feed(codec.encode_connack(self.version, present, 0, properties))
        for first, body in self.take():
            if first >> 4 == SUBSCRIBE:
                self.feed(codec.encode_suback(self.version, int.from_bytes(body[:2], "big"), [2]))
            elif first >> 4 != CONNECT:
                self.early.append((first, body))

    def take(self) -> list[tuple[int, bytes]]:
        """The packets written so far: (first byte, body)."""
        self.harness.worker.end_tick()
        data, self.transport.written = self.transport.written, b""
        packets, pos = self.early, 0
        self.early = []
        while pos < len(data):
            length, shift, at = 0, 0, pos + 1
            while True:
                length |= (data[at] & 127) << shift
                shift += 7
                at += 1
                if data[at - 1] < 128:
                    break
            packets.append((data[pos], data[at : at + length]))
            pos = at + length
        return packets

    def kinds(self) -> list[int]:
        return [first >> 4 for first, _ in self.take()]

    def publishes(self) -> list[tuple[str, bytes, int, bool]]:
        """Topic, payload, packet id, DUP of what was sent (QoS 1 and 2)."""
        found = []
        for first, body in self.take():
            if first >> 4 == PUBLISH:
                at = 2 + int.from_bytes(body[:2], "big")
                packet_id = int.from_bytes(body[at : at + 2], "big")
                skip = 1 + body[at + 2] if self.version == 5 else 0
                found.append((body[2:at].decode(), body[at + 2 + skip :], packet_id, bool(first & 8)))
        return found

    def send(self, topic: str, payload: bytes, packet_id: int, qos: int = 1, **more: Any) -> None:
        sync = more.pop("sync", True)
        data = codec.encode_publish(
            self.version,
            topic.encode(),
            payload,
            qos,
            more.get("retain", False),
            more.get("dup", False),
            packet_id,
            more.get("properties", b""),
        )
        self.feed(data, sync)

    def lose(self) -> None:
        self.link.connection_lost(None)
        self.harness.sync()
