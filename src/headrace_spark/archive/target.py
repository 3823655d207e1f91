"""Where an archive goes, chosen by what can be done there: files by workers that see the folder, or Spark's writer."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Protocol

from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from headrace_spark.archive.by_url import UrlTarget
from headrace_spark.archive.folder import FolderTarget
from headrace_spark.archive.settings import ArchiveSettings
from headrace_spark.base.lake_url import LakeUrl
from headrace_spark.source.log_reader import LogReader


class Target(Protocol):
    @property
    def owner(self) -> str:
        """Return the owner of the consumer's position, once it is open."""

    def held(self) -> AbstractContextManager[None]:
        """Keep the place for these journals until the block ends: nobody else archives them there. Raises
        LakeConflict."""

    def require_held(self) -> None:
        """Check that this process still holds the target. Raises LakeConflict if somebody else does by now."""

    def open(self) -> Mapping[str, int]:
        """Make the table if it is missing; -> for each journal the offset below which it has every message, 0 if none.
        Raises LakeConflict, ForeignOffset."""

    def upkeep(self) -> Callable[[], None]:
        """Return what tends the table between batches."""

    def start(self) -> StreamingQuery: ...

    def rows(self, batch: int) -> int | None:
        """Return how many rows a finished batch added, None if Spark's own count says so."""


def target_of(spark: SparkSession, settings: ArchiveSettings, journals: Sequence[LogReader]) -> Target:
    """Return the target of an archive: a lake that only its URL names is no folder for workers, whatever they have
    mounted."""
    if isinstance(settings.lake, LakeUrl):
        return UrlTarget(spark, settings, journals, settings.lake)
    return FolderTarget(spark, settings, journals, settings.lake)
