"""`headrace session list`, `show`, `peek` and `drop`: sessions of a running broker, or in a data directory."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from contextlib import closing, contextmanager
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import msgspec

from headrace.commands.client import tell_unanswered, write_rows
from headrace.commands.frame import exact_name
from headrace.commands.storage import (
    configured_data_dir_options,
    data_dir_options,
    ended_by_signals,
    ends_with_its_reader,
    journals_of,
)
from headrace.commands.watch import of_a_broker, or_of_a_broker
from headrace.config import Config, load
from headrace.console.admin import AdminClient, AdminRefused
from headrace.core.ports.identity import DEFAULT_TENANT
from headrace.errors import BrokersOwn, NotThere

if TYPE_CHECKING:
    from headrace.core.ports.access import Access
    from headrace.core.state.session import Session
    from headrace.offline.dropping import Rules

_PAGE = 100  # messages that a broker shows at once


def _client_id(context: click.Context, parameter: click.Parameter, value: str) -> str:
    from headrace.core.inbound.dropping import refuse_own

    exact_name(context, parameter, value)
    try:
        refuse_own(value)
    except BrokersOwn as error:
        raise click.BadParameter(str(error)) from None
    return value


@click.command("list")
@click.option("--json", "as_json", is_flag=True)
@or_of_a_broker
@data_dir_options
@ends_with_its_reader
def list_command(as_json: bool, client: AdminClient | None, data_dir: Path) -> None:
    """Print one line a session. Exit status 1 if a shard of a broker that is asked did not answer."""
    from headrace.console.clusters import rows
    from headrace.services.audit import clean

    line = "{tenant}/{client_id}\t{type}\t{state}\tinflight={inflight}\tbacklog={backlog}"
    unanswered: list[int] = []
    if client is None:
        found = _in_directory(data_dir)
    else:
        found = rows(client, {}, "sessions", unanswered)
    for row in found:
        shown = row if client is None else row | {"client_id": clean(row["client_id"])}
        click.echo(json.dumps(row) if as_json else line.format(**shown))
    tell_unanswered(unanswered)


def _in_directory(data_dir: Path) -> Iterator[dict[str, Any]]:
    """Yield the rows of all sessions in a directory."""
    from headrace.services.sessions import summary
    from headrace.storage.embedded.recovery import folded

    shards = journals_of(data_dir)
    for shard, (_, directory) in enumerate(shards):
        for found in folded(directory, shard, len(shards)).by_incarnation.values():
            if not found.stands_in:
                yield {**summary(found)}


@click.command("show")
@click.option("--tenant", default=DEFAULT_TENANT, show_default=True)
@click.argument("client_id")
@or_of_a_broker
@data_dir_options
@ends_with_its_reader
def show_command(
    tenant: str,
    client_id: str,
    client: AdminClient | None,
    data_dir: Path,
) -> None:
    """Print everything about one session, as JSON. Exit 1 if there is none."""
    from headrace.console.sessions import named
    from headrace.services.audit import clean

    if client is None:
        shown = _shown_here(data_dir, tenant, client_id)
    else:
        try:
            shown = named(client, "GET", "sessions", tenant, client_id)
        except NotThere as error:
            raise click.ClickException(clean(str(error))) from None
    click.echo(json.dumps(shown, indent=2))


@click.command("peek")
@click.argument("client_id", callback=exact_name)
@click.option("--tenant", default=DEFAULT_TENANT, show_default=True, callback=exact_name, help="whose it is")
@click.option(
    "-n", "--limit", type=click.IntRange(1, 1 << 31), default=20, show_default=True, help="so many at most"
)
@click.option("--json", "as_json", is_flag=True, help="a JSON object a line")
@of_a_broker
@ends_with_its_reader
def peek_command(client_id: str, tenant: str, limit: int, as_json: bool, client: AdminClient) -> None:
    """Print what waits for a session of a running broker, the oldest first, and take nothing of it.

    What is in flight comes first. Needs a token with the role `read`. Exit status 1 if there is no such session.
    """
    from headrace.console.backlogs import HEADER, line
    from headrace.console.clusters import rows
    from headrace.services.audit import clean

    asked = {"tenant": tenant, "client": client_id, "limit": str(min(limit, _PAGE))}
    try:
        write_rows(islice(rows(client, asked, "backlogs"), limit), as_json, HEADER, line)
    except AdminRefused as error:
        raise click.ClickException(clean(error.detail or str(error))) from None


def _shown_here(data_dir: Path, tenant: str, client_id: str) -> dict[str, Any]:
    """Return everything about a session in a directory. Raises ClickException if there is none."""
    from headrace.core.homes import Homes
    from headrace.services.sessions import details
    from headrace.storage.embedded.recovery import folded

    shards = journals_of(data_dir)
    shard = Homes(len(shards)).of_client(tenant, client_id)
    of_tenant = folded(shards[shard][1], shard, len(shards)).tenants.get(tenant)
    found = None if of_tenant is None else of_tenant.sessions.get(client_id)
    if found is None:
        raise click.ClickException(f"tenant {tenant} has no session {client_id!r}")
    about: dict[str, Any] = {"shard": shard} if len(shards) > 1 else {}
    return {**about, **details(found)}


@click.command("drop")
@click.argument("client_id", callback=_client_id)
@click.option("--tenant", default=DEFAULT_TENANT, show_default=True, callback=exact_name, help="whose it is")
@click.option("--yes", is_flag=True, help="do not ask")
@or_of_a_broker
@configured_data_dir_options
def drop_command(
    client_id: str,
    tenant: str,
    yes: bool,
    client: AdminClient | None,
    data_dir: Path,
    config_file: Path | None,
) -> None:
    """Drop the session of CLIENT_ID with its subscriptions and all that waits in it; its will is published. Asks first.

    Of a running broker with --admin, and a token with the role `operate`: a client that is connected is cut off. Else in
    the data directory of a broker that does not run; what its --config says about wills holds there too. Exit status 1 if
    there is no such session, or it cannot be dropped.
    """
    from headrace.console.sessions import dropped_there
    from headrace.services.audit import clean

    named = f"session {clean(client_id)} of tenant {clean(tenant)}"
    try:
        if client is not None:
            if not yes:
                click.confirm(f"drop the {named}, with all that waits in it?", abort=True)
            found = dropped_there(client, tenant, client_id)
            click.echo(f"{named} is dropped, with {found['messages']} messages")
        else:
            _drop_here(data_dir, config_file, tenant, client_id, named, yes)
    except NotThere as error:
        raise click.ClickException(clean(str(error))) from None


def _drop_here(
    data_dir: Path, config_file: Path | None, tenant: str, client_id: str, named: str, yes: bool
) -> None:
    from headrace.offline.dropping import opened

    journals_of(data_dir)
    with ended_by_signals(), _rules(config_file, data_dir) as rules:
        with opened(data_dir, tenant, client_id, rules, _say) as stopped:
            if not yes:
                click.echo(f"{named}: {_described(stopped.session)}")
                click.confirm("drop it?", abort=True)
            count = stopped.drop()
        click.echo(f"{named} is dropped, with {count} messages")


@contextmanager
def _rules(config_file: Path | None, data_dir: Path) -> Iterator[Rules]:
    """Give what a configuration says about the end of a session. Raises ConfigError, with the key."""
    from headrace.node.wiring import broker_settings, log_settings
    from headrace.offline.dropping import Rules

    config = load(config_file)
    with closing(asyncio.new_event_loop()) as loop:
        access = None if config_file is None else _access_of(config, data_dir, loop)
        try:
            yield Rules(log_settings(config), broker_settings(config), access)
        finally:
            if access is not None:
                access.close()


def _access_of(config: Config, data_dir: Path, loop: asyncio.AbstractEventLoop) -> Access | None:
    """Return the access control of a broker that does not run, None where everybody may do everything."""
    from headrace.node.tenants import Tenants
    from headrace.node.wiring import access_is_needed, access_settings, audit_log
    from headrace.services.access import FileAccess

    if config.tenants.enabled:
        here = msgspec.structs.replace(config, data_dir=str(data_dir))
        return Tenants(here, loop).open_stopped()
    if access_is_needed(config):
        return FileAccess(access_settings(config), audit_log(config), loop)
    return None


def _described(session: Session) -> str:
    """Return what is lost with a session."""
    queue = session.queue
    waiting = 0 if queue is None else int(queue.unfinished())
    will = "" if session.will is None else ", and its will is published"
    return f"{len(session.subscriptions or {})} subscriptions, {waiting} messages wait{will}"


def _say(line: str) -> None:
    click.echo(line, err=True)
