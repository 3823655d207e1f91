"""`-d` of `headrace pub` and `sub`: a line on stdout for each packet, in the words of mosquitto_pub and _sub."""

from __future__ import annotations

import sys

from headrace.clients.mqtt import MqttClient
from headrace.mqtt import packets
from headrace.mqtt.data_types import read_u16, read_varint
from headrace.mqtt.packets import Connack, Disconnect, Publish, Suback, Unsuback

_NAMES = {
    packets.CONNECT: "CONNECT",
    packets.PINGREQ: "PINGREQ",
    packets.DISCONNECT: "DISCONNECT",
}


class TalkingClient(MqttClient):
    """Says what it sends and receives."""

    def _say(self, line: str) -> None:
        sys.stdout.buffer.write(f"Client {self.connect.client_id} {line}\n".encode("utf-8", "replace"))
        sys.stdout.buffer.flush()

    def _send(self, data: bytes) -> None:
        for line in sent(data, self.version):
            self._say(f"sending {line}")
        super()._send(data)

    def on_connack(self, packet: Connack) -> None:
        self._say(f"received CONNACK ({packet.reason_code})")
        super().on_connack(packet)

    def on_publish(self, packet: Publish) -> None:
        topic = packet.topic.decode("utf-8", "replace")
        flags = f"d{packet.dup:d}, q{packet.qos}, r{packet.retain:d}, m{packet.packet_id}"
        self._say(f"received PUBLISH ({flags}, '{topic}', ... ({len(packet.payload)} bytes))")
        super().on_publish(packet)

    def on_puback(self, packet_id: int, reason_code: int) -> None:
        self._say(f"received PUBACK (Mid: {packet_id}, RC:{reason_code})")
        super().on_puback(packet_id, reason_code)

    def on_pubrec(self, packet_id: int, reason_code: int) -> None:
        self._say(f"received PUBREC (Mid: {packet_id})")
        super().on_pubrec(packet_id, reason_code)

    def on_pubrel(self, packet_id: int, reason_code: int) -> None:
        self._say(f"received PUBREL (Mid: {packet_id})")
        super().on_pubrel(packet_id, reason_code)

    def on_pubcomp(self, packet_id: int, reason_code: int) -> None:
        self._say(f"received PUBCOMP (Mid: {packet_id}, RC:{reason_code})")
        super().on_pubcomp(packet_id, reason_code)

    def on_suback(self, packet: Suback) -> None:
        self._say("received SUBACK")
        codes = ", ".join(map(str, packet.reason_codes))
        sys.stdout.buffer.write(f"Subscribed (mid: {packet.packet_id}): {codes}\n".encode())
        super().on_suback(packet)

    def on_unsuback(self, packet: Unsuback) -> None:
        self._say("received UNSUBACK")
        super().on_unsuback(packet)

    def on_pingresp(self) -> None:
        self._say("received PINGRESP")
        super().on_pingresp()

    def on_disconnect(self, packet: Disconnect) -> None:
        self._say(f"received DISCONNECT ({packet.reason_code})")
        super().on_disconnect(packet)


def sent(data: bytes, version: int) -> list[str]:
    """Return what is said of a packet that this client made: a line, or one for each filter."""
    kind = data[0] >> 4
    length, at = _length(data)
    if kind in _NAMES:
        return [_NAMES[kind]]
    if kind == packets.PUBLISH:
        return [_publish(data, at, at + length, version)]
    packet_id = read_u16(data, at, len(data))
    if kind in (packets.SUBSCRIBE, packets.UNSUBSCRIBE):
        return _filters(data, at + 2, kind, packet_id, version)
    code = data[at + 2] if length > 2 else 0
    return [
        {
            packets.PUBACK: f"PUBACK (m{packet_id}, rc{code})",
            packets.PUBREC: f"PUBREC (m{packet_id}, rc{code})",
            packets.PUBREL: f"PUBREL (m{packet_id})",
            packets.PUBCOMP: f"PUBCOMP (m{packet_id})",
        }.get(kind, f"a packet of type {kind}")
    ]


def _length(data: bytes) -> tuple[int, int]:
    """Return the remaining length, and where it ends."""
    value = read_varint(data, 1, len(data))
    at = 1
    while data[at] & 0x80:
        at += 1
    return value, at + 1


def _publish(data: bytes, at: int, end: int, version: int) -> str:
    first = data[0]
    qos = first >> 1 & 3
    topic_end = at + 2 + read_u16(data, at, end)
    topic = data[at + 2 : topic_end].decode("utf-8", "replace")
    packet_id = read_u16(data, topic_end, end) if qos else 0
    at = _behind_properties(data, topic_end + (2 if qos else 0), version)
    flags = f"d{first >> 3 & 1}, q{qos}, r{first & 1}, m{packet_id}"
    return f"PUBLISH ({flags}, '{topic}', ... ({end - at} bytes))"


def _filters(data: bytes, at: int, kind: int, packet_id: int, version: int) -> list[str]:
    at = _behind_properties(data, at, version)
    lines = []
    while at < len(data):
        end = at + 2 + read_u16(data, at, len(data))
        topic = data[at + 2 : end].decode("utf-8", "replace")
        if kind == packets.UNSUBSCRIBE:
            lines.append(f"UNSUBSCRIBE (Mid: {packet_id}, Topic: {topic})")
            at = end
        else:
            options = data[end]
            more = f"QoS: {options & 3}, Options: 0x{options & 0x3C:02x}"
            lines.append(f"SUBSCRIBE (Mid: {packet_id}, Topic: {topic}, {more})")
            at = end + 1
    return lines


def _behind_properties(data: bytes, at: int, version: int) -> int:
    if version != packets.VERSION_5:
        return at
    length = read_varint(data, at, len(data))
    while data[at] & 0x80:
        at += 1
    return at + 1 + length
