"""What a bridge asks of a connection, and what the remote broker says to that. Compiled with the link that uses it."""

from __future__ import annotations

from typing import Final

from headrace.bridge.topics import TopicMap
from headrace.mqtt import packets
from headrace.mqtt import reason_codes as rc
from headrace.mqtt.packets import Connack

_CONNACK_TEXTS: Final = {
    1: "it does not speak this version of MQTT",
    2: "client identifier rejected",
    3: "server unavailable",
    4: "bad user name or password",
    5: "not authorized",
}


class Terms:
    """What one bridge asks of every connection. `filters` are the remote ones with their QoS, `out_qos` the highest QoS
    that goes out, `state_topic` is "" where the remote broker is told nothing, `trace` as `rendering.trace_of`."""

    def __init__(
        self,
        topics: TopicMap,
        filters: dict[str, int],
        out_qos: int,
        state_topic: str,
        trace: bytes,
        inflight_max: int,
        packet_bytes_max: int,
    ) -> None:
        self.topics = topics
        self.filters = filters
        self.out_qos = out_qos
        self.state_topic = state_topic
        self.trace = trace
        self.inflight_max = inflight_max
        self.packet_bytes_max = packet_bytes_max


def refusal_of(packet: Connack, version: int, out_qos: int) -> str:
    """Return why this CONNACK does not do, in words; "" if it does. `out_qos` is the highest QoS that is to go out."""
    properties = packet.properties
    if packet.reason_code and version == packets.VERSION_5:
        name = rc.name(packet.reason_code)
        said = properties.reason_string
        return f"refused: {name}: {said}" if said else f"refused: {name}"
    if packet.reason_code:
        return f"refused: {_CONNACK_TEXTS.get(packet.reason_code, f'return code {packet.reason_code}')}"
    if properties.maximum_qos is not None and properties.maximum_qos < out_qos:
        return f"the remote broker takes QoS {properties.maximum_qos} at most: lower qos of the topics that go out"
    return ""
