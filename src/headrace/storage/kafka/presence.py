"""The nodes of a cluster and the owners of its shards, as whoever asks from outside finds them: the roster, and which of
its nodes are members of the group that shares the shards now."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Final

from headrace.errors import HeadraceError
from headrace.storage.kafka.cluster_state import ClusterState
from headrace.storage.kafka.roster import Roster

NOBODY: Final = ""


class UnknownNode(HeadraceError):
    """A cluster has no node of a name. The message has those that it has."""

    def __init__(self, name: str, known: list[str]) -> None:
        super().__init__(f"the cluster has no node {name!r}; it has {', '.join(known) or 'none'}")


class NodeLives(HeadraceError):
    """A node is there, and leaves by being stopped. The message says where it is."""

    def __init__(self, name: str, peer: str) -> None:
        super().__init__(
            f"node {name} lives, at {peer}: stop it, which takes it out of the cluster; one that was killed counts as "
            "living for 6 s"
        )


@dataclass(frozen=True, slots=True)
class NodePresence:
    """One node. `lives`: Kafka's group has it for a member, as of 6 s ago at most; `shards` are those that it owns."""

    node: str
    lives: bool
    peer: str
    version: str
    format: int
    config: str
    run: int
    shards: list[int]


@dataclass(frozen=True, slots=True)
class Ownership:
    """The owner of a shard: a node of the roster, "" if nobody owns it; and its epoch, -1 where nobody ever did."""

    shard: int
    owner: str
    epoch: int


@dataclass(frozen=True, slots=True)
class Presence:
    """All nodes and owners; `problems` has a line for what is not as it must be."""

    nodes: list[NodePresence]
    owners: list[Ownership]
    problems: list[str]


def node_of(member: str) -> str:
    """Return the node of a member of the group, which is called NODE/0."""
    return member.rpartition("/")[0]


def presence(roster: Roster, shards: int, members: dict[str, list[int]]) -> Presence:
    """Return who is there and owns what. `members` of the group, by their names, NODE/0."""
    live = {node_of(member) for member in members}
    owners = [_ownership(roster, shard) for shard in range(shards)]
    nodes = [
        NodePresence(
            name,
            name in live,
            known.entry.peer,
            known.entry.version,
            known.entry.format,
            known.entry.config,
            known.run,
            [one.shard for one in owners if one.owner == name],
        )
        for name, known in sorted(roster.nodes.items())
    ]
    return Presence(nodes, owners, _problems(nodes, owners))


def _ownership(roster: Roster, shard: int) -> Ownership:
    node, entry = roster.owner(shard), roster.shards.get(shard)
    return Ownership(shard, NOBODY if node is None else node.name, -1 if entry is None else entry.epoch)


def _problems(nodes: list[NodePresence], owners: list[Ownership]) -> list[str]:
    """Return what is wrong. A cluster whose nodes share nothing has none in its roster, and one that is not begun
    neither."""
    if not nodes:
        return []
    live = [node for node in nodes if node.lives]
    alone = [str(one.shard) for one in owners if one.owner == NOBODY]
    problems = [
        f"node {node.node} is away: start it, or remove it (headrace cluster remove {node.node})"
        for node in nodes
        if not node.lives
    ]
    if alone:
        problems.append(f"nobody owns shard {', '.join(alone)} now")
    for what, values in (
        ("configurations", {node.config for node in live}),
        ("releases", {node.version for node in live}),
    ):
        if len(values) > 1:
            problems.append(f"the {what} of the nodes differ: {', '.join(sorted(values))}")
    return problems


def as_object(name: str, state: ClusterState, found: Presence) -> dict[str, Any]:
    """Return what `headrace cluster status --json` prints of a cluster. Its problems are those of both."""
    shards = [
        {**asdict(shard), "owner": one.owner, "epoch": one.epoch}
        for shard, one in zip(state.shards, found.owners, strict=True)
    ]
    nodes = [asdict(node) for node in found.nodes]
    problems = state.problems + found.problems
    return {"cluster": name, **asdict(state), "problems": problems, "nodes": nodes, "shards": shards}
