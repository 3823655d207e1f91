"""Runs one job in a Spark session of its own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from threading import Event
from time import monotonic
from typing import Any, Final, TypeVar

from py4j.protocol import Py4JError, Py4JJavaError, Py4JNetworkError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from headrace_spark.base.cluster import check_folders, check_master
from headrace_spark.base.errors import (
    EngineLost,
    JournalUnreachable,
    LakeConflict,
    PipelineError,
    QueryFailed,
    is_outage,
)
from headrace_spark.base.figures import UNREACHABLE
from headrace_spark.base.lake_url import LakeUrl, Location
from headrace_spark.base.logs import LOG
from headrace_spark.base.object_store import add_log_store, for_lake
from headrace_spark.base.progress import Progress, Report
from headrace_spark.base.session import close_session, is_local, open_session
from headrace_spark.base.settings import RunSettings
from headrace_spark.base.stopping import STOPPING, Stopped
from headrace_spark.jobs import TABLES_OF, module_of
from headrace_spark.lake.catalog import Catalog, with_catalog
from headrace_spark.lake.hadoop_files import said_plainly
from headrace_spark.lake.lake_of import lake_of
from headrace_spark.lake.location import check_lake
from headrace_spark.source.journal import journals_of
from headrace_spark.source.remote import IMPATIENT

_PAUSE_S: Final = (1.0, 15.0)
"""Between looks at a broker that is away: at first, and at most."""
_TOLD_EVERY_S: Final = 60.0
Found = TypeVar("Found")


def run_job(job: str, settings: RunSettings, stop: Event, report: Report) -> Progress:
    """Run to the present end or, with `follow`, until `stop` is set. Raises PipelineError.

    `report` is called on this thread; the last progress is returned as well. A service manager that stops a job tells
    every process of it, so Spark's may be gone first: that is a stop like another, the next run goes on from there.
    """
    check_master(settings.spark.master)
    check_lake(settings.lake)
    if settings.database:
        settings = replace(settings, spark=with_catalog(settings.spark, settings.database))
    module = module_of(job)
    module.check(settings)  # before Spark's seconds
    spark = open_session(for_lake(settings.spark, settings.lake))
    last = Progress(0, 0, 0, 0.0)

    catalog: Catalog | None = None

    def remember(progress: Progress) -> None:
        nonlocal last
        last = progress
        report(progress)
        if catalog is not None:
            catalog.register_new()

    try:
        make_ready(spark, settings)
        if settings.database:
            catalog = named(spark, settings, TABLES_OF.get(job, ()))
        progress = run_through_outages(module, spark, settings, stop, remember)
        if catalog is not None:
            catalog.finish()
        close_session(spark)
        return last if progress is None else progress
    except (Py4JError, PySparkException, ConnectionError, Stopped) as error:
        close_session(spark)
        if stop.is_set():
            return last
        if isinstance(error, (Py4JJavaError, PySparkException)):
            raise QueryFailed.from_spark(error) from None  # a sentence instead of pages
        if not isinstance(error, (Py4JNetworkError, ConnectionError)):
            raise
        raise EngineLost(
            "Spark's process ended in the middle of the job, most likely for want of memory "
            f"(pipeline.driver_memory={settings.spark.driver_memory}): it must hold several of the largest payloads. "
            "No table is harmed; run the job again"
        ) from None
    except BaseException:
        close_session(spark)
        raise


def make_ready(spark: SparkSession, settings: RunSettings) -> None:
    """Check the workers of a cluster, and have lakes behind URLs committed to by headrace's log store. Raises
    BadOption."""
    if not is_local(settings.spark.master):
        with STOPPING.ends():
            check_shared(spark, settings)
    if isinstance(settings.lake, LakeUrl):
        add_log_store(spark)


def check_shared(spark: SparkSession, settings: RunSettings) -> None:
    """Check that the workers of a cluster see what this job reads and writes. Raises BadOption."""
    lake = settings.lake if isinstance(settings.lake, Path) else None
    reads_journal = hasattr(settings, "consumer") and not settings.journal
    journals = [Path(journal.location) for journal in journals_of(settings)] if reads_journal else []
    check_folders(spark, lake, settings.data_dir if reads_journal else None, journals)


def named(spark: SparkSession, settings: RunSettings, names: Sequence[str]) -> Catalog:
    """Return the catalog that has these tables of the lake by their names, or will. Raises LakeConflict, BadOption."""
    lake = settings.lake.absolute() if isinstance(settings.lake, Path) else settings.lake
    catalog = Catalog(spark, settings.database, lake_of(spark, settings.lake).tables)
    catalog.begin(lake / name for name in names)
    return catalog


def look_by_spark(settings: RunSettings, look: Callable[[SparkSession], Found]) -> Found:
    """Return what is found with a Spark session of its own, for a lake behind a URL. Raises PipelineError."""
    check_master(settings.spark.master)
    spark = open_session(for_lake(settings.spark, settings.lake))
    try:
        add_log_store(spark)
        with said_plainly(settings.lake):
            return look(spark)
    finally:
        close_session(spark)


def run_through_outages(
    module: Any, spark: SparkSession, settings: RunSettings, stop: Event, report: Report
) -> Progress | None:
    """Run a job; with `follow` begin it anew, from what it has kept, whenever its broker answers again.

    None if it was stopped while it waited. Raises PipelineError.
    """
    while True:
        try:
            progress: Progress = module.run(spark, settings, stop, report)
            return progress
        except (JournalUnreachable, QueryFailed) as error:
            if stop.is_set() and is_outage(error):
                return None
            if not (settings.follow and is_outage(error)):
                raise
            stop_queries(spark)
            was_there = is_there(settings.lake)
            if not wait_out(error, lambda: journals_of(settings, IMPATIENT), stop):
                return None
            if was_there and not is_there(settings.lake):
                raise LakeConflict(
                    f"the lake {settings.lake} is gone: it was moved or removed while the job waited for its broker. "
                    "Start the job again with the lake where it is now"
                ) from None


def is_there(lake: Location) -> bool:
    """Return whether the folder of a lake is there; what is behind a URL is no folder, and is always."""
    return not isinstance(lake, Path) or lake.is_dir()


def stop_queries(spark: SparkSession) -> None:
    """End what a job has left running, so that it can begin anew."""
    for query in spark.streams.active:
        query.stop()


def wait_out(error: PipelineError, look: Callable[[], object], stop: Event) -> bool:
    """Wait until a look at the broker succeeds; False if `stop` is set before. Raises PipelineError for any other failure
    than that it does not answer."""
    began = told = monotonic()
    pause_s, most_s = _PAUSE_S
    _say_waiting(error)
    while not stop.wait(pause_s):
        try:
            look()
        except JournalUnreachable as failure:
            if not is_outage(failure):
                raise
            if monotonic() - told >= _TOLD_EVERY_S:
                told = monotonic()
                _say_waiting(failure)
            pause_s = min(2 * pause_s, most_s)
        else:
            LOG.info("the broker answers again, after %.0f s", monotonic() - began)
            return True
    return False


def _say_waiting(error: PipelineError) -> None:
    LOG.warning("%s; waiting until it does", error, extra={"fields": {"reason": UNREACHABLE}})
