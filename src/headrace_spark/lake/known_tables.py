"""Which table a job has found in each place of its lake: what lies there later is that one, or the job ends.

A lake may be moved, removed or replaced under a job that runs. Who then makes what is missing leaves a second, empty lake
where the first one was, and who goes on writes into a stranger's. A table is known by the id in its log, which stays with
it wherever it is moved to, and which a copy of it has too: whether that is older is seen by its transactions.
"""

from __future__ import annotations

import os
from pathlib import Path

from headrace_spark.base.errors import LakeConflict
from headrace_spark.base.lake_url import Location
from headrace_spark.lake.table_log import Folders, TableLog, log_folder

Place = tuple[int, int, int]


class KnownTables(Folders):
    """Opens the logs of tables in folders for one job, as `Folders` does, and misses the tables that it has seen."""

    def __init__(self) -> None:
        self._ids: dict[Path, str] = {}
        self._places: dict[Path, Place] = {}
        """By the folder of each log, as it was when that was read: as long as it stays so, a look at it is enough."""

    def open(self, table: Location, version: int | None = None) -> TableLog | None:
        """Return the newest or that version, None where no table was ever seen. Raises LakeConflict if there is another
        one, or none, in the place of one that was."""
        place = _place_of(Path(str(table)))
        log = super().open(table, version)
        if version is None:
            self._require_same(Path(str(table)), log, place)
        return log

    def require(self) -> None:
        """Look whether all tables are where they were. Raises LakeConflict."""
        for table in list(self._places):
            self.look(table)

    def look(self, table: Path) -> None:
        """Look whether a table is where it was, or take note of it the first time. Raises LakeConflict."""
        place = self._places.get(table)
        if place is None or _place_of(table) != place:
            self.open(table)

    def _require_same(self, table: Path, log: TableLog | None, place: Place | None) -> None:
        known = self._ids.get(table)
        found = None if log is None else str(log.metadata().id)
        if known is not None and found != known:
            what = "is gone" if found is None else "is another table now"
            raise LakeConflict(
                f"{table} {what}: it was moved, removed or replaced while this job ran, which ends and makes nothing "
                "in its place. Start the job again with the lake where it is now"
            )
        if found is not None:
            self._ids[table] = found
            if place is not None:
                self._places[table] = place


def _place_of(table: Path) -> Place | None:
    """Return what tells a log's folder from another one, and from itself after a commit: an inode may be given out again
    at once, but not with the time of before."""
    try:
        about = os.stat(log_folder(table))
    except OSError:
        return None
    return about.st_dev, about.st_ino, about.st_ctime_ns
