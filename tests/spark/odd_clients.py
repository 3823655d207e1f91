"""Odd messages that real clients publish through a broker, and what must be told of them afterwards.

`Clients` publishes over sockets, with a client and a device that share no code with headrace, and notes of each message
what each column must say: only what was sent, nothing that any journal holds. There are subscribers of every kind; what
each of them got, what waits for it and when it was connected is noted where it happens, for the figures of deliveries.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from time import time
from typing import Any, Final

from broker_process import BrokerProcess
from e2e.device import Device
from e2e.raw import RawClient
from e2e.wire import (
    CONTENT_TYPE,
    CORRELATION_DATA,
    MESSAGE_EXPIRY,
    NEVER,
    PAYLOAD_FORMAT,
    PUBACK,
    PUBCOMP,
    PUBLISH,
    PUBREC,
    PUBREL,
    RECEIVE_MAXIMUM,
    RESPONSE_TOPIC,
    SESSION_EXPIRY,
    TOPIC_ALIAS,
    USER_PROPERTY,
    WILL_DELAY,
    Packet,
)
from spark.odd_values import KINDS, PAIRS, Draw

PUBLISHERS: Final[Mapping[str, int]] = {
    "odd": 5,
    "größe 水/1%2F": 5,
    "c" * 0x8001: 5,
    "\U0010fffd": 5,
    "v4/a": 4,
    "v4%2Fa": 4,
    "v3": 3,
}
"""Client ids by the version of MQTT that they speak."""
DEVICE: Final = "door-9/ü"
TOPICS: Final = ("", "a b", "ü", "%", "x" * 300, "/", "'\\", "\U0010fffd" * 40, "=1/%2F")
ODD: Final[Mapping[int, tuple[Any, ...]]] = {
    PAYLOAD_FORMAT: (0,),
    MESSAGE_EXPIRY: (0, 1, 0x7FFFFFFF, 0x80000000, NEVER - 1, NEVER),
    CONTENT_TYPE: ("", "application/json", "é" * 3000),
    RESPONSE_TOPIC: ("a", "ü", "b/" * 30),
    CORRELATION_DATA: (b"", b"\0\xff" * 100, bytes(range(256))),
}
"""Values of MQTT 5's properties; each may be absent too."""
_COLUMNS: Final = {
    PAYLOAD_FORMAT: "payload_format_indicator",
    MESSAGE_EXPIRY: "message_expiry_s",
    CONTENT_TYPE: "content_type",
    RESPONSE_TOPIC: "response_topic",
    CORRELATION_DATA: "correlation_data",
}
COUNTED: Final = "count"
"""The topic of the messages that subscribers are there for: none of them expires."""
ONLINE, AWAY, ENDED, TRANSIENT, GROUP = "online", "away", "ended", "transient", "$share/g/count"
WATCHER: Final = "watcher"
"""Gets whatever is published while it is there, of which some expires on its way."""
TAKEN: Final = 10
"""Messages that AWAY takes when it is back for a moment."""
ACKED, ENDED_WITH, UNRECORDED = "acked", "session_ended", "not_recorded"
PERSISTENT: Final[Mapping[str, Any]] = {"clean": False, "properties": {SESSION_EXPIRY: NEVER}}


@dataclass
class Stage:
    """What was sent between one start of a broker and its stop."""

    began_us: int
    ended_us: int = 0
    rows: list[dict[str, Any]] = field(default_factory=list)
    """In the order in which they were sent: every column but those that say where in a journal a message is."""


@dataclass
class Connection:
    """When a client was connected, in microseconds since 1970: its connection began and ended between the two of each."""

    client_id: str
    began_us: tuple[int, int]
    outlived: bool
    """Its session did not end with it."""
    ended_us: int = 0
    """Not before; 0 where that is not known."""


class Clients:
    """All clients of a broker in its stages."""

    def __init__(self, seed: int) -> None:
        self.draw = Draw(seed)
        self.stages: list[Stage] = []
        self.delivered: Counter[tuple[str, str]] = Counter()
        """Messages by subscriber and outcome."""
        self.delivered_bytes: Counter[tuple[str, str]] = Counter()
        self.replayed = 0
        """Of these, retained messages that a new subscription got."""
        self.waiting: dict[str, list[int]] = {AWAY: [], ENDED: []}
        """Of the sessions that are away the bytes of each message that waits, the oldest first."""
        self.connections: list[Connection] = []
        """In the order in which each client connected; all of them have ended."""
        self._sequence = 0
        self._wills: list[dict[str, Any]] = []

    @property
    def rows(self) -> list[dict[str, Any]]:
        return [row for stage in self.stages for row in stage.rows]

    def publish_odd(self, broker: BrokerProcess, frame_port: int, count: int) -> None:
        """Publish `count` messages of each client, and each client's will. All clients have gone at the end."""
        with ExitStack() as open_clients, self.connected(broker, WATCHER) as watcher:
            watcher.subscribe("#", qos=2)
            clients = [self._connect(open_clients, broker, *each) for each in PUBLISHERS.items()]
            device = open_clients.enter_context(Device(frame_port, DEVICE.encode()))
            for number in range(count):
                for client in clients:
                    self._publish(client, number)
                self._publish_frame(device)
                self._watch(watcher)
            for client, will in zip(clients, self._wills, strict=True):
                client.abort()
                self.stages[-1].rows.append(will)  # of every QoS
        self._wills.clear()

    def _connect(
        self, open_clients: ExitStack, broker: BrokerProcess, client_id: str, version: int
    ) -> RawClient:
        """Connect a client whose will is as odd as its messages."""
        row, properties = self._drawn(client_id, version)
        row |= {"will": True, "dup": False}
        fields: dict[str, Any] = {}
        if version == 5:
            fields = {"will_properties": {WILL_DELAY: 0, **properties}, "properties": {SESSION_EXPIRY: NEVER}}
        fields |= {"will": (row["topic"], row["payload"]), "will_qos": row["qos"], "clean": False}
        connected = self.connected(broker, client_id, version, will_retain=row["retain"], **fields)
        client = open_clients.enter_context(connected)
        self._wills.append(row)
        return client

    @contextmanager
    def connected(
        self, broker: BrokerProcess, client_id: str, version: int = 5, **fields: Any
    ) -> Iterator[RawClient]:
        """Have a client connected, by default with a session that outlives its connection."""
        with RawClient(broker.address, client_id, version) as client:
            before_us = now_us()
            client.connect(**(fields or PERSISTENT))
            outlived = not fields.get("clean") or SESSION_EXPIRY in fields.get("properties", ())
            connection = Connection(client_id, (before_us, now_us()), outlived)
            self.connections.append(connection)
            yield client
            if client.socket.fileno() >= 0:  # it was not aborted
                connection.ended_us = now_us()
                client.disconnect()

    def _drawn(self, client_id: str, version: int) -> tuple[dict[str, Any], dict[int, Any]]:
        """Return the row of a message and the properties that it is sent with."""
        draw = self.draw
        name = draw.choice((*KINDS, "nowhere"))
        row: dict[str, Any] = {
            "tenant": "default",
            "topic": f"{name}/{draw.choice(TOPICS)}",
            "client_id": client_id,
            "qos": draw.choice((0, 1, 1, 2)),
            "retain": draw.random() < 0.4,
            "dup": False,
            "will": False,
            "mqtt5": version == 5,
            "protocol": "mqtt",
            "payload": draw.payload(KINDS.get(name)),
            "user_properties": [],
            **dict.fromkeys(_COLUMNS.values()),
        }
        row["dup"] = row["qos"] > 0 and draw.random() < 0.2
        properties: dict[int, Any] = {}
        if version == 5:
            properties = {name: draw.choice(values) for name, values in ODD.items() if draw.random() < 0.6}
            pairs = [draw.choice(PAIRS) for _ in range(draw.randrange(4))]
            row |= {_COLUMNS[name]: value for name, value in properties.items()}
            row["user_properties"] = [{"name": name, "value": value} for name, value in pairs]
            if pairs:
                properties[USER_PROPERTY] = pairs
        return row, properties

    def _publish(self, client: RawClient, number: int) -> None:
        row, properties = self._drawn(client.client_id, client.version)
        topic = row["topic"]
        if number < 2 and client.version == 5:  # the second is sent without its topic
            row["topic"], row["qos"], row["dup"] = "nowhere/alias", 1, False
            properties[TOPIC_ALIAS] = 1
            topic = "" if number else row["topic"]
        client.deliver(
            topic, row["payload"], row["qos"], retain=row["retain"], dup=row["dup"], properties=properties
        )
        self._note(row)

    def _publish_frame(self, device: Device) -> None:
        row, _ = self._drawn(DEVICE, 0)
        row |= {"qos": 1, "retain": False, "dup": False, "protocol": "frame"}
        device.publish(self._sequence, row["topic"], row["payload"])
        self._sequence += 1
        self._note(row)

    def _note(self, row: dict[str, Any]) -> None:
        """Note what a table must have: at QoS 0 what is retained alone."""
        if row["qos"] or row["retain"]:
            self.stages[-1].rows.append(row)

    def publish_numbers(self, client: RawClient, topic: str, payloads: Iterator[bytes]) -> list[int]:
        """Publish at QoS 1 what names itself, and return the bytes of each."""
        sizes = []
        for payload in payloads:
            client.deliver(topic, payload, 1)
            row, _ = self._drawn(client.client_id, 0)
            row |= {"topic": topic, "payload": payload, "qos": 1, "retain": False, "dup": False}
            self._note(row | {"mqtt5": client.version == 5})
            sizes.append(len(payload))
        return sizes

    def begin(self) -> None:
        self.stages.append(Stage(now_us()))

    def end(self) -> None:
        self.stages[-1].ended_us = now_us()

    # Subscribers, and what became of what was queued for them

    def subscribe(self, broker: BrokerProcess, client_id: str, topic_filter: str = COUNTED) -> None:
        """A persistent session of QoS 1 that is away from then on."""
        with self.connected(broker, client_id) as client:
            client.subscribe(topic_filter, qos=1)

    def publish_counted(self, broker: BrokerProcess, count: int) -> None:
        """Publish for all subscribers; ONLINE and TRANSIENT get it at once, and a member of the group its share."""
        with (
            self.connected(broker, ONLINE) as online,
            self.connected(broker, TRANSIENT, 4, clean=True) as transient,
            self.connected(broker, "member") as member,
            self.connected(broker, "counter", 4, clean=True) as publisher,
        ):
            online.subscribe(COUNTED, qos=1)
            transient.subscribe(COUNTED, qos=1)
            member.subscribe(GROUP, qos=1)
            sizes = self.publish_numbers(publisher, COUNTED, (b"%d" % number for number in range(count)))
            for client in (online, transient, member):
                assert [client.receive().payload for _ in range(count)] == [b"%d" % n for n in range(count)]
                client.ping()
        for client_id, outcome in ((ONLINE, ACKED), (GROUP, ACKED), (TRANSIENT, UNRECORDED)):
            self._settle(client_id, outcome, sizes)
        for waiting in self.waiting.values():
            waiting += sizes

    def come_back(self, broker: BrokerProcess) -> None:
        """AWAY takes some of what waits for it; of ENDED the session begins anew, and what waited is dropped."""
        waiting = self.waiting[AWAY]
        with self.connected(
            broker, AWAY, properties={SESSION_EXPIRY: NEVER, RECEIVE_MAXIMUM: TAKEN}, clean=False
        ) as away:
            found = [away.expect(PUBLISH) for _ in range(TAKEN)]
            assert [len(packet.payload) for packet in found] == waiting[:TAKEN]
            for packet in found:
                away.ack(PUBACK, packet.packet_id)
            away.ping()
        self._settle(AWAY, ACKED, waiting[:TAKEN])
        del waiting[:TAKEN]
        with self.connected(broker, ENDED, properties={SESSION_EXPIRY: NEVER}, clean=True) as ended:
            ended.subscribe(COUNTED, qos=1)
        self._settle(ENDED, ENDED_WITH, self.waiting[ENDED])
        self.waiting[ENDED] = []

    def _watch(self, watcher: RawClient) -> None:
        """Take what has come to WATCHER by now."""
        for packet in watcher.ping():
            if packet.qos:
                # When it was published, of what was retained before it subscribed again, is no latency of its.
                self._settle(WATCHER, ACKED, [len(packet.payload)])
                self.replayed += packet.retain
            complete(watcher, packet)

    def _settle(self, client_id: str, outcome: str, sizes: list[int]) -> None:
        self.delivered[client_id, outcome] += len(sizes)
        self.delivered_bytes[client_id, outcome] += sum(sizes)


def complete(client: RawClient, packet: Packet) -> None:
    """Answer a PUBLISH to the end of its handshake."""
    if packet.qos == 1:
        client.ack(PUBACK, packet.packet_id)
    elif packet.qos == 2:
        client.ack(PUBREC, packet.packet_id)
        client.expect_ack(PUBREL, packet.packet_id)
        client.ack(PUBCOMP, packet.packet_id)


def now_us() -> int:
    return int(time() * 1_000_000)
