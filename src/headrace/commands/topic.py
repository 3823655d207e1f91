"""`headrace subscription` and `headrace retained`: who gets what of a running broker, and what is retained."""

from __future__ import annotations

import json

import click

from headrace.commands.client import list_rows, of_tenant
from headrace.commands.frame import exact_name
from headrace.commands.storage import ends_with_its_reader
from headrace.commands.watch import of_a_broker
from headrace.console.admin import AdminClient
from headrace.errors import NotThere
from headrace.mqtt.topics import valid_topic

_JSON = click.option("--json", "as_json", is_flag=True, help="a JSON object a line")


@click.group()
def subscription() -> None:
    """Subscriptions of the sessions of a running broker."""


@subscription.command("list")
@click.option("--tenant", callback=exact_name, help="one tenant's")
@click.option(
    "--pattern", callback=exact_name, help='of client ids that this shell pattern matches ("app-*")'
)
@click.option("--state", type=click.Choice(["connected", "away"]), help="of sessions in this state")
@click.option("--filter", "exact", callback=exact_name, help="with this very topic filter")
@click.option("--topic", callback=exact_name, help="that match this topic: who gets what is published to it")
@_JSON
@of_a_broker
@ends_with_its_reader
def list_subscriptions(
    tenant: str | None,
    pattern: str | None,
    state: str | None,
    exact: str | None,
    topic: str | None,
    as_json: bool,
    client: AdminClient,
) -> None:
    """Print a line for each subscription. Needs a token with the role `read`.

    Exit status 1 if a shard did not answer: it is named, and the others are listed.
    """
    from headrace.console.subscriptions import HEADER, line

    asked = {"tenant": tenant, "pattern": pattern, "state": state, "filter": exact, "topic": topic}
    list_rows(client, "subscriptions", asked, as_json, HEADER, line)


@click.group()
def retained() -> None:
    """Retained messages of a running broker."""


@retained.command("list")
@of_tenant
@click.option("--filter", "topics", callback=exact_name, help="on topics that this topic filter matches")
@_JSON
@of_a_broker
@ends_with_its_reader
def list_retained(tenant: str, topics: str | None, as_json: bool, client: AdminClient) -> None:
    """Print a line for each retained message. Needs a token with the role `read`.

    Exit status 1 if a shard did not answer: it is named, and the others are listed.
    """
    from headrace.console.retained import HEADER, line

    list_rows(client, "retained", {"tenant": tenant, "filter": topics}, as_json, HEADER, line)


def _topic(context: click.Context, parameter: click.Parameter, value: str) -> str:
    """Return the name of a topic. Raises BadParameter."""
    exact_name(context, parameter, value)
    if not valid_topic(value.encode("utf-8")):
        raise click.BadParameter("it is no topic name: one message is named exactly, without wildcards")
    return value


@retained.command("show")
@click.argument("topic", callback=_topic)
@of_tenant
@of_a_broker
def show_retained(topic: str, tenant: str, client: AdminClient) -> None:
    """Print the retained message of TOPIC with all that is in it, as JSON. Exit status 1 if there is none."""
    _say(client, "GET", tenant, topic)


@retained.command("delete")
@click.argument("topic", callback=_topic)
@of_tenant
@of_a_broker
def delete_retained(topic: str, tenant: str, client: AdminClient) -> None:
    """Delete the retained message of TOPIC, and print what that was, as JSON. Exit status 1 if there is none.

    Whoever is subscribed and connected gets an empty message, as when a client deletes it. Needs a token with the role
    `operate`.
    """
    _say(client, "DELETE", tenant, topic)


def _say(client: AdminClient, method: str, tenant: str, topic: str) -> None:
    from headrace.console.sessions import named
    from headrace.services.audit import clean

    try:
        found = named(client, method, "retained", tenant, topic, "topic")
    except NotThere as error:
        raise click.ClickException(clean(str(error))) from None
    click.echo(json.dumps(found, indent=2))
