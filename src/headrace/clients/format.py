"""The formats of `headrace sub -F`, which are those of mosquitto_sub.

    %t topic   %p payload   %x %X payload in hexadecimal   %l its length   %q QoS   %r retain, 0 or 1   %m packet id
    %j the message as JSON, the payload as text   %J likewise, the payload as the JSON it is
    %I time of arrival, ISO 8601   %U the same in seconds since 1970   @X as strftime has %X, @@ an @
    %A topic alias   %C content type   %D correlation data   %E expiry   %F payload format   %R response topic
    %S subscription identifiers   %P user properties, key:value   %% a %
    \\n \\t \\r \\0 \\a \\e \\v \\\\

Between % and the letter: `-` for left, `0` for zeros, a width, and `.` with a precision. What a message lacks is empty.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable
from functools import partial

from headrace.mqtt import packets
from headrace.mqtt.packets import NO_EXPIRY, Publish
from headrace.mqtt.properties import Properties

_FIELD = re.compile(r"(-|0)?(\d+)?(?:\.(\d+))?(.)", re.DOTALL)
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "0": "\0", "a": "\a", "e": "\x1b", "v": "\v", "\\": "\\"}
_AS_IT_IS = frozenset("%jJIUqPD")  # widths do not change these
_JSON_NAMES = {
    "user_properties": "user-properties",
    "content_type": "content-type",
    "response_topic": "response-topic",
    "correlation_data": "correlation-data",
    "payload_format_indicator": "payload-format-indicator",
}


class NotJson(ValueError):
    """A payload that is no JSON was to be written as `%J`."""


class Arrived:
    """A message, when it came (ns since 1970), and its properties by name."""

    def __init__(self, message: Publish, now_ns: int) -> None:
        self.message = message
        self.now_ns = now_ns
        raw = message.properties
        self.properties = Properties.decode(raw, 0, len(raw), packets.PUBLISH).as_dict() if raw else {}

    def time(self, pattern: str) -> str:
        return time.strftime(pattern, time.localtime(self.now_ns // 1_000_000_000))


Part = Callable[[Arrived], bytes]


def parse(text: str) -> list[Part]:
    """Return the parts of a format. ValueError says what is wrong with it."""
    parts: list[Part] = []
    at = 0
    while at < len(text):
        found = re.compile(r"[^%@\\]+").match(text, at)
        if found:
            parts.append(partial(_literal, found[0].encode("utf-8", "surrogateescape")))
            at = found.end()
            continue
        if at + 1 == len(text):
            raise ValueError("incomplete format specifier")
        part, at = _special(text, at)
        parts.append(part)
    return parts


def render(parts: list[Part], arrived: Arrived) -> bytes:
    """Return what a format makes of a message. Raises NotJson."""
    return b"".join(part(arrived) for part in parts)


def _special(text: str, at: int) -> tuple[Part, int]:
    letter = text[at + 1]
    if text[at] == "@":
        return (partial(_literal, b"@") if letter == "@" else partial(_time, "%" + letter)), at + 2
    if text[at] == "\\":
        if letter not in _ESCAPES:
            raise ValueError(f"invalid escape specifier {letter!r}")
        return partial(_literal, _ESCAPES[letter].encode()), at + 2
    found = _FIELD.match(text, at + 1)
    if found is None:
        raise ValueError("incomplete format specifier")
    flag, width, precision, letter = found.groups()
    if letter not in _FIELDS:
        raise ValueError(f"invalid format specifier {letter!r}")
    padded = partial(
        _padded, letter, flag or "", int(width or 0), None if precision is None else int(precision)
    )
    return padded, found.end()


def _literal(text: bytes, _: Arrived) -> bytes:
    return text


def _time(pattern: str, arrived: Arrived) -> bytes:
    return arrived.time(pattern).encode()


def _padded(letter: str, flag: str, width: int, precision: int | None, arrived: Arrived) -> bytes:
    value = _FIELDS[letter](arrived)
    if letter in _AS_IT_IS:
        return value
    if letter in "tCR" and precision is not None:
        value = value[:precision]
    if flag == "-":
        return value.ljust(width)
    return value.rjust(width, b"0" if flag == "0" and letter in "lmrAEF" else b" ")


def _property(name: str, arrived: Arrived) -> bytes:
    value = arrived.properties.get(name, "")
    if isinstance(value, list):
        return b" ".join(str(item).encode() for item in value)
    return value if isinstance(value, bytes) else str(value).encode()


def _pairs(arrived: Arrived) -> bytes:
    found = arrived.properties.get("user_properties", [])
    assert isinstance(found, list)
    return " ".join(f"{key}:{value}" for key, value in found).encode()


def _expiry(arrived: Arrived) -> bytes:
    expiry_s = arrived.message.message_expiry_s
    return b"" if expiry_s == NO_EXPIRY else b"%d" % expiry_s


def _seconds(arrived: Arrived) -> bytes:
    seconds, ns = divmod(arrived.now_ns, 1_000_000_000)
    return b"%d.%09d" % (seconds, ns)


def _json(parsed: bool, arrived: Arrived) -> bytes:
    message = arrived.message
    micros = arrived.now_ns // 1000 % 1_000_000
    found: dict[str, object] = {
        "tst": f"{arrived.time('%Y-%m-%dT%H:%M:%S')}.{micros:06d}Z{arrived.time('%z')}",
        "topic": message.topic.decode(),
        "qos": message.qos,
        "retain": int(message.retain),
        "payloadlen": len(message.payload),
    }
    if message.qos:
        found["mid"] = message.packet_id
    properties = _json_properties(arrived)
    if properties:
        found["properties"] = properties
    if parsed:
        try:
            found["payload"] = json.loads(message.payload)
        except (ValueError, RecursionError):
            topic = message.topic.decode()
            raise NotJson(f"the payload on topic {topic} is no JSON") from None
    else:
        found["payload"] = message.payload.decode("utf-8", "surrogateescape")
    text = json.dumps(found, ensure_ascii=False, separators=(",", ":"))
    return text.encode("utf-8", "surrogateescape")


def _json_properties(arrived: Arrived) -> dict[str, object]:
    found: dict[str, object] = {}
    for name, value in arrived.properties.items():
        if name == "user_properties" and isinstance(value, list):
            found["user-properties"] = {str(key): item for key, item in value}
        elif name in _JSON_NAMES:
            found[_JSON_NAMES[name]] = (
                value.decode("utf-8", "surrogateescape") if isinstance(value, bytes) else value
            )
    if arrived.message.message_expiry_s != NO_EXPIRY:
        found["message-expiry-interval"] = arrived.message.message_expiry_s
    return found


_FIELDS: dict[str, Part] = {
    "%": partial(_literal, b"%"),
    "t": lambda arrived: arrived.message.topic,
    "p": lambda arrived: arrived.message.payload,
    "x": lambda arrived: arrived.message.payload.hex().encode(),
    "X": lambda arrived: arrived.message.payload.hex().upper().encode(),
    "l": lambda arrived: b"%d" % len(arrived.message.payload),
    "q": lambda arrived: b"%d" % arrived.message.qos,
    "r": lambda arrived: b"%d" % arrived.message.retain,
    "m": lambda arrived: b"%d" % arrived.message.packet_id,
    "j": partial(_json, False),
    "J": partial(_json, True),
    "I": partial(_time, "%Y-%m-%dT%H:%M:%S%z"),
    "U": _seconds,
    "A": lambda _: b"",  # resolved before anybody sees the message
    "C": partial(_property, "content_type"),
    "D": partial(_property, "correlation_data"),
    "E": _expiry,
    "F": partial(_property, "payload_format_indicator"),
    "R": partial(_property, "response_topic"),
    "S": partial(_property, "subscription_identifiers"),
    "P": _pairs,
}
