"""What a shard has where there are others, and what it has instead where it is alone: nobody to tell, ask or wait for.

`neighbours` stands behind it where there are others.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from headrace.core.records.message import Copy
    from headrace.core.shards.enrolments import Enrolment
    from headrace.core.shards.holding import Held
    from headrace.core.state.session import Session


class Alone:
    """The other shards, as a shard sees them that is alone. `others`: their numbers."""

    def __init__(self) -> None:
        self.others: list[int] = []

    def begin(self, epoch: int) -> None:
        """Begin as the newest owner of the shard, which `epoch` says: its state is recovered, and there may be wires."""

    def set_storage_full(self, full: bool, is_of_disk: bool = True) -> None:
        """Note that the journal's disk is full, or that it has space again; `is_of_disk`: and not something else."""

    def took(self, copy: Copy) -> None:
        """Note that a copy of a message of another shard takes effect here."""

    def hold(self, held: Held) -> bool:
        """Keep an answer back until all that is wanted by now is looked for; False if it is."""
        return False

    def must_know(self, session: Session, topic_filter: str) -> bool:
        """Return whether a shared subscription is at home in another shard, which does not know this member yet."""
        return False

    def enrol(self, enrolment: Enrolment) -> bool:
        """Keep an answer back until the homes of its groups know of a new member; False if they do."""
        return False

    def end_pass(self) -> None:
        """Do what is to be done in each pass of the loop."""

    def on_timer(self) -> None:
        """Do what time has decided."""
