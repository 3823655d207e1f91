"""`headrace frame`: what devices and the services behind them use of a running broker."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import click

from headrace.cli_storage import ends_with_its_reader
from headrace.cli_watch import client_for, of_a_broker
from headrace.mqtt.topics import filter_error


@click.group()
def frame() -> None:
    """Topic queues and the consumer clusters that read them."""


def _filter(_: click.Context, __: click.Parameter, value: str | None) -> str | None:
    if value is not None and filter_error(value):
        raise click.BadParameter(filter_error(value))
    return value


def _name(_: click.Context, __: click.Parameter, value: str | None) -> str | None:
    if value == "":
        raise click.BadParameter("it is empty")
    return value


@frame.command("clusters")
@click.option("--topic", metavar="FILTER", callback=_filter, help="topics that this topic filter matches")
@click.option("--cluster", metavar="NAME", callback=_name, help="clusters of this name")
@click.option("--tenant", metavar="NAME", callback=_name, help="one tenant's")
@click.option("--json", "as_json", is_flag=True, help="a JSON object a line")
@of_a_broker
@ends_with_its_reader
def clusters(
    topic: str | None,
    cluster: str | None,
    tenant: str | None,
    as_json: bool,
    admin: str | None,
    config_file: Path | None,
    token_file: Path | None,
    ca_file: Path | None,
) -> None:
    """Print a line for each consumer cluster, and for each topic queue that has none: how far behind, who reads it, how
    fast.

    Needs a token with the role `read`.
    """
    from headrace.console.clusters import HEADER, line, rows

    client = client_for(admin, config_file, token_file, ca_file)
    found = rows(client, {"topic": topic, "cluster": cluster, "tenant": tenant})
    _write(found, json.dumps if as_json else line, None if as_json else HEADER)


def _write(rows: Iterator[dict[str, Any]], form: Callable[[dict[str, Any]], str], header: str | None) -> None:
    for row in rows:
        if header is not None:
            click.echo(header)
            header = None
        click.echo(form(row))
