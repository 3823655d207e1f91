"""Steps of the job `metrics` over messages, events and progress: which message a serial number stands for.

Progress says "serial 7 of this session was acknowledged", not which message that was. A session numbers the QoS 1 and
2 messages that match its subscriptions 1, 2, 3, ... in journal order (decision 7), so the number is worked out
again: subscriptions as intervals of offsets, messages matched against them, a running number for each session.
Groups of shared subscriptions come in as sessions of their own (`shared_groups`). Sessions that began before the first
range that was read are not followed: their outcomes are counted without a latency.
"""

from __future__ import annotations

from typing import Final

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F

from headrace_spark.topic_schemas import filter_pattern

FOREVER: Final = (1 << 63) - 1
# Each bound is a sixth above the one before, from a tenth of a millisecond on.
_GROWTH: Final = 7 / 6
_LEAST_MS: Final = 0.1
_SERIALS_MAX: Final = 10_000_000  # of one `dropped`, so that a damaged count does not fill the memory


def intervals(events: DataFrame, subscriptions: DataFrame, shared: bool = False) -> DataFrame:
    """Subscriptions that queue, also from before: incarnation, topic_filter, no_local, the offsets [begin, until), item.

    Those that are shared, or those that are not. A member of a group may take QoS 0: the group has a queue all the same.
    """
    own = F.startswith("topic_filter", F.lit("$share/")) == F.lit(shared)
    before = subscriptions.where(own).select(
        "incarnation",
        "topic_filter",
        "no_local",
        F.lit(-1).cast("long").alias("begin"),
        F.lit(0).alias("item"),
        F.lit(True).alias("on"),
    )
    queues = (F.col("kind") == "subscribed") & (F.lit(shared) | (F.col("qos") > 0))
    changed = events.where(F.col("kind").isin("subscribed", "unsubscribed") & own).select(
        "incarnation",
        "topic_filter",
        "no_local",
        F.col("journal_offset").alias("begin"),
        F.col("item").cast("int").alias("item"),
        queues.alias("on"),
    )
    one_filter = Window.partitionBy("incarnation", "topic_filter").orderBy("begin")
    ended = (
        events.where("kind = 'session_ended'")
        .groupBy("incarnation")
        .agg(F.min("journal_offset").alias("ended"))
    )
    both = before.unionByName(changed).select("*", F.lead("begin").over(one_filter).alias("next"))
    until = F.coalesce(F.least("next", "ended"), F.lit(FOREVER))
    return (
        both.where("on")
        .join(ended, "incarnation", "left")
        .select("incarnation", "topic_filter", "no_local", "begin", "item", until.alias("until"))
    )


def patterns(subscribed: DataFrame) -> DataFrame:
    """topic_filter, pattern of the filters with wildcards; they are few, and are looked at here one by one."""
    filters = subscribed.where("topic_filter rlike '[+#]'").select("topic_filter").distinct().collect()
    rows = [(row.topic_filter, filter_pattern(row.topic_filter)) for row in filters]
    return subscribed.sparkSession.createDataFrame(rows, "topic_filter string, pattern string")


def queued(messages: DataFrame, events: DataFrame, subscribed: DataFrame, sessions: DataFrame) -> DataFrame:
    """What this range put into the queues: incarnation, offset, item, publish_timestamp, payload_bytes.

    `subscribed`: `intervals`; `sessions`: incarnation, tenant, client_id.
    """
    wanted = subscribed.join(sessions, "incarnation")
    sent = messages.where("qos > 0").select(
        "tenant",
        "topic",
        F.col("client_id").alias("publisher"),
        F.col("journal_offset").alias("offset"),
        "publish_timestamp",
        "payload_bytes",
    )
    plain = wanted.where("not topic_filter rlike '[+#]'").withColumnRenamed("topic_filter", "topic")
    # Filters with wildcards are tried on every topic once, not on every message.
    wild = wanted.join(F.broadcast(patterns(subscribed)), "topic_filter")
    topics = sent.select("tenant", "topic").distinct()
    matched = topics.join(F.broadcast(wild), "tenant").where(F.expr("topic rlike pattern"))
    columns = ("tenant", "topic", "incarnation", "client_id", "no_local", "begin", "until")
    targets = plain.select(*columns).unionByName(matched.select(*columns))
    hits = sent.join(targets, ["tenant", "topic"]).where(
        "offset >= begin and offset < until and not (coalesce(no_local, false) and publisher = client_id)"
    )
    routed = hits.groupBy("incarnation", "offset").agg(
        F.first("publish_timestamp").alias("publish_timestamp"),
        F.first("payload_bytes").alias("payload_bytes"),
    )
    retained = events.where("kind = 'retained_queued' and qos > 0").select(
        "incarnation",
        F.col("journal_offset").alias("offset"),
        "item",
        F.lit(None)
        .cast("timestamp")
        .alias("publish_timestamp"),  # published long ago: no latency to speak of
        F.lit(0).cast("long").alias("payload_bytes"),
    )
    return routed.select(
        "incarnation", "offset", F.lit(0).alias("item"), "publish_timestamp", "payload_bytes"
    ).unionByName(retained)


def numbered(queued_rows: DataFrame, sessions: DataFrame) -> DataFrame:
    """Entries with their serial numbers. `sessions`: incarnation, next_serial (null: not known, left out)."""
    order = Window.partitionBy("incarnation").orderBy("offset", "item")
    known = sessions.where(F.col("next_serial").isNotNull()).select("incarnation", "next_serial")
    return queued_rows.join(known, "incarnation").select(
        "incarnation",
        (F.col("next_serial") + F.row_number().over(order) - 1).alias("serial"),
        "publish_timestamp",
        "payload_bytes",
    )


def outcomes(progress: DataFrame) -> DataFrame:
    """One row for each message that was finished: incarnation, serial, outcome, settled_timestamp."""
    acked = progress.where("kind = 'acked'").select(
        "incarnation",
        "serial",
        F.lit("acked").alias("outcome"),
        F.col("progress_timestamp").alias("settled_timestamp"),
    )
    last = F.col("serial") + F.least(F.col("count"), F.lit(_SERIALS_MAX)) - 1
    dropped = progress.where("kind = 'dropped' and count > 0").select(
        "incarnation",
        F.explode(F.sequence("serial", last)).alias("serial"),
        F.col("reason").alias("outcome"),
        F.col("progress_timestamp").alias("settled_timestamp"),
    )
    # A message is finished once, whatever is written about it later.
    both = acked.unionByName(dropped)
    return both.groupBy("incarnation", "serial").agg(
        F.min_by("outcome", "settled_timestamp").alias("outcome"),
        F.min("settled_timestamp").alias("settled_timestamp"),
    )


def left_by_ended(entries: DataFrame, done: DataFrame, events: DataFrame) -> DataFrame:
    """What sessions that ended left behind, as `outcomes`."""
    ended = (
        events.where("kind = 'session_ended'")
        .groupBy("incarnation")
        .agg(F.min("event_timestamp").alias("settled_timestamp"))
    )
    left = entries.join(done.select("incarnation", "serial"), ["incarnation", "serial"], "left_anti")
    return left.join(F.broadcast(ended), "incarnation").select(
        "incarnation", "serial", F.lit("session_ended").alias("outcome"), "settled_timestamp"
    )


def settled(
    done: DataFrame,
    entries: DataFrame,
    sessions: DataFrame,
    window_s: int,
    journal_uuid: str,
    up_to_offset: int,
) -> DataFrame:
    """`outcomes` -> parts of table `deliveries`. `sessions`: incarnation, tenant, client_id."""
    rows = done.join(entries, ["incarnation", "serial"], "left").join(
        F.broadcast(sessions), "incarnation", "left"
    )
    at_s = F.unix_seconds("settled_timestamp")
    latency_ms = (F.unix_micros("settled_timestamp") - F.unix_micros("publish_timestamp")) / 1000
    step = F.ceil(F.log(F.greatest(latency_ms, F.lit(_LEAST_MS)) / _LEAST_MS) / F.log(F.lit(_GROWTH)))
    known = (F.col("outcome") == "acked") & F.col("publish_timestamp").isNotNull()
    bound = F.when(known, F.round(F.pow(F.lit(_GROWTH), step) * _LEAST_MS, 3))
    groups = rows.select(
        F.timestamp_seconds(at_s - at_s % window_s).alias("window_start"),
        "tenant",
        "client_id",
        "outcome",
        bound.alias("latency_ms"),
        "payload_bytes",
    )
    parts = groups.groupBy("window_start", "tenant", "client_id", "outcome", "latency_ms").agg(
        F.count("*").alias("messages"),
        F.coalesce(F.sum("payload_bytes"), F.lit(0)).cast("long").alias("payload_bytes"),
    )
    return parts.select(
        "window_start",
        "tenant",
        "client_id",
        "outcome",
        "latency_ms",
        "messages",
        "payload_bytes",
        F.lit(journal_uuid).alias("journal_uuid"),
        F.lit(up_to_offset).cast("long").alias("up_to_offset"),
        F.to_date("window_start").alias("date"),
    )
