"""What every test of this package needs: handlers that write down what came, and packets made comparable."""

from __future__ import annotations

from headrace.errors import ProtocolError
from headrace.mqtt import codec, packets
from headrace.mqtt.client_protocol import ClientHandler, ClientProtocol
from headrace.mqtt.packets import (
    Auth,
    Connack,
    Connect,
    Disconnect,
    Publish,
    Suback,
    Subscribe,
    SubscriptionRequest,
    Unsuback,
    Unsubscribe,
    Will,
)
from headrace.mqtt.properties import Properties
from headrace.mqtt.protocol import ServerHandler, ServerProtocol

LIMIT = 1 << 28
FIELDS = {
    Connect: "version client_id clean_start keep_alive_s username password will properties bridge",
    Will: "topic payload qos retain properties delay_s message_expiry_s",
    Publish: "topic qos retain dup packet_id properties message_expiry_s payload",
    SubscriptionRequest: "filter qos no_local retain_as_published retain_handling",
    Subscribe: "packet_id filters subscription_id properties",
    Unsubscribe: "packet_id filters properties",
    Disconnect: "reason_code properties",
    Auth: "reason_code properties",
    Connack: "session_present reason_code properties",
    Suback: "packet_id reason_codes properties",
    Unsuback: "packet_id reason_codes properties",
}


def describe(value: object) -> object:
    """Packets, and what is in them, as plain values that compare and print."""
    if isinstance(value, list):
        return [describe(item) for item in value]
    if isinstance(value, Properties):
        return value.as_dict()
    names = FIELDS.get(type(value))
    if names is None:
        return value
    return type(value).__name__, {name: describe(getattr(value, name)) for name in names.split()}


class Recorder:
    """The methods that both sides have in common."""

    def __init__(self) -> None:
        self.events: list[object] = []
        self.errors: list[ProtocolError] = []

    def on_publish(self, packet: Publish) -> None:
        self.events.append(describe(packet))

    def on_puback(self, packet_id: int, reason_code: int) -> None:
        self.events.append((packets.PUBACK, packet_id, reason_code))

    def on_pubrec(self, packet_id: int, reason_code: int) -> None:
        self.events.append((packets.PUBREC, packet_id, reason_code))

    def on_pubrel(self, packet_id: int, reason_code: int) -> None:
        self.events.append((packets.PUBREL, packet_id, reason_code))

    def on_pubcomp(self, packet_id: int, reason_code: int) -> None:
        self.events.append((packets.PUBCOMP, packet_id, reason_code))

    def on_disconnect(self, packet: Disconnect) -> None:
        self.events.append(describe(packet))

    def on_auth(self, packet: Auth) -> None:
        self.events.append(describe(packet))

    def on_protocol_error(self, error: ProtocolError) -> None:
        self.errors.append(error)


class ServerRecorder(Recorder, ServerHandler):
    """Writes down what a client sent."""

    def on_connect(self, packet: Connect) -> None:
        self.events.append(describe(packet))

    def on_subscribe(self, packet: Subscribe) -> None:
        self.events.append(describe(packet))

    def on_unsubscribe(self, packet: Unsubscribe) -> None:
        self.events.append(describe(packet))

    def on_pingreq(self) -> None:
        self.events.append((packets.PINGREQ, 0, 0))


class ClientRecorder(Recorder, ClientHandler):
    """Writes down what a server sent."""

    def on_connack(self, packet: Connack) -> None:
        self.events.append(describe(packet))

    def on_suback(self, packet: Suback) -> None:
        self.events.append(describe(packet))

    def on_unsuback(self, packet: Unsuback) -> None:
        self.events.append(describe(packet))

    def on_pingresp(self) -> None:
        self.events.append((packets.PINGRESP, 0, 0))


def method(version: int, name: str | None) -> Properties:
    properties = Properties()
    properties.authentication_method = name if version == 5 else None
    return properties


class Server:
    """A server protocol with its recorder, fresh or past a CONNECT of this version."""

    def __init__(
        self, version: int = 0, auth_method: str | None = None, limit: int = LIMIT, aliases: int = 10
    ) -> None:
        self.handler = ServerRecorder()
        self.protocol = ServerProtocol(self.handler, limit, aliases)
        if version:
            connect = Connect(version, "it", properties=method(version, auth_method))
            self.protocol.receive_data(codec.encode_connect(connect))
            self.protocol.authenticated()
        self.connected = version > 0
        self.handler.events.clear()

    @property
    def code(self) -> int:
        """Reason code of the refusal, 0 if nothing was refused."""
        return self.handler.errors[0].reason_code if self.handler.errors else 0

    @property
    def answer(self) -> bytes:
        """What is sent before closing."""
        return self.protocol.refusal(self.handler.errors[0], self.connected)


class Client:
    """A client protocol with its recorder, waiting for CONNACK or past it."""

    def __init__(self, version: int, accepted: bool = True, auth_method: str | None = None) -> None:
        self.handler = ClientRecorder()
        self.protocol = ClientProtocol(self.handler, LIMIT, 10)
        self.protocol.connect(Connect(version, "it", False, properties=method(version, auth_method)))
        if accepted:
            self.protocol.receive_data(codec.encode_connack(version, False, 0))
        self.handler.events.clear()


def feed(protocol: ServerProtocol | ClientProtocol, data: bytes, step: int) -> None:
    for start in range(0, len(data), step):
        protocol.receive_data(data[start : start + step])


def encode(version: int, packet: object) -> bytes:
    """What our encoder writes for a packet."""
    if isinstance(packet, tuple):
        return encode_ack(version, *packet)
    if isinstance(packet, Connect):
        return codec.encode_connect(packet)
    if isinstance(packet, Publish):
        return encode_publish(version, packet)
    return encode_other(version, packet)


def encode_ack(version: int, packet_type: int, packet_id: int, reason_code: int) -> bytes:
    encoders = {
        packets.PUBACK: codec.encode_puback,
        packets.PUBREC: codec.encode_pubrec,
        packets.PUBREL: codec.encode_pubrel,
        packets.PUBCOMP: codec.encode_pubcomp,
    }
    if packet_type in encoders:
        return encoders[packet_type](version, packet_id, reason_code)
    return codec.encode_pingreq() if packet_type == packets.PINGREQ else codec.encode_pingresp()


def encode_publish(version: int, packet: Publish) -> bytes:
    return codec.encode_publish(
        version,
        packet.topic,
        packet.payload,
        packet.qos,
        packet.retain,
        packet.dup,
        packet.packet_id,
        packet.properties,
        packet.message_expiry_s,
    )


def encode_other(version: int, packet: object) -> bytes:
    if isinstance(packet, Subscribe):
        return codec.encode_subscribe(version, packet.packet_id, packet.filters, packet.properties)
    if isinstance(packet, Unsubscribe):
        return codec.encode_unsubscribe(version, packet.packet_id, packet.filters, packet.properties)
    if isinstance(packet, Suback):
        return codec.encode_suback(version, packet.packet_id, packet.reason_codes, packet.properties)
    if isinstance(packet, Unsuback):
        return codec.encode_unsuback(version, packet.packet_id, packet.reason_codes, packet.properties)
    if isinstance(packet, Connack):
        return codec.encode_connack(version, packet.session_present, packet.reason_code, packet.properties)
    assert isinstance(packet, (Disconnect, Auth))
    properties = packet.properties if packet.properties.as_dict() else None
    if isinstance(packet, Auth):
        return codec.encode_auth(packet.reason_code, properties)
    return codec.encode_disconnect(version, packet.reason_code, properties)
