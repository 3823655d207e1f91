"""Records with known content, and the rows of `messages` that must come out of them."""

from __future__ import annotations

import random
from array import array
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from librt.strings import BytesWriter

from headrace.core.records.event import BROKER_STARTED, Event
from headrace.core.records.message import Carried, Message, copy_of, message_flags
from headrace.core.records.record import ACKED, FLAG_WILL, KIND_MESSAGE, Progress, Record
from headrace.core.records.stream_record import FOLLOWED, TAKEN, stream_record
from headrace.journal.segment import Batch
from headrace.mqtt.properties import Properties

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
MIDNIGHT_US = 1_760_054_400_000_000  # 2025-10-10T00:00:00Z


class Made:
    """Records in journal order, as objects and as the rows that `messages` must have for them."""

    def __init__(self) -> None:
        self.records: list[Record] = []

    def add(self, record: Record) -> None:
        self.records.append(record)

    @staticmethod
    def encoded(record: Record) -> bytes:
        out = BytesWriter()
        record.encode_into(out)
        return bytes(out.getvalue())

    def body(self, start: int, end: int) -> bytes:
        return b"".join(map(self.encoded, self.records[start:end]))

    def batches(self, sizes: Sequence[int], epoch: int = 0, base_offset: int = 0) -> list[Batch]:
        """As the journal would hand them out, of the given numbers of records; the last takes what is left."""
        made: list[Batch] = []
        start = 0
        while start < len(self.records):
            end = start + (sizes[len(made)] if len(made) < len(sizes) else len(self.records))
            end = min(end, len(self.records))
            made.append(Batch(base_offset + start, end - start, 0, 0, self.body(start, end), epoch))
            start = end
        return made

    def rows(self, uuid: str, epoch: int = 0, base_offset: int = 0) -> list[dict[str, Any]]:
        """Worked out from the objects, without the code under test."""
        return [
            row_of(record, uuid, epoch, base_offset + i)
            for i, record in enumerate(self.records)
            if isinstance(record, Message) and record.kind == KIND_MESSAGE and not isinstance(record, Carried)
        ]


def row_of(message: Message, uuid: str, epoch: int, offset: int) -> dict[str, Any]:
    properties = Properties.decode(message.properties, 0, len(message.properties), 3)
    own = [value for name, value in properties.user_properties if name == "message-id"]
    client = message.client_id.replace("%", "%25").replace("/", "%2F")
    received = EPOCH + timedelta(microseconds=message.timestamp_us)
    return {
        "tenant": message.tenant,
        "topic": message.topic.decode(),
        "client_id": message.client_id,
        "qos": message.qos,
        "retain": message.retain,
        "dup": bool(message.flags & 8),
        "will": bool(message.flags & 32),
        "mqtt5": bool(message.flags & 16),
        "protocol": "frame" if message.flags & 128 else "mqtt",
        "payload_format_indicator": properties.payload_format_indicator,
        "content_type": properties.content_type,
        "response_topic": properties.response_topic,
        "correlation_data": properties.correlation_data,
        "message_expiry_s": message.message_expiry_s if message.message_expiry_s >= 0 else None,
        "user_properties": [{"name": name, "value": value} for name, value in properties.user_properties],
        "publish_timestamp": received,
        "incarnation": message.incarnation,
        "journal_uuid": uuid,
        "journal_epoch": epoch,
        "journal_offset": offset,
        "message_id": f"client:{message.tenant}/{client}/{own[0]}"
        if own and own[0]
        else f"journal:{uuid}:{epoch}:{offset}",
        "payload": message.payload,
        "date": received.date(),
    }


def message(
    n: int = 0,
    *,
    tenant: str = "default",
    client_id: str = "device-1",
    topic: str = "plant/line-1/temperature",
    qos: int = 1,
    retain: bool = False,
    dup: bool = False,
    will: bool = False,
    version: int = 4,
    properties: bytes = b"",
    expiry_s: int = -1,
    payload: bytes = b"21.5",
    timestamp_us: int = MIDNIGHT_US,
) -> Message:
    flags = message_flags(qos, retain, dup, version) | (FLAG_WILL if will else 0)
    origin = (tenant + client_id).encode()
    return Message(
        timestamp_us + n,
        flags,
        7,
        3,
        tenant,
        origin,
        len(tenant.encode()),
        topic.encode(),
        properties,
        expiry_s,
        payload,
    )


def user_properties(*pairs: tuple[str, str]) -> bytes:
    properties = Properties()
    properties.user_properties = list(pairs)
    return properties.encode()


def mixed(count: int, seed: int = 1, tenants: int = 2) -> Made:
    """Messages of every kind, with events and progress between them."""
    draw = random.Random(seed)
    made = Made()
    for n in range(count):
        kind = draw.random()
        if kind < 0.05:
            made.add(Event(BROKER_STARTED, MIDNIGHT_US + n, {"version": "1"}))
        elif kind < 0.2:
            made.add(Progress(ACKED, MIDNIGHT_US + n, _numbers(draw)))
        else:
            made.add(_drawn(draw, n, tenants))
    return made


def of_a_shard(count: int, seed: int = 1, source: int = 1) -> Made:
    """What `mixed` gives, and what a shard has beside it: copies of another one's messages, how far streams are."""
    draw, made = random.Random(seed), Made()
    for n, record in enumerate(mixed(count, seed).records):
        made.add(record)
        if draw.random() < 0.3:
            made.add(copy_of(_drawn(draw, n, 2), source, n))
        if draw.random() < 0.1:
            made.add(stream_record(draw.choice((TAKEN, FOLLOWED)), MIDNIGHT_US + n, [(source, n)]))
    return made


def _numbers(draw: random.Random) -> bytes:
    return array("Q", [draw.randrange(1 << 40) for _ in range(2 * draw.randint(1, 5))]).tobytes()


def _drawn(draw: random.Random, n: int, tenants: int) -> Message:
    version = draw.choice((4, 5))
    properties = Properties()
    if version == 5 and draw.random() < 0.7:
        properties.payload_format_indicator = draw.choice((None, 0, 1))
        properties.content_type = draw.choice((None, "application/json", ""))
        properties.response_topic = draw.choice((None, "answers/ü"))
        properties.correlation_data = draw.choice((None, b"", b"\x00\xff"))
        own = ("message-id", f"m-{n}")
        properties.user_properties = draw.choice(
            ([], [own], [("a", "1"), own, ("a", "")], [("größe", "10 m²")], [(own[0], ""), own])
        )
    return message(
        n * draw.choice((1, 30_000_000)),
        tenant=f"tenant-{draw.randrange(tenants)}",
        client_id=draw.choice(("device-1", "a/b", "50%", "")),
        topic=draw.choice(("t", "plant/line 1/température", "a//b")),
        qos=draw.randrange(3),
        retain=draw.random() < 0.3,
        dup=draw.random() < 0.1,
        will=draw.random() < 0.1,
        version=version,
        properties=properties.encode() if version == 5 else b"",
        expiry_s=draw.choice((-1, 0, 60, 4_294_967_294, 4_294_967_295)) if version == 5 else -1,
        payload=draw.randbytes(draw.choice((0, 1, 200))),
    )
