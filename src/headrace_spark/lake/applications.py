"""Which applications have a transaction in a Delta table: of those that name an epoch, who is asked for by name.

Epochs rise by random steps, so nobody can try them all. A log gives the last transaction of an application that one can
name, but no list; in a folder the list is taken from the newest checkpoint and the commits behind it. It may name more
than there is: each is then asked for by its name.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pyarrow.parquet as pq

from headrace.journal.epochs import EPOCH_MAX
from headrace_spark.base.errors import LakeConflict
from headrace_spark.base.lake_url import Location
from headrace_spark.lake.spark_log import SparkLog
from headrace_spark.lake.table_log import TableLog, log_folder

_COMMIT: Final = re.compile(r"(\d{20})\.json")
_CHECKPOINT: Final = re.compile(
    r"(\d{20})\.checkpoint(?:\.\d{10}\.(\d{10})|\.[0-9a-f-]{36})?\.(?:parquet|json)"
)


def epochs_told(log: TableLog, table: Location, head: str, newest: int) -> Iterator[int]:
    """Yield the epochs, the newest first and none above `newest`, for which there may be an application whose name is
    `head` and the epoch. `newest` is one of them always; the others are looked for when they are asked for."""
    yield newest
    names = log.applications() if isinstance(log, SparkLog) else _in_folder(Path(str(table)))
    told = {
        int(name.removeprefix(head)) for name in names if re.fullmatch(re.escape(head) + r"\d{1,10}", name)
    }
    yield from sorted((epoch for epoch in told if epoch < newest), reverse=True)


def require_own_epochs(log: TableLog, table: Location, head: str, uuid: str, epoch: int) -> None:
    """Require that a table has no application of a journal (`head` and an epoch) in an epoch above the journal's own,
    `epoch`: an epoch never falls, so that is of another copy of the journal, which went on apart. Raises LakeConflict."""
    for told in epochs_told(log, table, head, EPOCH_MAX):
        if told <= epoch:
            return
        if (end := log.transaction_version(f"{head}{told}")) is not None:
            raise another_copy(table, uuid, epoch, told, end)


def another_copy(table: Location, uuid: str, epoch: int, told: int, end: int) -> LakeConflict:
    """Return what is said of a table that has a journal, which is in `epoch`, up to `end` in the higher epoch `told`."""
    return LakeConflict(
        f"table {table} has records up to offset {end}, epoch {told}, of another copy of journal {uuid}, which is in "
        f"epoch {epoch} here: each was restored or put back by itself. Use another lake, or go on with the copy that "
        "the table was fed from"
    )


def _in_folder(table: Path) -> set[str]:
    """Return the applications that the newest whole checkpoint of a table names, and all commits behind it."""
    names = [path.name for path in log_folder(table).iterdir()]
    newest, files = _newest_checkpoint(names)
    found: set[str] = set()
    for name in files:
        path = log_folder(table) / name
        found |= _of_commit(path) if name.endswith(".json") else _of_checkpoint(path)
    for name in names:
        commit = _COMMIT.fullmatch(name)
        if commit is not None and int(commit[1]) > newest:
            found |= _of_commit(log_folder(table) / name)
    return found


def _newest_checkpoint(names: list[str]) -> tuple[int, list[str]]:
    """Return the version of the newest checkpoint that has all its parts, and its files; -1 where there is none."""
    by_version: dict[int, list[tuple[str, int]]] = {}
    for name in names:
        if (found := _CHECKPOINT.fullmatch(name)) is not None:
            by_version.setdefault(int(found[1]), []).append((name, int(found[2] or 1)))
    whole = [
        version for version, files in by_version.items() if len(files) >= min(parts for _, parts in files)
    ]
    newest = max(whole, default=-1)
    return newest, [name for name, _ in by_version.get(newest, [])]


def _of_checkpoint(path: Path) -> set[str]:
    file = pq.ParquetFile(path)
    if "txn" not in file.schema_arrow.names:
        return set()
    return {row["appId"] for row in file.read(["txn"])["txn"].to_pylist() if row is not None and row["appId"]}


def _of_commit(path: Path) -> set[str]:
    with path.open(encoding="utf-8") as lines:
        return {json.loads(line)["txn"]["appId"] for line in lines if line.startswith('{"txn":')}
