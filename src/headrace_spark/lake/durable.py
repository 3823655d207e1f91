"""What a Delta table's log says was added is on disk, and not only in the page cache, before the journal may forget it.

Neither Spark nor Delta syncs a local file. A position that moves lets retention drop segments; a power cut after that
must not take the rows back. Elsewhere than on a local disk the file system says what a closed file is worth.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote

from headrace_spark.base.errors import LakeConflict

_LOG: Final = "_delta_log"
_DOUBTED: Final = 10
"""Commits that an earlier run may have made and not synced, at most: one, and what upkeep did behind it."""


def sync_path(path: Path) -> None:
    """Sync the content of a file, or the names of a folder. Raises OSError."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def make_within(top: Path, folder: Path, what: str) -> None:
    """Make a folder below `top`, and never `top` itself: who has moved that meanwhile wants nothing in its place. `what`
    the folder is for, with its verb: "rows were". Raises LakeConflict where `top` is gone."""
    at = top
    try:
        for name in folder.relative_to(top).parts:
            at /= name
            with suppress(FileExistsError):
                at.mkdir()
    except FileNotFoundError:
        raise LakeConflict(
            f"{top} is gone, where {what} to be written: the lake was moved or removed. Start the job again with the "
            "lake where it is now"
        ) from None


class SyncedTable:
    """A table in a local folder, of which this process knows how far it is on disk."""

    def __init__(self, table: Path, sync: Callable[[Path], None] = sync_path) -> None:
        self._table = table
        self._sync_path = sync
        self._synced: int | None = None  # up to which version

    def sync(self) -> None:
        """Sync every commit so far, and the files that it added. Raises OSError."""
        log = self._table / _LOG
        names = sorted(name for name in os.listdir(log) if name[:20].isdigit())
        newest = int(names[-1][:20])
        since = newest - _DOUBTED if self._synced is None else self._synced
        fresh = [log / name for name in names if int(name[:20]) > since]
        if not fresh:
            return
        folders = {log, self._table, self._table.parent}
        for path in _added(self._table, fresh):
            try:
                self._sync_path(path)
            except FileNotFoundError:
                continue  # a vacuum was faster: it is no part of the table any more
            folders.update(path.parents[: len(path.relative_to(self._table).parents)])
        for path in [*fresh, *sorted(folders, reverse=True)]:
            self._sync_path(path)
        self._synced = newest


def _added(table: Path, log: list[Path]) -> Iterator[Path]:
    for commit in log:
        if commit.suffix != ".json":
            continue  # a checkpoint: it repeats what the commits say
        for line in commit.read_bytes().splitlines():  # a text has other ends of lines, too
            action: dict[str, Any] = json.loads(line)
            if "add" in action:
                yield table / unquote(action["add"]["path"])
