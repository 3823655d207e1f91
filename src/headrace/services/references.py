"""Which journal offsets somebody still refers to: queues of sessions and groups, and retained messages.

Asked for a stretch of the journal that compaction looks at; takes one byte for each offset of it, however many
references there are. Walked in slices with ticks in between, as a snapshot is. Retained messages come first: only
one that is there when the walk begins can give a new reference to an old offset, so nothing is left out.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain

from headrace.core.backlog import REF_OFFSET_SHIFT, Backlog
from headrace.core.fold import Fold

SLICE_REFERENCES = 2000
OWNER_REFERENCES = 5  # what an owner without any costs, in references
RETAINED_AT_ONCE = 200


class References:
    """Those from `start` up to `end`. Complete when `slices` has run to its end."""

    def __init__(self, fold: Fold, start: int, end: int) -> None:
        self._fold = fold
        self._start = start
        self._marks = bytearray(end - start)

    def slices(self) -> Iterator[None]:
        """Some work at a time; the caller lets ticks pass in between."""
        start, size = self._start, len(self._marks)
        seen = 0
        for refs in self._owners():
            seen += OWNER_REFERENCES
            for ref in refs:
                place = (ref >> REF_OFFSET_SHIFT) - start
                if 0 <= place < size:
                    self._marks[place] = 1
                seen += 1
            if seen >= SLICE_REFERENCES:
                seen = 0
                yield
        yield

    def _owners(self) -> Iterator[Iterable[int]]:
        """The references of one owner after the other; within one they move, so each is copied as a whole."""
        for tenant in list(self._fold.tenants.values()):
            walk = tenant.retained.walk_all()
            while not walk.done:
                yield [message.offset << REF_OFFSET_SHIFT for message in walk.take(RETAINED_AT_ONCE)]
        for session in self._fold.roster.walk():
            queue = None if session is None else session.queue
            if queue is not None:
                yield queue.inflight.refs()
                yield from self._waiting(queue.backlog)
            else:
                yield ()
        for group in list(self._fold.groups.values()):
            drawn = [draw.full_ref for draw in group.drawn.values()]
            yield chain(drawn, list(group.returned.values()))
            yield from self._waiting(group.backlog)

    def _waiting(self, backlog: Backlog) -> Iterator[Iterable[int]]:
        """The pages of a backlog, and of what is in them only those that can refer to the stretch."""
        yield chain(backlog.in_memory(), [offset << REF_OFFSET_SHIFT for offset in backlog.page_offsets()])
        for offset in backlog.pages_between(self._start, self._start + len(self._marks)):
            yield backlog.page_refs(offset)

    def between(self, start: int, end: int) -> set[int]:
        """Those in a part of the stretch. Takes its time: not for the loop."""
        marks = self._marks[start - self._start : end - self._start]
        found = set()
        at = marks.find(1)
        while at >= 0:
            found.add(start + at)
            at = marks.find(1, at + 1)
        return found
