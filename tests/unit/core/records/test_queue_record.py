"""QUEUE records and the messages of devices, byte by byte: bytes that were written once stay readable."""

from __future__ import annotations

import pytest
from librt.strings import BytesWriter

from headrace.core.records.message import FrameMessage, Message, decode_batch
from headrace.core.records.queue_record import DEVICE_OWNED, QueueRecord, queue_record
from headrace.core.records.record import FLAG_FRAME, Record
from headrace.errors import CorruptRecord

OWNED = "240000000401000015cd5b070000000083a174a764656661756c74a163a4646f6f72a175a3616461"


def encoded(record: Record) -> bytes:
    out = BytesWriter()
    record.encode_into(out)
    return out.getvalue()


def test_a_device_that_is_owned() -> None:
    record = queue_record(DEVICE_OWNED, 123_456_789, {"t": "default", "c": "door", "u": "ada"})
    assert encoded(record).hex() == OWNED
    [found] = decode_batch(bytes.fromhex(OWNED), 5)
    assert isinstance(found, QueueRecord)
    assert (found.offset, found.subkind, found.timestamp_us) == (5, DEVICE_OWNED, 123_456_789)
    assert found.fields() == {"t": "default", "c": "door", "u": "ada"}


def test_a_message_that_came_as_a_frame_keeps_its_sequence_number() -> None:
    message = FrameMessage(123, 0x56781234, "default", b"defaultdoor", 7, b"t", -1, b"open")
    data = encoded(message)
    [found] = decode_batch(data + b"", 9)
    assert isinstance(found, FrameMessage)
    assert (found.sequence, found.client_id, found.topic, found.payload) == (
        0x56781234,
        "door",
        b"t",
        b"open",
    )
    assert found.flags == 1 | FLAG_FRAME
    assert encoded(found) == data
    assert data[6:8] + data[38:40] == bytes.fromhex("34127856")


def test_behind_another_record_the_sequence_number_is_in_its_own() -> None:
    out = BytesWriter()
    message = FrameMessage(123, 0xFFFF0001, "default", b"defaultdoor", 7, b"t", -1, b"open")
    plain = Message(1, 1, 9, 2, "default", b"defaultc", 7, b"topic", b"", -1, b"x")
    for record in (plain, message, plain):
        record.encode_into(out)
    found = decode_batch(out.getvalue(), 0)
    assert [encoded(record) for record in found] == [encoded(plain), encoded(message), encoded(plain)]


def test_numbers_are_whole_and_a_map_is_a_map() -> None:
    assert list(QueueRecord(4, 0, bytes(7) + b"\x01" + bytes(8)).numbers()) == [1 << 56, 0]
    with pytest.raises(CorruptRecord):
        QueueRecord(4, 0, bytes(9)).numbers()
    with pytest.raises(CorruptRecord):
        QueueRecord(1, 0, b"\x01").fields()
