"""Settings of Spark sessions and of jobs: typed and frozen. The command line makes them from the configuration."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from headrace_spark.base.jars import jars_folder
from headrace_spark.base.lake_url import Location


@dataclass(frozen=True)
class SparkSettings:
    """What `headrace_spark.base.session` makes a SparkSession from; your own code opens one with `SparkSettings()`."""

    master: str = "local[*]"
    app_name: str = "headrace"
    jars: Path = field(default_factory=jars_folder)
    driver_memory: str = "1g"
    task_attempts_max: int = 4
    extra: Mapping[str, str] = field(default_factory=dict)
    """Spark's own configuration keys; they win over what the session sets."""
    json_logs: bool = False
    """Whether what Spark logs is JSON, too."""


@dataclass(frozen=True, kw_only=True)
class UpkeepSettings:
    """When the tables that a job writes are compacted and vacuumed (`headrace_spark.lake.upkeep`)."""

    interval_s: float
    """0: never."""
    small_files_max: int
    """A partition with more small files than this is compacted."""
    file_bytes: int
    """What a file is compacted to; below half of it a file is small."""
    vacuum_retention_s: float


@dataclass(frozen=True, kw_only=True)
class RunSettings:
    """What every job is told: which journal, which lake, and how long to stay."""

    data_dir: Path
    journal: str
    """The journal of a running broker, `headrace://HOST:PORT`, instead of the one in `data_dir`; "": that one."""
    token_file: str
    """Holds the token that lets in there."""
    lake: Location
    database: str
    """In which database of Spark's catalog the tables of the lake are named; "": in none."""
    follow: bool
    """Go on until stopped; otherwise end at what is there now."""
    trigger_s: float
    restarts_max: int
    """How often in a row a query that failed without an error of ours is started again from its checkpoint."""
    spark: SparkSettings
    upkeep: UpkeepSettings
