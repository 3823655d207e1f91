"""Commands that keep and mend a data directory: `headrace journal repair`, `headrace journal accept`, `headrace backup`,
`headrace restore`, `headrace reshard`."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from pathlib import Path
from types import FrameType
from typing import Any, TypeVar, cast

import click

from headrace.config import load
from headrace.data.backup import backup_shards, holds_shards, restore_shards
from headrace.data.backup import is_interrupted as is_interrupted_of_shards
from headrace.data.layout import SHARD_NAME, Layout
from headrace.journal.backup import backup
from headrace.journal.errors import UnsupportedFormat
from headrace.journal.manifest import Manifest
from headrace.journal.repair import DAMAGED, Repair
from headrace.journal.restore import MAKING, is_interrupted, restore

_PATH = click.Path(path_type=Path)
Command = TypeVar("Command", bound=Callable[..., Any])


def data_dir_options(command: Command) -> Command:
    """Add `--data-dir`, or the configuration that names it: the command gets `data_dir`, a directory that is there, since
    of one that is not "nothing" would be no answer; unless a broker is asked (`client`), or a cluster. Raises InvalidKey,
    BadParameter."""
    return _located(command, must_exist=True)


def new_data_dir_options(command: Command) -> Command:
    """Do as `data_dir_options` for a command that makes the directory, or may do without. Raises InvalidKey."""
    return _located(command, must_exist=False)


def configured_data_dir_options(command: Command) -> Command:
    """Do as `new_data_dir_options` for a command that also reads the configuration: it gets `config_file` too. Raises
    InvalidKey."""
    return _located(command, must_exist=False, is_configured=True)


def _located(command: Command, *, must_exist: bool, is_configured: bool = False) -> Command:
    @wraps(command)
    def located(*arguments: Any, data_dir: Path | None, config_file: Path | None, **options: Any) -> Any:
        if is_configured:
            options["config_file"] = config_file
        named = "--data-dir"
        if data_dir is None:
            data_dir = Path(load(config_file).data_dir)
            named = "--data-dir" if config_file is None else f"data_dir of {config_file}"
        is_elsewhere = options.get("client") is not None or options.get("cluster") is not None
        if must_exist and not is_elsewhere and not data_dir.is_dir():
            raise click.BadParameter(f"there is no directory {data_dir}", param_hint=named)
        return command(*arguments, data_dir=data_dir, **options)

    named = click.option("--data-dir", type=_PATH, help="where the journal lies  [default: ./headrace-data]")
    configured = click.option("--config", "config_file", type=_PATH, help="TOML file that names it")
    return cast(Command, configured(named(located)))


def shards_of(data_dir: Path) -> list[tuple[str, Path]]:
    """Return the data directory of each shard, with what is put before a line about it: "" where there is one. Raises
    UnusableLayout."""
    layout = Layout.open(data_dir)
    if layout.shards == 1:
        return [("", data_dir)]
    return [(f"shard {shard}: ", directory) for shard, directory in enumerate(layout.directories())]


def journals_of(data_dir: Path) -> list[tuple[str, Path]]:
    """Do as `shards_of` for directories that hold journals. Raises UnusableLayout, BadParameter."""
    if not data_dir.is_dir():
        raise click.BadParameter(f"there is no directory {data_dir}", param_hint="--data-dir")
    shards = shards_of(data_dir)
    for _, directory in shards:
        if not (directory / "journal").is_dir():
            raise click.BadParameter(f"{directory} holds no journal", param_hint="--data-dir")
    return shards


def require_whole(data_dir: Path, hint: str = "--data-dir") -> None:
    """Refuse a directory that is one of several shards: alone it fits nothing. Raises BadParameter."""
    if (data_dir / SHARD_NAME).exists():
        raise click.BadParameter(
            f"{data_dir} is one shard of several, which are copied together: name {data_dir.parent}",
            param_hint=hint,
        )


def ends_with_its_reader(command: Command) -> Command:
    """Return a command that only prints, and ends without a word when nobody reads on: `| head`."""

    @wraps(command)
    def ending(*arguments: Any, **options: Any) -> Any:
        before = signal.signal(signal.SIGPIPE, signal.SIG_DFL)
        try:
            return command(*arguments, **options)
        finally:
            sys.stdout.flush()
            signal.signal(signal.SIGPIPE, before)

    return cast(Command, ending)


@contextmanager
def ended_by_signals() -> Iterator[None]:
    """Clear away what was begun before a signal ends the command, which then has the usual exit code."""

    def end(number: int, _: FrameType | None) -> None:
        for other in before:  # what is cleared away then is not interrupted again
            signal.signal(other, signal.SIG_IGN)
        sys.exit(128 + number)

    numbers = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
    wanted = [number for number in numbers if signal.getsignal(number) is not signal.SIG_IGN]
    before = {number: signal.signal(number, end) for number in wanted}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@click.command("repair")
@data_dir_options
@click.option("--dry-run", is_flag=True, help="only show; exit 1 if something is damaged")
def repair_command(data_dir: Path, dry_run: bool) -> None:
    """Make a damaged journal readable again. Lists every offset that is lost; keeps the damaged files. Refuses while a
    broker is running."""
    is_damaged = [_repair(directory, label, dry_run) for label, directory in shards_of(data_dir)]
    if dry_run and any(is_damaged):
        sys.exit(1)


def _repair(data_dir: Path, label: str, dry_run: bool) -> bool:
    """Repair one journal; returns whether it was damaged."""
    with Repair(data_dir) as repair:
        found = repair.plan()
        for line in found:
            click.echo(f"{label}{line}")
        if not found:
            click.echo(f"{label}nothing is damaged")
        elif dry_run:
            click.echo(f"{label}{repair.lost_records} records would be lost; nothing was changed")
        else:
            for line in repair.run():
                click.echo(f"{label}{line}")
            lost = f"{repair.lost_records} records lost"
            click.echo(f"{label}{lost}; the damaged files are in {data_dir / DAMAGED}")
        return bool(found)


@click.command("accept")
@click.argument("shard", type=int)
@data_dir_options
@click.option("--dry-run", is_flag=True, help="only show; exit 1 if something does not fit")
@click.option("--yes", is_flag=True, help="do not ask")
def accept_command(shard: int, data_dir: Path, dry_run: bool, yes: bool) -> None:
    """Go on with SHARD, which was put back from an older copy or has lost its end. Says what is lost and what may come
    twice, then asks. The other shards keep all that they have. Refuses while a broker is running."""
    from headrace.offline.accepting import opened

    with ended_by_signals(), opened(data_dir, shard, lambda line: click.echo(line, err=True)) as acceptance:
        for line in acceptance.lines:
            click.echo(line)
        if not acceptance.misfits:
            click.echo(f"shard {shard} fits all others: there is nothing to accept")
            return
        if dry_run:
            click.echo("nothing was accepted")
            sys.exit(1)
        if not yes:
            click.confirm("go on like this?", abort=True)
        for line in acceptance.run():
            click.echo(line)


def _require_outside(data_dir: Path, made: Path, hint: str) -> None:
    """Raise BadParameter where what is to be made of a data directory would lie in it, and go with it."""
    if data_dir.resolve() in made.resolve().parents:
        raise click.BadParameter(f"{made} lies in the data directory and would go with it", param_hint=hint)


@click.command("backup")
@click.argument("directory", type=_PATH)
@data_dir_options
def backup_command(directory: Path, data_dir: Path) -> None:
    """Copy everything acknowledged so far to DIRECTORY, which must be empty or absent. A broker may be running.

    Of several shards all are copied, each up to where the others' notes of it are true.
    """
    require_whole(data_dir)
    _require_outside(data_dir, directory, "DIRECTORY")
    shards = journals_of(data_dir)
    with ended_by_signals():
        if len(shards) > 1:
            made = backup_shards(Layout.open(data_dir), directory)
        else:
            made = [backup(data_dir, directory)]
    for (label, _), one in zip(shards, made, strict=True):
        size = sum(size for size, _ in one.files.values())
        click.echo(f"{label}{_described(one)}, {size} bytes")


def _described(made: Manifest) -> str:
    return f"journal {made.uuid}, epoch {made.epoch}: offsets {made.start_offset} up to {made.high_watermark}"


@click.command("restore")
@click.argument("directory", type=_PATH)
@new_data_dir_options
@click.option("--to-offset", type=int, help="leave out the records from this offset on")
def restore_command(directory: Path, data_dir: Path, to_offset: int | None) -> None:
    """Make a data directory, which must be empty or absent, from the backup in DIRECTORY. The epoch rises: offsets
    remembered elsewhere count no more."""
    try:
        _restore(directory, data_dir, to_offset)
    except UnsupportedFormat as error:
        raise click.BadParameter(str(error), param_hint="DIRECTORY") from None


def _restore(directory: Path, data_dir: Path, to_offset: int | None) -> None:
    require_whole(directory, "DIRECTORY")
    of_shards = holds_shards(directory)
    if of_shards and to_offset is not None:
        raise click.BadParameter(
            "offsets of several shards have no order; all go back to the backup", param_hint="--to-offset"
        )
    if (is_interrupted_of_shards if of_shards else is_interrupted)(data_dir):
        click.echo(f"removing what an interrupted restore left in {data_dir / MAKING}", err=True)
    with ended_by_signals():
        made = restore_shards(directory, data_dir) if of_shards else [restore(directory, data_dir, to_offset)]
    for (label, _), one in zip(shards_of(data_dir), made, strict=True):
        click.echo(f"{label}{_described(one)} in {data_dir}")


@click.command("reshard")
@data_dir_options
@click.option("--to", "target", type=_PATH, required=True, help="the new data directory: empty or absent")
@click.option("--shards", type=click.IntRange(min=2), required=True, help="shards of the new one")
def reshard_command(data_dir: Path, target: Path, shards: int) -> None:
    """Make a data directory of several shards from one that is one shard, which stays as it is.

    No broker may run. Sessions, backlogs, what is in flight, retained messages, wills and topic queues are compared when
    they are there. Refuses while a registered consumer has not read all: the new journals begin where the old one ends.
    """
    from headrace.offline.resharding import reshard

    _require_outside(data_dir, target, "--to")
    with ended_by_signals():
        reshard(data_dir, target, shards, click.echo)
    click.echo(f"{target} has {shards} shards; {data_dir} is as it was, and no broker should go on with it")
