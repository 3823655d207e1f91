"""Steps of the job `metrics` over events, DataFrame -> DataFrame: sessions, and when they were connected."""

from __future__ import annotations

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F

_BEGINS = ("session_opened", "session_resumed")
_ENDS = ("session_closed", "session_ended")


def connections(events: DataFrame, sessions: DataFrame) -> DataFrame:
    """Connections that began or ended in this range, as rows of table `connections`.

    `sessions`: incarnation, tenant, client_id, connected_offset, connected_timestamp (null: offline) of the
    sessions that were there before, without those of this range.
    """
    open_before = sessions.where(F.col("connected_offset").isNotNull()).select(
        "incarnation",
        "tenant",
        "client_id",
        F.lit("before").alias("kind"),
        F.col("connected_offset").alias("offset"),
        F.col("connected_timestamp").alias("at"),
    )
    own = events.where(F.col("kind").isin(*_BEGINS, *_ENDS)).select(
        "incarnation",
        "tenant",
        "client_id",
        "kind",
        F.col("journal_offset").alias("offset"),
        F.col("event_timestamp").alias("at"),
    )
    following = Window.partitionBy("incarnation").orderBy("offset")
    changes = open_before.unionByName(own).select(
        "*",
        F.lead(F.struct("offset", "at", "kind")).over(following).alias("next"),
        F.last(F.col("client_id"), ignorenulls=True).over(following).alias("known_client"),
        F.last(F.col("tenant"), ignorenulls=True).over(following).alias("known_tenant"),
    )
    begun = changes.where(F.col("kind").isin("before", *_BEGINS))
    # A crash is not recorded; that the broker started again is.
    starts = F.broadcast(
        events.where("kind = 'broker_started'").select(
            F.struct(
                F.col("journal_offset").alias("offset"), F.col("event_timestamp").alias("at"), F.col("kind")
            ).alias("start")
        )
    )
    key = ("incarnation", "offset")
    started = (
        begun.join(starts, F.col("start.offset") > F.col("offset"))
        .groupBy(*key)
        .agg(F.min("start").alias("start"))
    )
    end = F.least("next", "start")
    return begun.join(started, [*key], "left").select(
        F.col("known_tenant").alias("tenant"),
        F.col("known_client").alias("client_id"),
        "incarnation",
        F.col("offset").alias("connected_offset"),
        F.col("at").alias("connected_timestamp"),
        end["at"].alias("disconnected_timestamp"),
        F.regexp_replace(end["kind"], "^session_", "").alias("end"),
        F.to_date("at").alias("date"),
    )


def sessions_after(events: DataFrame, sessions: DataFrame, connected: DataFrame) -> DataFrame:
    """The sessions that are left at the end: incarnation, tenant, client_id, and their connection if online."""
    opened = events.where("kind = 'session_opened'").select("incarnation", "tenant", "client_id")
    ended = events.where("kind = 'session_ended'").select("incarnation")
    online = connected.where(F.col("disconnected_timestamp").isNull()).select(
        "incarnation", "connected_offset", "connected_timestamp"
    )
    there = sessions.select("incarnation", "tenant", "client_id").unionByName(opened)
    return there.join(ended, "incarnation", "left_anti").join(online, "incarnation", "left")
