"""How `headrace sub` writes a message: payload, topic and payload, or one JSON object a line.

JSON keys: topic, qos, retain, dup, packet_id, message_expiry_interval, properties, and payload (text) or
payload_base64 (what is no UTF-8).
"""

from __future__ import annotations

import base64
import json

from headrace.mqtt import packets
from headrace.mqtt.packets import NO_EXPIRY, Publish
from headrace.mqtt.properties import Properties


def plain(message: Publish) -> bytes:
    return message.payload + b"\n"


def verbose(message: Publish) -> bytes:
    return message.topic + b" " + message.payload + b"\n"


def as_json(message: Publish) -> bytes:
    found: dict[str, object] = {
        "topic": message.topic.decode(),
        "qos": message.qos,
        "retain": message.retain,
        "dup": message.dup,
        "packet_id": message.packet_id,
    }
    if message.message_expiry_s != NO_EXPIRY:
        found["message_expiry_interval"] = message.message_expiry_s
    if message.properties:
        found["properties"] = _properties(message.properties)
    found |= _payload(message.payload)
    return json.dumps(found, ensure_ascii=False).encode() + b"\n"


def _properties(raw: bytes) -> dict[str, object]:
    values = Properties.decode(raw, 0, len(raw), packets.PUBLISH).as_dict()
    return {
        name: base64.b64encode(value).decode() if isinstance(value, bytes) else value
        for name, value in values.items()
    }


def _payload(payload: bytes) -> dict[str, str]:
    try:
        return {"payload": payload.decode()}
    except UnicodeDecodeError:
        return {"payload_base64": base64.b64encode(payload).decode()}
