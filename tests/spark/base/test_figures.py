"""What a job tells Prometheus: counted over its restarts, measured at the scrape, checked by promtool."""

from __future__ import annotations

import logging
import subprocess

from prometheus_client import CollectorRegistry, generate_latest

from headrace_spark.base.figures import STARTING, ErrorCounter, JobFigures, Lag
from headrace_spark.base.progress import Progress


def scraped(figures: JobFigures) -> dict[str, float]:
    registry = CollectorRegistry()
    registry.register(figures)
    lines = [line for line in generate_latest(registry).decode().splitlines() if not line.startswith("#")]
    return {
        name.replace("headrace_pipeline_", ""): float(value)
        for name, _, value in (line.rpartition(" ") for line in lines)
    }


def test_rows_and_batches_are_counted_over_a_new_beginning_of_the_job() -> None:
    figures = JobFigures("clean")
    assert (figures.waits_for, scraped(figures)['up{pipeline="clean"}']) == (STARTING, 0)
    for progress in (
        Progress(100, 7, 5, 1.0, (0.2, 3.0), written=90),
        Progress(150, 9, 0, 2.0, (0.05,), written=140),
        Progress(0, 9, 0, 0.0),  # the job began anew in this process
        Progress(30, 11, 0, 1.0, (700.0,)),
    ):
        figures.report(progress)
    found = scraped(figures)
    assert found['up{pipeline="clean"}'] == 1
    assert found['rows_read_total{pipeline="clean"}'] == 180
    assert found['rows_written_total{pipeline="clean"}'] == 170
    assert found['batches_total{pipeline="clean"}'] == 4
    assert found['committed_offset{pipeline="clean"}'] == 11
    by_bound = {name.split('le="')[1].split('"')[0]: n for name, n in found.items() if "_bucket" in name}
    assert [by_bound[bound] for bound in ("0.1", "0.25", "5.0", "600.0", "+Inf")] == [1, 2, 3, 3, 4]
    assert found['batch_duration_seconds_sum{pipeline="clean"}'] == 703.25


def test_the_lag_is_measured_at_the_scrape_and_left_out_when_that_fails() -> None:
    asked: list[int] = []

    def measure(progress: Progress) -> Lag:
        asked.append(progress.offset)
        if len(asked) > 1:
            raise OSError
        return Lag(3, 400, 2.5)

    figures = JobFigures("archive", measure)
    figures.refresh()
    assert asked == []  # where it stands is not known yet
    assert not any(name.startswith("lag_") for name in scraped(figures))
    figures.report(Progress(0, 9, 0, 0.0))
    figures.refresh()
    found = scraped(figures)
    assert [found[f'lag_{of}{{pipeline="archive"}}'] for of in ("messages", "bytes", "seconds")] == [
        3,
        400,
        2.5,
    ]
    figures.refresh()
    assert asked == [9, 9]
    assert not any(name.startswith("lag_") for name in scraped(figures))


def test_a_job_that_reads_a_table_says_its_lag_itself() -> None:
    figures = JobFigures("clean")
    figures.report(Progress(1, 1, 8, 1.0, lag_bytes=900, lag_s=30.0))
    figures.refresh()
    found = scraped(figures)
    assert [found[f'lag_{of}{{pipeline="clean"}}'] for of in ("messages", "bytes", "seconds")] == [
        8,
        900,
        30.0,
    ]


def test_what_is_logged_with_a_reason_is_an_error() -> None:
    figures = JobFigures("archive")
    log = logging.Logger("test")  # noqa: LOG001  (of nobody else)
    log.addHandler(ErrorCounter(figures))
    log.warning("again", extra={"fields": {"reason": "query"}})
    log.warning("of something else")
    log.info("fine", extra={"fields": {"reason": "query"}})
    found = scraped(figures)
    assert found['errors_total{pipeline="archive",reason="query"}'] == 1
    assert found['errors_total{pipeline="archive",reason="unreachable"}'] == 0


def test_promtool_finds_nothing_to_say() -> None:
    figures = JobFigures("archive", lambda _progress: Lag(1, 2, 3.0))
    figures.report(Progress(1, 1, 1, 1.0, (1.0,)))
    figures.refresh()
    registry = CollectorRegistry()
    registry.register(figures)
    checked = subprocess.run(
        ["promtool", "check", "metrics"], input=generate_latest(registry), capture_output=True, timeout=60
    )
    assert (checked.returncode, checked.stderr) == (0, b"")
