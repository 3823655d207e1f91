"""Steps of the job `metrics` over messages, DataFrame -> DataFrame: what was published, and the last of each device."""

from __future__ import annotations

from typing import Final

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

READ: Final = (
    "tenant",
    "topic",
    "client_id",
    "qos",
    "publish_timestamp",
    "journal_offset",
    "payload",
)
"""The columns of `messages` that `sized` needs."""
LAST_READ: Final = (
    "tenant",
    "client_id",
    "topic",
    "publish_timestamp",
    "payload",
    "journal_uuid",
    "journal_epoch",
    "journal_offset",
)
"""The columns of table `devices`."""


def sized(messages: DataFrame) -> DataFrame:
    """Messages with `payload_bytes` in the place of the payload: what is looked at several times stays small."""
    size = F.octet_length("payload").cast("long").alias("payload_bytes")
    return messages.select(*(name for name in READ if name != "payload"), size)


def per_device(messages: DataFrame, window_s: int) -> DataFrame:
    """One row for each window, client and topic: few beside the messages, and all that the next two steps need."""
    start = F.timestamp_seconds(
        F.unix_seconds("publish_timestamp") - F.unix_seconds("publish_timestamp") % window_s
    )
    groups = messages.select(
        "tenant", "topic", "client_id", "journal_offset", "payload_bytes", start.alias("window_start")
    )
    return groups.groupBy("window_start", "tenant", "topic", "client_id").agg(
        F.count("*").alias("messages"),
        F.sum("payload_bytes").alias("payload_bytes"),
        F.max("journal_offset").alias("last_offset"),
    )


def traffic(devices: DataFrame, topic_levels: int, journal_uuid: str, up_to_offset: int) -> DataFrame:
    """`per_device` -> table `traffic`."""
    prefix = F.substring_index("topic", "/", topic_levels).alias("topic_prefix")
    parts = devices.groupBy("window_start", "tenant", prefix, "client_id").agg(
        F.sum("messages").alias("messages"), F.sum("payload_bytes").alias("payload_bytes")
    )
    return parts.select(
        "window_start",
        "tenant",
        "topic_prefix",
        "client_id",
        "messages",
        "payload_bytes",
        F.lit(journal_uuid).alias("journal_uuid"),
        F.lit(up_to_offset).cast("long").alias("up_to_offset"),
        F.to_date("window_start").alias("date"),
    )


def last_offsets(devices: DataFrame) -> DataFrame:
    """`per_device` -> journal_offset of the last message of each client on each topic."""
    last = devices.groupBy("tenant", "client_id", "topic").agg(F.max("last_offset").alias("journal_offset"))
    return last.select("journal_offset")


def last_messages(last: DataFrame, messages: DataFrame) -> DataFrame:
    """`last_offsets`, messages with their payloads -> rows of table `devices`."""
    return messages.join(last, "journal_offset", "left_semi").select(*LAST_READ)


NEWER: Final = (
    "case when new.journal_uuid = old.journal_uuid "
    "then (new.journal_epoch, new.journal_offset) > (old.journal_epoch, old.journal_offset) "
    "else new.publish_timestamp > old.publish_timestamp end"
)
"""When a row of `devices` takes the place of the old one: by offset, so that doing it twice changes nothing."""
