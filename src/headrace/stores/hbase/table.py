"""The table of queues in HBase: what its calls are made of. A row is 64 messages of a stream, a cell is one of them.

The family `q` is kept in memory and compacted there (IN_MEMORY_COMPACTION): what is consumed soon reaches no file (B17).
The qualifier of a message is its serial number modulo 64, in two hexadecimal digits. All of this runs on the threads of
`gateway.GatewayPool`; the functions take a connection first, and change nothing but HBase.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any, Final

from headrace.core.ports.queue_store import QueueName
from headrace.stores.hbase.address import HBaseAddress
from headrace.stores.hbase.gateway import TYPES, Gateway, HBaseError
from headrace.stores.hbase.stream_log import BLOCK_SHIFT
from headrace.stores.names import HBaseNames

FAMILY: Final = b"q"
ROWS_AT_ONCE: Final = 100  # of a scan that reads no values
DELETES_AT_ONCE: Final = 500
SALTS: Final = 256
_KEYS_ALONE: Final = b"KeyOnlyFilter()"
_ROWS_ALONE: Final = b"FirstKeyOnlyFilter() AND KeyOnlyFilter()"
_IN_BLOCK: Final = (1 << BLOCK_SHIFT) - 1
_QUALIFIERS: Final = tuple(b"%02x" % number for number in range(_IN_BLOCK + 1))
_NUMBERS: Final = {qualifier: number for number, qualifier in enumerate(_QUALIFIERS)}
_NOBODY: Final = b"~"  # behind all rows
_AFTER_SLASH: Final = b"0"


def row_of(stream: bytes, block: int) -> bytes:
    """Return the key of a row of a stream."""
    return b"%s%014x" % (stream, block)


def row_end(serial: int) -> int:
    """Return the last serial number of the row that one is in."""
    return serial | _IN_BLOCK


def _end_of(stream: bytes) -> bytes:
    """Return the first key behind all rows of a stream."""
    return stream[:-1] + _AFTER_SLASH


class Table:
    """The table at an address."""

    def __init__(self, address: HBaseAddress) -> None:
        self._address = address
        self._name = address.table.encode()
        namespace, _, qualifier = address.table.rpartition(":")
        self._full = TYPES.TTableName(ns=(namespace or "default").encode(), qualifier=qualifier.encode())
        durability = TYPES.TDurability
        self._durability = durability.FSYNC_WAL if address.syncs else durability.SYNC_WAL

    # The table itself

    def reach(self, gateway: Gateway) -> None:
        """Ask for a row that is nobody's. Raises HBaseError."""
        gateway.call("exists", self._name, TYPES.TGet(row=_NOBODY))

    def is_there(self, gateway: Gateway) -> bool:
        """Return whether there is a table, which may be disabled. Raises HBaseError."""
        return bool(gateway.call("tableExists", self._full))

    def make(self, gateway: Gateway) -> None:
        """Make the table. Raises HBaseError, also where somebody else has made it by now."""
        attributes = {b"IN_MEMORY_COMPACTION": b"BASIC"}
        family = TYPES.TColumnFamilyDescriptor(name=FAMILY, attributes=attributes, maxVersions=1)
        if self._address.ttl_s:
            family.timeToLive = self._address.ttl_s
        table = TYPES.TTableDescriptor(tableName=self._full, columns=[family])
        regions = self._address.regions
        splits = [b"%02x" % (SALTS * number // regions) for number in range(1, regions)]
        gateway.call("createTable", table, splits or None)

    # Puts

    def rows(self, stream: bytes, first: int, entries: Sequence[bytes]) -> list[Any]:
        """Return the rows that entries from the serial number `first` on are put by."""
        puts: list[Any] = []
        at = 0
        while at < len(entries):
            block, number = divmod(first + at, _IN_BLOCK + 1)
            end = min(len(entries), at + _IN_BLOCK + 1 - number)
            cells = [
                TYPES.TColumnValue(family=FAMILY, qualifier=_QUALIFIERS[number + index], value=entry)
                for index, entry in enumerate(entries[at:end])
            ]
            row = row_of(stream, block)
            puts.append(TYPES.TPut(row=row, columnValues=cells, durability=self._durability))
            at = end
        return puts

    def put(self, gateway: Gateway, rows: list[Any]) -> None:
        """Put rows. Raises HBaseError, after which some may be there."""
        gateway.call("putMultiple", self._name, rows)

    # What is there

    def _scan(
        self,
        gateway: Gateway,
        start: bytes,
        stop: bytes,
        count: int,
        only: bytes | None,
        numbers: range | None = None,
    ) -> list[Any]:
        """Return so many rows between two keys, the second one excluded; of `numbers` in each alone, if they are given.
        Raises HBaseError."""
        scan = TYPES.TScan(startRow=start, stopRow=stop, caching=count, limit=count, filterString=only)
        if numbers is not None and len(numbers) <= _IN_BLOCK:
            scan.columns = [TYPES.TColumn(family=FAMILY, qualifier=_QUALIFIERS[number]) for number in numbers]
        found: list[Any] = gateway.call("getScannerResults", self._name, scan, count)
        return found

    def first_row(self, gateway: Gateway, stream: bytes, block: int) -> int | None:
        """Return the first row of a stream from a block on, None if there is none. Raises HBaseError."""
        for found in self._scan(gateway, row_of(stream, block), _end_of(stream), 1, _ROWS_ALONE):
            return _block_of(found.row, stream)
        return None

    def serials(self, gateway: Gateway, stream: bytes, start: bytes) -> tuple[list[int], bytes]:
        """Return the serial numbers of the entries in some rows from a key on, in order, and where to go on, b"" at the
        end. Raises HBaseError."""
        rows = self._scan(gateway, start, _end_of(stream), ROWS_AT_ONCE, _KEYS_ALONE)
        serials = [serial for row in rows for serial, _ in _cells_of(row, stream)]
        return serials, _behind(rows, ROWS_AT_ONCE)

    def entries(self, gateway: Gateway, stream: bytes, first: int, last: int) -> dict[int, bytes]:
        """Return the entries between two serial numbers, both included, as far as they are there: of one row these alone
        are read, of several whole rows. Raises HBaseError."""
        if first > last:  # trimmed meanwhile
            return {}
        lowest, highest = first >> BLOCK_SHIFT, last >> BLOCK_SHIFT
        start, stop = row_of(stream, lowest), row_of(stream, highest + 1)
        numbers = range(first & _IN_BLOCK, (last & _IN_BLOCK) + 1) if lowest == highest else None
        return {
            serial: entry
            for row in self._scan(gateway, start, stop, highest - lowest + 1, None, numbers)
            for serial, entry in _cells_of(row, stream)
            if first <= serial <= last
        }

    # Deleting

    def delete_rows(self, gateway: Gateway, stream: bytes, blocks: range) -> None:
        """Delete rows of a stream, `DELETES_AT_ONCE` at most. Raises HBaseError, after which some may be there."""
        self._delete(gateway, [row_of(stream, block) for block in blocks])

    def delete_from(self, gateway: Gateway, stream: bytes, start: bytes) -> bytes:
        """Delete some rows of a stream from a key on; returns where to go on, b"" at the end. Raises HBaseError, after
        which some may be there."""
        rows = self._scan(gateway, start, _end_of(stream), DELETES_AT_ONCE, _ROWS_ALONE)
        if rows:
            self._delete(gateway, [row.row for row in rows])
        return _behind(rows, DELETES_AT_ONCE)

    def _delete(self, gateway: Gateway, rows: list[bytes]) -> None:
        left = gateway.call("deleteMultiple", self._name, [TYPES.TDelete(row=row) for row in rows])
        if left:
            raise HBaseError(
                "not_deleted", f"{len(left)} of {len(rows)} rows were not deleted", answered=True
            )

    # All streams

    def streams(self, gateway: Gateway, cursor: str, count: int) -> tuple[list[QueueName], str]:
        """Return some streams from a cursor on, and where to go on, "" at the end. Raises HBaseError."""
        names: list[QueueName] = []
        start = cursor.encode("latin-1")
        for _ in range(count):
            rows = self._scan(gateway, start, _NOBODY, 1, _ROWS_ALONE)
            if not rows:
                return names, ""
            found = HBaseNames.name_of(rows[0].row)
            if found is None:
                start = rows[0].row + b"\0"
            else:
                names.append(found[1])
                start = _end_of(found[0])
        return names, start.decode("latin-1")


def _behind(rows: list[Any], most: int) -> bytes:
    """Return where a scan goes on behind these rows, b"" if it found less than it asked for."""
    return rows[-1].row + b"\0" if len(rows) >= most else b""


def _block_of(row: bytes, stream: bytes) -> int | None:
    """Return the block of a row of a stream; None where the row is not ours."""
    text = row[len(stream) :]
    return int(text, 16) if re.fullmatch(rb"[0-9a-f]{14}", text) else None


def _cells_of(row: Any, stream: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield serial number and value of each cell of a row, in order; none where they are not ours."""
    block = _block_of(row.row, stream)
    if block is None:
        return
    for cell in row.columnValues:
        number = _NUMBERS.get(cell.qualifier)
        if number is not None and cell.family == FAMILY:
            yield (block << BLOCK_SHIFT) + number, cell.value
