"""A lake: a folder of Delta tables and of the checkpoints of the queries that write them.

    <lake>/messages                          Delta table (`headrace_spark.lake.messages`)
    <lake>/_checkpoints/archive-<consumer>   Spark's checkpoint of the archive query
    <lake>/_checkpoints/<journal uuid>.lock  held while somebody archives that journal into this lake
    <lake>/_checkpoints/upkeep-<table>       when it was last compacted and vacuumed: the file's time
    <lake>/_checkpoints/<job>.lock           held while somebody runs that job on this lake

What a table holds is read from its Delta log without starting Spark. A lake behind a URL: `headrace_spark.lake.url_lake`.
"""

from __future__ import annotations

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from os import fstat
from os.path import samestat
from pathlib import Path
from types import TracebackType
from typing import Self, TextIO

from headrace_spark.base.errors import LakeConflict
from headrace_spark.base.lake_url import Location
from headrace_spark.lake.checkpoint import Checkpoint
from headrace_spark.lake.known_tables import KnownTables
from headrace_spark.lake.lake_table import LakeTable
from headrace_spark.lake.messages import MessagesTable
from headrace_spark.lake.notes import FolderNotes
from headrace_spark.lake.tables import TableDefinition
from headrace_spark.lake.upkeep import FileMarks


class Lake:
    def __init__(self, root: Path) -> None:
        self.root = root.absolute()
        self.messages = self.root / "messages"
        self.tables = KnownTables()
        self.table = MessagesTable(self.messages, self.tables)
        self.checkpoints = self.root / "_checkpoints"
        self.notes = FolderNotes(self.checkpoints)
        self._locks: list[Lock] = []

    def table_of(self, definition: TableDefinition) -> LakeTable:
        return LakeTable(self.root, definition, self.tables)

    def marks(self) -> FileMarks:
        return FileMarks(self.checkpoints)

    def require_held(self) -> None:
        """Check that the lake is the one that it was, and that this process still holds what it has locked there. Raises
        LakeConflict if it was moved, removed or replaced, or somebody else holds it by now."""
        self.tables.require()
        for lock in self._locks:
            lock.require()

    def checkpoint(self, job: str, consumer: str) -> Checkpoint:
        return Checkpoint(self.checkpoints / f"{job}-{consumer}")

    def owner(self, job: str, table: Location) -> str:
        """Return the owner of a consumer's position, which is that of a table: the same wherever the lake is moved
        to."""
        log = self.tables.open(table)
        return f"{job}:{'' if log is None else log.metadata().id} in {table}"

    @contextmanager
    def archiving(self, uuid: str) -> Iterator[None]:
        """Hold the lake for one journal: two queries of different checkpoints would write its messages twice."""
        with self._locked(uuid, f"archiving journal {uuid} into {self.root}"):
            yield

    @contextmanager
    def holding(self, job: str) -> Iterator[None]:
        """Hold the tables of one job, of which only one process may run. Raises LakeConflict."""
        with self._locked(job, f"running job {job} on {self.root}"):
            yield

    @contextmanager
    def _locked(self, name: str, doing: str) -> Iterator[None]:
        with Lock(self.checkpoints / f"{name}.lock", doing) as lock:
            self._locks.append(lock)
            try:
                yield
            finally:
                self._locks.remove(lock)


class Lock:
    """Holds a file by a lock of the system. One that was removed meanwhile, or has another one in its place, keeps
    nobody out: the file that is there is locked then."""

    def __init__(self, path: Path, doing: str) -> None:
        self._path = path
        self._doing = doing
        self._file: TextIO | None = None

    def __enter__(self) -> Self:
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._take()
        except OSError as error:
            raise LakeConflict(
                f"{error.filename} cannot be written: {error.strerror}. Give a lake that this user may write"
            ) from None
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._file is not None:
            self._file.close()

    def require(self) -> None:
        """Raise LakeConflict if another process has the lock by now, or the folder is gone."""
        if self._is_held():
            return
        try:
            self._take()
        except OSError as error:
            raise LakeConflict(
                f"{error.filename} was removed while this process was {self._doing}: another one could begin. Restore "
                "the lake, then run the job again"
            ) from None

    def _is_held(self) -> bool:
        try:
            return self._file is not None and samestat(self._path.stat(), fstat(self._file.fileno()))
        except FileNotFoundError:
            return False

    def _take(self) -> None:
        """Lock the file that is there. Raises LakeConflict, OSError."""
        opened = self._path.open("w")
        try:
            fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            opened.close()
            raise LakeConflict(f"another process is {self._doing}") from None
        if self._file is not None:
            self._file.close()
        self._file = opened
