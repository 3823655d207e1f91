"""`headrace pipeline ...`: the jobs from the command line.

Exit codes: 0 done, or stopped by SIGTERM or SIGINT; 1 failed; 2 wrong use. Results go to stdout, progress and
errors to stderr.
"""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from threading import Event
from types import FrameType
from typing import Any

import click

from headrace.journal.errors import JournalError
from headrace_spark.errors import PipelineError
from headrace_spark.settings import ArchiveSettings, SparkSettings

_FOLDER = click.Path(file_okay=False, path_type=Path)
_COUNT = click.IntRange(1)
_EXTRA = ("pyspark", "delta", "deltalake", "pyarrow", "numpy")


@click.group(context_settings={"show_default": True})
def pipeline() -> None:
    """Spark jobs over the journal and the tables made from it."""


@pipeline.command()
@click.option(
    "--data-dir", type=_FOLDER, required=True, help="Data directory of the broker; it may be running."
)
@click.option("--lake", type=_FOLDER, required=True, help="Folder of the Delta tables; made if missing.")
@click.option("--follow/--available-now", help="Go on until stopped, or stop at the present end.")
@click.option("--master", default=SparkSettings.master, help="Spark master: local[N] or spark://host:port.")
@click.option(
    "--consumer", default=ArchiveSettings.consumer, help="Name whose position holds retention back."
)
@click.option(
    "--trigger", type=click.FloatRange(0), default=ArchiveSettings.trigger_s, help="Seconds between batches."
)
@click.option(
    "--max-records",
    type=_COUNT,
    default=ArchiveSettings.records_per_trigger_max,
    help="Records a batch takes at most.",
)
@click.option(
    "--fail-on-data-loss/--no-fail-on-data-loss",
    default=ArchiveSettings.fail_on_data_loss,
    help="When retention was faster.",
)
def archive(
    data_dir: Path,
    lake: Path,
    follow: bool,
    master: str,
    consumer: str,
    trigger: float,
    max_records: int,
    fail_on_data_loss: bool,
) -> None:
    """Write every message of the journal, once, into the Delta table LAKE/messages."""
    settings = ArchiveSettings(
        data_dir=data_dir,
        lake=lake,
        consumer=consumer,
        follow=follow,
        trigger_s=trigger,
        records_per_trigger_max=max_records,
        fail_on_data_loss=fail_on_data_loss,
        spark=SparkSettings(master=master, app_name="headrace archive"),
    )
    stop = stop_on_signals()
    with failures_explained():
        from headrace_spark.jobs import archive as job
        from headrace_spark.progress import ProgressLine

        with ProgressLine("archive") as line:
            line.say("starting Spark")
            job.archive(settings, stop, line.show)


@pipeline.command()
@click.option("--data-dir", type=_FOLDER, required=True, help="Data directory of the broker.")
@click.option("--lake", type=_FOLDER, help="Folder of the Delta tables.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object instead of text.")
def status(data_dir: Path, lake: Path | None, as_json: bool) -> None:
    """Show the journal, its consumers and how far the tables are, without starting Spark."""
    with failures_explained():
        from headrace_spark.status import describe, pipeline_status

        found = pipeline_status(data_dir, lake)
        click.echo(json.dumps(asdict(found), indent=2) if as_json else describe(found))


def stop_on_signals() -> Event:
    """An event that SIGTERM and SIGINT set; a second SIGINT ends the process at once."""
    stop = Event()

    def ask(number: int, _frame: FrameType | None) -> Any:
        stop.set()
        if number == signal.SIGINT:
            signal.signal(signal.SIGINT, signal.SIG_DFL)

    signal.signal(signal.SIGTERM, ask)
    signal.signal(signal.SIGINT, ask)
    return stop


@contextmanager
def failures_explained() -> Iterator[None]:
    """Turn what the pipeline and the journal raise into one line on stderr and an exit code."""
    try:
        yield
    except ModuleNotFoundError as error:
        if (error.name or "").split(".")[0] not in _EXTRA:
            raise
        click.echo(f"error: {error.name} is not installed; the pipeline needs headrace[spark]", err=True)
        raise SystemExit(1) from None
    except (PipelineError, JournalError) as error:
        click.echo(f"error: {error}", err=True)
        raise SystemExit(getattr(error, "exit_code", 1)) from None
