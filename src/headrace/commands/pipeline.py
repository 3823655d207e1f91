"""`headrace pipeline ...`: Spark jobs from the command line.

Exit codes: 0 done, or stopped by SIGTERM or SIGINT; 1 failed; 2 wrong use. Results go to stdout, progress and
errors to stderr. A job is told what `[pipeline]` and `[pipeline.JOB]` say, and sees no configuration itself.
"""

from __future__ import annotations

import json
import shlex
import signal
import ssl
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from threading import Event
from types import FrameType
from typing import TYPE_CHECKING, Any, NoReturn

import click
from msgspec.structs import replace
from prometheus_client.registry import CollectorRegistry

from headrace.api.apart import ServedApart
from headrace.api.app import application, bind
from headrace.clients.options import FiniteRange
from headrace.commands.storage import ended_by_signals
from headrace.config import Config, InvalidKey, host_and_port, load, show
from headrace.journal.errors import JournalError
from headrace.services.process_metrics import ProcessFigures
from headrace_spark.base.errors import BadOption, PipelineError
from headrace_spark.jobs import JOBS

if TYPE_CHECKING:
    from headrace_spark.lake.status import PipelineStatus
    from headrace_spark.report.figures import Figures

_FOLDER = click.Path(file_okay=False, path_type=Path)
_OURS = ("headrace", "headrace_spark")

Options = dict[str, Any]


def common_options(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options that every job takes on the command line; the rest is in the configuration, or in `--set`."""
    options = [
        click.option("--config", "config_file", type=click.Path(path_type=Path), help="TOML file."),
        click.option(
            "--set", "sets", multiple=True, metavar="KEY=VALUE", help="Any key of the configuration."
        ),
        click.option("--data-dir", type=_FOLDER, help="Data directory of the broker; it may be running."),
        click.option(
            "--lake", metavar="LAKE", help="Folder of the Delta tables, or its URL (s3a://BUCKET/...)."
        ),
        click.option(
            "--database",
            metavar="NAME",
            help="Name the tables there in Spark's catalog: DATABASE or CATALOG.DATABASE.",
        ),
        click.option(
            "--conf", "confs", multiple=True, metavar="KEY=VALUE", help="Any key of Spark's configuration."
        ),
        click.option("--master", help="Spark master: local[N], spark://host:port, yarn or k8s://..."),
        click.option(
            "--follow/--available-now", default=None, help="Stay until stopped, or stop at the present end."
        ),
        click.option("--trigger", type=FiniteRange(0), help="Seconds between batches."),
        click.option("--metrics", metavar="HOST:PORT", help="Serve /metrics there; port 0: any, it is said."),
    ]
    for option in reversed(options):
        command = option(command)
    return command


@click.group(context_settings={"show_default": True})
def pipeline() -> None:
    """Spark jobs over the journal and the tables made from it."""


@pipeline.command()
@click.argument("job", type=click.Choice(list(JOBS)))
@common_options
def run(job: str, **options: Any) -> None:
    """Run JOB, as `[pipeline]` and `[pipeline.JOB]` of the configuration say.

    \b
    archive   every message of the journal, once, into the table `messages`
    compact-events  the events without what later ones made void, for `serve --bootstrap`
    clean     messages without repeats, decoded by topic schemas, the others with the reason
    mend      what `clean` has put aside again, after the topic schemas were mended
    metrics   traffic, devices, connections, deliveries and backlog, counted from the journal
    publish   every row of a table, once, to devices as an MQTT message
    replay    a part of the archive again, into a table or to devices
    """
    run_with(job, configured(options))


@pipeline.command()
@click.argument("job", type=click.Choice(list(JOBS)))
@common_options
@click.option("--journal", help="Running broker, headrace://HOST:PORT, or cluster, kafka://HOST:PORT/NAME.")
@click.option("--deploy-mode", type=click.Choice(["client", "cluster"]), help="Where the driver runs.")
@click.option(
    "--packages", type=click.Path(exists=True, dir_okay=False, path_type=Path), help="From `pipeline pack`."
)
@click.option(
    "--print", "only_print", is_flag=True, help="Print the call of spark-submit, and leave it at that."
)
def submit(
    job: str, deploy_mode: str | None, packages: Path | None, only_print: bool, **options: Any
) -> None:
    """Have a cluster run JOB, by spark-submit; the exit code is its own.

    With `--deploy-mode cluster`, as with yarn and k8s://, the driver runs there: journal and lake must be remote.
    """
    config = configured(options)
    with failures_explained():
        from headrace_spark.base import submitting
        from headrace_spark.base.scratch import Scratch, sweep

        mode = deploy_mode or submitting.default_mode(config.pipeline.master)
        submitting.check_submission(job_settings(job, config), mode)
        sweep()
        with Scratch("job") as folder:
            (folder / submitting.SCRIPT).write_text(submitting.SCRIPT_TEXT)
            sent, files = _sent(config) if mode == submitting.CLUSTER else (config, [])
            text = folder / submitting.CONFIGURATION
            text.touch(0o600)
            text.write_text(show(sent))
            submission = submitting.Submission(job, job_settings(job, config), mode, packages, folder, files)
            command = submission.command()
            if only_print:
                click.echo(shlex.join(command))
                return
            status = submitting.run(command)
        raise SystemExit(status)


def _sent(config: Config) -> tuple[Config, list[Path]]:
    """Return the configuration with the files that it names by their names alone, and the files. Raises BadOption,
    BadTopicSchema."""
    from headrace_spark.base.submitting import sent_together
    from headrace_spark.clean.topic_schemas import files_of

    pipeline = config.pipeline
    named = {
        "token_file": pipeline.token_file,
        "publish.password_file": pipeline.publish.password_file,
        "publish.ca_file": pipeline.publish.ca_file,
        "replay.password_file": pipeline.replay.password_file,
        "replay.ca_file": pipeline.replay.ca_file,
        "clean.topic_schemas": pipeline.clean.topic_schemas,
    }
    for key, file in named.items():
        table, _, name = key.rpartition(".")
        if not file:
            continue
        if table:
            changed = replace(getattr(pipeline, table), **{name: Path(file).name})
            pipeline = replace(pipeline, **{table: changed})
        else:
            pipeline = replace(pipeline, **{name: Path(file).name})
    files = [Path(file) for file in named.values() if file]
    if schemas := named["clean.topic_schemas"]:
        files += files_of(Path(schemas))
    return replace(config, pipeline=pipeline), sent_together(files)


@pipeline.command()
@click.argument("target", type=click.Path(dir_okay=False, path_type=Path))
def pack(target: Path) -> None:
    """Write what the jobs import, as it is installed here, into TARGET (.tar.gz), for `submit --packages`."""
    if not target.name:
        raise click.BadParameter("names no file", param_hint="TARGET")
    _check_folder(target, "TARGET")
    with failures_explained(), ended_by_signals():
        from headrace_spark.base.packing import pack as write

        for name in write(target):
            click.echo(name)


def _check_folder(file: Path, hint: str) -> None:
    """Raise BadParameter where there is no folder for a file."""
    if not file.absolute().parent.is_dir():
        raise click.BadParameter(f"{file}: there is no folder {file.parent}", param_hint=hint)


@pipeline.command()
@common_options
@click.option("--consumer", help="Name whose position holds retention back.")
@click.option("--max-records", type=click.IntRange(1), help="Records a batch takes at most.")
@click.option("--fail-on-data-loss/--no-fail-on-data-loss", default=None, help="When retention was faster.")
def archive(**options: Any) -> None:
    """Do the same as `run archive`: every message of the journal, once, into the Delta table LAKE/messages."""
    run_with("archive", configured(options))


# Option -> key of the configuration.
_KEYS = {
    "data_dir": "data_dir",
    "journal": "pipeline.journal",
    "lake": "pipeline.lake",
    "database": "pipeline.database",
    "master": "pipeline.master",
    "follow": "pipeline.follow",
    "trigger": "pipeline.trigger_s",
    "metrics": "pipeline.metrics_address",
    "consumer": "pipeline.archive.consumer",
    "max_records": "pipeline.archive.records_per_trigger_max",
    "fail_on_data_loss": "pipeline.archive.fail_on_data_loss",
}


def configured(options: Options) -> Config:
    """Return the configuration with the options of the command on top. Raises InvalidKey."""
    sets = list(options["sets"])
    for option, key in _KEYS.items():
        value = options.get(option)
        if value is not None:
            sets.append(f"{key}={json.dumps(str(value) if isinstance(value, Path) else value)}")
    if options.get("trigger") is not None:
        sets.append(f"pipeline.publish.trigger_s={options['trigger']}")
    config = load(options["config_file"], sets)
    return _with_spark(config, options.get("confs", ()))


def _with_spark(config: Config, confs: Sequence[str]) -> Config:
    """Return the configuration with keys of Spark's on top of those in `[pipeline.spark]`. Raises InvalidKey."""
    given = {}
    for conf in confs:
        key, equals, value = conf.partition("=")
        if not equals or not key:
            raise InvalidKey("--conf", f"KEY=VALUE is needed, not {conf!r}")
        given[key] = value
    return replace(config, pipeline=replace(config.pipeline, spark=config.pipeline.spark | given))


def run_with(job: str, config: Config) -> None:
    """Run a job to its end, with its progress on stderr."""
    stop = stop_on_signals()
    as_json = config.log.format == "json"
    with failures_explained(as_json):
        from headrace_spark.base.logs import ProgressLog, set_up
        from headrace_spark.base.progress import Progress, ProgressLine
        from headrace_spark.base.runner import run_job
        from headrace_spark.base.stopping import Stopped

        set_up(job, config.log.level, as_json)
        settings = job_settings(job, config)
        with (
            figures_served(job, settings, config) as figures,
            ProgressLog() if as_json else ProgressLine(job) as line,
        ):

            def report(progress: Progress) -> None:
                figures.report(progress)
                line.show(progress)

            line.say("starting Spark")
            with suppress(Stopped):  # before Spark was there
                run_job(job, settings, stop, report)


@contextmanager
def figures_served(job: str, settings: Any, config: Config) -> Iterator[Any]:
    """Hold the figures of a job (`JobFigures`), served at `pipeline.metrics_address`. Raises InvalidKey,
    PipelineError."""
    from headrace_spark.base.figures import ErrorCounter, JobFigures
    from headrace_spark.base.logs import LOG
    from headrace_spark.source.lag import JournalLag

    figures = JobFigures(job, JournalLag(settings) if hasattr(settings, "consumer") else None)
    LOG.addHandler(ErrorCounter(figures))
    address = config.pipeline.metrics_address
    if not address:
        yield figures
        return
    at = host_and_port("pipeline.metrics_address", address)
    process, registry = ProcessFigures(), CollectorRegistry()
    registry.register(figures)
    registry.register(process)
    app = application(lambda: figures.waits_for, registry, refresh=(figures.refresh, process.refresh))
    try:
        bound = bind(f"pipeline.metrics_address: {address}", at.host, at.port)
    except OSError as error:
        raise PipelineError(error.strerror or str(error)) from None
    url = f"http://{at.shown_host}:{bound.getsockname()[1]}"
    with ServedApart(app, bound, url, lambda event, detail: LOG.warning("%s: %s", event, detail)):
        LOG.info("metrics at %s/metrics", url)
        yield figures


def job_settings(job: str, config: Config) -> Any:
    """Return the settings of one job: the common ones, and every key of its own table under the same name."""
    from headrace_spark.base.settings import SparkSettings, UpkeepSettings
    from headrace_spark.jobs import SETTINGS_OF, module_of
    from headrace_spark.lake.location import lake_location

    pipeline = config.pipeline
    own = getattr(pipeline, SETTINGS_OF.get(job, job).replace("-", "_"))
    keys = {key: getattr(own, key) for key in own.__struct_fields__}
    return module_of(job).Settings(
        data_dir=Path(config.data_dir),
        journal=pipeline.journal,
        token_file=pipeline.token_file,
        lake=lake_location(pipeline.lake),
        database=pipeline.database,
        follow=pipeline.follow,
        trigger_s=keys.pop("trigger_s", pipeline.trigger_s),
        restarts_max=pipeline.restarts_max,
        spark=SparkSettings(
            master=pipeline.master,
            app_name=f"headrace {job}",
            driver_memory=pipeline.driver_memory,
            task_attempts_max=pipeline.task_attempts_max,
            extra=pipeline.spark,
            json_logs=config.log.format == "json",
        ),
        upkeep=UpkeepSettings(
            interval_s=pipeline.upkeep_interval_s,
            small_files_max=pipeline.small_files_max,
            file_bytes=pipeline.file_bytes,
            vacuum_retention_s=pipeline.vacuum_retention_s,
        ),
        **keys,
    )


@pipeline.command()
@click.option("--config", "config_file", type=click.Path(path_type=Path), help="TOML file.")
@click.option("--set", "sets", multiple=True, metavar="KEY=VALUE", help="Any key of the configuration.")
@click.option("--data-dir", type=_FOLDER, help="Data directory of the broker.")
@click.option(
    "--journal", help="Running broker instead, headrace://HOST:PORT, or cluster, kafka://HOST:PORT/NAME."
)
@click.option("--lake", metavar="LAKE", help="Folder of the Delta tables, or its URL (s3a://BUCKET/...).")
@click.option("--conf", "confs", multiple=True, metavar="KEY=VALUE", help="Any key of Spark's configuration.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object instead of text.")
def status(as_json: bool, **options: Any) -> None:
    """Show the journal, its consumers and how far jobs and tables are; without Spark, but for a lake behind a URL."""
    if not any(options[name] for name in ("config_file", "data_dir", "journal")):
        raise click.UsageError("give --data-dir, --journal, or a --config that names one of them")
    if options["data_dir"] and not options["journal"]:
        options["journal"] = ""  # whatever the configuration says
    config = configured(options)
    with failures_explained():
        from headrace_spark.lake.status import describe

        names_lake = bool(options["lake"] or options["config_file"] or options["sets"])
        found = _status(config, names_lake)
        click.echo(json.dumps(asdict(found), indent=2) if as_json else describe(found))


def _status(config: Config, names_lake: bool) -> PipelineStatus:
    """Return the status of a pipeline; of a lake behind a URL by Spark. Raises PipelineError."""
    from headrace_spark.base.lake_url import LakeUrl
    from headrace_spark.base.runner import look_by_spark
    from headrace_spark.lake.lake import Lake
    from headrace_spark.lake.location import check_lake, table_location
    from headrace_spark.lake.status import pipeline_status
    from headrace_spark.lake.url_lake import UrlLake
    from headrace_spark.source.journal import journals_of

    settings, published = job_settings("archive", config), config.pipeline.publish.table
    journals, lake = journals_of(settings), settings.lake
    if not names_lake:
        return pipeline_status(journals, None)
    if isinstance(lake, LakeUrl):
        return look_by_spark(settings, lambda spark: pipeline_status(journals, UrlLake(spark, lake)))
    check_lake(lake, writes=False)
    return pipeline_status(journals, Lake(lake), [table_location(lake, published)] if published else [])


@pipeline.command()
@click.option("--config", "config_file", type=click.Path(path_type=Path), help="TOML file.")
@click.option("--set", "sets", multiple=True, metavar="KEY=VALUE", help="Any key of the configuration.")
@click.option("--lake", metavar="LAKE", help="Folder of the Delta tables, or its URL (s3a://BUCKET/...).")
@click.option("--conf", "confs", multiple=True, metavar="KEY=VALUE", help="Any key of Spark's configuration.")
@click.option("--days", type=click.IntRange(1), default=1, help="Days to report, today included, UTC.")
@click.option("--out", type=click.Path(dir_okay=False, path_type=Path), default=Path("report.html"))
def report(out: Path, days: int, **options: Any) -> None:
    """Write one HTML page, complete in itself, from the tables; without Spark, but for a lake behind a URL."""
    config = configured(options)
    _check_folder(out, "--out")
    with failures_explained():
        figures = _report(config, out, days)
        for name in figures.missing:
            click.echo(f"table {name} is not there yet", err=True)
        click.echo(str(out))


def _report(config: Config, out: Path, days: int) -> Figures:
    """Write the report; of a lake behind a URL by Spark. Raises PipelineError, InvalidKey."""
    from headrace_spark.base.lake_url import LakeUrl
    from headrace_spark.base.runner import look_by_spark
    from headrace_spark.lake.location import check_lake
    from headrace_spark.lake.spark_log import SparkTables
    from headrace_spark.report.page import write_report

    settings, window_s = job_settings("metrics", config), config.pipeline.metrics.window_s
    lake = settings.lake
    if isinstance(lake, LakeUrl):
        return look_by_spark(
            settings, lambda spark: write_report(lake, out, days, window_s, SparkTables(spark))
        )
    check_lake(lake, writes=False)
    if not lake.is_dir():
        raise InvalidKey("pipeline.lake", f"there is no folder {lake}")
    return write_report(lake, out, days, window_s)


def problems(config: Config) -> list[str]:
    """Return what jobs could not use of `[pipeline]`, a line each with its key in front."""
    from headrace_spark.base.broker_address import read_password
    from headrace_spark.base.cluster import check_master
    from headrace_spark.base.jars import jars_folder, missing_jars
    from headrace_spark.base.session import check_java
    from headrace_spark.clean.topic_schemas import load_topic_schemas
    from headrace_spark.lake.location import check_lake, lake_location
    from headrace_spark.source.journal import check_broker

    pipeline = config.pipeline
    steps: list[tuple[str, Callable[[], object]]] = [
        ("pipeline", check_java),
        ("pipeline.master", lambda: check_master(pipeline.master)),
        ("pipeline.lake", lambda: check_lake(lake_location(pipeline.lake))),
        ("pipeline.token_file", lambda: read_password(pipeline.token_file)),
        ("pipeline.publish.password_file", lambda: read_password(pipeline.publish.password_file)),
        ("pipeline.publish.ca_file", lambda: _check_authority(pipeline.publish.ca_file)),
        ("pipeline.replay.password_file", lambda: read_password(pipeline.replay.password_file)),
        ("pipeline.replay.ca_file", lambda: _check_authority(pipeline.replay.ca_file)),
    ]
    if pipeline.journal:
        steps.append(("pipeline.journal", lambda: check_broker(pipeline.journal)))
    if pipeline.clean.topic_schemas:
        file = Path(pipeline.clean.topic_schemas)
        steps.append(("pipeline.clean.topic_schemas", lambda: load_topic_schemas(file)))
    found = []
    for key, look in steps:
        try:
            look()
        except (PipelineError, OSError) as error:
            reason = error.problem if isinstance(error, BadOption) else getattr(error, "strerror", None)
            value = f"{error.value}: " if isinstance(error, BadOption) else ""
            found.append(f"{key}: {value}{reason or error}")
    folder = jars_folder()
    if folder.is_dir():  # else Spark fetches them
        found += [f"pipeline: {jar.name} is missing in {folder}" for jar in missing_jars(folder)[:1]]
    return found


def _check_authority(file: str) -> None:
    """Check that the file of certificate authorities can be used. Raises OSError."""
    if file:
        ssl.create_default_context(cafile=file)


def stop_on_signals() -> Event:
    """Return an event that SIGTERM and SIGINT set; a second SIGINT ends the process at once."""
    from headrace_spark.base.stopping import STOPPING

    def ask(number: int, _frame: FrameType | None) -> Any:
        if number == signal.SIGINT:
            signal.signal(signal.SIGINT, signal.SIG_DFL)
        STOPPING.ask()

    STOPPING.event.clear()
    signal.signal(signal.SIGTERM, ask)
    signal.signal(signal.SIGINT, ask)
    return STOPPING.event


@contextmanager
def failures_explained(as_json: bool = False) -> Iterator[None]:
    """Turn what the pipeline and the journal raise into one line on stderr, text or JSON, and an exit code."""
    try:
        yield
    except ModuleNotFoundError as error:
        if (error.name or "").split(".")[0] in _OURS:
            raise
        needs = f"{error.name} is not installed; the pipeline needs: pip install 'headrace[spark]'"
        _complain(needs, 1, False)
    except (PipelineError, JournalError) as error:
        _complain(str(error), getattr(error, "exit_code", 1), as_json)


def _complain(problem: str, exit_code: int, as_json: bool) -> NoReturn:
    if as_json:
        from headrace_spark.base.logs import LOG

        LOG.error("%s", problem, extra={"fields": {"exit_code": exit_code}})
    else:
        click.echo(f"error: {problem}", err=True)
    raise SystemExit(exit_code) from None
