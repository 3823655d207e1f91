"""A home gives other shards the retained messages that they ask for, a page at a time.

It answers when it has taken from every shard what the asking one has: what is missing in the answer comes to the new
subscription on its own. For a shard that is away nobody waits: the rest is given, then empty pages until it is back.
Whoever asks for another page has room for it, so nothing is held here but a walk.
"""

from __future__ import annotations

from typing import Final

from headrace.core.ports.link import WorkerPort
from headrace.core.records.message import Copy, Message, copy_of
from headrace.core.records.record import FLAG_QOS
from headrace.core.shards.group_wires import GroupWires
from headrace.core.shards.peer import Wire
from headrace.core.shards.retained_frames import ALL, STORED, Answered, Asked, Forgotten, More, Sought
from headrace.core.shards.taking import Taker
from headrace.core.state.retained_tree import RetainedWalk
from headrace.core.state.state import Fold

PAGE_BYTES: Final = 256 << 10
FILTERS_AT_ONCE: Final = 64  # that find nothing, or little
PAGES_AT_ONCE: Final = 4  # in one pass of the loop, for all who ask


class _Walk:
    """What one shard asks for: where it has come to."""

    def __init__(self, wire: Wire, asked: Asked) -> None:
        self.wire = wire
        self.number = asked.number
        self.part = asked.part
        self.tenant = asked.tenant
        self.rows = asked.rows
        self.positions = asked.positions
        self.sought = False  # the shards that it waits for were asked how far they are
        self._at = 0
        self._walk: RetainedWalk | None = None
        self._left: list[Message] = []  # found, and too much for a page
        # Shards that are away before all was taken that the asking one has: there may be newer messages of theirs. What
        # was published to them comes behind the rest, when they are back.
        self.missing: set[int] = set()
        self.away = False  # one of them is still
        self._only: set[int] = set()  # behind the rest: what of these shards

    def page(self, fold: Fold, shard: int, now_us: int, most: int) -> Answered | None:
        """Return the next page of about `most` messages, None if nothing was found as yet."""
        entries: list[tuple[int, Copy]] = []
        size = 0
        for _ in range(FILTERS_AT_ONCE):
            if self._at < len(self.rows):
                size = self._take(self._left or self._next(fold, most), entries, size, shard, now_us)
            if self._left or self._walk is not None:
                break
            self._at += 1
            if len(entries) >= most or size > PAGE_BYTES:
                break
        last = self._at >= len(self.rows)
        if last and self.missing:
            self._at, self._only, self.missing, last = 0, self.missing, set(), False
        return Answered(self.number, last, entries) if entries or last else None

    @property
    def behind(self) -> bool:
        """Return whether all but what was missing has been given."""
        return len(self._only) > 0

    def _is_among(self, message: Copy) -> bool:
        if self._only:
            return message.source in self._only
        return message.source not in self.missing

    def _take(
        self, found: list[Message], entries: list[tuple[int, Copy]], size: int, shard: int, now_us: int
    ) -> int:
        """Put what was found into the page, as far as it fits; `size` bytes are in it. Returns the bytes in it then."""
        self._left = []
        index = self._at
        for at, message in enumerate(found):
            if size > PAGE_BYTES:
                self._left = found[at:]
                break
            effective = min(message.flags & FLAG_QOS, self.rows[index][0])
            if self.part != ALL and (self.part == STORED) != (effective > 0):
                continue
            copy = message if isinstance(message, Copy) else copy_of(message, shard, message.offset)
            if not message.expired(now_us) and self._is_among(copy):
                entries.append((index, copy))
                size += message.size
        return size

    def _next(self, fold: Fold, most: int) -> list[Message]:
        """Return what the walk finds for the filter of now; it is None when there is no more for that one."""
        walk = self._walk
        if walk is None:
            tenant = fold.tenants.get(self.tenant)
            if tenant is None:
                return []
            walk = tenant.retained.walk(self.rows[self._at][1])
        found = walk.take(most)
        self._walk = None if walk.done else walk
        return found


class Answering:
    """Answers what other shards ask."""

    def __init__(
        self,
        shard: int,
        fold: Fold,
        takers: dict[int, Taker],
        worker: WorkerPort,
        wires: GroupWires,
        page_messages: int,
    ) -> None:
        self._shard = shard
        self._page_messages = page_messages
        self._fold = fold
        self._takers = takers
        self._clock = worker.clock
        self._worker = worker
        self._wires = wires
        self._walks: dict[tuple[int, int], _Walk] = {}  # by slot of the wire, and number
        self._waiting: dict[tuple[int, int], _Walk] = {}  # of which a page is wanted

    def asked(self, slot: int, wire: Wire, frame: Asked) -> None:
        """Begin with what a shard asks for on its wire."""
        key = (slot, frame.number)
        self._walks[key] = self._waiting[key] = _Walk(wire, frame)

    def more(self, slot: int, frame: More) -> None:
        """Go on with what a shard has asked for: it has room for another page."""
        key = (slot, frame.number)
        walk = self._walks.get(key)
        if walk is not None:
            walk.positions = frame.positions
            walk.sought = False
            self._waiting[key] = walk

    def forgotten(self, slot: int, frame: Forgotten) -> None:
        """Forget what a shard asks for no more."""
        self._forget((slot, frame.number))

    def _forget(self, key: tuple[int, int]) -> None:
        self._walks.pop(key, None)
        self._waiting.pop(key, None)

    def forget(self, slot: int) -> None:
        """Forget what was asked on a wire that has ended."""
        for key in [key for key in self._walks if key[0] == slot]:
            self._forget(key)

    def give_pages(self) -> bool:
        """Give some of the pages that are wanted; True if more can be given now. What that raises, for want of memory,
        ends the wire of who asks: a page that was begun and not given would be missing, and waited for."""
        pages = 0
        for key, walk in list(self._waiting.items()):
            if self._waiting.get(key) is not walk or not self._can_answer(walk):
                continue
            if pages == PAGES_AT_ONCE:
                return True
            pages += 1
            try:
                self._give(key, walk)
            except Exception as error:  # noqa: BLE001  it is asked again on another wire, from the beginning
                self._worker.contain("retained", None, error)
                self._forget(key)
                self._wires.end(walk.wire)
        return any(self._can_answer(walk) for walk in self._waiting.values())

    def _give(self, key: tuple[int, int], walk: _Walk) -> None:
        del self._waiting[key]
        answered = self._page(walk)
        if answered is None:
            self._waiting[key] = walk  # behind the others
            return
        walk.wire.say(answered)
        if answered.last:
            self._forget(key)

    def _page(self, walk: _Walk) -> Answered | None:
        """Return the next page. One that is empty, and not the last, says that a shard is away of which something is
        missing: it is asked for again later."""
        if walk.away:
            return Answered(walk.number, False, [])
        return walk.page(self._fold, self._shard, self._clock.now_us, self._page_messages)

    def _can_answer(self, walk: _Walk) -> bool:
        if walk.wire.full:
            return False
        complete = self._has_taken(walk)
        return complete or walk.away

    def _has_taken(self, walk: _Walk) -> bool:
        """Return whether all that the other shard has is here. Whoever is waited for is asked how far it is, once."""
        complete = True
        walk.away = False
        for shard, offset in walk.positions:
            taker = self._takers.get(shard)
            if taker is None or taker.settled >= offset:
                continue
            wire = taker.wire
            if wire is None and not walk.behind:
                walk.missing.add(shard)
                continue
            complete = False
            if wire is None:
                walk.away = True
            elif not walk.sought:
                wire.say(Sought())
        walk.sought = walk.sought or not complete
        return complete
