"""A cluster's journals in a real Kafka as the source reads them, without Spark: rows, offsets, consumers, refusals."""

from __future__ import annotations

import time
from typing import Any

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows

from broker_process import free_port
from headrace.journal.consumers import ConsumerPosition
from headrace_spark.base.errors import (
    BadOption,
    ForeignOffset,
    JournalMissing,
    JournalRefused,
    JournalUnreachable,
    LakeConflict,
)
from headrace_spark.records.schema import MESSAGES
from headrace_spark.source.journal import open_journals, register, registered_offset
from headrace_spark.source.kafka import KafkaConsumers
from headrace_spark.source.kafka_address import KafkaAddress
from headrace_spark.source.lag import lag_of
from headrace_spark.source.options import SourceOptions
from headrace_spark.source.remote import Patience
from headrace_spark.source.source import BatchReader
from headrace_spark.source.stream import StreamReader
from kafka_server import KafkaServer
from spark.kafka_journals import KafkaShards

pytestmark = [pytest.mark.spark, pytest.mark.kafka]


@pytest.fixture
def shards(kafka: KafkaServer) -> KafkaShards:
    made = KafkaShards(kafka)
    made.write(200)
    return made


def options(url: str, **more: str) -> SourceOptions:
    return SourceOptions.parse(
        {"path": url, "cache": "none", "consumer": "c"} | (more or {"partitions": "2"})
    )


def read(reader: Any, parts: Any) -> list[dict[str, Any]]:
    found = [row for part in parts for batch in reader.read(part) for row in batch.to_pylist()]
    ordered = sorted(found, key=lambda row: (row["journal_uuid"], row["journal_offset"]))
    return [row | {"user_properties": [dict(pair) for pair in row["user_properties"]]} for row in ordered]


def test_every_message_is_read_once_and_what_is_void_is_not(shards: KafkaShards) -> None:
    reader = BatchReader(options(shards.url, minPartitions="6"), MESSAGES)
    parts = reader.partitions()
    assert len(parts) > 2
    assert read(reader, parts) == shards.rows()


def test_a_task_reads_what_was_planned_whatever_came_since(shards: KafkaShards) -> None:
    reader = BatchReader(options(shards.url), MESSAGES)
    parts, before = reader.partitions(), shards.rows()
    shards.write(50, seed=2)
    assert read(reader, parts) == before
    assert read(reader, reader.partitions()) == shards.rows()


def test_a_stream_goes_on_from_its_offsets_and_registers_with_each_shard(shards: KafkaShards) -> None:
    reader = StreamReader(options(shards.url), MESSAGES)
    start = reader.initialOffset()
    middle = reader.latestOffset(start, ReadMaxRows(150))
    first = read(reader, reader.partitions(start, middle))
    shards.write(50, seed=2)
    again = StreamReader(options(shards.url), MESSAGES)  # of another process
    end = again.latestOffset(middle, ReadAllAvailable())
    second = read(again, again.partitions(middle, end))
    ordered = sorted(first + second, key=lambda row: (row["journal_uuid"], row["journal_offset"]))
    assert ordered == shards.rows()
    assert {entry["epoch"] for entry in end["journals"]} == {0}
    again.commit(end)
    for journal in open_journals(shards.url):
        assert registered_offset(journal, "c") == journal.high_watermark()
        assert lag_of(journal, 0, 2e9).messages == journal.high_watermark()
        (found,) = journal.consumers.list()
        assert (found.name, found.uuid, found.offset) == ("c", journal.uuid, journal.high_watermark())


def test_a_consumer_has_one_owner_and_never_goes_ahead_of_who_registers(shards: KafkaShards) -> None:
    first, second = open_journals(shards.url)
    register(first, "mine", 20, "one here")
    register(first, "mine", 50, "one there")
    assert registered_offset(first, "mine") == 20
    register(first, "mine", 10, "one")
    assert registered_offset(first, "mine") == 10
    with pytest.raises(LakeConflict, match="belongs to one"):
        register(first, "mine", 10, "two")
    assert registered_offset(second, "mine") is None


def test_topics_made_anew_under_the_name_are_another_journal(kafka: KafkaServer, shards: KafkaShards) -> None:
    reader = StreamReader(options(shards.url), MESSAGES)
    start = reader.initialOffset()
    other = KafkaShards(kafka)
    other.write(10)
    again = StreamReader(options(other.url), MESSAGES)
    with pytest.raises(ForeignOffset, match="not among"):
        again.latestOffset(start, ReadAllAvailable())


def test_what_is_not_there_is_named(kafka: KafkaServer, shards: KafkaShards) -> None:
    with pytest.raises(JournalMissing, match="headrace cluster create"):
        open_journals(f"kafka://{kafka.address}/nothing")
    with pytest.raises(BadOption, match="has 2 shards"):
        open_journals(f"{shards.url}?shard=2")
    quick = Patience(0.5, 0.5)
    with pytest.raises(JournalUnreachable):
        open_journals(f"kafka://127.0.0.1:{free_port()}/c", patience=quick)
    assert [each.location for each in open_journals(f"{shards.url}?shard=1")] == [f"{shards.url}?shard=1"]


def test_partitions_that_somebody_has_added_are_no_shards(kafka: KafkaServer, shards: KafkaShards) -> None:
    kafka.add_partitions(f"{KafkaAddress.parse(shards.url).url.journal}", 3)
    assert len(open_journals(shards.url)) == 2


class LettingGo:
    """A shard that says that what lies below offset 50 is let go, and has one consumer."""

    def __init__(self, offset: int, registered_s: float) -> None:
        self.known: ConsumerPosition | None = None
        if registered_s:
            at_us = int((time.time() - registered_s) * 1e6)
            self.known = ConsumerPosition("c", "", 0, offset, at_us, at_us)

    def start_offset(self) -> int:
        return 0

    def kept_from(self) -> int:
        return 50

    def get(self, _shard: int, _name: str) -> ConsumerPosition | None:
        return self.known

    def register(self, _shard: int, name: str, offset: int, owner: str) -> None:
        self.known = self.known or ConsumerPosition(name, "", 0, offset, time.time_ns() // 1000, 0)


@pytest.mark.parametrize(
    ("known", "registered_s", "is_refused"),
    [(0, 0.0, True), (20, 1.0, True), (20, 600.0, False), (30, 600.0, True)],
)
def test_who_was_refused_may_begin_once_whoever_deletes_must_have_seen_it(
    known: int, registered_s: float, is_refused: bool
) -> None:
    """Nothing was deleted then, for its sake; and the journal says so nowhere, until somebody publishes."""
    shard: Any = LettingGo(known, registered_s)
    consumers = KafkaConsumers("kafka://h:1/c?shard=0", 0, shard, shard)
    if not is_refused:
        consumers.register("c", "", 0, 20)
        return
    with pytest.raises(JournalRefused, match="start it again in 120 s"):
        consumers.register("c", "", 0, 20)
    assert shard.known is not None
