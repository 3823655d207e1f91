"""What the job `archive` is told."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamReader, DataStreamWriter

from headrace_spark.base.settings import RunSettings
from headrace_spark.source.journal import source_options
from headrace_spark.source.log_reader import LogReader
from headrace_spark.source.options import EARLIEST, KAFKA_EARLIEST

JOB: Final = "archive"


@dataclass(frozen=True, kw_only=True)
class ArchiveSettings(RunSettings):
    """`[pipeline.archive]`: the journals of one broker into the table `messages` of one lake."""

    consumer: str
    records_per_trigger_max: int
    bytes_per_trigger_max: int
    fail_on_data_loss: bool


def stream(
    spark: SparkSession,
    settings: ArchiveSettings,
    journals: Sequence[LogReader],
    kind: str,
    owner: str,
    begin: Mapping[str, int],
) -> DataStreamReader:
    """Return the journals, by uuid from `begin` on, by the source `kind`; 0: from where it is complete."""
    return (
        spark.readStream.format(kind)
        .option("consumer", settings.consumer)
        .option("owner", owner)
        .option("startingOffsets", _starting(begin))
        .option("maxRowsPerTrigger", settings.records_per_trigger_max)
        .option("maxBytesPerTrigger", settings.bytes_per_trigger_max)
        .option("failOnDataLoss", settings.fail_on_data_loss)
        .option("partitions", spark.sparkContext.defaultParallelism)
        .options(**source_options(journals))
    )


def _starting(begin: Mapping[str, int]) -> str:
    if not any(begin.values()):
        return EARLIEST
    return json.dumps({uuid: offset or KAFKA_EARLIEST for uuid, offset in begin.items()})


def started(writer: DataStreamWriter, settings: ArchiveSettings, checkpoint: str) -> StreamingQuery:
    """Return the query, begun: it goes on until stopped, or ends at the present end."""
    query = writer.queryName(f"{JOB}-{settings.consumer}").option("checkpointLocation", checkpoint)
    if settings.follow:
        return query.trigger(processingTime=f"{round(settings.trigger_s * 1000)} milliseconds").start()
    return query.trigger(availableNow=True).start()
