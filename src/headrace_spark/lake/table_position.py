"""Where a stream over a Delta table stands: the offset that Spark's checkpoint holds for it, as one growing number.

Delta writes `{"reservoirId": ..., "reservoirVersion": 7, "index": 2, "isStartingVersion": false}`: everything before
version 7 is read, and of that version the files up to the third. While the rows that the table had at first are read, the
version is that one and `isStartingVersion` is true.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha256
from typing import Any, Final

from headrace_spark.base.errors import ForeignOffset
from headrace_spark.base.lake_url import Location
from headrace_spark.lake.table_log import Tables

_INDEX_BITS: Final = 32
_INDEX_MAX: Final = (1 << _INDEX_BITS) - 1
_BEFORE_FIRST: Final = 100  # what stands for the place before the first file, below zero


@dataclass(frozen=True)
class TablePosition:
    """The place where a stream over a Delta table stands. `table_id`: of the table's metadata."""

    table_id: str
    version: int
    index: int
    is_first_look: bool

    @classmethod
    def from_dict(cls, given: Mapping[str, Any]) -> TablePosition:
        """Return the position that a stream's offset says. Raises ForeignOffset."""
        try:
            return cls(
                str(given["reservoirId"]),
                int(given["reservoirVersion"]),
                int(given["index"]),
                bool(given["isStartingVersion"]),
            )
        except (KeyError, TypeError, ValueError):
            raise ForeignOffset(
                f"the checkpoint holds {dict(given)!r}, which is no offset of a Delta table"
            ) from None

    @classmethod
    def from_number(cls, number: int, table_id: str, first_look: int) -> TablePosition:
        """Return the position of a `number`. `first_look`: the version that the table had at first, of which the stream
        reads what it holds."""
        version, index = number >> _INDEX_BITS, (number & _INDEX_MAX) - _BEFORE_FIRST
        return cls(table_id, version, index, version == first_look)

    def as_dict(self) -> dict[str, Any]:
        """Return the offset as Delta writes it."""
        return {
            "sourceVersion": 1,
            "reservoirId": self.table_id,
            "reservoirVersion": self.version,
            "index": self.index,
            "isStartingVersion": self.is_first_look,
        }

    @property
    def number(self) -> int:
        """Return a number that grows as the stream goes on: what a transaction of the table that is written says."""
        return (self.version << _INDEX_BITS) + min(max(self.index + _BEFORE_FIRST, 0), _INDEX_MAX)

    @property
    def read_version(self) -> int:
        """Return the newest version of which anything was read; -1 if there is none."""
        begun = self.is_first_look or self.index >= 0
        return self.version if begun else self.version - 1


def version_behind(number: int) -> int:
    """Return the number of the place behind the version of a position: a first look reads in an order of its own."""
    return ((number >> _INDEX_BITS) + 1) << _INDEX_BITS


def commit_of(tables: Tables, table: Location, version: int) -> str | None:
    """Return what tells a commit from another one of the same version; None where it is no longer in the log, or not
    yet."""
    written = tables.commit(table, version)
    return None if written is None else sha256(written).hexdigest()[:32]


def is_there(tables: Tables, table: Location, version: int, commit: str | None) -> bool:
    """Return whether a table still has the version of which `commit_of` said this, as far as its log tells."""
    log = tables.open(table)
    return (
        log is not None and log.version() >= version and commit_of(tables, table, version) in (None, commit)
    )


def is_cleaned_up(tables: Tables, table: Location, position: TablePosition) -> bool:
    """Return whether the log of a table no longer tells what came behind a position: Delta keeps a week of it, or what
    `delta.logRetentionDuration` says."""
    log = tables.open(table)
    is_behind = log is not None and position.version <= log.version()
    return is_behind and not position.is_first_look and tables.commit(table, position.version) is None
