"""`headrace acl`: the rules of the tenants of a directory, what who may publish and receive."""

from __future__ import annotations

import click

from headrace.commands.directory import Where, actor, as_json, of_a_directory_or_broker, opened, row
from headrace.commands.storage import ends_with_its_reader
from headrace.directory.entries import ALLOW, DENY, Rule, action_names
from headrace.directory.names import shown


@click.group()
def acl() -> None:
    """Rules of a tenant. What no rule allows is denied, and what one denies no other allows."""


@acl.command("add")
@click.argument("tenant")
@click.argument("topic_filter", metavar="FILTER")
@click.option("--allow", metavar="ACTIONS", help="publish, subscribe, retain with commas between, or all")
@click.option("--deny", metavar="ACTIONS", help="the same, and stronger than any that allows")
@click.option("--user", help="for this user of the tenant alone")
@click.option("--group", help="for the users of this group")
@click.option("--client", "client_id", help="for this client id")
@of_a_directory_or_broker
def add_command(
    tenant: str,
    topic_filter: str,
    allow: str | None,
    deny: str | None,
    user: str | None,
    group: str | None,
    client_id: str | None,
    url: Where,
) -> None:
    """Allow or deny something on the topics of FILTER, in which %u is the user, %c the client id and %t the tenant.
    Prints the number of the rule."""
    subjects = [
        (kind, name) for kind, name in (("user", user), ("group", group), ("client", client_id)) if name
    ]
    if (allow is None) == (deny is None):
        raise click.UsageError("give one of --allow, --deny")
    if len(subjects) > 1 or "" in (user, group, client_id):
        raise click.UsageError("give at most one of --user, --group, --client, with a name")
    effect, text = (ALLOW, allow) if allow is not None else (DENY, deny)
    actions = action_names(text or "", effect)
    kind, name = subjects[0] if subjects else ("tenant", "")
    with opened(url) as store:
        made = store.rules.add(actor(), Rule(tenant, 0, effect, actions, topic_filter, kind, name))
    click.echo(made.number)


@acl.command("list")
@click.argument("tenant")
@as_json
@of_a_directory_or_broker
@ends_with_its_reader
def list_command(tenant: str, as_json: bool, url: Where) -> None:
    """Print a line for each rule of TENANT: number, what it allows or denies, filter, for whom."""
    with opened(url) as store:
        store.tenants.get(tenant)
        for one in store.rules.all(tenant):
            whom = f"  {one.kind} {shown(one.subject)}" if one.subject else ""
            line = f"{one.number}  {one.effect} {','.join(one.actions)}  {shown(one.filter)}{whom}"
            about = {"number": one.number, "effect": one.effect, "actions": list(one.actions)}
            about |= {"filter": one.filter, "kind": one.kind, "subject": one.subject}
            click.echo(row(**about) if as_json else line)


@acl.command("remove")
@click.argument("tenant")
@click.argument("number", type=int)
@of_a_directory_or_broker
def remove_command(tenant: str, number: int, url: Where) -> None:
    """Remove a rule of TENANT by its number."""
    with opened(url) as store:
        store.rules.remove(actor(), tenant, number)
