"""Whether the newest commits of a Delta log are those that were written: looked at before what the log says is believed.

Spark writes a checksum file beside each commit, which repeats the transactions of the table. Readers take these from
there, so that a commit which was emptied, or taken from another table, would be believed to be done without its rows.
"""

from __future__ import annotations

import json
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

from headrace_spark.base.errors import LakeConflict

_LOOKED_AT: Final = 10
"""Commits whose content may not have been on disk when the power went, at most."""


def require_written(table: Path, version: int) -> None:
    """Raise LakeConflict if one of the newest commits, up to `version`, is empty or is not what its checksum says."""
    numbers = range(max(0, version - _LOOKED_AT + 1), version + 1)
    commits = [table / "_delta_log" / f"{number:020}.json" for number in numbers]
    for commit in commits:
        if commit.exists() and not commit.stat().st_size:
            raise _not_written(commit)
    newest = commits[-1]
    checksum = newest.with_suffix(".crc")
    if newest.exists() and checksum.exists():
        times = newest.stat().st_mtime_ns, checksum.stat().st_mtime_ns
        if not _belong_together(newest, checksum, times):
            raise _not_written(newest)


def _not_written(commit: Path) -> LakeConflict:
    return LakeConflict(
        f"{commit} is empty, or was taken from another table: rows would be missing. Restore the table as it was at one "
        "time, or use another lake"
    )


@lru_cache(maxsize=64)
def _belong_together(commit: Path, checksum: Path, _times_ns: tuple[int, int]) -> bool:
    """Return whether both name the same transaction, as far as they name any."""
    wanted = _transaction(checksum.read_text(encoding="utf-8").partition("\n")[0], ())
    found = _transaction(commit.read_text(encoding="utf-8").partition("\n")[0], ("commitInfo",))
    return wanted is None or wanted == found


def _transaction(line: str, at: tuple[str, ...]) -> str | None:
    try:
        about: Any = json.loads(line)
        for name in at:
            about = about[name]
        found = about.get("txnId")
    except (ValueError, KeyError, AttributeError):
        return None
    return None if found is None else str(found)
