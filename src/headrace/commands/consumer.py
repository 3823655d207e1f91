"""`headrace consumer`: who reads the journal, how far each is, and whose it is."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from time import time_ns

import click

from headrace.commands.storage import (
    data_dir_options,
    ends_with_its_reader,
    journals_of,
    new_data_dir_options,
)
from headrace.commands.watch import or_of_a_broker
from headrace.console.admin import AdminClient
from headrace.console.consumers import removed_there
from headrace.console.units import duration
from headrace.journal.consumers import ConsumerPosition, check_name
from headrace.journal.errors import UnknownConsumer


def consumer_name(_: click.Context, __: click.Parameter, value: str) -> str:
    """Return the name of a consumer. Raises BadParameter for one that none can have."""
    try:
        return check_name(value)
    except ValueError as error:
        raise click.BadParameter(str(error)) from None


@click.group()
def consumer() -> None:
    """Registered consumers of a journal, for which retention waits. A broker may be running."""


@consumer.command("list")
@data_dir_options
@ends_with_its_reader
def list_command(data_dir: Path) -> None:
    """Print a line for each consumer: name, offset below which everything is processed, when that moved last, owner. Of
    several shards each has its own."""
    now_us = time_ns() // 1000
    for label, directory in journals_of(data_dir):
        for position in ConsumerPosition.list(directory):
            silent = duration(max(0, now_us - position.updated_us) / 1_000_000)
            click.echo(
                f"{label}{position.name}  offset {position.offset}  moved {silent} ago  {position.owner or 'nobody'}"
            )


@consumer.command("hand-over")
@click.argument("name", callback=consumer_name)
@data_dir_options
def hand_over_command(name: str, data_dir: Path) -> None:
    """Take consumer NAME from its owner: it belongs to the next job that comes under this name, from its offset on. Of
    several shards in all of them."""
    for label, was in _in_each(data_dir, name, lambda directory: ConsumerPosition.hand_over(directory, name)):
        owner = was.owner or "nobody"
        click.echo(
            f"{label}{name}, at offset {was.offset}, belonged to {owner}; the next job that comes has it"
        )


@consumer.command("remove")
@click.argument("name", callback=consumer_name)
@click.option("--force", is_flag=True, help="also one whose process is at work")
@or_of_a_broker
@new_data_dir_options
def remove_command(name: str, force: bool, client: AdminClient | None, data_dir: Path) -> None:
    """Remove consumer NAME: retention waits for it no longer, and what it has not read may go. Of several shards from all
    of them. A job that comes back under this name begins as a new one."""
    if client is None:
        here = _in_each(data_dir, name, lambda directory: ConsumerPosition.drop(directory, name, force))
        removed = [(label, position.offset) for label, position in here]
    else:
        removed = removed_there(client, name, force)
    for label, offset in removed:
        click.echo(f"{label}{name} was at offset {offset}; nobody waits for it any more")


def _in_each(
    data_dir: Path, name: str, act: Callable[[Path], ConsumerPosition]
) -> list[tuple[str, ConsumerPosition]]:
    """Do something with a consumer in the shards of a data directory that know it; returns what stands before a line
    about each, and where it was. Raises UnknownConsumer if none of them knows it, and what `act` raises."""
    found = []
    for label, directory in journals_of(data_dir):
        with suppress(UnknownConsumer):
            found.append((label, act(directory)))
    if not found:
        raise UnknownConsumer(f"no consumer {name!r} is registered in {data_dir}")
    return found
