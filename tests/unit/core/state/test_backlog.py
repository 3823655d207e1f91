"""A backlog is a queue, wherever its parts are: in memory, in pages, on their way there, or gone with the disk."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.core.ports.journal import GONE, NOT_NOW, Absent, PageReader
from headrace.core.state.backlog import Backlog, BacklogSpace, Page, pack_page
from headrace.core.state.queue import reference
from headrace.errors import CorruptRecord, NotReadableNow

PAGE = 4


class Pages(PageReader):
    """A journal that holds nothing but pages."""

    def __init__(self) -> None:
        super().__init__()
        self.values: dict[int, bytes] = {}
        self.unreadable: set[int] = set()

    def fetch_page(self, offset: int) -> bytes | Absent:
        return NOT_NOW if offset in self.unreadable else self.values.get(offset, GONE)


class Queue:
    """A backlog with its serial numbers, the pages it wrote, and those of them that are not durable yet."""

    def __init__(self) -> None:
        self.pages = Pages()
        self.space = BacklogSpace(self.pages)
        self.backlog = Backlog(self.space)
        self.next_serial = 1
        self.written: list[tuple[int, bytes]] = []
        self.pending: list[tuple[object, int, int]] = []

    def head_serial(self) -> int:
        return self.next_serial - self.backlog.count

    def push(self, ref: int, size: int) -> None:
        self.next_serial += 1
        self.backlog.push(ref, size)
        if self.backlog.loose() >= 2 * PAGE:
            behind = self.backlog.split(PAGE, self.head_serial())
            while behind.loose() >= 2 * PAGE:
                first = behind.first + behind.pending
                offset = (1 << 40) + len(self.written)
                self.pages.values[offset] = behind.next_page(7, PAGE)
                behind.pending += PAGE
                self.written.append((offset, self.pages.values[offset]))
                self.pending.append((behind, offset, first))

    def sync(self) -> None:
        for behind, offset, first in self.pending:
            behind.kept(offset, first, PAGE)  # type: ignore[attr-defined]
        self.pending = []

    def drain(self) -> list[int]:
        return [self.backlog.pop() for _ in range(self.backlog.count)]


steps = st.lists(
    st.one_of(
        # Below the pages, which name what was there before them.
        st.tuples(st.just("push"), st.integers(1, 30), st.integers(0, 2**40 - 31)),
        st.tuples(st.just("pop"), st.integers(1, 30), st.just(0)),
        st.tuples(st.just("sync"), st.just(1), st.just(0)),
        st.tuples(st.just("restore"), st.just(1), st.just(0)),
    ),
    max_size=60,
)


def look_at_parts(queue: Queue, plain: list[tuple[int, int]], number: int) -> None:
    """Some entries are given as they stand; of the oldest only the pages are needed where a store has their messages."""
    backlog = queue.backlog
    at = number % (len(plain) + 1)
    found = backlog.entries_from(at, number)
    assert found is not None
    assert list(zip(*found, strict=True)) == plain[at : at + number]
    needed = [ref >> 20 for ref, _ in plain[at:]]
    lowest = backlog.lowest_offset(at)
    assert lowest == -1 or min(needed, default=lowest) >= lowest
    assert (lowest == -1) <= (not needed)
    assert all(lowest <= page for page in backlog.page_offsets())
    refs = list(backlog.in_memory(at))
    for offset in backlog.pages_between(0, 1 << 43, queue.head_serial() + at - 1):
        page = backlog.page_refs(offset)
        assert page is not None
        refs += page
    assert not {ref for ref, _ in plain[at:]} - set(refs)


@given(steps)
def test_a_backlog_is_a_queue(steps: list[tuple[str, int, int]]) -> None:
    queue, plain = Queue(), []
    for step, count, offset in steps:
        for number in range(count):
            if step == "push":
                ref = reference(offset + number, 5, True, 1)
                queue.push(ref, number * 100)
                plain.append((ref, number * 100))
            elif step == "pop" and plain:
                assert queue.backlog.peek() == plain[0][0]
                assert queue.backlog.pop() == plain.pop(0)[0]
            elif step == "sync":
                queue.sync()
            elif step == "restore":
                fields = queue.backlog.fields()
                queue.backlog.discard()
                queue.backlog = Backlog(queue.space)
                queue.backlog.load(fields)
                queue.pending = []
        assert queue.backlog.count == len(plain)
        assert queue.backlog.bytes == queue.space.bytes == sum(size for _, size in plain)
        assert queue.backlog.count == queue.space.count == len(plain)
        assert queue.backlog.lowest_offset() == min((ref >> 20 for ref, _ in plain), default=-1)
        look_at_parts(queue, plain, count)
    queue.sync()
    found = list(queue.backlog.in_memory())
    for offset in queue.backlog.pages_between(0, 1 << 43):
        refs = queue.backlog.page_refs(offset)
        assert refs is not None
        found += refs
    assert sorted(found) == sorted(ref for ref, _ in plain)
    assert queue.drain() == [ref for ref, _ in plain]


@given(st.lists(st.tuples(st.integers(0, 25), st.integers(0, 25), st.booleans()), max_size=40))
def test_a_replay_with_the_pages_in_their_places_gives_the_same_queue(
    steps: list[tuple[int, int, bool]],
) -> None:
    """Pops are replayed late, as acknowledgements are; pages when they were written."""
    live, replayed = Queue(), Queue()
    replayed.pages = live.pages
    replayed.backlog = Backlog(BacklogSpace(live.pages))
    late = 0
    for pushed, popped, durable in steps:
        for number in range(pushed):
            before = len(live.written)
            live.push(live.next_serial << 20 | 1, number)
            replayed.backlog.push(replayed.next_serial << 20 | 1, number)
            replayed.next_serial += 1
            for offset, values in live.written[before:]:
                replayed.backlog.replay_page(Page(values), offset, replayed.head_serial())
        if durable:
            live.sync()
        for _ in range(min(popped, live.backlog.count)):
            live.backlog.pop()
            late += 1
        while late > 5:
            replayed.backlog.pop()
            late -= 1
    for _ in range(late):
        replayed.backlog.pop()
    assert replayed.drain() == live.drain()


def test_memory_holds_three_pages_however_long_the_backlog() -> None:
    live, replayed = Queue(), Queue()
    replayed.backlog = Backlog(BacklogSpace(live.pages))
    for number in range(10_000):
        live.push(number << 20 | 1, 100)
        live.sync()
        replayed.backlog.push(number << 20 | 1, 100)
        replayed.next_serial += 1
        if live.written and len(live.written) > len(replayed.written):
            replayed.written.append(live.written[-1])
            offset, values = live.written[-1]
            replayed.backlog.replay_page(Page(values), offset, replayed.head_serial())
        assert len(live.backlog.in_memory()) <= 3 * PAGE
        assert len(replayed.backlog.in_memory()) <= 3 * PAGE
    assert replayed.drain() == live.drain() == [number << 20 | 1 for number in range(10_000)]


def test_a_page_that_cannot_be_read_is_entries_that_cannot_be_read() -> None:
    queue = Queue()
    for number in range(100):
        queue.push(number << 20 | 1, number)
        queue.sync()
    lost = queue.written[2][0]
    del queue.pages.values[lost]
    wrong = queue.written[3][0]
    queue.pages.values[wrong] = queue.written[0][1]
    torn = queue.written[4][0]
    queue.pages.values[torn] = queue.written[4][1][:30]
    found = [ref >> 20 for ref in queue.drain()]
    expected = list(range(100))
    for page, offset in ((2, lost), (3, wrong), (4, torn)):
        expected[PAGE + page * PAGE : PAGE + (page + 1) * PAGE] = [offset] * PAGE
    assert found == expected
    assert queue.backlog.bytes == 0


def test_a_loaded_page_is_held_until_its_entries_are_finished() -> None:
    queue = Queue()
    for number in range(30):
        queue.push(number << 20 | 1, 1)
        queue.sync()
    pages = [offset for offset, _ in queue.written]
    for _ in range(PAGE + 1):
        queue.backlog.pop()
    assert queue.backlog.page_offsets() == pages
    queue.backlog.release(floor=2 * PAGE)  # the last one of the first page is in flight
    assert queue.backlog.page_offsets() == pages
    queue.backlog.release(floor=2 * PAGE + 1)
    assert queue.backlog.page_offsets() == pages[1:]


def test_entries_of_pages_that_are_not_there_are_not_made_up() -> None:
    queue = Queue()
    for number in range(1, 20):
        queue.push(reference(number, 0, False, 1), 7)
    queue.sync()
    pages = queue.backlog.pages_between(0, 1 << 43)
    queue.pages.unreadable.add(pages[0])
    assert queue.backlog.entries_from(PAGE, 2) is None
    before = queue.backlog.entries_from(0, 10)
    assert before is not None
    assert [ref >> 20 for ref in before[0]] == [1, 2, 3, 4], "as far as it can be read"
    queue.pages.unreadable.clear()
    del queue.pages.values[pages[0]]
    found = queue.backlog.entries_from(PAGE - 1, PAGE + 2)
    assert found is not None
    assert [ref >> 20 for ref in found[0]] == [4, *([pages[0]] * PAGE), 9], "references to nothing"


def test_only_pages_that_can_refer_to_a_stretch_are_named() -> None:
    queue = Queue()
    for number in range(100):
        queue.push(number << 20 | 1, 1)
        queue.sync()
    assert queue.backlog.pages_between(0, PAGE) == []
    assert queue.backlog.pages_between(PAGE, PAGE + 1) == [queue.written[0][0]]
    assert queue.backlog.pages_between(2 * PAGE - 1, 2 * PAGE + 1) == [
        queue.written[0][0],
        queue.written[1][0],
    ]


def test_a_page_says_what_is_wrong_with_it() -> None:
    queue = Queue()
    queue.push(1 << 20, 3)
    values = pack_page(9, 5, queue.backlog.refs, queue.backlog.sizes)
    page = Page(values)
    assert (page.owner, page.first, page.count, list(page.refs), list(page.sizes)) == (
        9,
        5,
        1,
        [1 << 20],
        [3],
    )
    for wrong in (
        b"",
        values[:23],
        values[:30],
        values[:16] + bytes(8) + values[24:],
        values[:16] + b"\xff" * 8,
    ):
        with pytest.raises(CorruptRecord):
            Page(wrong)


@given(
    st.lists(
        st.tuples(st.sampled_from(("push", "pop", "sync", "restore", "hide", "show")), st.integers(1, 20))
    )
)
def test_pages_that_cannot_be_read_for_a_while_cost_nothing(steps: list[tuple[str, int]]) -> None:
    queue, plain = Queue(), []
    number = 0
    for step, count in steps:
        if step == "hide":
            queue.pages.unreadable = set(queue.pages.values)
        elif step == "show":
            queue.pages.unreadable = set()
        elif step == "sync":
            queue.sync()
        elif step == "restore":
            fields = queue.backlog.fields()
            queue.backlog.discard()
            queue.backlog = Backlog(queue.space)
            queue.backlog.load(fields)
            queue.pending = []
        for _ in range(count):
            if step == "push":
                number += 1
                queue.push(number << 20 | 1, number)
                plain.append(number << 20 | 1)
            elif step == "pop" and plain:
                ref = queue.backlog.peek()
                assert ref in (0, plain[0])
                expected = plain.pop(0)
                if ref:
                    assert queue.backlog.pop() == expected
                else:
                    with pytest.raises(NotReadableNow):
                        queue.backlog.pop()
                    queue.backlog.skip()
        assert queue.backlog.count == len(plain)
        assert queue.backlog.bytes == queue.space.bytes
        assert queue.backlog.count == queue.space.count
        assert queue.backlog.lowest_offset() <= min((ref >> 20 for ref in plain), default=-1)
    queue.pages.unreadable = set()
    assert queue.drain() == plain
    assert queue.backlog.bytes == queue.space.bytes == 0
    assert queue.backlog.count == queue.space.count == 0
