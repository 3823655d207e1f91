"""A step of the job `metrics`, DataFrame -> DataFrame: what each tenant has used, for quotas and bills."""

from __future__ import annotations

from functools import reduce
from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

MEASURES: Final = (
    "messages_in",
    "bytes_in",
    "messages_out",
    "bytes_out",
    "messages_dropped",
    "connections",
    "connected_s",
)
"""Every one is a sum."""


def usage(
    traffic: DataFrame, deliveries: DataFrame, connected: DataFrame, journal_uuid: str, up_to_offset: int
) -> DataFrame:
    """Parts of `traffic` and `deliveries` and rows of `connections`, all of one range -> parts of table `usage`."""
    acked = F.col("outcome") == "acked"
    ended = connected.where(F.col("disconnected_timestamp").isNotNull())
    online_us = F.unix_micros("disconnected_timestamp") - F.unix_micros("connected_timestamp")
    used = (
        _used(traffic, "window_start", messages_in=F.col("messages"), bytes_in=F.col("payload_bytes")),
        _used(
            deliveries,
            "window_start",
            messages_out=F.when(acked, F.col("messages")),
            bytes_out=F.when(acked, F.col("payload_bytes")),
            messages_dropped=F.when(~acked, F.col("messages")),
        ),
        _used(ended, "disconnected_timestamp", connections=F.lit(1), connected_s=online_us / 1_000_000),
    )
    sums = (F.coalesce(F.sum(name), F.lit(0)).alias(name) for name in MEASURES)
    parts = reduce(DataFrame.unionByName, used).groupBy("hour_start", "tenant").agg(*sums)
    return parts.select(
        "hour_start",
        "tenant",
        *MEASURES,
        F.lit(journal_uuid).alias("journal_uuid"),
        F.lit(up_to_offset).cast("long").alias("up_to_offset"),
        F.to_date("hour_start").alias("date"),
    )


def _used(rows: DataFrame, at: str, **figures: Column) -> DataFrame:
    """The hour, the tenant, and every measure: those that the rows say nothing about are null."""
    kinds = {name: "double" if name == "connected_s" else "long" for name in MEASURES}
    return rows.select(
        F.date_trunc("hour", at).alias("hour_start"),
        "tenant",
        *(figures.get(name, F.lit(None)).cast(kind).alias(name) for name, kind in kinds.items()),
    )
