"""Options of the source: parsed as Spark users write them, refused by name."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace_spark.base.errors import BadOption
from headrace_spark.source.options import (
    KAFKA_EARLIEST,
    KAFKA_LATEST,
    OPTIONS,
    Position,
    SourceOptions,
    check_consumer,
)
from headrace_spark.source.selection import Selection


def test_defaults() -> None:
    options = SourceOptions.parse({"path": "file:///var/lib/headrace"})
    assert options.locations == ("/var/lib/headrace",)
    assert (options.starting, options.ending, options.consumer) == (Position("earliest"), None, None)
    assert (options.schema, options.selection, options.token) == ("messages", Selection(), "")
    assert (options.rows_per_trigger_max, options.bytes_per_trigger_max) == (None, None)
    assert options.partitions >= 1
    assert options.fail_on_data_loss


def test_names_are_case_insensitive() -> None:
    options = SourceOptions.parse(
        {"PATH": "d", "maxrowspertrigger": "5", "STARTINGOFFSETS": "Latest", "FailOnDataLoss": "FALSE"}
    )
    assert (options.rows_per_trigger_max, options.starting.word, options.fail_on_data_loss) == (
        5,
        "latest",
        False,
    )


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ({}, "option path=''"),
        ({"path": "d", "startingOffset": "1"}, "startingoffset='1': no such option"),
        ({"path": "d", "startingOffsets": "first"}, "earliest, latest, an offset"),
        ({"path": "d", "endingOffsets": "earliest"}, "latest, an offset"),
        ({"path": "d", "startingOffsets": "-1"}, "an offset, or JSON"),
        ({"path": "d", "startingOffsets": '{"x": -3}'}, "an offset, or JSON"),
        ({"path": "d", "endingOffsets": '{"x": -2}'}, "an offset, or JSON"),
        (
            {"path": "d", "maxOffsetsPerTrigger": "5", "maxRowsPerTrigger": "5"},
            "maxRowsPerTrigger is given too",
        ),
        ({"path": "d", "minPartitions": "5", "partitions": "5"}, "partitions is given too"),
        (
            {"path": "d", "minOffsetsPerTrigger": "6", "maxOffsetsPerTrigger": "5"},
            "more than a micro-batch may",
        ),
        ({"path": "d", "minOffsetsPerTrigger": "0"}, "a number above 0"),
        ({"path": "d", "maxTriggerDelay": "15 minutes"}, "a time like 90s"),
        ({"provider": "headrace", "location": "file:/d"}, "CREATE TEMPORARY VIEW"),
        ({"path": "d", "maxRowsPerTrigger": "0"}, "a number above 0"),
        ({"path": "d", "maxBytesPerTrigger": "1e6"}, "a number above 0"),
        ({"path": "d", "partitions": "-2"}, "a number above 0"),
        ({"path": "d", "failOnDataLoss": "yes"}, "true or false"),
        ({"path": "d", "consumer": "../x"}, "letters, digits"),
        ({"path": " , "}, "the data directory of a broker is needed"),
        ({"path": "d", "schema": "rows"}, "there are messages, events, progress"),
        ({"path": "d", "startingOffsets": "[5]"}, "or JSON of journal uuids and offsets"),
        ({"path": "d", "startingTimestamp": "yesterday"}, "a time like"),
        ({"path": "d", "endingOffsets": "5", "endingTimestamp": "5"}, "endingOffsets is given too"),
        ({"path": "d", "topicFilter": "a/#/b"}, "# is not the whole last level"),
        ({"path": "d", "topicFilter": "$share/g/a"}, "a shared subscription is none"),
        ({"path": "d", "schema": "events", "tenant": "a"}, "is for schema=messages"),
    ],
)
def test_bad_values_name_the_option(given: dict[str, str], problem: str) -> None:
    with pytest.raises(BadOption, match=problem) as caught:
        SourceOptions.parse(given)
    assert caught.value.exit_code == 2


def test_names_of_the_kafka_source() -> None:
    options = SourceOptions.parse(
        {
            "path": "d",
            "maxOffsetsPerTrigger": "500",
            "minOffsetsPerTrigger": "50",
            "maxTriggerDelay": "2m",
            "minPartitions": "7",
            "startingOffsets": '{"x": -2, "y": -1}',
        }
    )
    assert (options.rows_per_trigger_max, options.rows_per_trigger_min) == (500, 50)
    assert (options.trigger_delay_s, options.partitions, options.task_records_min) == (120, 7, 1)
    assert options.starting.by_uuid == {"x": KAFKA_EARLIEST, "y": KAFKA_LATEST}
    older = SourceOptions.parse({"path": "d", "maxRowsPerTrigger": "500", "partitions": "7"})
    assert (older.rows_per_trigger_max, older.partitions) == (500, 7)
    assert older.task_records_min > 1
    assert older.trigger_delay_s == 900


@pytest.mark.parametrize(("given", "seconds"), [("500", 0.5), ("1500ms", 1.5), ("3 s", 3), ("2h", 7200)])
def test_a_delay_is_a_time_of_spark(given: str, seconds: float) -> None:
    assert SourceOptions.parse({"path": "d", "maxTriggerDelay": given}).trigger_delay_s == seconds


def test_several_paths_tenants_and_positions() -> None:
    options = SourceOptions.parse(
        {
            "path": "/a, headrace://b:1",
            "tenant": "plant, office",
            "topicFilter": "line/+/speed",
            "startingOffsets": '{"x": 5}',
            "endingTimestamp": "1970-01-02",
            "cache": "none",
        }
    )
    assert options.locations == ("/a", "headrace://b:1")
    assert options.starting.by_uuid == {"x": 5}
    assert options.ending == Position(at_us=86_400_000_000)
    assert options.selection.wants("plant", "line/1/speed")
    assert not options.selection.wants("plant", "line/1/2/speed")
    assert not options.selection.wants("lab", "line/1/speed")
    assert options.cache is None


def test_times_are_utc_or_milliseconds() -> None:
    for value in ("2025-10-10T02:00:00+02:00", "2025-10-10T00:00:00", "1760054400000"):
        options = SourceOptions.parse({"path": "d", "startingTimestamp": value})
        assert options.starting == Position(at_us=1_760_054_400_000_000)


def test_the_token_and_the_cache_have_homes(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HEADRACE_JOURNAL_TOKEN", "secret")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    options = SourceOptions.parse({"path": "d"})
    assert (options.token, options.cache) == ("secret", tmp_path / "headrace" / "topics")
    assert SourceOptions.parse({"path": "d", "token": "other"}).token == "other"


def test_the_reference_shows_every_option() -> None:
    page = Path(__file__).parents[3] / "docs/reference/spark-source.md"
    rows = [line for line in page.read_text(encoding="utf-8").splitlines() if line.startswith("| `")]
    assert rows[: len(OPTIONS)] == [f"| `{name}` | {meaning} |" for name, meaning in OPTIONS.items()]


@pytest.mark.parametrize("name", ["", ".hidden", "a/b", "a" * 101, "ä"])
def test_consumer_names_become_file_names(name: str) -> None:
    with pytest.raises(BadOption):
        check_consumer(name)
    assert check_consumer("archive-2.b_c") == "archive-2.b_c"
