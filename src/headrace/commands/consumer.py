"""`headrace consumer`: who reads the journal, how far each is, and whose it is."""

from __future__ import annotations

import builtins
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from time import time_ns

import click

from headrace.commands.cluster import place_of, topics_of
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


of_a_cluster = click.option(
    "--cluster",
    type=str,
    metavar="kafka://HOST:PORT[,HOST:PORT...]/NAME",
    help="of a cluster, whose consumers are in Kafka, instead of a directory",
)


@click.group()
def consumer() -> None:
    """Registered consumers of a journal, for which retention waits. A broker may be running."""


@consumer.command("list")
@of_a_cluster
@data_dir_options
@ends_with_its_reader
def list_command(data_dir: Path, cluster: str | None) -> None:
    """Print a line for each consumer: name, offset below which everything is processed, when that moved last, owner. Of
    several shards each has its own."""
    now_us = time_ns() // 1000
    if cluster is None:
        here = journals_of(data_dir)
        found = [(label, each) for label, directory in here for each in ConsumerPosition.list(directory)]
    else:
        found = ClusterConsumers(cluster).list()
    for label, position in found:
        silent = duration(max(0, now_us - position.updated_us) / 1_000_000)
        owner = position.owner or "nobody"
        click.echo(f"{label}{position.name}  offset {position.offset}  moved {silent} ago  {owner}")


@consumer.command("hand-over")
@click.argument("name", callback=consumer_name)
@of_a_cluster
@data_dir_options
def hand_over_command(name: str, data_dir: Path, cluster: str | None) -> None:
    """Take consumer NAME from its owner: it belongs to the next job that comes under this name, from its offset on. Of
    several shards in all of them."""
    if cluster is None:
        found = _in_each(data_dir, name, lambda directory: ConsumerPosition.hand_over(directory, name))
    else:
        found = ClusterConsumers(cluster).hand_over(name)
    for label, was in found:
        owner = was.owner or "nobody"
        click.echo(
            f"{label}{name}, at offset {was.offset}, belonged to {owner}; the next job that comes has it"
        )


@consumer.command("remove")
@click.argument("name", callback=consumer_name)
@click.option("--force", is_flag=True, help="also one whose process is at work")
@or_of_a_broker
@of_a_cluster
@new_data_dir_options
def remove_command(
    name: str, force: bool, client: AdminClient | None, data_dir: Path, cluster: str | None
) -> None:
    """Remove consumer NAME: retention waits for it no longer, and what it has not read may go. Of several shards from all
    of them. A job that comes back under this name begins as a new one."""
    if cluster is not None:
        removed = [(label, position.offset) for label, position in ClusterConsumers(cluster).remove(name)]
    elif client is None:
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


class ClusterConsumers:
    """The consumers of a cluster, which are records in Kafka: whoever reaches Kafka sees and changes them, and no node is
    asked. What stands before a line about one names its shard, where there are several."""

    def __init__(self, url: str) -> None:
        """Ask Kafka for the cluster. Raises BadParameter, KafkaUnusable."""
        place = place_of(url, "--cluster")
        topic_id, self._shards = topics_of(place).identity()
        from headrace.storage.kafka.consumer_topic import ConsumerTopic

        self._url = url
        self._topic = ConsumerTopic(place, topic_id)

    def _label(self, shard: int) -> str:
        return f"shard {shard}: " if self._shards > 1 else ""

    def list(self) -> builtins.list[tuple[str, ConsumerPosition]]:
        """Return all of them, by shard and name. Raises KafkaUnusable."""
        found = self._topic.look()
        return [(self._label(key[0]), found[key]) for key in sorted(found)]

    def hand_over(self, name: str) -> builtins.list[tuple[str, ConsumerPosition]]:
        """Let the first who comes be the next owner; returns what each was. Raises UnknownConsumer, KafkaUnusable."""
        return self._in_each(name, self._topic.hand_over)

    def remove(self, name: str) -> builtins.list[tuple[str, ConsumerPosition]]:
        """Remove a consumer from all shards; returns what each was. Raises UnknownConsumer, KafkaUnusable."""
        return self._in_each(name, self._topic.remove)

    def _in_each(
        self, name: str, act: Callable[[int, str], object]
    ) -> builtins.list[tuple[str, ConsumerPosition]]:
        found = [
            (shard, position)
            for (shard, each), position in sorted(self._topic.look().items())
            if each == name
        ]
        if not found:
            raise UnknownConsumer(f"no consumer {name!r} is registered in {self._url}")
        for shard, _ in found:
            act(shard, name)
        return [(self._label(shard), position) for shard, position in found]
