"""The `headrace` command. Exit codes: 0 ok, 1 failed, 2 wrong use (the message names the option or key)."""

from __future__ import annotations

import base64
import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar

import click

from headrace.commands.consumer import consumer
from headrace.commands.mosquitto import from_mosquitto
from headrace.commands.session import drop_command, list_command, peek_command, show_command
from headrace.commands.storage import (
    accept_command,
    backup_command,
    data_dir_options,
    ends_with_its_reader,
    journals_of,
    repair_command,
    reshard_command,
    restore_command,
)
from headrace.config import Config, PipelineConfig, examine, load, show, without_secrets
from headrace.errors import ConfigError, HeadraceError
from headrace.journal.errors import JournalError


class LazyGroup(click.Group):
    """Commands whose modules are imported only when they are called: Spark's imports take seconds."""

    lazy: ClassVar[dict[str, tuple[str, str]]] = {
        "pipeline": ("headrace.commands.pipeline", "pipeline"),
        "client": ("headrace.commands.client", "client"),
        "subscription": ("headrace.commands.topic", "subscription"),
        "retained": ("headrace.commands.topic", "retained"),
        "frame": ("headrace.commands.frame", "frame"),
        "cluster": ("headrace.commands.cluster", "cluster"),
        "bench": ("headrace.clients.bench", "bench"),
        "pub": ("headrace.clients.cli", "pub"),
        "sub": ("headrace.clients.cli", "sub"),
        "passwd": ("headrace.services.passwd", "passwd"),
        "drain": ("headrace.commands.drain", "drain"),
        "status": ("headrace.commands.watch", "status"),
        "top": ("headrace.commands.watch", "top"),
        "trace": ("headrace.commands.watch", "trace"),
        "directory": ("headrace.commands.directory", "directory"),
        "tenant": ("headrace.commands.tenant", "tenant"),
        "quota": ("headrace.commands.tenant", "quota"),
        "user": ("headrace.commands.user", "user"),
        "acl": ("headrace.commands.acl", "acl"),
        "token": ("headrace.commands.token", "token"),
        "ban": ("headrace.commands.token", "ban"),
    }

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted([*super().list_commands(ctx), *self.lazy])

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        found = self.lazy.get(cmd_name)
        if found is None:
            return super().get_command(ctx, cmd_name)
        module, name = found
        try:
            command = getattr(__import__(module, fromlist=[name]), name)
        except ModuleNotFoundError as error:
            raise click.ClickException(
                f"{cmd_name} needs {error.name}: pip install 'headrace[spark]'"
            ) from error
        assert isinstance(command, click.Command)
        return command


def _print_version(ctx: click.Context, _option: click.Parameter, wanted: bool) -> None:
    """Print version and build and exit; the modules are looked at only when somebody asks."""
    if wanted and not ctx.resilient_parsing:
        from headrace.build import version_line

        click.echo(f"headrace {version_line()}")
        ctx.exit()


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--version",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_print_version,
    help="Show version and build and exit.",
)
def cli() -> None:
    """An MQTT broker that makes every acknowledged message durable first."""


def main() -> None:
    """Run the command line: errors become one line on stderr and an exit status."""
    _stand_in_for_closed_streams()
    try:
        status = cli.main(prog_name="headrace", standalone_mode=False)
        sys.exit(status if isinstance(status, int) else 0)
    except click.exceptions.NoArgsIsHelpError as error:
        error.show()
        sys.exit(2)
    except click.ClickException as error:
        context = error.ctx if isinstance(error, click.UsageError) else None
        _say(error.format_message(), "headrace" if context is None else context.command_path)
        sys.exit(error.exit_code)
    except click.Abort:
        _say("aborted")
        sys.exit(1)
    except ConfigError as error:
        _say(str(error))
        sys.exit(2)
    except BrokenPipeError:
        sys.exit(1)
    except OSError as error:
        _say(_reason_of(error))
        sys.exit(1)
    except MemoryError:
        _say("not enough memory")
        sys.exit(1)
    except JournalError as error:
        _say(str(error))
        sys.exit(error.exit_status)
    except HeadraceError as error:
        _say(str(error))
        sys.exit(1)


def _stand_in_for_closed_streams() -> None:
    """Have nothing behind a standard stream that whoever started us has closed: a file of the data directory or a socket
    would get its number, and libuv ends a process that closes one of those three."""
    for descriptor in range(3):
        try:
            os.fstat(descriptor)
        except OSError:
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)  # the lowest number that is free
    sys.stdout = sys.stdout or os.fdopen(1, "w", closefd=False)
    sys.stderr = sys.stderr or os.fdopen(2, "w", closefd=False)


def _reason_of(error: OSError) -> str:
    reason = error.strerror or str(error)
    return f"{error.filename}: {reason}" if error.filename else reason


def _say(message: str, command: str = "headrace") -> None:
    click.echo(f"{command}: {' '.join(message.split())}", err=True)


# serve


@cli.command()
@click.option("--config", "config_file", type=click.Path(path_type=Path), help="TOML file")
@click.option("--data-dir", help="where the journal lies  [default: ./headrace-data]")
@click.option("--listen", "listeners", multiple=True, help="tcp://HOST:PORT, may be repeated")
@click.option(
    "--workers",
    metavar="N|auto",
    help="processes that serve the shards; auto: one for each processor  [default: 1]",
)
@click.option("--admin", help="http[s]://HOST:PORT for /healthz, /readyz, /metrics")
@click.option(
    "--cluster",
    metavar="URL",
    help="kafka://HOST:PORT[,HOST:PORT...]/NAME: the journals are there, and the data directory is a cache",
)
@click.option("--node", metavar="NAME", help="of this node in its cluster  [default: the machine's]")
@click.option(
    "--peer-listen",
    metavar="tcp://HOST:PORT",
    help="share the shards with the other nodes of the cluster, which reach this one there",
)
@click.option("--peer-advertise", metavar="HOST:PORT", help="where they reach it if that is another address")
@click.option(
    "--bootstrap",
    "snapshot",
    type=click.Path(path_type=Path),
    help="snapshot of `pipeline run compact-events` to start a broker without data from",
)
@click.option("--set", "sets", multiple=True, metavar="KEY=VALUE", help="any key of the configuration")
def serve(
    config_file: Path | None,
    data_dir: str | None,
    listeners: tuple[str, ...],
    workers: str | None,
    admin: str | None,
    cluster: str | None,
    node: str | None,
    peer_listen: str | None,
    peer_advertise: str | None,
    snapshot: Path | None,
    sets: tuple[str, ...],
) -> None:
    """Run the broker in the foreground until SIGTERM."""
    options = list(sets)
    if cluster is not None:
        options.append(f"cluster={json.dumps(cluster)}")
    for key, value in (("node", node), ("peer_listen", peer_listen), ("peer_advertise", peer_advertise)):
        if value is not None:
            options.append(f"{key}={json.dumps(value)}")
    if data_dir is not None:
        options.append(f"data_dir={json.dumps(data_dir)}")
    if listeners:
        options.append(f"listeners={json.dumps(list(listeners))}")
    if workers is not None:
        options.append(f"workers={workers}")
    if admin is not None:
        options.append(f"admin={json.dumps(admin)}")
    config = load(config_file, options)
    from headrace.commands.logs import set_up_logs

    set_up_logs(config)
    if snapshot is not None and config.cluster:
        raise click.BadParameter(
            "makes a journal on disk, and those of a cluster lie in Kafka", param_hint="--bootstrap"
        )
    if snapshot is not None:
        from headrace.node.ports import check_free

        check_free(config)  # a start that fails leaves nothing behind, which the next one would refuse
        _bootstrap(snapshot, Path(config.data_dir))
    from headrace.node.serving import serve as run

    sys.exit(run(config, lambda: load(config_file, options)))


@cli.command("worker", hidden=True)
@click.option("--config", "config_file", type=click.Path(path_type=Path), required=True)
@click.option("--place", "place", required=True)
@click.option("--control", type=int, required=True)
@click.option("--bound", type=int, multiple=True)
def worker(config_file: Path, place: str, control: int, bound: tuple[int, ...]) -> None:
    """Run one worker of a supervisor, which alone starts this."""
    from headrace.commands.logs import set_up_logs  # before all that imports structlog
    from headrace.node.serving import reread, work
    from headrace.workers.place import Place

    found = Place.unpack(place)
    config = reread(config_file)
    set_up_logs(config, found.index)
    sys.exit(work(config, lambda: reread(config_file), found, control, bound))


@cli.command("sinks", hidden=True)
def sinks() -> None:
    """Run the sinks of a worker, which alone starts this."""
    from headrace.kafka.process import main as run_sinks

    run_sinks()


def _bootstrap(snapshot: Path, data_dir: Path) -> None:
    from headrace.storage.embedded.bootstrap import bootstrap

    count = bootstrap(snapshot, data_dir, lambda line: click.echo(f"headrace: {line}", err=True))
    click.echo(f"headrace: {data_dir} made from {snapshot}: {count} records", err=True)


# config


@cli.group("config")
def config_group() -> None:
    """Check or show the configuration."""


@config_group.command("check")
@click.argument("file", type=click.Path(path_type=Path), required=False)
@click.option("--config", "config_file", type=click.Path(path_type=Path), help="TOML file")
@click.option("--set", "sets", multiple=True, metavar="KEY=VALUE")
@click.option(
    "--running", is_flag=True, help="a broker runs with it: its data and its ports are taken, by it"
)
@click.option("--keys-only", is_flag=True, help="open nothing: check the keys and their values alone")
def config_check(
    file: Path | None, config_file: Path | None, sets: tuple[str, ...], running: bool, keys_only: bool
) -> None:
    """Exit 0 if the configuration is good and what it names can be used, else 2 with a line for everything that is wrong:
    its key, and what is wrong with it."""
    config, errors = examine(config_file or file, list(sets))
    wrong = [str(error) for error in errors]
    if not wrong and not keys_only:
        from headrace.offline.checking import problems

        wrong = problems(config, running)
        if config.pipeline != PipelineConfig():
            wrong += _wrong_with_pipeline(config)
    for line in wrong:
        click.echo(f"headrace: {line}", err=True)
    if wrong:
        sys.exit(2)
    click.echo("ok")


def _wrong_with_pipeline(config: Config) -> list[str]:
    try:
        from headrace.commands.pipeline import problems
    except ModuleNotFoundError as error:
        return [f"pipeline: {error.name} is not installed: pip install 'headrace[spark]'"]
    return problems(config)


@config_group.command("show")
@click.argument("file", type=click.Path(path_type=Path), required=False)
@click.option("--config", "config_file", type=click.Path(path_type=Path), help="TOML file")
@click.option("--set", "sets", multiple=True, metavar="KEY=VALUE")
@click.option("--secrets", is_flag=True, help="passwords too")
@ends_with_its_reader
def config_show(file: Path | None, config_file: Path | None, sets: tuple[str, ...], secrets: bool) -> None:
    """Print every key with its value, as TOML. Passwords are hidden."""
    config = load(config_file or file, list(sets))
    click.echo(show(config if secrets else without_secrets(config)), nl=False)


@config_group.command("schema")
@ends_with_its_reader
def config_schema() -> None:
    """Print the JSON Schema of a configuration file, for editors."""
    import json

    from headrace.config import schema

    click.echo(json.dumps(schema(), indent=2))


# journal


@cli.group()
def journal() -> None:
    """Look into a journal."""


@journal.command("verify")
@data_dir_options
@ends_with_its_reader
def journal_verify(data_dir: Path) -> None:
    """Check every batch, of all shards; exit 1 if something is damaged."""
    from headrace.journal.inspect import verify

    is_whole = True
    for label, directory in journals_of(data_dir):
        report = verify(directory)
        for line in report.lines():
            click.echo(f"{label}{line}")
        is_whole = is_whole and report.ok
    sys.exit(0 if is_whole else 1)


@journal.command("dump")
@data_dir_options
@click.option("--from", "start", type=click.IntRange(min=0), help="first offset  [default: the oldest]")
@click.option(
    "--to", "end", type=click.IntRange(min=0), help="offset to stop before  [default: the high watermark]"
)
@click.option("--shard", type=int, help="of several shards this one alone  [default: one after the other]")
@ends_with_its_reader
def journal_dump(data_dir: Path, start: int | None, end: int | None, shard: int | None) -> None:
    """Print the records as JSON lines; of several shards each line names its own."""
    shards = journals_of(data_dir)
    if shard is not None and not 0 <= shard < len(shards):
        raise click.BadParameter(f"there are {len(shards)} shards, from 0 on", param_hint="--shard")
    if start is not None and end is not None and start > end:
        raise click.BadParameter(f"{start} lies behind {end}", param_hint="--from, --to")
    if len(shards) > 1 and shard is None and (start, end) != (None, None):
        raise click.BadParameter("offsets are of one shard: name it by --shard", param_hint="--from, --to")
    for number, (_, directory) in enumerate(shards):
        if shard in (None, number):
            _dump(directory, start, end, {"shard": number} if len(shards) > 1 else {})


def _dump(data_dir: Path, start: int | None, end: int | None, about: dict[str, object]) -> None:
    from headrace.journal.reader import JournalReader

    reader = JournalReader(data_dir)
    first = reader.start_offset() if start is None else start
    last = reader.high_watermark() if end is None else end
    for batch in reader.scan(first, last):
        for row in _rows(bytes(batch.body), batch.base_offset):
            if first <= int(str(row["offset"])) < last:
                click.echo(json.dumps(about | row))


def _rows(body: bytes, base_offset: int) -> Iterator[dict[str, object]]:
    from headrace.core.records.event import Event
    from headrace.core.records.message import Copy, Given, Message, decode_batch
    from headrace.core.records.record import Progress
    from headrace.core.records.stream_record import StreamRecord

    for record in decode_batch(body, base_offset):
        row: dict[str, object] = {"offset": record.offset, "timestamp_us": record.timestamp_us}
        if isinstance(record, Message):
            row |= {
                "kind": "message",
                "tenant": record.tenant,
                "client_id": record.client_id,
                "topic": record.topic.decode("utf-8"),
                "qos": record.qos,
                "retain": record.retain,
                "packet_id": record.packet_id,
                "message_expiry_interval": None if record.message_expiry_s < 0 else record.message_expiry_s,
                "properties": _properties(record.properties),
                "payload_base64": base64.b64encode(record.payload).decode("ascii"),
            }
        elif isinstance(record, Event):
            row |= {"kind": "event", "subkind": record.subkind, "fields": _plain(record.fields)}
        elif isinstance(record, Progress):
            row |= {"kind": "progress", "subkind": record.subkind, "values": list(record.values())}
        elif isinstance(record, StreamRecord):
            row |= {"kind": "stream", "subkind": record.subkind, "positions": record.positions()}
        if isinstance(record, Copy):
            del row["packet_id"]
            kind = "given" if isinstance(record, Given) else "copy"
            row |= {"kind": kind, "source_shard": record.source, "source_offset": record.source_offset}
        yield row


def _properties(raw: bytes) -> object:
    """Return the properties of a PUBLISH by name; if the bytes are none, as they are, in base64."""
    from headrace.errors import ProtocolError
    from headrace.mqtt.packets import PUBLISH
    from headrace.mqtt.properties import Properties

    try:
        return _plain(Properties.decode(raw, 0, len(raw), PUBLISH).as_dict())
    except ProtocolError:
        return _plain(raw)


def _plain(value: object) -> object:
    if isinstance(value, bytes):
        return base64.b64encode(value).decode("ascii")
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value


config_group.add_command(from_mosquitto)
journal.add_command(accept_command)
journal.add_command(repair_command)
cli.add_command(consumer)
cli.add_command(backup_command)
cli.add_command(restore_command)
cli.add_command(reshard_command)


# session


@cli.group()
def session() -> None:
    """Look at sessions, whether or not a broker is running: folds the journal up to its high watermark, or asks a broker
    with --admin. Drop one."""


session.add_command(list_command)
session.add_command(show_command)
session.add_command(peek_command)
session.add_command(drop_command)


@session.command("dump")
@data_dir_options
@ends_with_its_reader
def session_dump(data_dir: Path) -> None:
    """Print sessions, subscriptions, wills and retained messages, a JSON line each: equal lines, equal states."""
    from headrace.services.state import lines
    from headrace.storage.embedded.recovery import folded

    shards = journals_of(data_dir)
    for shard, (_, directory) in enumerate(shards):
        for line in lines(folded(directory, shard, len(shards))):
            click.echo(line)
