"""`headrace client`: who is connected to a running broker, one of them, and the end of a connection."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Mapping
from itertools import chain
from typing import Any
from urllib.parse import urlencode

import click

from headrace.commands.frame import exact_name
from headrace.commands.storage import ends_with_its_reader
from headrace.commands.watch import of_a_broker
from headrace.console.admin import AdminClient
from headrace.core.ports.identity import DEFAULT_TENANT
from headrace.errors import BrokersOwn, NotThere

_CLIENT_ID = click.argument("client_id", callback=exact_name)
of_tenant = click.option(
    "--tenant", default=DEFAULT_TENANT, show_default=True, callback=exact_name, help="whose it is"
)


@click.group()
def client() -> None:
    """Clients that are connected to a running broker."""


@client.command("list")
@click.option("--tenant", callback=exact_name, help="one tenant's")
@click.option(
    "--pattern", callback=exact_name, help='client ids that this shell pattern matches ("sensor-*")'
)
@click.option("--json", "as_json", is_flag=True, help="a JSON object a line")
@of_a_broker
@ends_with_its_reader
def list_clients(
    tenant: str | None,
    pattern: str | None,
    as_json: bool,
    client: AdminClient,
) -> None:
    """Print a line for each client that is connected. Needs a token with the role `read`.

    Exit status 1 if a shard did not answer: it is named, and the others are listed.
    """
    from headrace.console.clients import HEADER, line

    list_rows(client, "clients", {"tenant": tenant, "pattern": pattern}, as_json, HEADER, line)


@client.command("refused")
@click.option(
    "--pattern", callback=exact_name, help='client ids that this shell pattern matches ("sensor-*")'
)
@click.option(
    "-n", "--limit", type=click.IntRange(1, 1000), default=100, show_default=True, help="so many at most"
)
@click.option("--json", "as_json", is_flag=True, help="a JSON object a line")
@of_a_broker
@ends_with_its_reader
def list_refused(pattern: str | None, limit: int, as_json: bool, client: AdminClient) -> None:
    """Print who was refused lately, and why, the last one first. Needs a token with the role `read`."""
    from headrace.console.refusals import HEADER, line

    asked = {"limit": str(limit)} | ({} if pattern is None else {"pattern": pattern})
    found = client.get(f"/v1/refusals?{urlencode(asked)}")["rows"]
    write_rows(iter(found), as_json, HEADER, line)


def list_rows(
    client: AdminClient,
    what: str,
    asked: Mapping[str, str | None],
    as_json: bool,
    header: str,
    line: Callable[[Mapping[str, Any]], str],
) -> None:
    """Print all rows of the list `what`, each as JSON or as `line` makes it behind a header. Ends with exit status 1 if a
    shard did not answer."""
    from headrace.console.clusters import rows

    unanswered: list[int] = []
    write_rows(rows(client, asked, what, unanswered), as_json, header, line)
    tell_unanswered(unanswered)


def write_rows(
    found: Iterator[Mapping[str, Any]], as_json: bool, header: str, line: Callable[[Mapping[str, Any]], str]
) -> None:
    """Print rows, each as JSON or as `line` makes it behind a header. That comes once the broker has answered: a refusal
    is no table."""
    first = next(found, None)
    if not as_json:
        click.echo(header)
    for row in () if first is None else chain([first], found):
        click.echo(json.dumps(row) if as_json else line(row))


def tell_unanswered(shards: list[int]) -> None:
    """Say which shards are not in a list, and end with exit status 1 if there are such."""
    for shard in shards:
        click.echo(f"shard {shard} did not answer: what it has is not listed", err=True)
    if shards:
        sys.exit(1)


@client.command("show")
@_CLIENT_ID
@of_tenant
@of_a_broker
def show_client(
    client_id: str,
    tenant: str,
    client: AdminClient,
) -> None:
    """Print everything about one client that is connected, as JSON. Exit status 1 if it is not."""
    _say(client, "GET", client_id, tenant)


@client.command("kick")
@_CLIENT_ID
@of_tenant
@of_a_broker
def kick_client(
    client_id: str,
    tenant: str,
    client: AdminClient,
) -> None:
    """End the connection of CLIENT_ID, and print that as JSON. Exit status 1 if it is not connected.

    It is told 0x98 (Administrative action) where its version has a word for it; its session is kept, its will published,
    and it may come back. Needs a token with the role `operate`.
    """
    _say(client, "DELETE", client_id, tenant)


def _say(client: AdminClient, method: str, client_id: str, tenant: str) -> None:
    from headrace.console.sessions import named
    from headrace.services.audit import clean

    try:
        found = named(client, method, "clients", tenant, client_id)
    except (NotThere, BrokersOwn) as error:
        raise click.ClickException(clean(str(error))) from None
    click.echo(json.dumps(found, indent=2))
