"""Commands that keep and mend a data directory: `headrace journal repair`, `headrace backup`, `headrace restore`,
`headrace reshard`."""

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
from headrace.journal.backup import backup
from headrace.journal.repair import DAMAGED, Repair
from headrace.journal.restore import MAKING, is_interrupted, restore

_PATH = click.Path(path_type=Path)
Command = TypeVar("Command", bound=Callable[..., Any])


def data_dir_options(command: Command) -> Command:
    """Add `--data-dir`, or the configuration that names it: the command gets `data_dir`. Raises InvalidKey."""

    @wraps(command)
    def located(*arguments: Any, data_dir: Path | None, config_file: Path | None, **options: Any) -> Any:
        if data_dir is None:
            data_dir = Path(load(config_file).data_dir)
        return command(*arguments, data_dir=data_dir, **options)

    named = click.option("--data-dir", type=_PATH, help="where the journal lies  [default: ./headrace-data]")
    configured = click.option("--config", "config_file", type=_PATH, help="TOML file that names it")
    return cast(Command, configured(named(located)))


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
    with Repair(data_dir) as repair:
        found = repair.plan()
        for line in found:
            click.echo(line)
        if not found:
            click.echo("nothing is damaged")
        elif dry_run:
            click.echo(f"{repair.lost_records} records would be lost; nothing was changed")
            sys.exit(1)
        else:
            for line in repair.run():
                click.echo(line)
            click.echo(f"{repair.lost_records} records lost; the damaged files are in {data_dir / DAMAGED}")


@click.command("backup")
@click.argument("directory", type=_PATH)
@data_dir_options
def backup_command(directory: Path, data_dir: Path) -> None:
    """Copy everything acknowledged so far to DIRECTORY, which must be empty or absent. A broker may be running."""
    with ended_by_signals():
        made = backup(data_dir, directory)
    size = sum(size for size, _ in made.files.values())
    click.echo(
        f"journal {made.uuid}, epoch {made.epoch}: offsets {made.start_offset} up to {made.high_watermark}, {size} bytes"
    )


@click.command("restore")
@click.argument("directory", type=_PATH)
@data_dir_options
@click.option("--to-offset", type=int, help="leave out the records from this offset on")
def restore_command(directory: Path, data_dir: Path, to_offset: int | None) -> None:
    """Make a data directory, which must be empty or absent, from the backup in DIRECTORY. The epoch rises: offsets
    remembered elsewhere count no more."""
    if is_interrupted(data_dir):
        click.echo(f"removing what an interrupted restore left in {data_dir / MAKING}", err=True)
    with ended_by_signals():
        made = restore(directory, data_dir, to_offset)
    click.echo(
        f"journal {made.uuid}, epoch {made.epoch}: offsets {made.start_offset} up to {made.high_watermark} in {data_dir}"
    )


@click.command("reshard")
@data_dir_options
@click.option("--to", "target", type=_PATH, required=True, help="the new data directory: empty or absent")
@click.option("--shards", type=click.IntRange(min=2), required=True, help="shards of the new one")
def reshard_command(data_dir: Path, target: Path, shards: int) -> None:
    """Make a data directory of several shards from one that is one shard, which stays as it is.

    No broker may run. Sessions, backlogs, what is in flight, retained messages, wills and topic queues are compared when
    they are there. Refuses while a registered consumer has not read all: the new journals begin where the old one ends.
    """
    from headrace.resharding import reshard

    with ended_by_signals():
        reshard(data_dir, target, shards, click.echo)
    click.echo(f"{target} has {shards} shards; {data_dir} is as it was, and no broker should go on with it")
