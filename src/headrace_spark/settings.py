"""Settings of Spark sessions and jobs: typed, frozen, with every default of the pipeline in one place."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from headrace_spark.jars import jars_folder


@dataclass(frozen=True)
class SparkSettings:
    """What `headrace_spark.session` makes a SparkSession from."""

    master: str = "local[*]"
    app_name: str = "headrace"
    jars: Path = field(default_factory=jars_folder)
    driver_memory: str = "1g"
    task_attempts_max: int = 4
    extra: Mapping[str, str] = field(default_factory=dict)
    """Spark's own configuration keys; they win over what the session sets."""


@dataclass(frozen=True)
class ArchiveSettings:
    """The job `archive`: one journal into the table `messages` of one lake."""

    data_dir: Path
    lake: Path
    consumer: str = "archive"
    follow: bool = False
    trigger_s: float = 1.0
    records_per_trigger_max: int = 1_000_000
    bytes_per_trigger_max: int = 256 << 20
    fail_on_data_loss: bool = True
    restarts_max: int = 3
    """How often in a row a query that failed without an error of ours is started again from its checkpoint."""
    spark: SparkSettings = field(default_factory=SparkSettings)
