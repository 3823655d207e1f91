"""The packets that a server sends, described: what a trace shows of the bytes of one write.

Whole packets only, as a connection writes them; no payload, and no properties but a topic alias.
"""

from __future__ import annotations

from collections.abc import Iterator

from headrace.mqtt import reason_codes as rc
from headrace.mqtt.data_types import read_u16
from headrace.mqtt.packets import PUBLISH, VERSION_5
from headrace.mqtt.properties import Properties

Row = dict[str, object]
NAMES = {
    2: "CONNACK",
    3: "PUBLISH",
    4: "PUBACK",
    5: "PUBREC",
    6: "PUBREL",
    7: "PUBCOMP",
    9: "SUBACK",
    11: "UNSUBACK",
    13: "PINGRESP",
    14: "DISCONNECT",
    15: "AUTH",
}
_WITH_ID = (4, 5, 6, 7, 9, 11)


def rows_of(data: bytes, version: int) -> Iterator[Row]:
    """Yield a row for each packet. Raises IndexError, ProtocolError for what is none."""
    at = 0
    while at < len(data):
        first, body, end = data[at], *_extent(data, at + 1)
        yield _row(first, data[body:end], version)
        at = end


def _extent(data: bytes, at: int) -> tuple[int, int]:
    """Return where the content begins and ends, by the Remaining Length at `at`."""
    length = shift = 0
    while True:
        byte = data[at]
        at += 1
        length |= (byte & 127) << shift
        shift += 7
        if byte < 128:
            return at, at + length


def _row(first: int, body: bytes, version: int) -> Row:
    kind = first >> 4
    row: Row = {"packet": NAMES.get(kind, f"type {kind}")}
    if kind == PUBLISH:
        return row | _publish(first, body, version)
    if kind in _WITH_ID:
        row["id"] = read_u16(body, 0, len(body))
    if kind == 2:
        row["reason"] = rc.name(body[1]) if version == VERSION_5 or not body[1] else str(body[1])
        row["session"] = "resumed" if body[0] & 1 else "new"
    elif kind in (4, 5, 6, 7) and len(body) > 2 and body[2]:
        row["reason"] = rc.name(body[2])
    elif kind == 14 and body:
        row["reason"] = rc.name(body[0])
    return row


def _publish(first: int, body: bytes, version: int) -> Row:
    size = read_u16(body, 0, len(body))
    at = 2 + size
    qos = first >> 1 & 3
    row: Row = {"topic": body[2:at].decode("utf-8", "replace"), "qos": qos, "retain": bool(first & 1)}
    row["dup"] = bool(first & 8)
    if qos:
        row["id"] = read_u16(body, at, len(body))
        at += 2
    if version == VERSION_5:
        start, end = _extent(body, at)
        alias = Properties.decode(body, start, end, PUBLISH).topic_alias
        if alias is not None:
            row["alias"] = alias
        at = end
    row["bytes"] = len(body) - at
    return row
