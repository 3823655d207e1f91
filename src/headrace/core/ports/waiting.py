"""Waiting for what cannot be read now: whose queue it is, who goes on, and who says that it is worth asking again.

    reader.fetch(owner, serial, reference) -> NOT_NOW;  waiting.add(owner, waker)   ...later...   waker.wake(owner)

Base classes and a trait rather than protocols, as in `journal`: those who wait are compiled classes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mypy_extensions import mypyc_attr, trait

if TYPE_CHECKING:
    from headrace.core.records.message import Message


@mypyc_attr(allow_interpreted_subclasses=True)
class QueueOwner:
    """An owner of entries that are read: a session, a group, a topic queue or one of its clusters, the stream to another
    shard."""

    def at_hand(self, offset: int) -> Message | None:
        """Return the message at `offset` of the journal if the owner has it in memory anyway."""
        return None


@trait
class Waker:
    """Goes on with an owner for whom a read is worth trying again."""

    def wake(self, owner: QueueOwner) -> bool:
        """Try again; return False if the owner waited no more: it has gone, ended, or got on meanwhile. One that has to
        wait once more has added itself again."""
        raise NotImplementedError


@mypyc_attr(allow_interpreted_subclasses=True)
class Waiting:
    """A list of owners who wait until something can be read. To be told twice, late or in vain does no harm; whoever is
    told nothing is tried by a timer, as the last resort."""

    def add(self, owner: QueueOwner, waker: Waker) -> None:
        """Have `waker` told once when it is worth asking again for `owner`."""
        raise NotImplementedError

    def wake(self, owner: QueueOwner) -> None:
        """Say that what this owner asked for is there now."""
        raise NotImplementedError

    def wake_all(self) -> None:
        """Say that a read has succeeded where one had failed: others may succeed, too."""
        raise NotImplementedError
