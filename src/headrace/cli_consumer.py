"""`headrace consumer`: who reads the journal, how far each is, and whose it is."""

from __future__ import annotations

from pathlib import Path

import click

from headrace.cli_storage import data_dir_options, ends_with_its_reader, journals_of
from headrace.journal.consumers import ConsumerPosition


@click.group()
def consumer() -> None:
    """Registered consumers of a journal, for which retention waits. A broker may be running."""


@consumer.command("list")
@data_dir_options
@ends_with_its_reader
def list_command(data_dir: Path) -> None:
    """Print a line for each consumer: name, offset below which everything is processed, owner. Of several shards each has
    its own."""
    for label, directory in journals_of(data_dir):
        for position in ConsumerPosition.list(directory):
            click.echo(f"{label}{position.name}  offset {position.offset}  {position.owner or 'nobody'}")


@consumer.command("hand-over")
@click.argument("name")
@data_dir_options
def hand_over_command(name: str, data_dir: Path) -> None:
    """Take consumer NAME from its owner: it belongs to the next job that comes under this name, from its offset on. Of
    several shards in all of them."""
    for label, directory in journals_of(data_dir):
        was = ConsumerPosition.hand_over(directory, name)
        owner = was.owner or "nobody"
        click.echo(
            f"{label}{name}, at offset {was.offset}, belonged to {owner}; the next job that comes has it"
        )
