"""What becomes of a payload: decoded, or put aside with a reason; no payload ends the query."""

from __future__ import annotations

import json
import struct
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from headrace_spark.clean.cleaning import (
    MESSAGES_READ,
    clean_rows,
    judge,
    mark_repeats,
    quarantine_rows,
    repeat_rows,
)
from headrace_spark.clean.topic_schemas import parse_topic_schemas
from headrace_spark.records.schema import MESSAGES
from spark.clean.test_payload_formats import RECORD, SPARKPLUG_PAYLOAD, avro, descriptors
from spark.clean.test_payload_formats import reading as avro_reading
from spark.odd_values import ENDS_OF_LINES

pytestmark = pytest.mark.spark

NOON = datetime(2025, 10, 10, 12, tzinfo=UTC)
NOON_MS = round(NOON.timestamp() * 1000)
SCHEMAS = parse_topic_schemas(
    {
        "schema": [
            {
                "name": "reading",
                "topics": ["plant/+/t", "exact"],
                "event_time": "at",
                "required": ["device"],
                "fields": {
                    "device": "string",
                    "at": "timestamp_ms",
                    "value": "double",
                    "count": "long",
                    "seen": ["timestamp_s"],
                    "position": {"lat": "double", "day": "date"},
                },
            },
            {"name": "picture", "topics": ["camera/#"]},
            {"name": "anything", "topics": ["exact", "other"], "fields": {"a": "timestamp"}},
        ]
    }
)


def good(more: str = "") -> str:
    """A reading, with more fields."""
    return f'{{"device":"d","at":{NOON_MS}{more}}}'


def row(
    n: int, topic: str, payload: bytes, message_id: str | None = None, uuid: str = "u"
) -> tuple[Any, ...]:
    values = {
        "tenant": "default", "topic": topic, "client_id": "d", "qos": 1, "publish_timestamp": NOON,
        "journal_uuid": uuid, "journal_epoch": 0, "journal_offset": n,
        "message_id": message_id or f"journal:{uuid}:0:{n}", "payload": payload, "date": NOON.date(),
    }  # fmt: skip
    return tuple(values[name] for name in MESSAGES_READ)


def messages(spark: SparkSession, rows: list[tuple[Any, ...]]) -> DataFrame:
    schema = MESSAGES.__class__([MESSAGES[name] for name in MESSAGES_READ])
    return spark.createDataFrame(rows, schema)


def by_offset(judged: DataFrame) -> dict[int, dict[str, Any]]:
    return {row["journal_offset"]: row for row in judged.toArrow().to_pylist()}


# Payload on plant/1/t -> reason, None: it is good.
PAYLOADS: list[tuple[str | bytes, str | None]] = [
    (good(), None),
    (good(',"value":1,"count":2,"seen":[1.5,null],"position":{"lat":1,"day":"2025-01-02"}'), None),
    (good(',"value":null,"more":{"x":[]}'), None),
    ("hello", "not_json"),
    ("", "not_json"),
    ("null", "wrong_type"),
    ("21.5", "wrong_type"),
    (f"[{good()}]", "wrong_type"),
    (good(',"value":"hot"'), "wrong_type"),
    (good(',"count":1.5'), "wrong_type"),
    (good(',"count":99999999999999999999'), "wrong_type"),
    (good(',"position":3'), "wrong_type"),
    (good(',"value":1')[:-1], "not_json"),
    ("{'device':'d','at':1}", "not_json"),
    (good() + " rest", "not_json"),
    (good() + good(), "not_json"),
    (good() + "\0", "not_json"),
    (good(',"more":\t"\t"'), "not_json"),
    (good() + " \n", None),
    ('{"at":1}', "missing:device"),
    ('{"device":null,"at":1}', "missing:device"),
    ('{"device":"d"}', "missing:at"),
    ('{"device":"d","at":9223372036854775807}', "wrong_type"),
    ('{"device":1,"at":1}', "wrong_type"),
    ('{"device":{"a":1.10},"at":1}', "wrong_type"),
    ('{"device":"\\ud800","at":1}', "wrong_type"),
    ('{"device":"\\ud83d\\ude00","at":1}', None),
    (good(',"value":1e400'), "wrong_type"),
    (good(',"seen":[253402300800]'), "wrong_type"),
    (good(',"position":{"day":"12345"}'), "wrong_type"),
    (good(',"position":{"day":"2025"}'), "wrong_type"),
    (good(',"position":{"day":"2025-02-30"}'), "wrong_type"),
    *((good(f',"position":{{"day":"2025-01-02{json.dumps(end)[1:-1]}"}}'), "wrong_type") for end in ENDS_OF_LINES),
    (b"\xff\xfe", "not_utf8"),
    (b'{"device":"\xff","at":1}', "not_utf8"),
    ("[" * 100_000, "not_json"),
    ('{"a":' * 100_000 + "1" + "}" * 100_000, "not_json"),
    (good(',"z":' + '{"a":' * 5000 + "1" + "}" * 5000), "not_json"),
    (good(',"value":1,"value":2'), None),
    (good(',"value":NaN'), "not_json"),
    (good() + " " * 200_000, "too_large"),
]  # fmt: skip


def test_topics_with_what_ends_a_line_elsewhere_have_the_schema_that_their_filter_has(
    spark: SparkSession,
) -> None:
    topics = [
        topic for end in ENDS_OF_LINES for topic in (f"camera/{end}", f"camera/a{end}b/c", f"plant/{end}/t")
    ]
    wrong = [topic for end in ENDS_OF_LINES for topic in (f"plant/1/t{end}", f"exact{end}")]
    rows = [row(n, topic, good().encode()) for n, topic in enumerate([*topics, *wrong])]
    judged = by_offset(judge(messages(spark, rows), SCHEMAS, 1000, 300))
    assert [judged[n]["schema"] for n in range(len(rows))] == ["picture", "picture", "reading"] * len(
        ENDS_OF_LINES
    ) + [None] * len(wrong)


def test_what_becomes_of_payloads(spark: SparkSession) -> None:
    sent = [text.encode() if isinstance(text, str) else text for text, _ in PAYLOADS]
    rows = [row(n, "plant/1/t", payload) for n, payload in enumerate(sent)]
    limit = max(
        len(payload) for payload, (_, reason) in zip(sent, PAYLOADS, strict=True) if reason != "too_large"
    )
    rows[-1] = row(len(rows) - 1, "plant/1/t", b" " * (limit + 1))
    judged = by_offset(judge(messages(spark, rows), SCHEMAS, limit, 300))
    assert [judged[n]["reason"] for n in range(len(rows))] == [reason for _, reason in PAYLOADS]
    for n, payload in enumerate(sent[:-1]):
        assert judged[n]["payload"] == (None if judged[n]["reason"] is None else payload)
        assert (judged[n]["reading"] is None) == (judged[n]["reason"] is not None)
    whole = judged[1]["reading"]
    assert (whole["value"], whole["count"], whole["position"]["lat"]) == (1.0, 2, 1.0)
    assert whole["seen"] == [datetime(1970, 1, 1, 0, 0, 1, 500_000, tzinfo=UTC), None]


OF_ONE = parse_topic_schemas(
    {
        "schema": [
            {"name": "level", "topics": ["level"], "payload": "long"},
            {"name": "levels", "topics": ["levels"], "payload": ["double"]},
            {"name": "name", "topics": ["name"], "payload": "string"},
            {"name": "since", "topics": ["since"], "payload": "timestamp_s"},
        ]
    }
)
# Topic, payload, what it becomes or the reason.
PAYLOADS_OF_ONE: list[tuple[str, str, object]] = [
    ("level", "7", 7),
    ("level", " 7 ", 7),
    ("level", "\ufeff7", 7),
    ("level", "9223372036854775807", 9223372036854775807),
    ("level", "7.5", "wrong_type"),
    ("level", '"7"', "wrong_type"),
    ("level", "null", "wrong_type"),
    ("level", "[7]", "wrong_type"),
    ("level", '{"value":7}', "wrong_type"),
    ("level", "", "not_json"),
    ("level", "7,8", "not_json"),
    ("level", '1,"value":2', "not_json"),
    ("level", '1}{"value":2', "not_json"),
    ("level", "1}", "not_json"),
    ("levels", "[1,2.5]", [1.0, 2.5]),
    ("levels", "[]", []),
    ("levels", '[1,"x"]', "wrong_type"),
    ("levels", "[1", "not_json"),
    ("since", "1.5", datetime(1970, 1, 1, 0, 0, 1, 500_000, tzinfo=UTC)),
    ("since", "1e300", "wrong_type"),
    ("levels", '[1],"value":[9,9]', "not_json"),
    ("levels", "[1]]", "not_json"),
    ("levels", "[1e400]", "wrong_type"),
    ("name", '"a"', "a"),
    ("name", '"a"} rest', "not_json"),
    ("name", '"a","b"', "not_json"),
    ("name", "'a'", "not_json"),
    ("name", "a", "not_json"),
    ("name", '"\\ud800"', "wrong_type"),
    ("name", "1.10", "wrong_type"),
    ("name", '["a"]', "wrong_type"),
]


def test_payloads_that_are_no_objects(spark: SparkSession) -> None:
    rows = [row(n, topic, payload.encode()) for n, (topic, payload, _) in enumerate(PAYLOADS_OF_ONE)]
    judged = by_offset(judge(messages(spark, rows), OF_ONE, 100, 300))
    found = [judged[n]["reason"] or judged[n][topic] for n, (topic, _, becomes) in enumerate(PAYLOADS_OF_ONE)]
    assert found == [becomes for _, _, becomes in PAYLOADS_OF_ONE]


FIELDS = {"n": "long", "at": "timestamp_ms", "list": ["long"], "in": {"n": "long"}, "x": "double"}
NUMBERS: list[tuple[str, bool]] = [
    ('{"n":1.0,"at":1e3,"list":[1,2.0],"in":{"n":"3"},"x":1.5}', True),
    ('{"n":-9223372036854775808,"list":[null]}', True),
    ('{"n":1.5}', False),
    ('{"n":9223372036854775808}', False),
    ('{"n":1e40}', False),
    ('{"at":0.5}', False),
    ('{"list":[1,2.5]}', False),
    ('{"in":{"n":0.1}}', False),
    ('{"n":"x"}', False),
    ('{"n":"1,5"}', False),
    ('{"n":1.00000000000000000000000001}', False),
    ('{"n":true}', False),
    ('{"n":[1]}', False),
    ('{"n":9007199254740993e0}', False),
]


@pytest.mark.parametrize("lenient", [False, True])
def test_whole_numbers_may_be_written_otherwise_where_a_schema_is_lenient(
    spark: SparkSession, lenient: bool
) -> None:
    schema = {"name": "s", "topics": ["t"], "fields": FIELDS, "lenient": lenient}
    rows = [row(n, "t", payload.encode()) for n, (payload, _) in enumerate(NUMBERS)]
    rows.append(row(len(rows), "t", b'\xef\xbb\xbf{"n":1}'))
    judged = by_offset(judge(messages(spark, rows), parse_topic_schemas({"schema": [schema]}), 100, 300))
    taken = [judged[n]["reason"] is None for n in range(len(rows))]
    assert taken == [fits and (lenient or n == 1) for n, (_, fits) in enumerate(NUMBERS)] + [True]
    if lenient:
        whole = judged[0]["s"]
        assert (whole["n"], whole["list"], whole["in"]["n"]) == (1, [1, 2], 3)
        assert whole["at"] == datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC)
    assert judged[1]["s"]["n"] == -(1 << 63)


RESCUED: list[tuple[str, str | None]] = [
    ('{"n":1}', None),
    ('{"n":1,"b":2,"b":3}', '{"b":2,"b":3}'),
    ('{"n":1,"N":1,"x":{"y":[1,{"z":null}]},"s":"\\u00e9"}', '{"N":1,"x":{"y":[1,{"z":null}]},"s":"\\u00e9"}'),
    ('{"b":123456789012345678901234567890.5}', '{"b":123456789012345678901234567890.5}'),
    (' { "b" : 1e400 , "n" : 1 ,\n"c":1.10}', '{"b":1e400,"c":1.10}'),
    ('{"n":1,"b":"\\ud800","\\u006e":2}', '{"b":"\\ud800"}'),
]  # fmt: skip


def test_what_a_schema_does_not_name_is_kept_where_it_says_so(spark: SparkSession) -> None:
    schema = {"name": "s", "topics": ["t"], "fields": {"n": "long"}, "rescue": True}
    rows = [row(n, "t", payload.encode()) for n, (payload, _) in enumerate(RESCUED)]
    judged = by_offset(judge(messages(spark, rows), parse_topic_schemas({"schema": [schema]}), 100, 300))
    assert [judged[n]["s"]["_rescued"] for n in range(len(rows))] == [rest for _, rest in RESCUED]


def test_topics_choose_the_schema_and_event_time_says_what_is_late(spark: SparkSession) -> None:
    ago = NOON_MS - 301_000
    rows = [
        row(0, "nowhere", b"x"),
        row(1, "camera/1", b"\xff"),
        row(2, "exact", good().encode()),
        row(3, "other", b"{}"),
        row(4, "plant/1/t", b'{"device":"d","at":%d}' % ago),
        row(5, "plant/1/t", b'{"device":"d","at":%d}' % (ago + 2000)),
        row(6, "other", b'{"a":"+200000-01-01T00:00:00Z"}'),
    ]
    found = by_offset(judge(messages(spark, rows), SCHEMAS, 100, 300))
    assert [(found[n]["schema"], found[n]["reason"]) for n in range(4)] == [
        (None, "no_schema"), ("picture", None), ("reading", None), ("anything", None),
    ]  # fmt: skip
    assert (found[0]["payload"], found[1]["payload"], found[2]["payload"]) == (b"x", b"\xff", None)
    assert [found[n]["late"] for n in (1, 2, 4, 5)] == [False, False, True, False]
    assert (found[1]["event_timestamp"], found[4]["event_timestamp"]) == (NOON, NOON - timedelta(seconds=301))
    assert (found[6]["anything"], found[6]["reason"]) == (None, "wrong_type")


def test_other_formats_than_json(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "reading.avsc").write_text(json.dumps(RECORD))
    (tmp_path / "motor.desc").write_bytes(descriptors())
    entries: list[dict[str, Any]] = [
        {"name": "pump", "topics": ["pump/+"], "avro": "reading.avsc", "event_time": "at"},
        {"name": "motor", "topics": ["motor/+"], "protobuf": "motor.desc", "message": "plant.Motor"},
        {"name": "edge", "topics": ["spBv1.0/#"], "sparkplug": True, "event_time": "timestamp"},
        {"name": "reading", "topics": ["plant/#"], "fields": {"device": "string"}},
    ]
    entries[0]["fields"] = {"device": "string", "at": "timestamp", "value": "double"}
    entries[1]["fields"] = {"device": "string", "count": "long", "values": ["double"]}
    schemas = parse_topic_schemas({"schema": entries}, tmp_path)
    binary, motor = avro(avro_reading(at=NOON)), b"\x0a\x01m\x10\x96\x01"
    rows = [
        row(0, "pump/1", binary),
        row(1, "pump/1", binary[:-1]),
        row(2, "motor/1", motor),
        row(3, "motor/1", motor[:-1]),
        row(4, "spBv1.0/g/NDATA/e", SPARKPLUG_PAYLOAD),
        row(5, "spBv1.0/g/NDATA/e", b"{}"),
        row(6, "plant/1", b'{"device": "d"}'),
        row(7, "plant/1", binary),
        row(8, "elsewhere", binary),
        row(9, "pump/1", avro(avro_reading(at=NOON, value=float("inf")))),
        row(10, "motor/1", b"\x1a\x10" + struct.pack("<2d", -float("inf"), float("nan"))),
    ]
    found = by_offset(judge(messages(spark, rows), schemas, 100, 300))
    reasons = [None, "not_avro", None, "not_protobuf", None, "not_protobuf", None, "not_utf8", "no_schema"]
    assert [found[n]["reason"] for n in range(9)] == reasons
    assert found[0]["pump"] == {"device": "d", "at": NOON, "value": 1.5}
    assert found[2]["motor"] == {"device": "m", "count": 150, "values": []}
    assert found[4]["event_timestamp"] == datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC)
    values = [(m["name"], m["alias"], m["double_value"], m["int_value"]) for m in found[4]["edge"]["metrics"]]
    assert values == [("temperature", None, 21.5, None), ("flow", None, None, -2), (None, 3, None, None)]
    assert found[6]["reading"] == {"device": "d"}
    assert found[9]["pump"] == {"device": "d", "at": NOON, "value": float("inf")}
    endless, none = found[10]["motor"]["values"]
    assert (endless, none != none) == (-float("inf"), True)


def test_every_row_goes_into_exactly_one_table(spark: SparkSession) -> None:
    fine = good().encode()
    rows = [
        row(0, "exact", fine),
        row(1, "exact", fine, "client:default/d/1"),
        row(2, "exact", fine, "client:default/d/1"),
        row(3, "exact", b"broken", "client:default/d/2"),
        row(4, "exact", fine, "client:default/d/2"),
        row(5, "exact", fine, "client:default/d/known"),
        row(6, "exact", fine, "client:default/d/itself"),
    ]
    known = spark.createDataFrame(
        [("client:default/d/known", "v", 0, 9), ("client:default/d/itself", "u", 0, 6)],
        "message_id string, journal_uuid string, journal_epoch long, journal_offset long",
    )
    batch = messages(spark, rows)
    marked = mark_repeats(judge(batch, SCHEMAS, 100, 300), batch, known).cache()
    tables = [
        sorted(r.journal_offset for r in step(marked).collect())
        for step in (clean_rows, quarantine_rows, repeat_rows)
    ]
    assert tables == [[0, 1, 6], [3], [2, 4, 5]]
    marked.unpersist()
