"""The policy step by step, over the store in memory; whole histories are in `tests/faults/model`."""

from __future__ import annotations

from collections.abc import Callable

from headrace.core.ports.clock import Clock
from headrace.core.ports.queue_store import DONE, THERE, UNSURE, Context, Found, Primary, QueueName
from headrace.core.storing.notes import StoreNotes, StoringSettings
from headrace.core.storing.rows import EXTENTS_MAX, Extent, StoredRows
from headrace.core.storing.stored_queue import StoredQueue, Waiting
from headrace.core.storing.storing import PATIENCE_MS, TURNS_AT_ONCE, Storing
from headrace.core.storing.turns import RETRY_MAX_MS
from headrace.core.storing.windows import CLOCK_MS
from headrace.stores.memory import MemoryStore

WINDOW_MS = 5000


class Client(Waiting):
    """Entries that wait, `b"<serial>"` each; what was read back is in `got`."""

    def __init__(self, last: int) -> None:
        self.last = last
        self.large = 0
        self.readable = True
        self.got: dict[int, bytes | None] = {}
        self.failed_reads = 0

    def newest(self) -> int:
        return self.last

    def entries(self, first: int, count: int, bytes_max: int) -> list[bytes]:
        return [b"%d" % serial for serial in range(first, first + count)] if self.readable else []

    def large_between(self, first: int, last: int, bytes_max: int) -> int:
        return self.large if first <= self.large <= last else 0

    def agrees(self, serial: int, entry: bytes, bytes_max: int) -> bool:
        return entry == b"%d" % serial

    def context(self) -> Context:
        return Context(self.last % 49_151, self.last, 1)

    def loaded(self, first: int, entries: list[bytes | None]) -> None:
        self.got.update(enumerate(entries, first))

    def not_now(self) -> None:
        self.failed_reads += 1


class Shard(StoreNotes):
    """A shard with one session and the store in memory."""

    def __init__(
        self,
        last: int = 10,
        window_ms: int = WINDOW_MS,
        base: int = 0,
        tells_primary: bool = True,
        least: int = 0,
    ) -> None:
        self.clock = Clock()
        self.client = Client(last)
        self.queue = StoredQueue("t", "c", 7, self.client)
        self.store = MemoryStore()
        self.store.capabilities.tells_primary = tells_primary
        self.noted: list[tuple[object, ...]] = []
        self.waits: list[Callable[[], None]] | None = (
            None  # what waits for the journal, while nobody hears of it
        )
        settings = StoringSettings("0a", window_ms, base, least=least)
        self.storing = Storing(self.store, self, self.clock, settings)

    def stored(self, queue: StoredQueue, generation: int, first: int, up_to: int) -> None:
        self.noted.append(("stored", generation, first, up_to))

    def let_go(self, queue: StoredQueue, up_to: int) -> None:
        self.noted.append(("let go", up_to))

    def behind(self, call: Callable[[], None]) -> None:
        if self.waits is None:
            call()
        else:
            self.waits.append(call)

    def queue_of(self, incarnation: int) -> StoredQueue | None:
        return self.queue if incarnation == 7 else None

    def has_queue(self, tenant: str, client_id: str) -> bool:
        return (tenant, client_id) == ("t", "c")

    def gives_up(self, incarnation: int, generation: int) -> bool:
        return incarnation != 8

    def pass_ms(self, ms: int, times: int = 4) -> None:
        """Let time pass, and everything that is due happen."""
        self.clock.mono_ms += ms
        for _ in range(times):
            self.storing.run()
            self.store.deliver()

    def keys(self) -> list[int]:
        return sorted(name.generation for name in self.store.streams)


def test_what_waits_is_put_and_let_go_of_when_its_window_is_over() -> None:
    shard = Shard()
    shard.storing.begin(shard.queue)
    assert shard.storing.has_work()
    shard.pass_ms(0)
    assert shard.noted == [("stored", 1, 1, 10)]
    shard.pass_ms(WINDOW_MS + CLOCK_MS - 1)
    assert shard.noted[1:] == []
    shard.pass_ms(1)
    assert shard.noted[1:] == [("let go", 10)]
    assert shard.queue.keeps_from() == 1  # LET_GO is not durable
    shard.storing.let_go_is_durable(shard.queue, 10)
    assert shard.queue.keeps_from() == 11
    assert shard.store.contexts["t", "c", "0a"].last_serial == 10
    assert not shard.storing.has_work()


def test_a_window_without_an_end_lets_nothing_go() -> None:
    shard = Shard(window_ms=-1)
    shard.storing.begin(shard.queue)
    shard.pass_ms(0)
    shard.pass_ms(3_600_000)
    assert shard.noted == [("stored", 1, 1, 10)]


def test_no_window_is_shorter_than_what_the_store_forgets() -> None:
    shard = Shard(window_ms=0)
    shard.store = MemoryStore(forgets_ms=2000)
    shard.storing = Storing(shard.store, shard, shard.clock, StoringSettings("0a", 0))
    shard.storing.begin(shard.queue)
    shard.pass_ms(0)
    shard.pass_ms(1999)
    assert shard.noted == [("stored", 1, 1, 10)]
    shard.pass_ms(1 + CLOCK_MS)
    assert shard.noted[1:] == [("let go", 10)]


def test_what_is_finished_is_trimmed_and_a_stream_that_is_read_to_the_end_is_deleted() -> None:
    shard = Shard(last=200)
    shard.storing.begin(shard.queue)
    shard.pass_ms(0)
    shard.storing.consumed(shard.queue, 64)
    stream = shard.store.streams[QueueName("t", "c", "0a", 1, 7)]
    assert min(stream.entries) == 1  # 63 are not worth a request
    shard.storing.consumed(shard.queue, 101)
    assert min(stream.entries) == 101
    shard.pass_ms(0)
    shard.storing.consumed(shard.queue, 201)
    shard.pass_ms(0)
    assert shard.store.streams == {}
    assert shard.store.bytes == 0
    shard.client.last = 205
    shard.storing.begin(shard.queue)
    shard.pass_ms(0)
    assert shard.noted[-1] == ("stored", 2, 201, 205)


def test_a_store_that_was_wiped_gets_again_what_the_journal_has_and_the_rest_is_forgotten() -> None:
    shard = Shard()
    shard.storing.begin(shard.queue)
    shard.pass_ms(0)
    shard.pass_ms(WINDOW_MS + CLOCK_MS)
    shard.storing.let_go_is_durable(shard.queue, 10)
    shard.client.last = 14
    shard.storing.begin(shard.queue)
    shard.pass_ms(0)
    shard.store.wipe()
    shard.client.last = 16
    shard.storing.begin(shard.queue)
    shard.pass_ms(0)
    shard.pass_ms(RETRY_MAX_MS)
    assert ("stored", 2, 11, 16) in shard.noted
    assert shard.storing.reading.read(shard.queue, 9, 4)
    assert not shard.storing.reading.read(shard.queue, 9, 4)  # one at a time
    shard.store.deliver()
    assert shard.client.got == {9: None, 10: None}
    assert shard.storing.counters.forgotten == 2


def test_an_entry_that_is_too_large_stays_in_the_journal_until_it_is_finished() -> None:
    shard = Shard()
    shard.client.large = 5
    shard.storing.begin(shard.queue)
    shard.pass_ms(0)
    shard.pass_ms(WINDOW_MS + CLOCK_MS)
    assert shard.noted[-1] == ("let go", 4)
    shard.storing.consumed(shard.queue, 6)
    assert shard.noted[-1] == ("let go", 10)


def test_a_stream_with_more_than_we_have_is_not_ours() -> None:
    shard = Shard()
    primary = Primary("another")
    queue = shard.queue
    shard.storing.begin(queue)
    shard.pass_ms(0)
    queue.compares = True
    shard.storing.begin(queue)
    shard.storing.run()
    number = queue.pending
    shard.storing.looked(number, DONE, Found(1, 11, 11), primary)
    shard.storing.looked(number, DONE, Found(1, 10, 10), primary)  # twice: the first answer counts
    shard.pass_ms(0)
    assert shard.noted[-1] == ("stored", 2, 1, 10)
    assert shard.keys() == [2]


def test_a_stream_that_does_not_reach_as_far_as_the_journal_was_let_go_of_is_only_read() -> None:
    shard = Shard()
    queue = shard.queue
    shard.storing.begin(queue)
    shard.pass_ms(0)
    shard.pass_ms(WINDOW_MS + CLOCK_MS)
    shard.client.last = 12
    queue.compares = True
    shard.storing.begin(queue)
    shard.storing.run()
    shard.storing.looked(queue.pending, DONE, Found(1, 7, 7), Primary("another"))
    shard.pass_ms(0)
    assert shard.noted[-1] == ("stored", 2, 11, 12)
    assert [(found.first, found.up_to) for found in queue.rows.extents] == [(1, 10), (11, 12)]


def test_who_is_refused_again_and_again_waits_longer_each_time_and_no_longer_than_that() -> None:
    shard = Shard()
    shard.store.bytes_max = 0
    shard.storing.begin(shard.queue)
    shard.pass_ms(0)
    for _ in range(12):
        shard.pass_ms(RETRY_MAX_MS)
    assert shard.storing.counters.refused == 13
    shard.store.bytes_max = 1000
    shard.pass_ms(RETRY_MAX_MS)
    assert shard.noted == [("stored", 1, 1, 10)]


def test_entries_that_cannot_be_read_now_are_put_later() -> None:
    shard = Shard()
    shard.client.readable = False
    shard.storing.begin(shard.queue)
    shard.pass_ms(0)
    shard.client.readable = True
    assert shard.noted == []
    shard.pass_ms(RETRY_MAX_MS)
    assert shard.noted == [("stored", 1, 1, 10)]


def test_a_put_without_an_answer_is_given_up_and_its_answer_says_nothing_then() -> None:
    shard = Shard()
    shard.storing.begin(shard.queue)
    shard.storing.run()
    number = shard.queue.pending
    shard.clock.mono_ms += PATIENCE_MS + 1
    shard.storing.run()
    assert shard.storing.counters.unsure == 1
    shard.storing.took(number, THERE, None)
    shard.pass_ms(0)
    assert shard.noted == [("stored", 1, 1, 10)]


def test_a_read_that_fails_is_not_a_message_that_is_gone() -> None:
    shard = Shard()
    shard.storing.begin(shard.queue)
    shard.pass_ms(0)
    shard.pass_ms(WINDOW_MS + CLOCK_MS)
    assert shard.storing.reading.read(shard.queue, 1, 5)
    shard.storing.read_back(shard.queue.reading, UNSURE, 0, [], [])
    shard.store.deliver()
    assert shard.client.got == {}
    assert shard.client.failed_reads == 1


def test_a_start_goes_on_with_what_is_there_and_a_history_that_was_cut_off_is_left_alone() -> None:
    for base, expected in ((0, ("stored", 1, 1, 12)), (5, ("stored", 6, 1, 12))):
        shard = Shard()
        shard.storing.begin(shard.queue)
        shard.pass_ms(0)
        after = Shard(last=12, base=base)
        after.store.streams = shard.store.streams
        after.queue.rows.load(shard.queue.rows.fields())
        after.storing.adopt(after.queue)
        after.pass_ms(0)
        after.pass_ms(RETRY_MAX_MS)
        assert [note for note in after.noted if note[0] == "stored"][-1] == expected
        assert after.noted[-1] == ("let go", 12)


def test_the_end_of_a_session_deletes_all_of_it() -> None:
    shard = Shard()
    shard.storing.begin(shard.queue)
    shard.pass_ms(0)
    shard.storing.let_go_is_durable(shard.queue, 1)
    shard.storing.end(shard.queue)
    shard.pass_ms(0)
    assert shard.store.streams == {}
    assert shard.store.contexts == {}


def test_a_sweep_deletes_the_streams_of_nobody_and_no_others() -> None:
    shard = Shard()
    shard.storing.begin(shard.queue)
    shard.pass_ms(0)
    mine = QueueName("t", "c", "0a", 1, 7)
    gone = QueueName("t", "gone", "0a", 1, 6)
    others = [QueueName("t", "c", "0b", 1, 7), QueueName("t", "other", "0a", 1, 8)]
    for number, name in enumerate([gone, *others], 1000):
        shard.store.put(number, name, 1, [b"x"], True)
    for number, client in enumerate(("c", "gone"), 2000):
        shard.store.keep_context(number, QueueName("t", client, "0a", 0, 0), Context(1, 2, 3))
    shard.store.keep_context(3000, QueueName("t", "gone", "0b", 0, 0), Context(1, 2, 3))
    shard.storing.removing.sweep()
    shard.pass_ms(0)
    assert set(shard.store.streams) == {mine, *others}
    assert set(shard.store.contexts) == {("t", "c", "0a"), ("t", "gone", "0b")}
    assert shard.storing.counters.orphans == 2


def next_owner(before: Shard) -> Shard:
    """Who owns the shard by now, with the store of the one before, of which the journal hears nothing more."""
    before.waits = []
    after = Shard(last=20, tells_primary=False, least=2 << 20)
    after.store.streams = before.store.streams
    return after


def test_who_was_replaced_deletes_nothing_that_the_next_owner_goes_on_with() -> None:
    before = Shard(tells_primary=False, least=1 << 20)
    before.storing.begin(before.queue)
    before.pass_ms(0)
    after = next_owner(before)
    after.queue.rows.load(before.queue.rows.fields())
    after.storing.adopt(after.queue)
    after.pass_ms(0)
    after.pass_ms(WINDOW_MS + CLOCK_MS)
    assert after.noted[-1] == ("let go", 20)
    kept = dict(after.store.streams)
    before.pass_ms(3_600_000)  # it wakes: the window is over, and the stream is not what it has put
    before.pass_ms(0)
    assert before.noted[-1] == ("stored", (1 << 20) + 2, 1, 10)
    assert kept.items() <= before.store.streams.items()
    assert before.waits


def test_who_was_replaced_deletes_no_stream_that_the_next_owner_has_begun() -> None:
    before = Shard(tells_primary=False, least=1 << 20)
    before.storing.begin(before.queue)
    before.storing.run()
    before.store.drop_answers()  # it is put, and nobody has heard of it
    after = next_owner(before)
    after.storing.begin(after.queue)
    after.pass_ms(0)
    kept = dict(after.store.streams)
    del kept[QueueName("t", "c", "0a", (1 << 20) + 1, 7)]
    assert list(kept) == [QueueName("t", "c", "0a", (2 << 20) + 1, 7)]
    before.waits = None  # as if it had decided before it stood still
    before.pass_ms(PATIENCE_MS + 1)
    before.pass_ms(1000)
    assert kept.items() <= before.store.streams.items()


def test_a_sweep_of_who_was_replaced_deletes_nothing_that_others_have_begun() -> None:
    before = Shard(last=0)
    next_owner(before)
    before.store.put(1000, QueueName("t", "new", "0a", 1, 6), 1, [b"x"], True)
    before.storing.removing.sweep()
    before.pass_ms(0)
    assert len(before.store.streams) == 1


def test_what_is_deleted_is_asked_of_the_journal_once_for_many() -> None:
    shard = Shard()
    shard.waits = []
    for number in range(10):
        shard.storing.end(StoredQueue("t", f"c{number}", number, shard.client))
    assert len(shard.waits) == 1
    shard.waits.pop()()
    shard.waits.pop()()
    assert shard.waits == []
    assert len(shard.storing.removing) == 10


def test_a_queue_has_no_more_streams_than_it_may() -> None:
    rows = StoredRows()
    for generation in range(1, EXTENTS_MAX + 1):
        rows.stored(generation, generation * 10, generation * 10 + 5)
    assert rows.is_full()
    assert [extent.generation for extent in rows.consumed(26)] == [1, 2]
    assert not rows.is_full()
    at = rows.at(31)
    assert isinstance(at, Extent)
    assert at.generation == 3
    assert rows.at(37) is None
    copy = StoredRows()
    copy.load(rows.fields())
    assert copy.fields() == rows.fields()


def test_no_pass_looks_at_more_queues_than_it_may() -> None:
    shard = Shard(last=0)
    queues = [StoredQueue("t", f"c{number}", number, shard.client) for number in range(2 * TURNS_AT_ONCE + 1)]
    for queue in queues:
        shard.storing.adopt(queue)
    for left in (2, 1, 0):
        assert shard.storing.has_work()
        shard.storing.run()
        assert sum(queue.is_ready for queue in queues) == max(0, (left - 1) * TURNS_AT_ONCE + 1)
    assert not shard.storing.has_work()


def test_a_queue_with_as_many_streams_as_it_may_have_goes_on_when_one_is_read() -> None:
    shard = Shard(last=3)
    rows = shard.queue.rows
    for generation in range(1, EXTENTS_MAX + 1):
        rows.stored(generation, 2 * generation - 1, 2 * generation)
    rows.note_let_go(2 * EXTENTS_MAX)
    shard.client.last = 2 * EXTENTS_MAX + 5
    shard.storing.adopt(shard.queue)
    shard.queue.stream = None  # it was made anew
    shard.pass_ms(0)
    assert shard.noted == []
    shard.storing.consumed(shard.queue, 3)
    shard.pass_ms(0)
    assert shard.noted == [("stored", EXTENTS_MAX + 1, 2 * EXTENTS_MAX + 1, 2 * EXTENTS_MAX + 5)]


def test_a_stream_that_holds_only_what_is_in_the_next_one_is_dropped() -> None:
    rows = StoredRows()
    rows.stored(1, 1, 9)
    rows.stored(2, 10, 15)
    assert [extent.generation for extent in rows.stored(3, 5, 6)] == [2]
    assert [(extent.first, extent.up_to) for extent in rows.extents] == [(1, 4), (5, 6)]


def test_rows_say_how_much_a_store_has_and_how_much_of_it_alone() -> None:
    rows = StoredRows()
    assert rows.held(1) == (0, 0)
    rows.stored(1, 1, 10)
    rows.stored(2, 8, 20)
    rows.note_let_go(15)
    assert rows.held(1) == (20, 15)
    assert rows.held(5) == (16, 11)
    assert rows.held(18) == (3, 0)
    assert rows.held(21) == (0, 0)


def test_a_queue_that_is_released_and_begun_again_uses_no_generation_twice() -> None:
    """A stream that was given up may still be waiting to be deleted, by its name."""
    shard = Shard()
    shard.storing.begin(shard.queue)
    shard.pass_ms(0)
    shard.pass_ms(WINDOW_MS + CLOCK_MS)
    shard.storing.let_go_is_durable(shard.queue, 10)
    shard.queue.begin(0)  # tried, and nothing came of it
    assert shard.queue.used == 2
    assert not shard.storing.release(shard.queue), "something lies there"
    shard.storing.consumed(shard.queue, 11)
    shard.pass_ms(0)
    assert shard.storing.release(shard.queue)
    rows = shard.queue.rows
    assert (rows.generation, rows.tried) == (1, 2)
    again = StoredQueue("t", "c", 7, shard.client)
    again.rows, again.used = rows, rows.tried
    assert again.begin(0).generation == 3


def test_a_queue_is_not_released_while_something_of_it_is_under_way() -> None:
    shard = Shard()
    shard.storing.begin(shard.queue)
    shard.storing.run()
    assert shard.queue.pending
    assert not shard.storing.release(shard.queue)
    shard.store.deliver()
    shard.pass_ms(WINDOW_MS + CLOCK_MS)
    shard.storing.consumed(shard.queue, 11)
    shard.pass_ms(0)
    assert not shard.storing.release(shard.queue), "LET_GO is on its way"
    shard.storing.let_go_is_durable(shard.queue, 10)
    assert shard.storing.release(shard.queue)
    shard.pass_ms(0)
    assert shard.store.contexts == {}
