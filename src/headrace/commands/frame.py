"""`headrace frame`: what devices and the services behind them use of a running broker."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import click

from headrace.commands.storage import ends_with_its_reader
from headrace.commands.watch import of_a_broker
from headrace.console.admin import AdminClient
from headrace.core.ports.identity import DEFAULT_TENANT
from headrace.errors import NotThere
from headrace.mqtt.topics import filter_error, valid_topic


@click.group()
def frame() -> None:
    """Topic queues and the consumer clusters that read them."""


def _filter(_: click.Context, __: click.Parameter, value: str | None) -> str | None:
    if value is not None and filter_error(value):
        raise click.BadParameter(filter_error(value))
    return value


def exact_name(_: click.Context, __: click.Parameter, value: str | None) -> str | None:
    """Return the value of a parameter that names something exactly. Raises BadParameter."""
    if value == "":
        raise click.BadParameter("it is empty")
    if value is not None and not _is_text(value):
        raise click.BadParameter("it is no UTF-8")
    return value


def _is_text(value: str) -> bool:
    """Return whether an argument is text: bytes that are no UTF-8 come as half a pair of surrogates."""
    return not any("\ud800" <= char <= "\udfff" for char in value)


def _topic(_: click.Context, __: click.Parameter, value: str) -> str:
    if not _is_text(value) or not valid_topic(value.encode("utf-8")):
        raise click.BadParameter("it is no topic name: one queue is named exactly, without wildcards")
    return value


_FILTER = click.option(
    "--topic", metavar="FILTER", callback=_filter, help="topics that this topic filter matches"
)
_TENANT = click.option("--tenant", metavar="NAME", callback=exact_name, help="one tenant's")
_OF_TENANT = click.option(
    "--tenant",
    metavar="NAME",
    callback=exact_name,
    default=DEFAULT_TENANT,
    show_default=True,
    help="whose it is",
)
_TOPIC = click.argument("topic", callback=_topic)
_CLUSTER = click.argument("cluster", callback=exact_name)
_JSON = click.option("--json", "as_json", is_flag=True, help="a JSON object a line")


def _clusters_command(group: click.Group, name: str) -> None:
    """Let a group have the command that lists clusters, under this name."""

    @group.command(name)
    @_FILTER
    @click.option("--cluster", metavar="NAME", callback=exact_name, help="clusters of this name")
    @_TENANT
    @_JSON
    @of_a_broker
    @ends_with_its_reader
    def clusters(
        topic: str | None,
        cluster: str | None,
        tenant: str | None,
        as_json: bool,
        client: AdminClient,
    ) -> None:
        """Print a line for each consumer cluster, and for each topic queue that has none: how far behind, who reads it,
        how fast.

        Needs a token with the role `read`.
        """
        from headrace.console.clusters import HEADER, line, rows

        found = rows(client, {"topic": topic, "cluster": cluster, "tenant": tenant})
        _write(found, json.dumps if as_json else line, None if as_json else HEADER)


@frame.group("queue")
def queue() -> None:
    """Topic queues."""


@frame.group("cluster")
def cluster() -> None:
    """Consumer clusters."""


_clusters_command(frame, "clusters")
_clusters_command(cluster, "list")


@queue.command("list")
@_FILTER
@_TENANT
@_JSON
@of_a_broker
@ends_with_its_reader
def list_queues(
    topic: str | None,
    tenant: str | None,
    as_json: bool,
    client: AdminClient,
) -> None:
    """Print a line for each topic queue: what it keeps, and what its clusters have not finished of it.

    Needs a token with the role `read`.
    """
    from headrace.console.clusters import rows
    from headrace.console.queues import HEADER, line

    found = rows(client, {"topic": topic, "tenant": tenant}, "queues")
    _write(found, json.dumps if as_json else line, None if as_json else HEADER)


@queue.command("show")
@_TOPIC
@_OF_TENANT
@_JSON
@of_a_broker
@ends_with_its_reader
def show_queue(
    topic: str,
    tenant: str,
    as_json: bool,
    client: AdminClient,
) -> None:
    """Print what there is to say of the queue of TOPIC, a line for each figure; then its clusters.

    Needs a token with the role `read`.
    """
    from headrace.console.clusters import HEADER, line, rows

    wanted = {"topic": topic, "tenant": tenant}
    _show(list(rows(client, wanted, "queues")), as_json, f"tenant {tenant} has no queue of the topic {topic}")
    if not as_json:
        read = (row for row in rows(client, wanted) if row["cluster"] is not None)
        _write(read, line, HEADER)


@cluster.command("show")
@_TOPIC
@_CLUSTER
@_OF_TENANT
@_JSON
@of_a_broker
@ends_with_its_reader
def show_cluster(
    topic: str,
    cluster: str,
    tenant: str,
    as_json: bool,
    client: AdminClient,
) -> None:
    """Print what there is to say of CLUSTER, which reads the queue of TOPIC, a line for each figure.

    Needs a token with the role `read`.
    """
    from headrace.console.clusters import rows

    found = list(rows(client, {"topic": topic, "tenant": tenant, "cluster": cluster}))
    _show(found, as_json, f"{topic} has no cluster {cluster} in tenant {tenant}")


@queue.command("remove")
@_TOPIC
@_OF_TENANT
@click.option("--force", is_flag=True, help="also with messages that its clusters have not finished")
@of_a_broker
def remove_queue(
    topic: str,
    tenant: str,
    force: bool,
    client: AdminClient,
) -> None:
    """Remove the queue of TOPIC, its messages and its clusters, which nobody may read.

    Needs a token with the role `operate`. Exit status 2 if there is none, 1 if it is refused.
    """
    named = {"topic": topic, "tenant": tenant, "force": str(force).lower()}
    found = _removed(client, "queues", named)
    kept, lost = found["messages"], found["unfinished"]
    click.echo(f"queue {topic} is removed, with {kept} messages; clusters had not finished {lost} of them")


@cluster.command("remove")
@_TOPIC
@_CLUSTER
@_OF_TENANT
@of_a_broker
def remove_cluster(
    topic: str,
    cluster: str,
    tenant: str,
    client: AdminClient,
) -> None:
    """Remove CLUSTER, which nobody may read, from the queue of TOPIC; the queue keeps its messages.

    Needs a token with the role `operate`. Exit status 2 if there is none, 1 if it is refused.
    """
    found = _removed(client, "clusters", {"topic": topic, "cluster": cluster, "tenant": tenant})
    click.echo(f"cluster {cluster} of {topic} is removed; it had not finished {found['unfinished']} messages")


def _removed(client: AdminClient, what: str, named: Mapping[str, str]) -> dict[str, Any]:
    from headrace.console.queues import removed

    try:
        return removed(client, what, named)
    except NotThere as error:
        raise click.UsageError(str(error)) from None


def _show(rows: list[dict[str, Any]], as_json: bool, unknown: str) -> None:
    from headrace.console.queues import pairs

    if not rows:
        raise click.UsageError(unknown)
    for row in rows:
        click.echo(json.dumps(row) if as_json else "\n".join(pairs(row)))


def _write(rows: Iterator[dict[str, Any]], form: Callable[[dict[str, Any]], str], header: str | None) -> None:
    for row in rows:
        if header is not None:
            click.echo(header)
            header = None
        click.echo(form(row))
