"""A client over the in-memory harness that decodes everything it is sent; it answers nothing by itself."""

from __future__ import annotations

from harness import Harness
from headrace.errors import ProtocolError
from headrace.mqtt import codec
from headrace.mqtt.client_protocol import ClientHandler, ClientProtocol
from headrace.mqtt.packets import (
    Auth,
    Connack,
    Connect,
    Disconnect,
    Publish,
    Suback,
    SubscriptionRequest,
    Unsuback,
    Will,
)
from headrace.mqtt.properties import Properties
from headrace.mqtt.protocol import ServerProtocol
from headrace.storage.memory import MemoryLink

Heard = Connack | Publish | Suback | Unsuback | Disconnect | Auth | tuple[str, int, int] | str


class Peer(ClientHandler):
    """`heard` is what came, in order: packets, and acknowledgements as (name, packet id, reason code)."""

    def __init__(
        self, harness: Harness, client_id: str = "", version: int = 5, behind: bytes = b"", **options: object
    ) -> None:
        super().__init__()
        self.harness, self.version = harness, version
        self.heard: list[Heard] = []
        self.sizes: list[int] = []
        self.errors: list[ProtocolError] = []
        self.link = MemoryLink(harness.worker)
        self.server = ServerProtocol(self.link, 1 << 20, harness.settings.topic_alias_maximum)
        self.server.reason_strings = harness.settings.reason_strings
        self.link.protocol = self.server
        self.properties = Properties()
        will = options.pop("will", None)
        clean = bool(options.pop("clean", True))
        silent = bool(options.pop("silent", False))
        keep_alive_s = int(str(options.pop("keep_alive_s", 0)))
        for name, value in options.items():
            setattr(self.properties, name, value)
        alias_maximum = self.properties.topic_alias_maximum or 0
        self.client = ClientProtocol(self, 1 << 28, alias_maximum)
        assert will is None or isinstance(will, Will)
        connect = Connect(version, client_id, clean, keep_alive_s, None, None, will, self.properties)
        self.client.connect(connect)
        if silent:
            return
        self.send(codec.encode_connect(connect) + behind)

    def send(self, data: bytes) -> None:
        self.harness.worker.clock.now_us = self.harness.now_us
        self.server.receive_data(data)
        if self.link.closed:
            self.server.stop()
        self.harness.sync()
        self.hear()

    def hear(self) -> list[Heard]:
        self.link.flush()
        data, self.link.sent = self.link.sent, b""
        if data:
            self.client.receive_data(data)
        return self.heard

    def take(self) -> list[Heard]:
        self.hear()
        heard, self.heard = self.heard, []
        return heard

    def publishes(self) -> list[Publish]:
        return [packet for packet in self.take() if isinstance(packet, Publish)]

    @property
    def connack(self) -> Connack:
        found = self.heard[0]
        assert isinstance(found, Connack)
        return found

    def subscribe(
        self, *requests: str | SubscriptionRequest, qos: int = 1, identifier: int = 0
    ) -> list[Heard]:
        """SUBSCRIBE with packet id 900; returns what came, which is SUBACK and what is retained."""
        properties = Properties()
        if identifier:
            properties.subscription_identifiers = [identifier]
        wanted = [SubscriptionRequest(one, qos) if isinstance(one, str) else one for one in requests]
        self.take()
        self.send(codec.encode_subscribe(self.version, 900, wanted, properties))
        return self.take()

    def publish(
        self,
        topic: str,
        payload: bytes = b"x",
        qos: int = 0,
        retain: bool = False,
        packet_id: int = 7,
        properties: bytes = b"",
        expiry_s: int = -1,
    ) -> list[Heard]:
        """Returns what it was answered."""
        self.take()
        data = codec.encode_publish(
            self.version,
            topic.encode(),
            payload,
            qos,
            retain,
            False,
            packet_id if qos else 0,
            properties,
            expiry_s,
        )
        self.send(data)
        return self.take()

    def lose(self) -> None:
        self.link.closed = True
        self.link.broker.on_connection_lost(self.link)
        self.harness.sync()

    # ClientHandler

    def on_connack(self, packet: Connack) -> None:
        self.heard.append(packet)

    def on_publish(self, packet: Publish) -> None:
        self.heard.append(packet)

    def on_suback(self, packet: Suback) -> None:
        self.heard.append(packet)

    def on_unsuback(self, packet: Unsuback) -> None:
        self.heard.append(packet)

    def on_disconnect(self, packet: Disconnect) -> None:
        self.heard.append(packet)

    def on_pingresp(self) -> None:
        self.heard.append("PINGRESP")

    def on_puback(self, packet_id: int, reason_code: int) -> None:
        self.heard.append(("PUBACK", packet_id, reason_code))

    def on_pubrec(self, packet_id: int, reason_code: int) -> None:
        self.heard.append(("PUBREC", packet_id, reason_code))

    def on_pubrel(self, packet_id: int, reason_code: int) -> None:
        self.heard.append(("PUBREL", packet_id, reason_code))

    def on_pubcomp(self, packet_id: int, reason_code: int) -> None:
        self.heard.append(("PUBCOMP", packet_id, reason_code))

    def on_protocol_error(self, error: ProtocolError) -> None:
        self.errors.append(error)
