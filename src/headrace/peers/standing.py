"""How the streams between the shards of a node stand, as one worker sees it: which are not up, and which never will be.

A stream that is not up is behind, and nothing of it is lost but what is published at QoS 0 meanwhile: so a worker that
has just begun waits for its streams before clients come. One that is refused stays so until somebody accepts the shard
whose journal does not fit (ADR 0025): what is acknowledged waits in the journal of its source.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from headrace.core.shards.neighbours import Neighbours


@dataclass(frozen=True, slots=True)
class Refusal:
    """A stream that does not begin, since the journal of the shard `misfit`, one of the two, does not fit the other."""

    source: int
    follower: int
    misfit: int
    why: str

    def __str__(self) -> str:
        return (
            f"shard {self.follower} gets nothing of shard {self.source}: {self.why}; restore all shards from one "
            f"backup, or see `headrace journal accept {self.misfit}`"
        )


def refusals(owned: Iterable[Neighbours]) -> Iterator[Refusal]:
    """Yield the streams from and to these shards that are refused."""
    for near in owned:
        shard = near.shard
        for other, offset in near.ahead.items():
            why = (
                f"it has taken that one's journal up to {offset}, and it ends before, or is another one there: it was "
                "restored alone, or has lost its end"
            )
            yield Refusal(shard, other, shard, why)
        for other, (offset, before) in near.behind.items():
            why = (
                f"it asks for that one's journal from {offset} on, and had all up to {before} before: it was restored "
                "alone, or has lost its end"
            )
            yield Refusal(shard, other, other, why)
        for other, epochs in near.older_followers.items():
            yield Refusal(shard, other, other, _older(other, *epochs))
        for source, epochs in near.older_sources.items():
            yield Refusal(source, shard, source, _older(source, *epochs))


def _older(shard: int, epoch: int, newest: int) -> str:
    return (
        f"shard {shard} has begun at offset {epoch} of its journal, and began at {newest} before: it was restored alone, "
        "or has lost its end"
    )


def missing(owned: Iterable[Neighbours]) -> Iterator[tuple[int, int]]:
    """Yield source and follower of the streams from and to these shards that are not up."""
    for near in owned:
        for other in near.others:
            if not near.was_answered(other):
                yield other, near.shard
            if not near.followers.is_followed(other):
                yield near.shard, other


def trouble(owned: Iterable[Neighbours]) -> str:
    """Return which stream is refused, else which one is not up; "" when all are."""
    neighbours = list(owned)
    refused = next(refusals(neighbours), None)
    if refused is not None:
        return str(refused)
    pair = next(missing(neighbours), None)
    return "" if pair is None else f"shard {pair[1]} does not follow shard {pair[0]} now"


def settled(owned: Iterable[Neighbours]) -> bool:
    """Return whether all streams from and to these shards are up, or refused."""
    neighbours = list(owned)
    refused = {(each.source, each.follower) for each in refusals(neighbours)}
    return all(pair in refused or pair[::-1] in refused for pair in missing(neighbours))
