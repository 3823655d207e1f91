"""Steps of the job `metrics`: the groups of shared subscriptions, as sessions of their own.

A group has one queue, which it numbers as a session numbers its own (decision 13). So each group becomes a session
whose client is `$share/<name>/<filter>`, opened by its first subscription, subscribed to the filter, and ended with its
last member: the steps of `deliveries` then follow its messages as they follow everybody's. Its incarnation is its
group id, below zero, where it cannot be taken for an offset.
"""

from __future__ import annotations

from typing import Final

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from headrace_spark.deliveries import FOREVER, intervals

_FILTER: Final = r"^\$share/[^/]+/(.*)$"


def group_of(group_id: Column) -> Column:
    """The incarnation that stands for a group."""
    return -group_id


def group_events(events: DataFrame, subscriptions: DataFrame, sessions: DataFrame) -> DataFrame:
    """What happened to groups, as rows of `events`.

    `subscriptions`: incarnation, topic_filter, no_local; `sessions`: incarnation, tenant, client_id; both as they were
    before, groups among them.
    """
    opened = events.where("kind = 'session_opened'").select("incarnation", "tenant", "client_id")
    before = sessions.select("incarnation", "tenant", "client_id")
    known = before.where("incarnation < 0").select(
        "tenant", F.col("client_id").alias("topic_filter"), F.col("incarnation").alias("known")
    )
    members = intervals(events, subscriptions, shared=True).join(
        before.unionByName(opened).select("incarnation", "tenant"), "incarnation"
    )
    lives = _lives(members).join(known, ["tenant", "topic_filter"], "left")
    incarnation = F.when(F.col("begin") < 0, F.col("known")).otherwise(group_of(F.col("group_id")))
    groups = lives.withColumn("incarnation", incarnation).where("incarnation is not null")
    times = events.groupBy(F.col("journal_offset").alias("at")).agg(
        F.first("event_timestamp").alias("event_timestamp")
    )
    begun, ended = groups.where("begin >= 0"), groups.where(F.col("until") < FOREVER)
    rows = (
        _rows(begun, "session_opened", "begin"),
        _rows(begun, "subscribed", "begin"),
        _rows(ended, "session_ended", "until"),
    )
    named = rows[0].unionByName(rows[1]).unionByName(rows[2])
    return named.join(times, named["journal_offset"] == times["at"]).drop("at")


def _lives(members: DataFrame) -> DataFrame:
    """Memberships -> tenant, topic_filter, group_id, and the offsets [begin, until) of each life of each group."""
    order = Window.partitionBy("tenant", "topic_filter").orderBy("begin", "item")
    earlier = order.rowsBetween(Window.unboundedPreceding, -1)
    starts = members.withColumn("left", F.max("until").over(earlier)).withColumn(
        "starts", (F.col("left").isNull() | (F.col("begin") > F.col("left"))).cast("int")
    )
    numbered = starts.withColumn("life", F.sum("starts").over(order))
    first = F.min(F.struct("begin", "item"))
    return (
        numbered.groupBy("tenant", "topic_filter", "life")
        .agg(first.alias("first"), F.max("until").alias("until"))
        .select(
            "tenant",
            "topic_filter",
            F.col("first.begin").alias("begin"),
            (F.shiftleft("first.begin", 16) + F.col("first.item")).alias("group_id"),
            "until",
        )
    )


def _rows(groups: DataFrame, kind: str, at: str) -> DataFrame:
    inner = F.regexp_extract("topic_filter", _FILTER, 1)
    return groups.select(
        F.lit(kind).alias("kind"),
        "tenant",
        F.col("topic_filter").alias("client_id"),
        "incarnation",
        inner.alias("topic_filter"),
        F.lit(2).cast("byte").alias("qos"),
        F.lit(False).alias("no_local"),
        F.col(at).alias("journal_offset"),
        F.lit(0).alias("item"),
    )


def drawn(progress: DataFrame, before: DataFrame) -> DataFrame:
    """Entries that a member of their group has had: incarnation, serial. `before`: the same, of earlier ranges."""
    draws = progress.where("kind = 'shared_drawn'").select(
        group_of(F.col("group_id")).alias("incarnation"), "serial"
    )
    return before.select("incarnation", "serial").unionByName(draws).distinct()


def group_outcomes(progress: DataFrame, draws: DataFrame) -> DataFrame:
    """Entries of groups that were finished, as `deliveries.outcomes`.

    The journal does not say why: `acked` is what a member had, `not_drawn` what no member got to acknowledge, because it
    was dropped from the queue or because its member takes QoS 0.
    """
    finished = (
        progress.where("kind = 'shared_finished'")
        .groupBy(group_of(F.col("group_id")).alias("incarnation"), "serial")
        .agg(F.min("progress_timestamp").alias("settled_timestamp"))
    )
    had = draws.withColumn("had", F.lit(True))
    outcome = F.when(F.col("had"), F.lit("acked")).otherwise(F.lit("not_drawn"))
    return finished.join(had, ["incarnation", "serial"], "left").select(
        "incarnation", "serial", outcome.alias("outcome"), "settled_timestamp"
    )
