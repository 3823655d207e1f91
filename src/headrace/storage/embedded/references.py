"""Which journal offsets somebody still refers to: queues of sessions and groups, and retained messages.

Asked for a stretch of the journal that compaction looks at; takes one byte for each offset of it, however many
references there are. Walked in slices, and everything moves in between: so nothing that moves is looked at twice.

- A reference moves within its owner, from a page to the backlog to what is in flight and, in a group, back. Each owner is
  copied in one go: what it has in memory, and the table of its pages. The pages are records and never change; they are
  read later, from the table that was copied, which also names what has been loaded from them meanwhile.
- A new reference to an old offset comes from a retained message alone, for a new subscription. So the retained
  messages are walked first (`retained`): what is listed from then on is one of them. What was listed before may still be
  on its way through the journal; the caller waits until all of that has taken effect, and then walks the owners
  (`owners`).

    for _ in references.retained(): ...   await durable(commit)   for _ in references.owners(): ...
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator
from itertools import chain, islice

from headrace.core.state.backlog import REF_OFFSET_SHIFT, Backlog
from headrace.core.state.groups import Group, draws_of
from headrace.core.state.queue import OutboundQueue
from headrace.core.state.session import Session
from headrace.core.state.state import Fold
from headrace.core.state.topic_queues import TopicQueue
from headrace.errors import NotReadableNow

SLICE_REFERENCES = 2000
OWNER_REFERENCES = 5  # what an owner without any costs, in references
RETAINED_AT_ONCE = 200


class References:
    """Finds the references from `start` up to `end`. Complete when `retained` and then `owners` have run to their
    ends."""

    def __init__(self, fold: Fold, start: int, end: int, at_once: int = SLICE_REFERENCES) -> None:
        """Begin to look for what is referred to between `start` and `end`. `at_once`: references that are looked at in
        a slice, apart from those that are copied."""
        self._fold = fold
        self._start = start
        self._end = end
        self._at_once = at_once
        self._marks = bytearray(end - start)
        self._seen = 0

    def retained(self) -> Iterator[None]:
        """Mark the retained messages as referred to, some at a time; the caller lets ticks pass in between."""
        for tenant in list(self._fold.tenants.values()):
            walk = tenant.retained.walk_all()
            while not walk.done:
                found = walk.take(min(RETAINED_AT_ONCE, self._at_once))
                for message in found:
                    self._mark_offset(message.offset)
                self._seen += OWNER_REFERENCES + len(found)
                if self._is_slice():
                    yield
        yield

    def owners(self) -> Iterator[None]:
        """Mark what groups and sessions refer to, some at a time. Raises NotReadableNow: then nothing is known.

        Groups first: what a member draws stays with it when its group is gone before the walk comes by."""
        for group in list(self._fold.groups.by_id.values()):
            yield from self._group(group)
            yield
        for queue in list(self._fold.queues.by_id.values()):
            yield from self._marked(*self._copied([], queue))
            yield
        for session in self._fold.roster.walk():
            self._seen += OWNER_REFERENCES
            if session is not None:
                yield from self._session(session)
            if self._is_slice():
                yield
        yield

    def _session(self, session: Session) -> Iterator[None]:
        """Mark what a session refers to, in slices: draws are of its groups, but they stay with the member when the
        group is gone."""
        refs = [draw.full_ref for draw in draws_of(session)]
        refs += [ref for ref, _ in session.owed or ()]
        queue = session.queue
        if queue is None:
            return self._marked(refs, [])
        refs += queue.needed_in_flight()
        return self._marked(*self._copied_of_session(refs, queue))

    def _group(self, group: Group) -> Iterator[None]:
        refs = [draw.full_ref for draw in group.drawn.values()]
        refs += group.returned.values()
        refs += [ref for ref, _ in group.carrier.owed or ()]
        return self._marked(*self._copied(refs, group.backlog))

    def _copied(
        self, refs: list[int], backlog: Backlog | TopicQueue
    ) -> tuple[Iterable[int], Iterable[array[int]]]:
        """Copy what waits: references, and the pages that can refer to the stretch, which are read one by one."""
        offsets = backlog.page_offsets()
        in_stretch = backlog.pages_between(self._start, self._end)
        named = [offset << REF_OFFSET_SHIFT for offset in offsets]
        return chain(refs, backlog.in_memory(), named), _pages(backlog, in_stretch)

    def _copied_of_session(
        self, refs: list[int], queue: OutboundQueue
    ) -> tuple[Iterable[int], Iterable[array[int]]]:
        """Copy what waits for a session, but for what a store has and the journal was let go of; the pages that name it
        are needed still."""
        backlog, let_go = queue.backlog, queue.let_go()
        in_stretch = backlog.pages_between(self._start, self._end, let_go)
        named = [offset << REF_OFFSET_SHIFT for offset in backlog.page_offsets()]
        in_memory = backlog.in_memory(let_go + 1 - queue.head_serial())
        return chain(refs, in_memory, named), _pages(backlog, in_stretch)

    def _marked(self, refs: Iterable[int], pages: Iterable[array[int]]) -> Iterator[None]:
        for part in chain((refs,), pages):
            rest = iter(part)
            while some := list(islice(rest, self._at_once)):
                for ref in some:
                    self._mark_offset(ref >> REF_OFFSET_SHIFT)
                self._seen += len(some)
                if self._is_slice():
                    yield

    def _is_slice(self) -> bool:
        if self._seen < self._at_once:
            return False
        self._seen = 0
        return True

    def _mark_offset(self, offset: int) -> None:
        if self._start <= offset < self._end:
            self._marks[offset - self._start] = 1

    def first(self) -> int:
        """Return the lowest reference; the end of the stretch if there is none."""
        found = self._marks.find(1)
        return self._end if found < 0 else self._start + found

    def between(self, start: int, end: int) -> set[int]:
        """Return the references in a part of the stretch. Takes its time: not for the loop."""
        marks = self._marks[start - self._start : end - self._start]
        found = set()
        at = marks.find(1)
        while at >= 0:
            found.add(start + at)
            at = marks.find(1, at + 1)
        return found


def _pages(backlog: Backlog | TopicQueue, offsets: list[int]) -> Iterator[array[int]]:
    for offset in offsets:
        refs = backlog.page_refs(offset)
        if refs is None:
            raise NotReadableNow(f"the page of a backlog at offset {offset} cannot be read now")
        yield refs
