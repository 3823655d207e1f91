"""Rows of `events` for every kind of event, those of early journals included."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from headrace.core.records.event import (
    BROKER_STARTED,
    RETAINED_EXPIRED,
    RETAINED_QUEUED,
    SESSION_CLOSED,
    SESSION_ENDED,
    SESSION_OPENED,
    SESSION_RESUMED,
    SUBSCRIBED,
    UNSUBSCRIBED,
    WILL_CANCELLED,
    WILL_FIRED,
    Event,
)
from headrace.core.records.record import Record
from headrace.errors import CorruptRecord
from headrace_spark.records import event_rows
from headrace_spark.records.decode import decode
from headrace_spark.records.schema import EVENTS, arrow_schema, select
from spark.journals import EPOCH, MIDNIGHT_US, Made, message, mixed

UUID = "6f9619ff-8b86-d011-b42d-00c04fc964ff"
WHO = {"inc": 9, "t": "plant", "c": "device-1"}
ABOUT = {"tenant": "plant", "client_id": "device-1", "incarnation": 9}
COMMON = ("event_timestamp", "date", "journal_uuid", "journal_epoch", "journal_offset", "item", "record")


def rows(*records: Record, columns: str = "") -> list[dict[str, Any]]:
    """The rows of these records at offsets from 70 on, without the columns that are null."""
    made = Made()
    made.records = list(records)
    schema = arrow_schema(select(columns, "events"))
    batches = list(decode(made.batches([2, 1, 3], 4, 70), UUID, 0, 1 << 40, schema, "events"))
    found = pa.Table.from_batches(batches, schema).to_pylist()
    return [{name: value for name, value in row.items() if value is not None} for row in found]


def told(subkind: int, fields: dict[str, object]) -> list[dict[str, Any]]:
    """What the rows of one event say beside when and where it was."""
    found = rows(Event(subkind, MIDNIGHT_US, fields))
    return [{name: value for name, value in row.items() if name not in COMMON} for row in found]


def test_a_row_says_when_and_where_it_happened() -> None:
    will = ["a/b", b"gone", 1, True, b"", 5, -1]
    opened = Event(SESSION_OPENED, MIDNIGHT_US + 7, {"t": "plant", "c": "d", "ex": 60, "v": 5, "w": will})
    first, second = rows(message(), opened)
    assert first["event_timestamp"] == EPOCH.fromtimestamp((MIDNIGHT_US + 7) / 1e6, EPOCH.tzinfo)
    assert str(first["date"]) == "2025-10-10"
    assert (first["journal_uuid"], first["journal_epoch"], first["journal_offset"]) == (UUID, 4, 71)
    assert (first["item"], second["item"], second["journal_offset"]) == (0, 1, 71)
    assert first["record"] == Made.encoded(opened)
    assert "record" not in second


def test_a_session_is_known_by_the_offset_of_its_first_record() -> None:
    (row,) = rows(Event(SESSION_OPENED, 1, {"t": "plant", "c": "d", "ty": 1, "ex": 9, "v": 4, "lim": 64}))
    assert (row["incarnation"], row["tenant"], row["client_id"]) == (70, "plant", "d")
    assert (row["session_type"], row["session_expiry_s"], row["protocol_version"]) == ("APPLICATION", 9, 4)
    assert row["sent_limit"] == 64


def test_a_will_is_a_row_of_its_own() -> None:
    will = ["a/b", b"gone", 2, True, b"\x01\x01", 30, 90]
    resumed, told_will = told(SESSION_RESUMED, WHO | {"ex": 60, "v": 5, "w": will, "lim": 3})
    assert resumed == ABOUT | {
        "kind": "session_resumed",
        "session_expiry_s": 60,
        "protocol_version": 5,
        "sent_limit": 3,
    }
    assert told_will == ABOUT | {
        "kind": "will_set",
        "topic": "a/b",
        "payload": b"gone",
        "qos": 2,
        "retain": True,
        "properties": b"\x01\x01",
        "will_delay_s": 30,
        "message_expiry_s": 90,
    }


def test_an_owner_is_the_last_row_of_its_record() -> None:
    will = ["a/b", b"gone", 2, True, b"", 30, 90]
    found = told(SESSION_RESUMED, WHO | {"ex": 60, "v": 5, "w": will, "lim": 3, "u": "ada"})
    assert [row["kind"] for row in found] == ["session_resumed", "will_set", "owner_set"]
    assert found[-1] == ABOUT | {"kind": "owner_set", "owner": "ada"}


@pytest.mark.parametrize(
    ("subkind", "fields", "expected"),
    [
        (BROKER_STARTED, {}, [{"kind": "broker_started"}]),
        (
            SESSION_CLOSED,
            WHO | {"ex": 60, "lim": 17, "will": 1, "reason": "keep alive timeout", "code": 141},
            [
                ABOUT
                | {
                    "kind": "session_closed",
                    "session_expiry_s": 60,
                    "sent_limit": 17,
                    "will_set": True,
                    "reason": "keep alive timeout",
                    "reason_code": 141,
                }
            ],
        ),
        (
            SESSION_ENDED,
            WHO | {"reason": "expired", "dropped": 3},
            [ABOUT | {"kind": "session_ended", "reason": "expired", "dropped": 3}],
        ),
        (UNSUBSCRIBED, WHO | {"f": ["a", "b/#"]}, [{"topic_filter": "a"}, {"topic_filter": "b/#"}]),
        (WILL_FIRED, WHO, [ABOUT | {"kind": "will_fired"}]),
        (WILL_CANCELLED, WHO, [ABOUT | {"kind": "will_cancelled"}]),
        (
            RETAINED_EXPIRED,
            {"t": "plant", "topic": "a/b", "off": 7},
            [{"kind": "retained_expired", "tenant": "plant", "topic": "a/b", "message_offset": 7}],
        ),
        (
            RETAINED_QUEUED,
            WHO | {"ret": [5, 1, 0, 6, 2, 8]},
            [{"message_offset": 5, "qos": 1}, {"message_offset": 6, "qos": 2, "subscription_id": 8}],
        ),
        (
            RETAINED_QUEUED,
            WHO | {"ret": [5, 1, 0, 6, 2, 8], "rs": [10, 20], "rp": [7, 9]},
            [
                {"message_offset": 5, "qos": 1, "payload_bytes": 7},
                {"message_offset": 6, "qos": 2, "subscription_id": 8, "payload_bytes": 9},
            ],
        ),
    ],
)
def test_every_kind(subkind: int, fields: dict[str, object], expected: list[dict[str, Any]]) -> None:
    if "kind" not in expected[0]:
        kind = {UNSUBSCRIBED: "unsubscribed", RETAINED_QUEUED: "retained_queued"}[subkind]
        expected = [{"kind": kind} | ABOUT | row for row in expected]
    assert told(subkind, fields) == expected


def test_each_filter_of_a_subscribe_is_a_row_and_so_is_what_it_queues() -> None:
    filters = [["a/#", 1, True, False, 2, 0], ["$share/g/b", 0, False, True, 0, 9]]
    found = told(SUBSCRIBED, WHO | {"subs": filters, "ret": [5, 1, 9]})
    assert [row["kind"] for row in found] == ["subscribed", "subscribed", "retained_queued"]
    assert found[0] == ABOUT | {
        "kind": "subscribed",
        "topic_filter": "a/#",
        "qos": 1,
        "no_local": True,
        "retain_as_published": False,
        "retain_handling": 2,
    }
    assert (found[1]["topic_filter"], found[1]["subscription_id"]) == ("$share/g/b", 9)
    assert found[2]["message_offset"] == 5


def test_messages_set_and_clear_what_is_retained() -> None:
    kept = message(topic="größe", qos=1, retain=True, payload=b"10", expiry_s=60, version=5)
    cleared = message(topic="größe", retain=True, payload=b"")
    first, second = rows(message(payload=b"not retained"), kept, cleared)
    assert (first["kind"], first["topic"], first["payload"]) == ("retained_set", "größe", b"10")
    assert (first["qos"], first["message_expiry_s"], first["journal_offset"]) == (1, 60, 71)
    assert (second["kind"], second["topic"]) == ("retained_cleared", "größe")
    assert "payload" not in second


def test_records_of_early_journals_have_the_incarnation_alone() -> None:
    found = told(SESSION_CLOSED, {"inc": 12, "ex": 60, "lim": 17, "will": 0})
    assert found == [
        {
            "kind": "session_closed",
            "incarnation": 12,
            "session_expiry_s": 60,
            "sent_limit": 17,
            "will_set": False,
        }
    ]


def test_many_rows_come_in_several_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    made = mixed(400, 3)
    whole = rows(*made.records)
    monkeypatch.setattr(event_rows, "ROWS_MAX", 10)
    assert rows(*made.records) == whole
    assert len(whole) > 50


def test_named_columns_only() -> None:
    assert rows(Event(WILL_FIRED, 1, dict(WHO)), columns="kind,client_id") == [
        {"kind": "will_fired", "client_id": "device-1"}
    ]
    assert EVENTS.names[0] == "kind"


def test_an_event_that_no_version_knows_is_refused() -> None:
    with pytest.raises(CorruptRecord, match="offset 70: an event of unknown kind"):
        rows(Event(99, 1, {}))
