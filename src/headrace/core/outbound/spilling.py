"""Keeps long backlogs short in memory: what nobody will send soon goes into pages of the journal (`backlog`).

Runs on the loop. References stay in memory until the record of their page is durable, so nothing depends on it before.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from mypy_extensions import i64

from headrace.core.commit import Deferred, GroupCommit
from headrace.core.ports.clock import Clock
from headrace.core.records.record import BACKLOG_PAGE, SHARED_BACKLOG_PAGE, Progress
from headrace.core.state.backlog import Behind

if TYPE_CHECKING:
    from headrace.core.ports.settings import BrokerSettings
    from headrace.core.state.backlog import Backlog
    from headrace.core.state.groups import Group
    from headrace.core.state.queue import OutboundQueue
    from headrace.core.state.topic_queues import TopicQueue


PAGES_AT_ONCE: Final = (
    8  # at least, of all queues together: a fan-out fills those of very many at the same time
)


class Spilling:
    """Writes pages of long backlogs. A queue calls for it whenever it has `limit` references or more in memory that are
    in no page."""

    def __init__(self, commit: GroupCommit, clock: Clock, settings: BrokerSettings) -> None:
        self._commit = commit
        self._clock = clock
        self._page: i64 = settings.backlog_page
        self.limit: i64 = 2 * self._page
        # More than what is routed in a pass can fill, so that nothing stays behind for long.
        self._at_once: i64 = max(PAGES_AT_ONCE, 2 * settings.deliveries_at_once // self._page)
        self._left: i64 = self._at_once

    def begin_pass(self) -> None:
        """Begin a pass, in which the next pages may be written."""
        self._left = self._at_once

    def spill_queue(self, incarnation: int, queue: OutboundQueue) -> None:
        self._spill(queue.backlog, BACKLOG_PAGE, incarnation, queue.head_serial())

    def spill_group(self, group: Group) -> None:
        head_serial = group.next_serial - group.backlog.count
        self._spill(group.backlog, SHARED_BACKLOG_PAGE, group.incarnation, head_serial)

    def spill_topic(self, queue: TopicQueue) -> None:
        behind = queue.behind
        if behind.loose() >= self.limit:
            self._write_pages(behind, SHARED_BACKLOG_PAGE, queue.queue_id)

    def _spill(self, backlog: Backlog, subkind: int, owner: int, head_serial: i64) -> None:
        """Write the tail of a queue into a page. The head keeps a page full: it is what goes out next. Where this pass
        has written its pages, the queue's next entry calls again."""
        self._write_pages(backlog.split(self._page, head_serial), subkind, owner)

    def _write_pages(self, behind: Behind, subkind: int, owner: int) -> None:
        while behind.loose() >= self.limit and self._left > 0:
            self._left -= 1
            kept = _PageKept(behind, behind.first + behind.pending, self._page)
            values = behind.next_page(owner, self._page)
            kept.offset = self._commit.append(Progress(subkind, self._clock.now_us, values))
            self._commit.defer(kept)
            behind.pending += self._page  # last: what failed before is tried again


class _PageKept(Deferred):
    """Lets the references of a page go from memory once the page is durable."""

    def __init__(self, behind: Behind, first: i64, count: i64) -> None:
        super().__init__()
        self.offset = -1
        self._behind = behind
        self._first = first
        self._count = count

    def run(self) -> None:
        self._behind.kept(self.offset, self._first, self._count)
