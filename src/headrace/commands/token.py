"""`headrace token` and `headrace ban`: who may use the admin HTTP, and who is turned away."""

from __future__ import annotations

import click

from headrace.commands.directory import (
    Where,
    actor,
    as_json,
    end,
    of_a_directory,
    of_a_directory_or_broker,
    opened,
    row,
)
from headrace.commands.storage import ends_with_its_reader
from headrace.directory.entries import ROLES
from headrace.directory.names import duration_s, shown, tenant_and

lasts = click.option(
    "--for", "duration", metavar="DURATION", help="30s, 10m, 12h or 7d  [default: without end]"
)


@click.group()
def token() -> None:
    """Tokens for the admin HTTP. Of each its hash is kept; the token itself is shown once."""


@token.command("create")
@click.option("--role", type=click.Choice(ROLES), required=True)
@click.option("--tenant", default="", help="for this tenant alone")
@lasts
@click.option("--note", default="", help="whose it is, what it is for")
@of_a_directory
def create_command(role: str, tenant: str, duration: str | None, note: str, url: str) -> None:
    """Make a token and print its number, its role, and as the last word the token."""
    for_s = duration_s(duration) if duration is not None else 0
    with opened(url, make=True) as store:
        made, secret = store.tokens.create(actor(), role, tenant, for_s, note)
    click.echo(f"{made.number} {role}{f' of {tenant}' if tenant else ''} {end(made.until_us)} {secret}")


@token.command("list")
@as_json
@of_a_directory
@ends_with_its_reader
def list_command(as_json: bool, url: str) -> None:
    """Print a line for each token: number, role, tenant, end, note."""
    with opened(url) as store:
        for one in store.tokens.all():
            whose = f" of {one.tenant}" if one.tenant else ""
            line = f"{one.number}  {one.role}{whose}  {end(one.until_us)}  {shown(one.note)}".rstrip()
            about = {"number": one.number, "role": one.role, "tenant": one.tenant, "note": one.note}
            times = {"created_us": one.created_us, "until_us": one.until_us}
            click.echo(row(**about, **times, revision=one.revision) if as_json else line)


@token.command("revoke")
@click.argument("number")
@of_a_directory
def revoke_command(number: str, url: str) -> None:
    """Have the token with this number let nobody in any more."""
    with opened(url) as store:
        store.tokens.revoke(actor(), number)


@click.group()
def ban() -> None:
    """Clients, users and addresses that are turned away."""


def _whom(address: str | None, client: str | None, user: str | None) -> tuple[str, str, str]:
    """Return kind, tenant and name of whom a ban is about. Raises UsageError, InvalidField."""
    given = [
        (kind, name) for kind, name in (("address", address), ("client", client), ("user", user)) if name
    ]
    if len(given) != 1:
        raise click.UsageError("give one of --address, --client, --user")
    kind, name = given[0]
    tenant, subject = ("", name) if kind == "address" else tenant_and(name, kind)
    return kind, tenant, subject


@ban.command("add")
@click.option("--address", help="IP address or network, for all tenants")
@click.option("--client", "of_client", metavar="TENANT/CLIENT_ID")
@click.option("--user", metavar="TENANT/USER")
@lasts
@click.option("--reason", default="")
@of_a_directory_or_broker
def add_command(
    address: str | None,
    of_client: str | None,
    user: str | None,
    duration: str | None,
    reason: str,
    url: Where,
) -> None:
    """Turn a client, a user or an address away; one that is banned already gets this end."""
    kind, tenant, subject = _whom(address, of_client, user)
    for_s = duration_s(duration) if duration is not None else 0
    with opened(url, make=kind == "address") as store:
        made = store.bans.add(actor(), kind, tenant, subject, for_s, reason)
    click.echo(f"{kind} {shown(made.subject)} is banned {end(made.until_us)}")


@ban.command("list")
@click.option("--tenant", default="", help="of this one alone")
@as_json
@of_a_directory_or_broker
@ends_with_its_reader
def ban_list_command(tenant: str, as_json: bool, url: Where) -> None:
    """Print a line for each ban that holds: whom, until when, why."""
    with opened(url) as store:
        for one in store.bans.all(tenant):
            whom = f"{one.tenant}/{one.subject}" if one.tenant else one.subject
            line = f"{one.kind} {shown(whom)}  {end(one.until_us)}  {shown(one.reason)}".rstrip()
            about = {"kind": one.kind, "tenant": one.tenant, "subject": one.subject}
            click.echo(row(**about, until_us=one.until_us, reason=one.reason) if as_json else line)


@ban.command("remove")
@click.option("--address", help="IP address or network")
@click.option("--client", "of_client", metavar="TENANT/CLIENT_ID")
@click.option("--user", metavar="TENANT/USER")
@of_a_directory_or_broker
def remove_command(address: str | None, of_client: str | None, user: str | None, url: Where) -> None:
    """Lift a ban."""
    with opened(url) as store:
        store.bans.remove(actor(), *_whom(address, of_client, user))
