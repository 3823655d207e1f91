"""Odd messages that real clients publish through a broker, and what must be told of them afterwards.

`Clients` publishes over sockets, with a client and a device that share no code with headrace, and notes of each message
what each column must say: only what was sent, nothing that any journal holds. There are subscribers of every kind, so
that the journals are not of messages alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack
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
    RESPONSE_TOPIC,
    SESSION_EXPIRY,
    TOPIC_ALIAS,
    USER_PROPERTY,
    WILL_DELAY,
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
ONLINE, AWAY, TRANSIENT, GROUP = "online", "away", "transient", "$share/g/count"


@dataclass
class Stage:
    """What was sent between one start of a broker and its stop."""

    began_us: int
    ended_us: int = 0
    rows: list[dict[str, Any]] = field(default_factory=list)
    """In the order in which they were sent: every column but those that say where in a journal a message is."""


class Clients:
    """All clients of a broker in its stages."""

    def __init__(self, seed: int) -> None:
        self.draw = Draw(seed)
        self.stages: list[Stage] = []
        self._sequence = 0
        self._wills: list[dict[str, Any]] = []

    @property
    def rows(self) -> list[dict[str, Any]]:
        return [row for stage in self.stages for row in stage.rows]

    def publish_odd(self, broker: BrokerProcess, frame_port: int, count: int) -> None:
        """Publish `count` messages of each client, and each client's will. All clients have gone at the end."""
        with ExitStack() as open_clients:
            clients = [self._connect(open_clients, broker, *each) for each in PUBLISHERS.items()]
            device = open_clients.enter_context(Device(frame_port, DEVICE.encode()))
            for number in range(count):
                for client in clients:
                    self._publish(client, number)
                self._publish_frame(device)
            for client, will in zip(clients, self._wills, strict=True):
                client.abort()
                self.stages[-1].rows.append(will)  # of every QoS
        self._wills.clear()

    def _connect(
        self, open_clients: ExitStack, broker: BrokerProcess, client_id: str, version: int
    ) -> RawClient:
        """Connect a client whose will is as odd as its messages."""
        client = open_clients.enter_context(RawClient(broker.address, client_id, version))
        row, properties = self._drawn(client_id, version)
        row |= {"will": True, "dup": False}
        fields: dict[str, Any] = {}
        if version == 5:
            fields = {"will_properties": {WILL_DELAY: 0, **properties}, "properties": {SESSION_EXPIRY: NEVER}}
        client.connect(
            clean=False,
            will=(row["topic"], row["payload"]),
            will_qos=row["qos"],
            will_retain=row["retain"],
            **fields,
        )
        self._wills.append(row)
        return client

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

    def publish_numbers(self, client: RawClient, topic: str, payloads: Iterator[bytes]) -> None:
        """Publish at QoS 1 what names itself."""
        for payload in payloads:
            client.deliver(topic, payload, 1)
            row, _ = self._drawn(client.client_id, 0)
            row |= {"topic": topic, "payload": payload, "qos": 1, "retain": False, "dup": False}
            self._note(row | {"mqtt5": client.version == 5})

    def begin(self) -> None:
        self.stages.append(Stage(int(time() * 1_000_000)))

    def end(self) -> None:
        self.stages[-1].ended_us = int(time() * 1_000_000)

    def subscribe(self, broker: BrokerProcess, client_id: str, topic_filter: str = COUNTED) -> None:
        """A persistent session of QoS 1 that is away from then on."""
        with RawClient(broker.address, client_id, 5) as client:
            client.connect(clean=False, properties={SESSION_EXPIRY: NEVER})
            client.subscribe(topic_filter, qos=1)
            client.disconnect()

    def publish_counted(self, broker: BrokerProcess, count: int) -> None:
        """Publish for all subscribers; ONLINE and TRANSIENT get it at once, and a member of the group its share."""
        with (
            RawClient(broker.address, ONLINE, 5) as online,
            RawClient(broker.address, TRANSIENT, 4) as transient,
            RawClient(broker.address, "member", 5) as member,
            RawClient(broker.address, "counter", 4) as publisher,
        ):
            for client in (online, member):
                client.connect(clean=False, properties={SESSION_EXPIRY: NEVER})
            for client in (transient, publisher):
                client.connect()
            online.subscribe(COUNTED, qos=1)
            transient.subscribe(COUNTED, qos=1)
            member.subscribe(GROUP, qos=1)
            self.publish_numbers(publisher, COUNTED, (b"%d" % number for number in range(count)))
            for client in (online, transient, member):
                assert [client.receive().payload for _ in range(count)] == [b"%d" % n for n in range(count)]
                client.ping()
            for client in (online, transient, member, publisher):
                client.disconnect()
