"""Any packet in any state, from several clients at once, over time, crashes and lost connections.

Whatever happens: a packet that the state table refuses ends its connection and no other, what the broker sends is what
a client of that version accepts in its state, no packet id is used twice, and no window is exceeded.
"""

from __future__ import annotations

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from conformance.peer import Heard, Peer
from harness import Harness
from headrace.core.ports.settings import BrokerSettings
from headrace.mqtt import codec, packets, states
from headrace.mqtt.packets import Connect, Publish, SubscriptionRequest, Will
from headrace.mqtt.properties import Properties

NAMES = ("a", "b", "c")
TOPICS = ("t", "t/1", "t/2", "$x")
FILTERS = ("t", "t/+", "#", "$share/g/t/#", "$share/g/#", "$x")
VERSIONS = st.sampled_from((3, 4, 5))
IDS = st.integers(1, 4)
ACKS = {
    packets.PUBACK: codec.encode_puback,
    packets.PUBREC: codec.encode_pubrec,
    packets.PUBREL: codec.encode_pubrel,
    packets.PUBCOMP: codec.encode_pubcomp,
}


def server_packet(kind: int, version: int) -> bytes:
    """A well-formed packet of this type that only a server sends."""
    if kind == packets.CONNACK:
        return codec.encode_connack(version, False, 0)
    if kind == packets.SUBACK:
        return codec.encode_suback(version, 1, [0])
    if kind == packets.UNSUBACK:
        return codec.encode_unsuback(version, 1, [0])
    return codec.encode_pingresp()


class Seen:
    """What one connection has received, against the rules of section 4.9 and 2.2.1."""

    def __init__(self, peer: Peer, window: int) -> None:
        self.peer, self.window = peer, window
        self.at = 0
        self.open: dict[int, int] = {}  # packet id -> QoS
        self.for_nothing: list[int] = []  # ids that a PUBREC was sent for without a PUBLISH

    def update(self) -> None:
        for packet in self.peer.hear()[self.at :]:
            self._one(packet)
        self.at = len(self.peer.heard)

    def _one(self, packet: Heard) -> None:
        if isinstance(packet, Publish) and packet.qos:
            assert packet.packet_id not in self.open, f"packet id {packet.packet_id} is in use"
            self.open[packet.packet_id] = packet.qos
            assert len(self.open) <= self.window
        elif isinstance(packet, tuple) and packet[0] == "PUBREL":
            if packet[1] in self.for_nothing:
                self.for_nothing.remove(packet[1])
            else:
                self.open[packet[1]] = 2  # of a resumed session

    def acknowledged(self, packet_id: int) -> None:
        self.open.pop(packet_id, None)


class Walk(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        limits = BrokerSettings()
        limits.receive_maximum = 3
        limits.page_messages = 2
        limits.backlog_messages_max = 20
        limits.session_expiry_max_s = 100
        self.harness = Harness(limits)
        self.seen: list[Seen] = []
        self.payload = 0

    def alive(self) -> list[Seen]:
        return [seen for seen in self.seen if not seen.peer.link.closed]

    def some(self, data: st.DataObject) -> Seen:
        return data.draw(st.sampled_from(self.alive()))

    def send(self, seen: Seen, kind: int, data: bytes) -> None:
        """Send a packet of this type; what the table refuses ends this connection, the others stay."""
        others = [other for other in self.alive() if other is not seen]
        refused = states.after(states.SERVER, seen.peer.server.state, kind) == states.REFUSED
        seen.peer.send(data)
        if refused:
            assert seen.peer.link.closed
        if kind != packets.CONNECT:
            assert not [other for other in others if other.peer.link.closed]

    @rule(
        name=st.sampled_from(NAMES),
        version=VERSIONS,
        clean=st.booleans(),
        window=st.integers(1, 4),
        will=st.booleans(),
        aliases=st.integers(0, 2),
        silent=st.booleans(),
    )
    def connect(
        self, name: str, version: int, clean: bool, window: int, will: bool, aliases: int, silent: bool
    ) -> None:
        options: dict[str, object] = {"clean": clean, "silent": silent and window == 1}
        if will:
            options["will"] = Will("t", b"will", 1, delay_s=5 if version == 5 else 0)
        if version == 5:
            options |= {"receive_maximum": window, "topic_alias_maximum": aliases}
            options["session_expiry_interval"] = 0 if clean else 50
        peer = Peer(self.harness, name, version, **options)  # type: ignore[arg-type]
        self.seen.append(Seen(peer, window if version == 5 else 1024))

    @precondition(lambda self: self.alive())
    @rule(
        data=st.data(),
        topic=st.sampled_from(TOPICS),
        qos=st.integers(0, 2),
        retain=st.booleans(),
        packet_id=IDS,
    )
    def publish(self, data: st.DataObject, topic: str, qos: int, retain: bool, packet_id: int) -> None:
        seen = self.some(data)
        self.payload += 1
        packet = codec.encode_publish(
            seen.peer.version,
            topic.encode(),
            b"%d" % self.payload if self.payload % 7 else b"",
            qos,
            retain,
            False,
            packet_id if qos else 0,
            b"",
            3 if seen.peer.version == 5 and self.payload % 3 == 0 else -1,
        )
        self.send(seen, packets.PUBLISH, packet)

    @precondition(lambda self: self.alive())
    @rule(data=st.data(), kind=st.sampled_from(sorted(ACKS)), packet_id=IDS, refuse=st.booleans())
    def acknowledge(self, data: st.DataObject, kind: int, packet_id: int, refuse: bool) -> None:
        """Mostly what is due, sometimes what is not."""
        seen = self.some(data)
        if seen.open and kind != packets.PUBREL:
            packet_id = data.draw(st.sampled_from(sorted(seen.open)))
        code = 0x83 if refuse and seen.peer.version == 5 and kind in (packets.PUBACK, packets.PUBREC) else 0
        qos = seen.open.get(packet_id, 0)
        ends = (kind == packets.PUBACK and qos == 1) or (kind == packets.PUBCOMP and qos == 2)
        if ends or (kind == packets.PUBREC and code and qos == 2):
            seen.acknowledged(packet_id)
        if kind == packets.PUBREC and code == 0 and qos == 0:
            seen.for_nothing.append(packet_id)
        self.send(seen, kind, ACKS[kind](seen.peer.version, packet_id, code))

    @precondition(lambda self: self.alive())
    @rule(
        data=st.data(),
        filters=st.lists(st.sampled_from(FILTERS), min_size=1, max_size=3),
        qos=st.integers(0, 2),
        handling=st.integers(0, 2),
        identifier=st.integers(0, 2),
    )
    def subscribe(
        self, data: st.DataObject, filters: list[str], qos: int, handling: int, identifier: int
    ) -> None:
        seen = self.some(data)
        requests = [SubscriptionRequest(name, qos, retain_handling=handling) for name in filters]
        properties = Properties()
        properties.subscription_identifiers = [identifier] if identifier else []
        packet = codec.encode_subscribe(seen.peer.version, 9, requests, properties)
        self.send(seen, packets.SUBSCRIBE, packet)

    @precondition(lambda self: self.alive())
    @rule(data=st.data(), filters=st.lists(st.sampled_from(FILTERS), min_size=1, max_size=3))
    def unsubscribe(self, data: st.DataObject, filters: list[str]) -> None:
        seen = self.some(data)
        self.send(seen, packets.UNSUBSCRIBE, codec.encode_unsubscribe(seen.peer.version, 9, filters))

    @precondition(lambda self: self.alive())
    @rule(data=st.data(), kind=st.sampled_from((1, 2, 9, 11, 12, 13, 14, 15)), code=st.sampled_from((0, 4)))
    def any_other(self, data: st.DataObject, kind: int, code: int) -> None:
        seen = self.some(data)
        version = seen.peer.version
        if kind == packets.CONNECT and seen.peer.server.state == states.AWAITING_CONNECT:
            return
        packet = {
            packets.CONNECT: codec.encode_connect(Connect(version, "again")),
            packets.PINGREQ: codec.encode_pingreq(),
            packets.DISCONNECT: codec.encode_disconnect(version, code),
            packets.AUTH: codec.encode_auth(0x18),
        }.get(kind) or server_packet(kind, version)
        self.send(seen, packets.DISCONNECT if kind == packets.CONNECT else kind, packet)
        assert seen.peer.link.closed or kind == packets.PINGREQ

    @precondition(lambda self: self.alive())
    @rule(data=st.data())
    def lose(self, data: st.DataObject) -> None:
        self.some(data).peer.lose()

    @rule(seconds=st.sampled_from((1, 4, 60)))
    def advance(self, seconds: int) -> None:
        self.harness.advance(seconds)

    @rule()
    def crash(self) -> None:
        self.seen = []
        self.harness.crash()

    @invariant()
    def the_broker_keeps_to_the_protocol(self) -> None:
        for seen in self.seen:
            seen.update()
            assert seen.peer.errors == []
        self.seen = self.alive()

    def teardown(self) -> None:
        """After all that, a newcomer is served."""
        probe = Peer(self.harness, "probe")
        probe.subscribe("probe", qos=2)
        heard = probe.publish("probe", b"here", 1, packet_id=8)
        assert ("PUBACK", 8, 0) in heard
        assert [packet.payload for packet in heard if isinstance(packet, Publish)] == [b"here"]


TestWalk = Walk.TestCase
TestWalk.settings = settings(
    max_examples=60, stateful_step_count=40, deadline=None, suppress_health_check=list(HealthCheck)
)
