"""A lake in HDFS, by a real namenode and datanode: four jobs, gone on with by other drivers, and read back.

python -m faults.pipeline.hdfs
"""

from __future__ import annotations

import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from threading import Event

from pyspark.sql import SparkSession

from headrace_spark.base.lake_url import LakeUrl
from headrace_spark.base.runner import look_by_spark
from headrace_spark.base.settings import RunSettings
from headrace_spark.jobs import module_of
from headrace_spark.lake.status import PipelineStatus, pipeline_status
from headrace_spark.lake.url_lake import UrlLake
from headrace_spark.source.journal import journals_of
from spark.conftest import QUICK, Writer, settings_of
from spark.hdfs_server import hdfs_server
from spark.journals import mixed

SCHEMAS = '[[schema]]\nname = "any"\ntopics = ["#"]\n'
JOBS = ("archive", "clean", "metrics", "compact-events")
CLEANED = ("clean", "quarantine", "repeats")
Found = tuple[list[int], int, PipelineStatus]
"""The offsets in `messages`, the rows that were cleaned, and what `status` says."""


class Trial:
    """One journal and one lake. A driver has a Spark session of its own."""

    def __init__(self, folder: Path, lake: LakeUrl) -> None:
        self.journal = Writer(folder / "data")
        self.lake = lake
        self._folder = folder
        (folder / "schemas.toml").write_text(SCHEMAS)

    def settings(self, job: str) -> RunSettings:
        more = {"topic_schemas": str(self._folder / "schemas.toml")} if job == "clean" else {}
        found: RunSettings = settings_of(job, self.journal.data_dir, self._folder, **more)
        spark = replace(found.spark, master="local[2]", extra=QUICK)
        return replace(found, lake=self.lake, spark=spark, restarts_max=0)

    def drive(self, spark: SparkSession) -> Found:
        """Run every job to its end, and look at what they made."""
        for job in JOBS:
            settings = self.settings(job)
            module_of(job).check(settings)
            module_of(job).run(spark, settings, Event(), lambda _: None)
        read = spark.read.format("delta")
        offsets = read.load(f"{self.lake}/messages").select("journal_offset").toArrow()
        cleaned = sum(read.load(f"{self.lake}/{name}").count() for name in CLEANED)
        status = pipeline_status(journals_of(self.settings("archive")), UrlLake(spark, self.lake))
        return sorted(offsets["journal_offset"].to_pylist()), cleaned, status


def main() -> int:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "hdfs").mkdir()
        with hdfs_server(folder / "hdfs") as url:
            trial = Trial(folder, LakeUrl(f"{url}/lake"))
            for seed in range(2):
                trial.journal.write(mixed(200, seed))
                offsets, cleaned, status = look_by_spark(trial.settings("archive"), trial.drive)
    expected = [row["journal_offset"] for row in trial.journal.rows()]
    lags = {job.job: job.lag for job in status.jobs}
    print(f"{len(expected)} messages, {len(offsets)} in the archive, {cleaned} cleaned, lag {lags}")
    is_whole = offsets == expected and cleaned == len(expected)
    return 0 if is_whole and all(lags[job] == 0 for job in JOBS) else 1


if __name__ == "__main__":
    sys.exit(main())
