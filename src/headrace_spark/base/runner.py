"""Runs one job in a Spark session of its own."""

from __future__ import annotations

from threading import Event

from py4j.protocol import Py4JError, Py4JNetworkError
from pyspark.errors import PySparkException

from headrace_spark.base.cluster import check_master
from headrace_spark.base.errors import EngineLost
from headrace_spark.base.progress import Progress, Report
from headrace_spark.base.session import close_session, open_session
from headrace_spark.base.settings import RunSettings
from headrace_spark.jobs import module_of


def run_job(job: str, settings: RunSettings, stop: Event, report: Report) -> Progress:
    """Run to the present end or, with `follow`, until `stop` is set. Raises PipelineError.

    `report` is called on this thread; the last progress is returned as well. A service manager that stops a job tells
    every process of it, so Spark's may be gone first: that is a stop like another, the next run goes on from there.
    """
    check_master(settings.spark.master)
    module = module_of(job)
    module.check(settings)  # before Spark's seconds
    spark = open_session(settings.spark)
    last = Progress(0, 0, 0, 0.0)

    def remember(progress: Progress) -> None:
        nonlocal last
        last = progress
        report(progress)

    try:
        progress: Progress = module.run(spark, settings, stop, remember)
        close_session(spark)
        return progress
    except (Py4JError, PySparkException, ConnectionError) as error:
        close_session(spark)
        if stop.is_set():
            return last
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
