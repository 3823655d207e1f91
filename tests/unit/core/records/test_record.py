"""Records as bytes: released forms stay readable for ever, bad ones are refused."""

from __future__ import annotations

import json
from array import array
from itertools import accumulate
from pathlib import Path
from typing import Any

import pytest
from librt.strings import BytesWriter

from headrace.core.records.event import Event
from headrace.core.records.message import Copy, Given, Message, decode_batch, decode_record
from headrace.core.records.record import Progress, Record, record_positions
from headrace.errors import CorruptRecord

VECTORS = json.loads(
    (Path(__file__).parents[3] / "vectors/records/format_1.json").read_text(encoding="utf-8")
)


def built(row: dict[str, Any]) -> Record:
    fields = row["fields"]
    assert isinstance(fields, dict)
    if row["kind"] in ("message", "copy", "given"):
        plain: dict[str, Any] = {
            name: bytes.fromhex(value[4:]) if str(value).startswith("hex:") else value
            for name, value in fields.items()
        }
        if row["kind"] == "message":
            return Message(**plain)
        return Copy(**plain) if row["kind"] == "copy" else Given(Copy(**plain))
    if row["kind"] == "event":
        return Event(fields["subkind"], fields["timestamp_us"], fields["fields"])
    packed = b"".join(number.to_bytes(8, "little") for number in fields["values"])
    return Progress(fields["subkind"], fields["timestamp_us"], packed)


def encoded(record: Record) -> bytes:
    out = BytesWriter()
    record.encode_into(out)
    return out.getvalue()


@pytest.mark.parametrize("row", VECTORS, ids=lambda row: row["name"])
def test_released_bytes_are_what_is_written_and_read(row: dict[str, Any]) -> None:
    data = bytes.fromhex(row["hex"])
    assert encoded(built(row)) == data
    record, end = decode_record(data, 0)
    assert end == len(data)
    assert encoded(record) == data


@pytest.mark.parametrize("row", VECTORS, ids=lambda row: row["name"])
def test_a_cut_record_is_refused(row: dict[str, Any]) -> None:
    data = bytes.fromhex(row["hex"])
    for size in range(len(data)):
        with pytest.raises(CorruptRecord):
            decode_record(data[:size], 0)


def test_positions_of_records() -> None:
    parts = [bytes.fromhex(row["hex"]) for row in VECTORS]
    found = array("q", record_positions(b"".join(parts)))
    assert list(found) == list(accumulate(map(len, parts), initial=0))[:-1]
    assert record_positions(b"") == b""


@pytest.mark.parametrize("tail", [b"\0", b"\0\0\0\0", b"\2\0\0\0\1", b"\xff\xff\xff\xff\1"])
def test_positions_of_records_that_do_not_add_up(tail: bytes) -> None:
    whole = bytes.fromhex(VECTORS[0]["hex"])
    with pytest.raises(CorruptRecord, match=f"at byte {len(whole)} runs past"):
        record_positions(whole + tail)


def test_records_of_a_batch_get_their_offsets() -> None:
    body = b"".join(bytes.fromhex(row["hex"]) for row in VECTORS)
    assert [record.offset for record in decode_batch(body, 70)] == list(range(70, 70 + len(VECTORS)))


@pytest.mark.parametrize(
    "data",
    [
        pytest.param("0c000000" + "09" + "00" * 11, id="unknown kind"),
        pytest.param("14000000" + "0301" + "00" * 10 + "01" * 8, id="half a pair"),
        pytest.param("0d000000" + "0202" + "00" * 10 + "01", id="an event that is no map"),
        pytest.param("14000000" + "01" + "00" * 19, id="a message shorter than its header"),
        pytest.param("24000000" + "01" + "00" * 27 + "ffff" + "00" * 6, id="topic longer than the record"),
    ],
)
def test_a_record_that_does_not_add_up_is_refused(data: str) -> None:
    with pytest.raises(CorruptRecord):
        decode_record(bytes.fromhex(data), 0)
