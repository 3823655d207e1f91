"""The references that wait in one queue, oldest first: a head and a tail in memory, pages in the journal between them.

    refs, in memory | pages, in the journal | tail, in memory        a short backlog is `refs` alone

A page is a PROGRESS record, so it has what every record has: it is synced, checked, found damaged, repaired, backed up
and deleted with the rest of the journal, and a replay finds it where it was written. It says nothing that the records
before it did not say: it only names a place where references can be read again. Its values::

     0 u64 owner    incarnation of the session, or number of the group
     8 u64 first    serial number of the first reference
    16 u64 count
    24 count references, u64 each; then their sizes in bytes, u32 each, filled up with zeros to 8 bytes

Runs on the loop. Reading a page is one read of the journal, `BrokerSettings.backlog_page` references at a time. A page
that cannot be read *now* stays in the table, and the head is not in memory then: `peek` is 0 until a read succeeds, while
entries may still be dropped by limits. A page that is gone or damaged is as many references to nothing, which are
dropped as unreadable when their turn comes.
"""

from __future__ import annotations

from array import array
from typing import Final, cast

from librt.strings import read_i64_le
from mypy_extensions import i64

from headrace.core.ports.journal import DAMAGED, NOT_NOW, OTHER_RECORD, Absent, PageReader
from headrace.errors import CorruptRecord, NotReadableNow

REF_OFFSET_SHIFT: Final = 20
_COMPACT_AT: Final = 1024
_PAGE_HEADER_SIZE: Final = 24
_ROW: Final = (
    6  # of the table of pages: offset, first serial, count, bytes, lowest and highest offset referred to
)


class BacklogSpace:
    """What the backlogs of a tenant share: what waits in all of them, and where their pages are read."""

    def __init__(self, pages: PageReader) -> None:
        self.pages = pages
        self.count: i64 = 0
        self.bytes: i64 = 0

    def excess(self, bytes_max: i64) -> i64:
        """Return the bytes above a limit, where there is one."""
        return self.bytes - bytes_max if 0 < bytes_max < self.bytes else 0


class Page:
    """A page as the journal has it. Raises CorruptRecord."""

    def __init__(self, packed: bytes) -> None:
        if len(packed) < _PAGE_HEADER_SIZE:
            raise CorruptRecord(f"page of {len(packed)} bytes")
        self.owner: i64 = read_i64_le(packed, 0)
        self.first: i64 = read_i64_le(packed, 8)
        self.count: i64 = read_i64_le(packed, 16)
        sizes_at = _PAGE_HEADER_SIZE + 8 * self.count
        if not 0 < self.count <= len(packed) or len(packed) < sizes_at + 4 * self.count:
            raise CorruptRecord(f"page of {len(packed)} bytes for {self.count} references")
        self.refs: array[int] = array("Q")
        self.refs.frombytes(packed[_PAGE_HEADER_SIZE:sizes_at])
        self.sizes: array[int] = array("I")
        self.sizes.frombytes(packed[sizes_at : sizes_at + 4 * self.count])


def pack_page(owner: int, first: int, refs: array[int], sizes: array[int]) -> bytes:
    """Return the values of a page's record."""
    header = array("Q", [owner, first, len(refs)])
    padding = bytes(4 * (len(sizes) & 1))
    return b"".join((header.tobytes(), refs.tobytes(), sizes.tobytes(), padding))


def read_page(pages: PageReader, offset: int, first: int = -1, count: int = -1) -> Page | Absent:
    """Return the page at `offset`, and one whose last entries are the `count` from serial `first` on; why there is none,
    or NOT_NOW."""
    packed = pages.fetch_page(offset)
    if isinstance(packed, Absent):
        return packed
    try:
        page = Page(packed)
    except CorruptRecord:
        return DAMAGED
    fits = first == -1 or (page.first <= first and page.first + page.count == first + count)
    return page if fits else OTHER_RECORD


def refs_of_page(pages: PageReader, offset: int) -> array[int] | None:
    """Return the references in the page at `offset`, none if it is gone or damaged; None if it cannot be read now."""
    page = read_page(pages, offset)
    if isinstance(page, Page):
        return page.refs
    return None if page is NOT_NOW else array("Q")


class Behind:
    """What is behind the head of a long backlog: the table of its pages and the tail."""

    def __init__(self, first: i64, refs: array[int], sizes: array[int]) -> None:
        self.table: array[int] = array("Q")
        self.next_row: i64 = 0  # rows before it are loaded
        self.first: i64 = first  # serial number of the tail's first reference
        self.refs = refs
        self.sizes = sizes
        self.pending: i64 = 0  # how many of the tail are in pages on their way to the journal

    def loose(self) -> i64:
        """Return how many references of the tail are in no page yet."""
        return len(self.refs) - self.pending

    def next_page(self, owner: int, count: int) -> bytes:
        """Return the values of a record with the oldest `count` loose references. The references are pending once the
        record is appended."""
        start = self.pending
        return pack_page(
            owner, self.first + start, self.refs[start : start + count], self.sizes[start : start + count]
        )

    def kept(self, offset: int, first: i64, count: i64) -> None:
        """Note that the page that was pending is durable at `offset`. Its first references may have been dropped
        meanwhile, or all."""
        left = first + count - self.first
        if first <= self.first and 0 < left <= self.pending:
            self.pending -= left
            self.put_away(offset, left)

    def put_away(self, offset: int, count: i64) -> None:
        """Note that the first `count` references of the tail are in the page at `offset`."""
        refs = self.refs[:count]
        size = sum(self.sizes[:count])
        lowest, highest = min(refs) >> REF_OFFSET_SHIFT, max(refs) >> REF_OFFSET_SHIFT
        self.table.extend([offset, int(self.first), int(count), size, lowest, highest])
        del self.refs[:count]
        del self.sizes[:count]
        self.first += count

    def rows(self) -> array[int]:
        """Return the rows of the pages that are not loaded yet, `_ROW` numbers each."""
        return self.table[self.next_row * _ROW :]

    def pages_between(self, start: int, end: int, above: i64 = 0) -> list[int]:
        """Return the offsets of the pages, not loaded, that refer to something from `start` up to `end` with a serial
        number above `above`."""
        rows = self.rows()
        return [
            rows[at]
            for at in range(0, len(rows), _ROW)
            if rows[at + 4] < end and rows[at + 5] >= start and rows[at + 1] + rows[at + 2] > above + 1
        ]

    def has_page(self) -> bool:
        return self.next_row * _ROW < len(self.table)

    def row(self) -> array[int]:
        """Return the row of the next page to be loaded."""
        at = self.next_row * _ROW
        return self.table[at : at + _ROW]

    def shorten_row(self) -> i64:
        """Drop the first entry of the next page unread and return its share of the page's bytes. The size of a single
        one is in the page; all of them together are as large as the page says."""
        at = self.next_row * _ROW
        size: i64 = self.table[at + 3]
        count: i64 = self.table[at + 2]
        share = size // count
        self.table[at + 1] += 1
        self.table[at + 2] = int(count - 1)
        self.table[at + 3] = int(size - share)
        if count == 1:
            self.take_row()
        return share

    def take_row(self) -> array[int]:
        at = self.next_row * _ROW
        row = self.table[at : at + _ROW]
        self.next_row += 1
        if self.next_row >= _COMPACT_AT or not self.has_page():
            del self.table[: self.next_row * _ROW]
            self.next_row = 0
        return row


class Backlog:
    """The references that wait in one queue. `count` and `bytes` are of all of it; while `count` is above 0 the head is
    in memory, unless the page that it is in cannot be read now."""

    def __init__(self, space: BacklogSpace) -> None:
        self.refs: array[int] = array("Q")
        self.sizes: array[int] = array("I")
        self.head: i64 = 0
        self.loaded: i64 = 0  # in `refs` from `head` on
        self.count: i64 = 0
        self.bytes: i64 = 0
        self.behind: Behind | None = None
        self.held: list[int] | None = None  # offsets and last serials of loaded pages with unfinished entries
        # By offset? Retained messages of a later subscription are older than what they follow.
        self.ordered = True
        self._last: int = 0
        self._space = space

    def push(self, ref: int, size: int) -> None:
        if ref < self._last and self.count:
            self.ordered = False
        behind = self.behind
        if behind is None:
            self.refs.append(ref)
            self.sizes.append(size)
            self.loaded += 1
        else:
            behind.refs.append(ref)
            behind.sizes.append(size)
        self._last = ref
        self.count += 1
        self.bytes += size
        self._space.count += 1
        self._space.bytes += size

    def mend(self) -> None:
        """Forget what a `push` has left that failed half way."""
        end = self.head + self.loaded
        del self.refs[end:]
        del self.sizes[end:]
        behind = self.behind
        if behind is not None:
            end = min(len(behind.refs), len(behind.sizes))
            del behind.refs[end:]
            del behind.sizes[end:]

    def newest(self) -> int:
        """Return the reference that was put in last, wherever it is by now; 0 if there was none."""
        return self._last

    def peek(self) -> int:
        """Return the oldest reference; 0, which none is, as long as its page cannot be read."""
        if self.loaded == 0:
            self._load_next()
            if self.loaded == 0:
                return 0
        return self.refs[self.head]

    def skip(self) -> None:
        """Take the oldest reference away, whatever it is: its page is not read for that."""
        behind = self.behind
        if self.loaded or behind is None:
            self.pop()
            return
        size = behind.shorten_row()
        self.bytes -= size
        self._space.bytes -= size
        self._space.count -= 1
        self.count -= 1
        if not behind.has_page():
            self._join_tail(behind)

    def pop(self) -> int:
        """Take the oldest reference. Raises NotReadableNow."""
        if self.loaded == 0 and self.peek() == 0:
            raise NotReadableNow("a page of a backlog cannot be read now")
        head = self.head
        ref: int = self.refs[head]
        size: i64 = self.sizes[head]
        self.bytes -= size
        self._space.bytes -= size
        self._space.count -= 1
        self.head = head + 1
        self.loaded -= 1
        self.count -= 1
        if self.loaded == 0 or self.head >= _COMPACT_AT:
            self._advance()
        return ref

    def discard(self) -> None:
        """Discard a queue that is gone: what waited in it waits no more."""
        self._space.count -= self.count
        self._space.bytes -= self.bytes

    def _advance(self) -> None:
        if self.loaded == 0 and self.behind is not None:
            self._load_next()
        elif self.head > self.loaded:
            self.ordered = self.ordered or self.count == 0
            del self.refs[: self.head]
            del self.sizes[: self.head]
            self.head = 0

    def _load_next(self) -> None:
        """Put the next page into the place of the head, which is used up, or the tail when no page is left. Changes
        nothing if the page cannot be read now."""
        behind = self.behind
        if behind is None:
            return
        if not behind.has_page():
            self._join_tail(behind)
            return
        offset, first, count, size, _, _ = behind.row()
        page = read_page(self._space.pages, offset, first, count)
        if page is NOT_NOW:
            self._clear_head()
            return
        behind.take_row()
        if self.held is None:
            self.held = []
        self.held += [offset, first + count - 1]
        self.head = 0
        self.loaded = count
        if not isinstance(page, Page):
            # Each entry is a reference to nothing: dropped as unreadable when its turn comes, counted and in order.
            self.refs = array("Q", [offset << REF_OFFSET_SHIFT | 1]) * count
            self.sizes = array("I", [size // count]) * count
            self.sizes[0] += size % count
            return
        skipped: i64 = first - page.first  # dropped unread
        self.refs, self.sizes = page.refs[skipped:], page.sizes[skipped:]
        if skipped:
            unlike = sum(self.sizes) - size
            self.bytes += unlike
            self._space.bytes += unlike

    def _clear_head(self) -> None:
        """Forget the head: nothing of it is in memory."""
        if self.head:
            self.refs, self.sizes = array("Q"), array("I")
            self.head = 0

    def _join_tail(self, behind: Behind) -> None:
        refs, sizes = self.refs[self.head :], self.sizes[self.head :]
        refs.extend(behind.refs)
        sizes.extend(behind.sizes)
        self.refs, self.sizes = refs, sizes
        self.head = 0
        self.loaded = len(refs)
        self.behind = None

    # Pages

    def loose(self) -> i64:
        """Return how many references in memory could go into a page."""
        behind = self.behind
        return self.loaded if behind is None else behind.loose()

    def split(self, kept: i64, head_serial: i64) -> Behind:
        """Make what follows the first `kept` references the tail, if there is none; `head_serial` is the head's."""
        behind = self.behind
        if behind is None:
            end = self.head + kept
            behind = Behind(head_serial + kept, self.refs[end:], self.sizes[end:])
            del self.refs[end:]
            del self.sizes[end:]
            self.loaded = kept
            self.behind = behind
        return behind

    def replay_page(self, page: Page, offset: int, head_serial: i64) -> None:
        """Let go of the references in the page that the journal has at `offset`, if they are here in just that
        order."""
        behind = self.behind
        if behind is not None and not behind.has_page():
            self._join_tail(behind)
        if self.behind is None:
            if not head_serial < page.first <= head_serial + self.count - page.count:
                return
            self.split(page.first - head_serial, head_serial)
        behind = self.behind
        if behind is None or behind.first != page.first:
            return
        if behind.refs[: page.count] == page.refs and behind.sizes[: page.count] == page.sizes:
            behind.put_away(offset, page.count)

    def release(self, floor: int) -> None:
        """Release what only finished entries need, those below `floor`: loaded pages that hold nothing else."""
        held = self.held
        if held is not None:
            left = [n for at in range(0, len(held), 2) if held[at + 1] >= floor for n in held[at : at + 2]]
            self.held = left or None

    # What it refers to

    def lowest_offset(self, spared: i64 = 0) -> int:
        """Return the oldest journal offset that is still needed, -1 when there is none. The messages of the oldest
        `spared` entries are not needed, only the pages that name them."""
        if not self.count:
            return -1
        if spared > 0:
            return self._lowest_behind(spared)
        if self.ordered and self.loaded:
            return self.refs[self.head] >> REF_OFFSET_SHIFT
        found = [ref >> REF_OFFSET_SHIFT for ref in self.in_memory()]
        if self.behind is not None:
            found += self.behind.rows()[4::_ROW]
        return min(found)

    def _lowest_behind(self, spared: i64) -> int:
        found = [ref >> REF_OFFSET_SHIFT for ref in self.in_memory(spared)]
        found += self.page_offsets()
        behind = self.behind
        if behind is not None:
            left = spared - self.loaded
            rows = behind.rows()
            for at in range(0, len(rows), _ROW):
                if rows[at + 2] > left:
                    found.append(rows[at + 4])
                left -= rows[at + 2]
        return min(found) if found else -1

    def in_memory(self, spared: i64 = 0) -> array[int]:
        """Return a copy of the references that are in no page, but for those of the oldest `spared` entries."""
        skipped: i64 = min(max(spared, 0), self.loaded)
        refs = self.refs[self.head + skipped :]
        behind = self.behind
        if behind is not None:
            skipped = max(0, spared - (self.count - len(behind.refs)))
            refs.extend(behind.refs[skipped:])
        return refs

    def entries_from(self, at: i64, count: i64) -> tuple[list[int], list[int]] | None:
        """Return (references, sizes) of up to `count` entries from the one on that has `at` others before it; None if
        they are in a page that cannot be read now. Entries of a page that is lost refer to that page."""
        refs: list[int] = []
        sizes: list[int] = []
        end = at + count
        _take_between(self.refs, self.sizes, self.head, 0, self.loaded, at, end, refs, sizes)
        behind = self.behind
        if behind is None:
            return refs, sizes
        place = self.loaded
        rows = behind.rows()
        for row in range(0, len(rows), _ROW):
            offset, first, held = rows[row], rows[row + 1], rows[row + 2]
            if place < end and place + held > at:
                page = read_page(self._space.pages, offset, first, held)
                if page is NOT_NOW:
                    return (refs, sizes) if refs else None
                if isinstance(page, Page):
                    skipped: i64 = first - page.first
                    _take_between(page.refs, page.sizes, skipped, place, held, at, end, refs, sizes)
                else:
                    lost: i64 = min(end, place + held) - max(at, place)
                    refs += [offset << REF_OFFSET_SHIFT | 1] * lost
                    sizes += [0] * lost
            place += held
        _take_between(behind.refs, behind.sizes, 0, place, len(behind.refs), at, end, refs, sizes)
        return refs, sizes

    def page_offsets(self) -> list[int]:
        """Return where the pages are that somebody may have to read, now or after a crash."""
        found = [] if self.held is None else self.held[::2]
        if self.behind is not None:
            found += self.behind.rows()[::_ROW]
        return found

    def page_refs(self, offset: int) -> array[int] | None:
        """Return the references in a page, as `refs_of_page`."""
        return refs_of_page(self._space.pages, offset)

    def pages_between(self, start: int, end: int, above: i64 = 0) -> list[int]:
        """Return the offsets of the pages, not loaded, that refer to something from `start` up to `end` with a serial
        number above `above`."""
        return [] if self.behind is None else self.behind.pages_between(start, end, above)

    # Snapshots

    def fields(self) -> list[object]:
        """Return the backlog as it stands in a snapshot: head, its sizes, in order; for a long one its table of pages
        and its tail too."""
        found: list[object] = [
            self.refs[self.head :].tobytes(),
            self.sizes[self.head :].tobytes(),
            self.ordered,
        ]
        behind = self.behind
        if behind is not None:
            tail, tail_sizes = behind.refs.tobytes(), behind.sizes.tobytes()
            found += [behind.rows().tobytes(), int(behind.first), tail, tail_sizes]
        return found

    def load(self, fields: list[object]) -> None:
        """Take over the `fields` of another one."""
        self.refs, self.sizes = unpacked(cast(bytes, fields[0]), cast(bytes, fields[1]))
        self.loaded = self.count = len(self.refs)  # none if the page of the head could not be read then
        self.bytes = sum(self.sizes)
        self.ordered = bool(fields[2])
        if self.refs:
            self._last = self.refs[-1]
        if len(fields) > 3:
            behind = Behind(cast(int, fields[4]), *unpacked(cast(bytes, fields[5]), cast(bytes, fields[6])))
            behind.table.frombytes(cast(bytes, fields[3]))
            self.count += sum(behind.table[2::_ROW]) + len(behind.refs)
            self.bytes += sum(behind.table[3::_ROW]) + sum(behind.sizes)
            if behind.refs:
                self._last = behind.refs[-1]
            self.behind = behind
        self._space.count += self.count
        self._space.bytes += self.bytes


def _take_between(
    refs: array[int],
    sizes: array[int],
    begin: i64,
    place: i64,
    count: i64,
    start: i64,
    end: i64,
    to_refs: list[int],
    to_sizes: list[int],
) -> None:
    """Append what lies from `start` up to `end` of `count` entries, the first of which is `refs[begin]` and has `place`
    others before it."""
    low: i64 = max(start, place)
    high: i64 = min(end, place + count)
    if low < high:
        to_refs += refs[begin + low - place : begin + high - place]
        to_sizes += sizes[begin + low - place : begin + high - place]


def unpacked(packed_refs: bytes, packed_sizes: bytes) -> tuple[array[int], array[int]]:
    """Return references and sizes as a snapshot has them."""
    refs: array[int] = array("Q")
    refs.frombytes(packed_refs)
    sizes: array[int] = array("I")
    sizes.frombytes(packed_sizes)
    return refs, sizes
