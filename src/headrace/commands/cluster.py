"""`headrace cluster`: the topics in Kafka that hold the journals of a cluster's shards."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import click

from headrace.commands.cluster_certs import certs
from headrace.commands.storage import ends_with_its_reader
from headrace.commands.watch import or_of_a_broker
from headrace.console.admin import AdminClient
from headrace.data.layout import SHARDS_MAX
from headrace.storage.kafka.cluster_state import Replication
from headrace.storage.kafka.cluster_url import BadClusterUrl, ClusterUrl
from headrace.storage.kafka.presence import UnknownNode, as_object

if TYPE_CHECKING:
    from headrace.storage.kafka.topics import Topics

FACTOR = 3
IN_SYNC_MIN = 2
REPLICAS_MAX = 32767  # as Kafka's protocol has it


@click.group("cluster")
def cluster() -> None:
    """Make the topics of a cluster in Kafka, look at them, and make certificates for its nodes."""


@cluster.command("create")
@click.argument("url", metavar="kafka://HOST:PORT[,HOST:PORT...]/NAME")
@click.option("--shards", type=click.IntRange(1, SHARDS_MAX), required=True, help="how many, for good")
@click.option(
    "--replication",
    type=click.IntRange(1, REPLICAS_MAX),
    help=f"brokers that hold each shard  [default: {FACTOR}; 1 where Kafka has one broker]",
)
@click.option(
    "--min-insync",
    type=click.IntRange(1, REPLICAS_MAX),
    help=f"of them, how many must have a message before it is acknowledged  [default: {IN_SYNC_MIN}]",
)
def create(url: str, shards: int, replication: int | None, min_insync: int | None) -> None:
    """Make the topics of a cluster with so many shards."""
    place = place_of(url, "URL")
    topics = topics_of(place)
    found = replication_for(topics.broker_count(), replication, min_insync)
    if found.factor == 1:
        click.echo(
            "headrace: replication 1: what is acknowledged is lost with the disk of that broker, and nothing is "
            "acknowledged while it is away",
            err=True,
        )
    topics.create(shards, found)
    click.echo(
        f"{place.name}: {shards} shards, replication {found.factor}, min.insync.replicas {found.in_sync_min}"
    )


@cluster.command("status")
@click.option("--cluster", "url", metavar="kafka://HOST:PORT[,HOST:PORT...]/NAME", help="ask Kafka")
@click.option("--json", "as_json", is_flag=True)
@or_of_a_broker
@ends_with_its_reader
def status(url: str | None, as_json: bool, client: AdminClient | None) -> None:
    """Print which nodes there are, who owns which shard, and how the journals are: as Kafka says, or as a node does at
    its admin address, with its links to the others. Exit 1 if something is wrong."""
    if (url is None) == (client is None):
        raise click.BadParameter("one of --cluster and --admin says whom to ask", param_hint="--cluster")
    found = client.get("/v1/cluster") if client is not None else _asked_of_kafka(url or "")
    for line in [json.dumps(found)] if as_json else lines(found):
        click.echo(line)
    sys.exit(1 if found["problems"] else 0)


def _asked_of_kafka(url: str) -> dict[str, Any]:
    """Return what Kafka says of a cluster. Raises KafkaUnusable, BadParameter."""
    place = place_of(url, "--cluster")
    state = topics_of(place).state()
    from headrace.storage.kafka.registry import presence_now

    return as_object(place.name, state, presence_now(place, state.topic_id, len(state.shards)))


@cluster.command("remove")
@click.argument("node")
@click.option("--cluster", "url", required=True, metavar="kafka://HOST:PORT[,HOST:PORT...]/NAME")
def remove(node: str, url: str) -> None:
    """Remove NODE, which was killed and does not come back, from the list of nodes. Its shards are others' already; a
    node that is stopped removes itself."""
    place = place_of(url, "--cluster")
    topic_id = topics_of(place).state().topic_id
    from headrace.storage.kafka.registry import remove_node

    try:
        peer = remove_node(place, topic_id, node)
    except UnknownNode as error:
        raise click.BadParameter(str(error), param_hint="NODE") from None
    click.echo(f"{place.name}: node {node} (at {peer}) is none any more")


def lines(found: Mapping[str, Any]) -> list[str]:
    """Return what `status` prints for a person of what `status --json` prints."""
    of = f"{len(found['shards'])} shards, topic {found['topic_id']}, min.insync.replicas {found['in_sync_min']}"
    said = [f"cluster {found['cluster']}: {of}"]
    for node in found["nodes"]:
        is_there = "" if node["lives"] else ", away"
        of = "peer {peer}, version {version}, format {format}, configuration {config}".format(**node)
        said.append(f"node {node['node']}: {len(node['shards'])} shards, {of}{is_there}")
    for shard in found["shards"]:
        owner = f"owner {shard['owner'] or 'nobody'}, epoch {shard['epoch']}, " if found["nodes"] else ""
        leader = "no leader" if shard["leader"] < 0 else f"leader {shard['leader']}"
        in_sync, replicas = (",".join(map(str, shard[some])) or "none" for some in ("in_sync", "replicas"))
        said.append(
            f"shard {shard['shard']}: {owner}{leader}, {in_sync} of {replicas} in sync, "
            f"offsets {shard['start']} to {shard['end']}"
        )
    for link in found.get("links", []):
        heard = "heard" if link["heard"] else "not heard"
        said.append(f"link of node {found['asked']} to node {link['node']}: {heard}")
    return [*said, *(f"problem: {problem}" for problem in found["problems"])]


cluster.add_command(certs)


def place_of(url: str, named: str) -> ClusterUrl:
    """Return the address of a cluster, which the argument or option `named` has given. Raises BadParameter."""
    try:
        return ClusterUrl.parse(url)
    except BadClusterUrl as error:
        raise click.BadParameter(str(error), param_hint=named) from None


def topics_of(place: ClusterUrl) -> Topics:
    """Return the topics of a cluster, by a client that is imported when somebody asks: an extra brings it."""
    try:
        from headrace.storage.kafka.topics import Topics
    except ModuleNotFoundError as error:
        raise click.ClickException(f"{error.name} is missing: pip install 'headrace[kafka]'") from error
    return Topics(place)


def replication_for(brokers: int, factor: int | None, in_sync_min: int | None) -> Replication:
    """Return the replication that was asked for, or the usual one; of a single broker that is 1, unless another one was
    asked for. Raises click.BadParameter, with the option, for what so many brokers cannot give."""
    wanted = factor if factor is not None else 1 if brokers == 1 else FACTOR
    if wanted > brokers:
        raise click.BadParameter(f"{wanted}, and Kafka has {brokers} brokers", param_hint="--replication")
    least = min(IN_SYNC_MIN, wanted) if in_sync_min is None else in_sync_min
    if least > wanted:
        raise click.BadParameter(
            f"{least} of {wanted} replicas: nothing would ever be acknowledged", param_hint="--min-insync"
        )
    return Replication(wanted, least)
