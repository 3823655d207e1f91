"""A message: one PUBLISH in memory, its record in the journal, and its bytes for receivers.

The topic, properties and payload are kept as the bytes they came in; a receiver gets them copied once into its write
buffer. What differs per receiver (packet id, DUP, retain, subscription identifiers, remaining expiry) is written around
them (decision 26).
"""

from __future__ import annotations

from typing import Final

from librt.strings import BytesWriter, read_i64_le, write_i16_be, write_i32_be, write_i64_le
from mypy_extensions import i16, i32, i64, mypyc_attr, u8

from headrace.core.records.elapsed import elapsed_us
from headrace.core.records.event import decode_event
from headrace.core.records.queue_record import decode_queue_record
from headrace.core.records.record import (
    CARRIED,
    CARRIED_AT,
    FLAG_DUP,
    FLAG_FRAME,
    FLAG_PRODUCER,
    FLAG_QOS,
    FLAG_RETAIN,
    FLAG_V5,
    KIND_COPY,
    KIND_EVENT,
    KIND_GIVEN,
    KIND_MESSAGE,
    KIND_PROGRESS,
    KIND_QUEUE,
    KIND_STREAM,
    LONGEST_EXPIRY,
    MESSAGE_HEADER_SIZE,
    NO_EXPIRY_U32,
    Record,
    decode_progress,
    record_end,
)
from headrace.core.records.stream_record import decode_stream_record
from headrace.errors import CorruptRecord
from headrace.mqtt.topics import TOPIC_BYTES_MAX

NO_EXPIRY: Final = -1


@mypyc_attr(acyclic=True)
class Message(Record):
    """A published message.

    `origin` is tenant + client id in UTF-8 (`tenant_len` splits it); `message_expiry_s` may be NO_EXPIRY; `link` is the
    `ports.link.Link` where the acknowledgement goes, None once nobody waits for it. `waits`: it is in somebody's backlog,
    from where it is fetched by its offset.
    """

    def __init__(
        self,
        timestamp_us: int,
        flags: i64,
        packet_id: i64,
        incarnation: int,
        tenant: str,
        origin: bytes,
        tenant_len: i64,
        topic: bytes,
        properties: bytes,
        message_expiry_s: i64,
        payload: bytes,
    ) -> None:
        self.kind = KIND_MESSAGE
        self.timestamp_us = timestamp_us
        self.offset = -1
        self.flags: i64 = flags
        self.packet_id: i64 = packet_id
        self.incarnation = incarnation
        self.tenant = tenant
        self.origin = origin
        self.tenant_len: i64 = tenant_len
        self.topic = topic
        self.properties = properties
        self.message_expiry_s: i64 = message_expiry_s
        self.payload = payload
        self.link: object | None = None
        self.waits = False

    def of_nobody(self, topic: bytes, flags: int) -> Message:
        """Return the same message on this topic, of no session: its packet id was another journal's or link's."""
        return Message(
            self.timestamp_us,
            flags,
            0,
            0,
            self.tenant,
            self.origin,
            self.tenant_len,
            topic,
            self.properties,
            self.message_expiry_s,
            self.payload,
        )

    @property
    def qos(self) -> int:
        return self.flags & FLAG_QOS

    @property
    def retain(self) -> bool:
        return self.flags & FLAG_RETAIN != 0

    @property
    def client_id(self) -> str:
        return self.origin[self.tenant_len :].decode("utf-8")

    @property
    def size(self) -> int:
        """Return the bytes that count against byte limits: topic, properties and payload."""
        return len(self.topic) + len(self.properties) + len(self.payload)

    @property
    def record_size(self) -> i64:
        """Return the bytes of the record."""
        return MESSAGE_HEADER_SIZE + len(self.origin) + self.size

    def expired(self, now_us: int) -> bool:
        """Return True once the Message Expiry Interval has passed, counted from the receive time (decision 17)."""
        expiry: i64 = self.message_expiry_s
        return expiry >= 0 and elapsed_us(self.timestamp_us, now_us) >= expiry * 1_000_000

    def is_late(self, now_us: int) -> bool:
        """Return True once a message that goes to whoever is connected, and has waited for that on its way, has expired.
        An interval of 0 has passed from the beginning: who is there within a second has it all the same."""
        expiry: i64 = self.message_expiry_s
        if expiry < 0:
            return False
        return elapsed_us(self.timestamp_us, now_us) >= max(1, expiry) * 1_000_000

    def encode_into(self, out: BytesWriter) -> None:
        """Append the MESSAGE record (layout: `record`); five 64-bit words make the header."""
        topic_len: i64 = len(self.topic)
        properties_len: i64 = len(self.properties)
        origin_len: i64 = len(self.origin)
        payload_len: i64 = len(self.payload)
        length: i64 = 36 + origin_len + topic_len + properties_len + payload_len
        packet_id: i64 = self.packet_id
        if packet_id > 0x7FFF:
            packet_id -= 0x10000
        client_len: i64 = origin_len - self.tenant_len
        if client_len > 0x7FFF:
            client_len -= 0x10000
        if topic_len > TOPIC_BYTES_MAX:
            raise ValueError(f"a topic of {topic_len} bytes")
        expiry: i64 = self.message_expiry_s
        if expiry < 0:
            expiry = NO_EXPIRY_U32
        elif expiry == NO_EXPIRY_U32:
            expiry |= LONGEST_EXPIRY
        write_i64_le(out, length | (KIND_MESSAGE << 32) | (self.flags << 40) | (packet_id << 48))
        write_i64_le(out, self.timestamp_us)
        write_i64_le(out, self.incarnation)
        write_i64_le(out, expiry | (self.tenant_len << 32) | (client_len << 48))
        write_i64_le(out, topic_len | (properties_len << 16))
        out.write(self.origin)
        out.write(self.topic)
        if properties_len:
            out.write(self.properties)
        out.write(self.payload)

    def copy_into(self, out: BytesWriter, source: i64) -> None:
        """Append the COPY record of this message, which shard `source` has in its journal: what `copy_of` encodes. What
        differs is written over the record: `encode_into`, which every message passes, asks nobody what it is for."""
        start: i64 = len(out)
        self.encode_into(out)
        out[start + _KIND_AT] = KIND_COPY
        out[start + _FLAGS_AT] = u8(self.flags & _LEFT_OUT)
        _overwrite(out, start + _PACKET_ID_AT, source, 2)
        _overwrite(out, start + _INCARNATION_AT, self.offset, 8)
        _overwrite(out, start + _SEQUENCE_AT, 0, 2)

    def render(
        self,
        out: BytesWriter,
        version: i64,
        qos: i64,
        packet_id: i64,
        first_byte: i64,
        subscription_ids: bytes,
        now_us: int,
        by_alias: bool = False,
    ) -> None:
        """Append this message as a PUBLISH for one receiver. `subscription_ids` are encoded properties (0x0B ...).

        `by_alias`: among them is a Topic Alias that stands for the topic, which is left out.
        """
        topic_len: i64 = 0 if by_alias else len(self.topic)
        remaining: i64 = 2 + topic_len + len(self.payload)
        if qos:
            remaining += 2
        properties_len: i64 = 0
        if version == 5:
            properties_len = len(self.properties) + len(subscription_ids)
            if self.message_expiry_s >= 0:
                properties_len += 5
            remaining += properties_len + varint_size(properties_len)
        if remaining < 128:
            write_i32_be(out, i32(first_byte << 24 | remaining << 16 | topic_len))
        else:
            out.append(u8(first_byte))
            varint_into(out, remaining)
            u16_into(out, topic_len)
        if topic_len:
            out.write(self.topic)
        if qos:
            u16_into(out, packet_id)
        if version == 5:
            varint_into(out, properties_len)
            if properties_len:
                self._properties_into(out, subscription_ids, now_us)
        out.write(self.payload)

    def _properties_into(self, out: BytesWriter, subscription_ids: bytes, now_us: int) -> None:
        if self.message_expiry_s >= 0:
            # The interval sent is the received one less the time spent waiting here [MQTT-3.3.2-6].
            # A clock that was set back makes it no longer than it was.
            waited: int = elapsed_us(self.timestamp_us, now_us) // 1_000_000
            left: int = max(0, self.message_expiry_s - waited)
            out.append(0x02)
            out.write(left.to_bytes(4, "big"))
        out.write(self.properties)
        out.write(subscription_ids)

    def rendered_size(self, version: i64, qos: i64, subscription_ids: bytes) -> i64:
        """Return the size in bytes of what `render` would append, for the receiver's Maximum Packet Size."""
        size: i64 = 2 + len(self.topic) + len(self.payload)
        if qos:
            size += 2
        if version == 5:
            properties_len: i64 = len(self.properties) + len(subscription_ids)
            if self.message_expiry_s >= 0:
                properties_len += 5
            size += properties_len + varint_size(properties_len)
        return 1 + varint_size(size) + size


_SEQUENCE_AT: Final = 38  # the upper half of a frame's sequence number, in its record


@mypyc_attr(acyclic=True)
class FrameMessage(Message):
    """A message that a device published as a frame, at QoS 1 and of no session. `sequence` is the device's number for
    it, `sn` the device's serial number as it came, while an answer is owed to it."""

    def __init__(
        self,
        timestamp_us: int,
        sequence: i64,
        tenant: str,
        origin: bytes,
        tenant_len: i64,
        topic: bytes,
        message_expiry_s: i64,
        payload: bytes,
    ) -> None:
        low: i64 = sequence & 0xFFFF
        super().__init__(
            timestamp_us,
            1 | FLAG_FRAME,
            low,
            0,
            tenant,
            origin,
            tenant_len,
            topic,
            b"",
            message_expiry_s,
            payload,
        )
        self.sequence: i64 = sequence
        self.sn = b""

    def encode_into(self, out: BytesWriter) -> None:
        start: i64 = len(out)
        super().encode_into(out)
        high: i64 = self.sequence >> 16
        out[start + _SEQUENCE_AT] = u8(high & 0xFF)
        out[start + _SEQUENCE_AT + 1] = u8(high >> 8)


@mypyc_attr(acyclic=True)
class Carried(Message):
    """A retained message as the journal of a fresh broker has it that began with the state of another one, in whose
    journal it was published: of no session of this one."""

    def __init__(self, message: Message) -> None:
        super().__init__(
            message.timestamp_us,
            message.flags & ~FLAG_PRODUCER,
            0,
            0,
            message.tenant,
            message.origin,
            message.tenant_len,
            message.topic,
            message.properties,
            message.message_expiry_s,
            message.payload,
        )

    def encode_into(self, out: BytesWriter) -> None:
        start: i64 = len(out)
        super().encode_into(out)
        out[start + CARRIED_AT] = CARRIED


_KIND_AT: Final = 4
_FLAGS_AT: Final = 5
_PACKET_ID_AT: Final = 6
_INCARNATION_AT: Final = 16
_LEFT_OUT: Final = ~(FLAG_DUP | FLAG_PRODUCER | FLAG_FRAME)  # of a message's flags in its copy


@mypyc_attr(acyclic=True)
class Copy(Message):
    """A message of another shard, as the journal of this one holds it: of nobody who is connected here, and acknowledged
    to nobody. `next_offset`: `source_offset` of the next one of that shard that is on its way to take effect."""

    def __init__(
        self,
        source: int,
        source_offset: int,
        timestamp_us: int,
        flags: i64,
        tenant: str,
        origin: bytes,
        tenant_len: i64,
        topic: bytes,
        properties: bytes,
        message_expiry_s: i64,
        payload: bytes,
    ) -> None:
        super().__init__(
            timestamp_us,
            flags & _LEFT_OUT,
            source,
            source_offset,
            tenant,
            origin,
            tenant_len,
            topic,
            properties,
            message_expiry_s,
            payload,
        )
        self.kind = KIND_COPY
        self.next_offset: i64 = 0

    @property
    def source(self) -> int:
        """Return the shard that the message was published to."""
        return self.packet_id

    @property
    def source_offset(self) -> int:
        """Return the message's offset in the journal of that shard."""
        return self.incarnation

    def encode_into(self, out: BytesWriter) -> None:
        start: i64 = len(out)
        super().encode_into(out)
        out[start + _KIND_AT] = self.kind


@mypyc_attr(acyclic=True)
class Given(Copy):
    """A message that another shard retains, in the journal of this one, where a session was given it. It may have been
    published to any shard, this one too."""

    def __init__(self, copy: Message) -> None:
        super().__init__(
            copy.packet_id,
            copy.incarnation,
            copy.timestamp_us,
            copy.flags,
            copy.tenant,
            copy.origin,
            copy.tenant_len,
            copy.topic,
            copy.properties,
            copy.message_expiry_s,
            copy.payload,
        )
        self.kind = KIND_GIVEN
        self.waits = True  # nobody has it yet: it is fetched by its offset


def copy_of(message: Message, source: int, source_offset: int) -> Copy:
    """Return the copy of a message that shard `source` has at this offset of its journal."""
    return Copy(
        source,
        source_offset,
        message.timestamp_us,
        message.flags,
        message.tenant,
        message.origin,
        message.tenant_len,
        message.topic,
        message.properties,
        message.message_expiry_s,
        message.payload,
    )


def broker_message(
    now_us: int, flags: int, tenant: str, topic: bytes, payload: bytes, properties: bytes = b""
) -> Message:
    """Return a message that the broker itself publishes in a tenant: of no client, without expiry."""
    origin = tenant.encode("utf-8")
    return Message(now_us, flags, 0, 0, tenant, origin, len(origin), topic, properties, NO_EXPIRY, payload)


def _overwrite(out: BytesWriter, at: i64, value: i64, width: i64) -> None:
    """Write a little-endian integer of `width` bytes over what is there."""
    for place in range(width):
        out[at + place] = u8(value & 0xFF)
        value >>= 8


def varint_size(value: i64) -> i64:
    """Return the number of bytes of `value` as a Variable Byte Integer (1.5.5)."""
    if value < 128:
        return 1
    if value < 16_384:
        return 2
    return 3 if value < 2_097_152 else 4


def varint_into(out: BytesWriter, value: i64) -> None:
    """Append `value` as a Variable Byte Integer (1.5.5)."""
    while value > 127:
        out.append(u8((value & 0x7F) | 0x80))
        value >>= 7
    out.append(u8(value))


def u16_into(out: BytesWriter, value: i64) -> None:
    """Append `value` as a Two Byte Integer (1.5.2)."""
    write_i16_be(out, i16(value - 0x10000 if value > 0x7FFF else value))


def encode_varint(value: int) -> bytes:
    out = BytesWriter()
    varint_into(out, value)
    return out.getvalue()


class _Name:
    """The name of a tenant, and its bytes."""

    def __init__(self, utf8: bytes) -> None:
        self.utf8 = utf8
        self.text = utf8.decode("utf-8")


class _Names:
    """The tenant of the record that was read last, mostly that of the next one too: it is decoded once, and hashed
    once."""

    def __init__(self) -> None:
        self._last = _Name(b"")

    def of(self, utf8: bytes) -> str:
        """Return the name of these bytes. Raises UnicodeDecodeError."""
        last = self._last
        if last.utf8 != utf8:
            last = self._last = _Name(utf8)
        return last.text


_NAMES: Final = _Names()


class _Layout:
    """Finds the parts of a MESSAGE record, and the numbers of its header: five 64-bit words, as `Message.encode_into`
    writes them."""

    def __init__(self, body: bytes, pos: i64, end: i64) -> None:
        """Read the record from `pos` to `end`. Raises `CorruptRecord` when its lengths do not add up."""
        self.origin_at: i64 = pos + MESSAGE_HEADER_SIZE
        if self.origin_at > end:
            raise CorruptRecord(f"message at byte {pos}: a record of {end - pos} bytes")
        word = read_i64_le(body, pos)
        self.flags: i64 = word >> 40 & 0xFF
        self.packet_id: i64 = word >> 48 & 0xFFFF
        self.timestamp_us: int = read_i64_le(body, pos + 8)
        self.incarnation: int = read_i64_le(body, pos + 16)
        word = read_i64_le(body, pos + 24)
        expiry: i64 = word & NO_EXPIRY_U32
        is_none = expiry == NO_EXPIRY_U32 and word & LONGEST_EXPIRY == 0
        self.expiry_s: i64 = NO_EXPIRY if is_none else expiry
        self.tenant_len: i64 = word >> 32 & 0xFF
        self.topic_at: i64 = self.origin_at + self.tenant_len + (word >> 48 & 0xFFFF)
        word = read_i64_le(body, pos + 32)
        self.properties_at: i64 = self.topic_at + (word & 0xFFFF)
        self.payload_at: i64 = self.properties_at + (word >> 16 & 0xFFFF_FFFF)
        self.high: i64 = word >> 48 & 0xFFFF
        if self.payload_at > end:
            raise CorruptRecord(f"message at byte {pos}: fields run past the record")

    def tenant(self, body: bytes) -> str:
        """Return the name of the tenant."""
        return _NAMES.of(body[self.origin_at : self.origin_at + self.tenant_len])


def decode_message(body: bytes, pos: i64, end: i64) -> Message:
    """Return the MESSAGE record at `pos`. Raises `CorruptRecord` when its lengths do not add up."""
    layout = _Layout(body, pos, end)
    if layout.flags & FLAG_FRAME:
        return FrameMessage(
            layout.timestamp_us,
            layout.packet_id | layout.high << 16,
            layout.tenant(body),
            body[layout.origin_at : layout.topic_at],
            layout.tenant_len,
            body[layout.topic_at : layout.properties_at],
            layout.expiry_s,
            body[layout.payload_at : end],
        )
    return Message(
        layout.timestamp_us,
        layout.flags,
        layout.packet_id,
        layout.incarnation,
        layout.tenant(body),
        body[layout.origin_at : layout.topic_at],
        layout.tenant_len,
        body[layout.topic_at : layout.properties_at],
        body[layout.properties_at : layout.payload_at],
        layout.expiry_s,
        body[layout.payload_at : end],
    )


def decode_copy(body: bytes, pos: i64, end: i64) -> Copy:
    """Read the COPY record at `pos`. Raises `CorruptRecord` when its lengths do not add up."""
    layout = _Layout(body, pos, end)  # laid out alike; `record` says what stands where
    return Copy(
        int(layout.packet_id),
        layout.incarnation,
        layout.timestamp_us,
        layout.flags,
        layout.tenant(body),
        body[layout.origin_at : layout.topic_at],
        layout.tenant_len,
        body[layout.topic_at : layout.properties_at],
        body[layout.properties_at : layout.payload_at],
        layout.expiry_s,
        body[layout.payload_at : end],
    )


def decode_record(body: bytes, pos: int) -> tuple[Record, int]:
    """Return the record at `pos` of a batch body and the position after it. Raises `CorruptRecord`."""
    end = record_end(body, pos)
    kind = body[pos + 4]
    if kind == KIND_MESSAGE:
        return decode_message(body, pos, end), end
    if kind == KIND_EVENT:
        return decode_event(body, pos, end), end
    if kind == KIND_PROGRESS:
        return decode_progress(body, pos, end), end
    if kind == KIND_QUEUE:
        return decode_queue_record(body, pos, end), end
    if kind == KIND_COPY:
        return decode_copy(body, pos, end), end
    if kind == KIND_GIVEN:
        return Given(decode_message(body, pos, end)), end
    if kind == KIND_STREAM:
        return decode_stream_record(body, pos, end), end
    raise CorruptRecord(f"unknown record kind {kind}")


def decode_batch(body: bytes, base_offset: int) -> list[Record]:
    """Return all records of a batch body, with their offsets."""
    records: list[Record] = []
    pos = 0
    while pos < len(body):
        record, pos = decode_record(body, pos)
        record.offset = base_offset + len(records)
        records.append(record)
    return records


def message_flags(qos: i64, retain: bool, dup: bool, version: i64) -> i64:
    """Return the flags byte of a MESSAGE record."""
    flags = qos
    if retain:
        flags |= FLAG_RETAIN
    if dup:
        flags |= FLAG_DUP
    if version == 5:
        flags |= FLAG_V5
    return flags
