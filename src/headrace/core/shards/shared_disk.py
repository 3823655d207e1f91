"""What shards owe each other while the disk that they write to is full.

What fills it may be what another shard has not taken, and nothing of that goes before that one has written it. So a shard
whose disk is full takes as much as there is room for, publishers of the others wait meanwhile, and a shard that is not
full gives its reserve away when one that follows it starves (`upkeep`).
"""

from __future__ import annotations

from mypy_extensions import i64

from headrace.core.ports.journal import JournalPort
from headrace.core.ports.link import Crowds
from headrace.core.shards.peer import Filled
from headrace.core.shards.sending import Sender
from headrace.core.shards.stream_settings import StreamSettings
from headrace.core.shards.taking import Taker


class SharedDisk:
    """The disk of the journal, and what other shards say of it."""

    def __init__(
        self,
        others: list[int],
        takers: dict[int, Taker],
        senders: dict[int, Sender],
        journal: JournalPort,
        gate: Crowds,
        settings: StreamSettings,
    ) -> None:
        """Begin with space: each stream has its whole window."""
        self.is_full = False
        self.says_full = False  # it is the disk that is, and not something else
        self.finished: i64 = 0  # while space is short: where the journal's finished segments end
        self._others = others
        self._takers = takers
        self._senders = senders
        self._journal = journal
        self._gate = gate
        self._window: i64 = settings.window_bytes
        self._filled = set(others)  # shards that have not said that they have space

    def set_full(self, full: bool, is_of_disk: bool) -> None:
        """Note that nothing can be written, or that it can again, and tell the shards that are followed."""
        self.is_full = full
        self.set_windows()
        says = full and is_of_disk
        if says != self.says_full:
            self.says_full = says
            for taker in self._takers.values():
                if taker.wire is not None:
                    taker.wire.say(Filled(says))

    def set_windows(self) -> None:
        """Say how much may come on each stream. On a full disk other shards may send what there is room for, beside what
        frees it, and each shard of this disk takes a part: theirs may be the journals that fill it."""
        window = self._window
        if self.is_full and self._others:
            shards = len(self._others) + 1
            window = min(window, self._journal.room() // (shards * len(self._others)))
        for taker in self._takers.values():
            taker.window = window

    def told(self, shard: int, full: bool) -> None:
        """Note what another shard says."""
        if full:
            self._filled.add(shard)
        else:
            self._filled.discard(shard)
        self.note()

    def note(self) -> None:
        """Let publishers wait while this shard finds little space, and the disk is full for another one, or that one is
        not there to tell: they would write full what it has given back."""
        self._gate.set_others_full(len(self._filled) > 0 and not self._journal.has_room())

    def on_timer(self) -> None:
        """Look again how much space there is."""
        if self._filled:
            self.note()

    def starve(self) -> bool:
        """Return whether somebody who follows has granted nothing since this was asked last, and something waits for
        that."""
        return len([sender for sender in self._senders.values() if sender.starves()]) > 0  # all are asked

    @property
    def owes(self) -> bool:
        """Return whether something waits for somebody who follows."""
        return any(sender.waits for sender in self._senders.values())
