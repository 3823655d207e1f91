"""What a topic queue keeps: so many messages and bytes, for so long. What is beyond that is dropped, the oldest first.

Runs on the loop. What is dropped is counted and journaled. Limits are kept with each message that comes, the age once a
second, some queues and messages at a time.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final

from mypy_extensions import i64

from headrace.core.commit import GroupCommit
from headrace.core.ports.journal import NOT_NOW
from headrace.core.ports.link import WorkerPort
from headrace.core.ports.queue_reader import QueueReader
from headrace.core.ports.timers import Alarm, Timers
from headrace.core.records.elapsed import elapsed_us
from headrace.core.records.message import Message
from headrace.core.records.queue_record import QUEUE_TRIMMED, number_record
from headrace.core.records.record import DROP_BYTES_LIMIT, DROP_EXPIRED, DROP_LIMIT, DROP_UNREADABLE
from headrace.core.state.queue import reference
from headrace.core.state.state import Fold
from headrace.core.state.topic_queues import TopicQueue
from headrace.errors import NotReadableNow

if TYPE_CHECKING:
    from headrace.core.outbound.unused import Unused

_AGING_MS: Final = 1000
_AGED_AT_ONCE: Final = 100  # queues that are looked at in a second, oldest messages of one
_AGING_WORK: Final = 20_000  # messages times clusters; the rest of what is too old goes a little later
_AGING_SOON_MS: Final = 20
_DROPPED_AT_ONCE: Final = 100  # with each message that comes: a limit that was lowered leaves very many


class Trimming:
    """Keeps the limits of topic queues, and knows where in them a time is."""

    def __init__(
        self, fold: Fold, commit: GroupCommit, reader: QueueReader, timers: Timers, worker: WorkerPort
    ) -> None:
        self._fold = fold
        self._commit = commit
        self._reader = reader
        self._timers = timers
        self._clock = worker.clock
        self._settings = worker.settings
        self._trimmed: dict[TopicQueue, dict[int, int]] = {}  # reason -> messages, not in the journal yet
        self._aging: deque[int] = deque()
        self._aging_begun = False
        self.unused: Unused | None = None  # which is asked for each queue as well

    def keep_limits(self, queue: TopicQueue) -> None:
        """Drop what comes first while a queue holds more messages or bytes than it may, some at a time."""
        limits = queue.limits
        if self._is_ending(queue):
            return
        for _ in range(_DROPPED_AT_ONCE):
            if 0 < limits.queue_messages_max < queue.count:
                self._drop_first(queue, DROP_LIMIT)
            elif 0 < limits.queue_bytes_max < queue.bytes and queue.count > 1:
                self._drop_first(queue, DROP_BYTES_LIMIT)
            else:
                return

    def _is_ending(self, queue: TopicQueue) -> bool:
        """Return whether the record of its end is on its way, and what it holds is what that finds: a replay has no
        records behind that."""
        return self.unused is not None and queue.queue_id in self.unused.ending

    def _drop_first(self, queue: TopicQueue, reason: int) -> None:
        trimmed = self._trimmed.setdefault(queue, {})
        serial = int(queue.first)
        queue.used_us = self._clock.now_us
        lost = queue.wanted(serial)
        queue.drop_first()
        for cluster in queue.clusters.values():
            cluster.forget(serial)
        if lost:
            self._fold.make(queue.tenant).count_drop(reason, 1)
        trimmed[reason] = trimmed.get(reason, 0) + (1 if lost else 0)

    def note(self) -> None:
        """Journal what was dropped since the last time."""
        if not self._trimmed:
            return
        trimmed, self._trimmed = self._trimmed, {}
        for queue, reasons in trimmed.items():
            numbers = [queue.queue_id, int(queue.first)]
            for reason, count in reasons.items():
                numbers += [reason, count]
            self._commit.append(number_record(QUEUE_TRIMMED, self._clock.now_us, numbers))

    # Age

    def begin(self) -> None:
        """Begin with a queue that is there: what waits in it ages from now on, whether or not something comes."""
        if not self._aging_begun:
            self._age_later()

    def _age_later(self, ms: int = _AGING_MS) -> None:
        self._aging_begun = True
        self._timers.schedule(self._clock.mono_ms + ms, Alarm(self.age))

    def age(self) -> None:
        """Drop what is older than a queue keeps; look at some of the queues each second."""
        if not self._aging:
            self._aging.extend(self._fold.queues.by_id)
        work: i64 = _AGING_WORK
        for _ in range(_AGED_AT_ONCE):
            if work <= 0 or not self._aging:
                break
            queue = self._fold.queues.by_id.get(self._aging.popleft())
            if queue is None or self._is_ending(queue):
                continue
            first: i64 = queue.first
            queue.settle()
            self.keep_limits(queue)
            if queue.limits.queue_age_s:
                self._drop_old(queue, queue.limits.queue_age_s * 1_000_000)
            if self.unused is not None:
                self.unused.look(queue)
            if queue.first > first:
                self._aging.appendleft(queue.queue_id)  # there may be more
                work -= (queue.first - first) * (1 + len(queue.clusters))
        settings = self._settings
        work -= self._keep_total(settings.queues_bytes_max, True)
        work -= self._keep_total(settings.read_bytes_max, False)
        self.note()
        self._age_later(_AGING_MS if work > 0 else _AGING_SOON_MS)

    def _keep_total(self, most: i64, wanted: bool) -> i64:
        """Drop what comes first in the largest queues while all hold more bytes than they may together, some at a time;
        without `wanted` only what no cluster has still to finish. Returns the work."""
        queues = self._fold.queues.by_id.values()
        total: i64 = sum([int(queue.bytes) for queue in queues]) if most else 0
        work: i64 = 0
        if total <= most:
            return work
        for queue in sorted(queues, key=_size, reverse=True):
            cost: i64 = 1 + len(queue.clusters)
            while total > most and queue.count and work < _AGING_WORK and not self._is_ending(queue):
                if not wanted and queue.wanted(queue.first):
                    break
                total -= queue.bytes
                self._drop_first(queue, DROP_BYTES_LIMIT)
                total += queue.bytes
                work += cost
            if total <= most or work >= _AGING_WORK:
                break
        return work

    def _drop_old(self, queue: TopicQueue, age_us: int) -> None:
        """Drop messages of a queue that are too old, a page at a time, or message by message. One that can never be
        read goes, too: it would keep all behind it."""
        count, newest = queue.oldest_page()
        last: i64 = queue.first + count - 1
        if count and self._outdated(queue, last, reference(newest, 0, False, 1), age_us) == DROP_EXPIRED:
            for _ in range(count):
                self._drop_first(queue, DROP_EXPIRED)
            return
        for _ in range(_AGED_AT_ONCE):
            if not queue.count:
                return
            reason = self._outdated(queue, queue.first, queue.ref_at(queue.first), age_us)
            if not reason:
                return
            self._drop_first(queue, reason)

    def _outdated(self, queue: TopicQueue, serial: i64, ref: int, age_us: int) -> int:
        """Return the reason why a queue keeps a message no more, 0 if it does. Nobody waits for one that cannot be read
        now: it is asked for again in a second."""
        message = self._reader.fetch(queue, serial, ref)
        if isinstance(message, Message):
            waited_us = elapsed_us(message.timestamp_us, self._clock.now_us)
            return DROP_EXPIRED if waited_us > age_us else 0
        return 0 if message is NOT_NOW else DROP_UNREADABLE

    # Times

    def serial_at(self, queue: TopicQueue, time_us: int) -> int:
        """Return the serial of the first message that was received at this time or later. Raises NotReadableNow: it is
        written down for good."""
        low, high = int(queue.first), int(queue.next_serial)
        while low < high:
            middle = (low + high) // 2
            if self._is_older(queue, middle, time_us):
                low = middle + 1
            else:
                high = middle
        return low

    def _is_older(self, queue: TopicQueue, serial: int, before_us: int) -> bool:
        message = self._reader.fetch(queue, serial, queue.ref_at(serial))
        if message is NOT_NOW:
            raise NotReadableNow("the begin of a cluster cannot be looked for now")
        return isinstance(message, Message) and message.timestamp_us < before_us


def _size(queue: TopicQueue) -> int:
    return int(queue.bytes)
