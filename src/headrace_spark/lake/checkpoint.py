"""Spark's checkpoint folder of one query, as its files stand: the query's id, batches that were planned, batches that are
done.

    <checkpoint>/metadata     the id that Spark gave the query at its first start
    <checkpoint>/offsets/N    what batch N takes, written before it is read: `v1`, a line of settings, one for each source
    <checkpoint>/commits/N    batch N is done

Spark repeats the newest batch of `offsets` unless it is in `commits`, and none before it: whatever those hold must be in
the table. A backup tool, a power cut or a hand can leave any of the files behind in any state, so they are looked at
before Spark is.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from headrace_spark.base.errors import LakeConflict
from headrace_spark.lake.durable import sync_path

_VERSION: Final = "v1"
_LINES: Final = 3
_EMPTY_AT_FIRST: Final = ("offsets", "commits", "state")
"""Folders that Spark wants to be empty when it begins its first batch."""


class Checkpoint:
    def __init__(self, path: Path) -> None:
        self.path = path

    @property
    def query_id(self) -> str | None:
        """Return the id that Spark gave the query at its first start. Raises LakeConflict."""
        try:
            return str(json.loads((self.path / "metadata").read_text())["id"])
        except FileNotFoundError:
            return None
        except (ValueError, KeyError, TypeError) as error:
            raise LakeConflict(f"{self.path / 'metadata'} is not a Spark checkpoint: {error}") from error

    @property
    def last_batch(self) -> int | None:
        """Return the last micro-batch that Spark has marked as done."""
        return max(self._batches("commits"), default=None)

    @property
    def last_planned(self) -> int | None:
        """Return the last micro-batch that was begun."""
        return max(self._batches("offsets"), default=None)

    @property
    def unfinished(self) -> bool:
        """Return whether a micro-batch was begun and not marked as done."""
        begun, done = self.last_planned, self.last_batch
        return begun is not None and (done is None or begun > done)

    def end(self, batch: int) -> dict[str, Any]:
        """Return the offset behind a planned batch, of its only source. Raises LakeConflict."""
        found: dict[str, Any] = json.loads(self._planned(batch)[2])
        return found

    def settings_of(self, batch: int) -> str:
        """Return what Spark keeps with a planned batch: times and its configuration, as JSON. Raises LakeConflict."""
        return self._planned(batch)[1]

    def _planned(self, batch: int) -> list[str]:
        path = self.path / "offsets" / str(batch)
        try:
            lines = path.read_text().split("\n")  # other ends of lines may be in what Spark is set to
            is_whole = all(isinstance(json.loads(line), dict) for line in lines[1:_LINES])
        except (OSError, ValueError):
            lines, is_whole = [], False
        if not is_whole or len(lines) < _LINES:
            raise LakeConflict(f"{path} is missing, empty or cut off")
        if lines[0] != _VERSION:
            raise LakeConflict(f"{path} is not written as this headrace's Spark writes it")
        return lines

    def passed(self) -> dict[str, Any] | None:
        """Return the offset below which Spark reads nothing again; None if it begins anew. Raises LakeConflict."""
        begun = self.last_planned
        if begun is None or (begun == 0 and self.unfinished):
            return None
        return self.end(begun - 1 if self.unfinished else begun)

    def require_whole(self, remedy: str) -> None:
        """Check that Spark can go on with the checkpoint. Raises LakeConflict, which ends with `remedy`, if it
        cannot."""
        begun, done = self.last_planned, self.last_batch
        if begun is None and done is None:
            return
        try:
            if self.query_id is None:
                raise LakeConflict(f"checkpoint {self.path} has batches and no file `metadata`")
            if begun is None or (done is not None and done > begun):
                raise LakeConflict(f"checkpoint {self.path} has finished batch {done} and not its `offsets`")
            for batch in range(max(0, begun - 1), begun + 1):
                self.end(batch)
            if done is not None and not self._is_marked(done):
                raise LakeConflict(f"{self.path / 'commits' / str(done)} is empty or cut off")
        except LakeConflict as problem:
            raise LakeConflict(f"{problem}: the checkpoint is not whole. {remedy}") from None

    def make_ready(self) -> None:
        """Take away what a stop or a crash has left of planning the first batch: Spark refuses for good to begin where
        half a file lies (STATE_STORE_CHECKPOINT_LOCATION_NOT_EMPTY). For who holds the job's lock, right before a query
        starts. Raises LakeConflict if it cannot be removed."""
        if self.last_planned is not None or self.last_batch is not None:
            return
        try:
            for folder in _EMPTY_AT_FIRST:
                if (self.path / folder).exists():
                    shutil.rmtree(self.path / folder)
            try:
                self.query_id  # noqa: B018
            except LakeConflict:
                (self.path / "metadata").unlink()
        except OSError as error:
            raise LakeConflict(f"{error.filename} cannot be removed: {error.strerror}") from None

    def begin(self, query_id: str) -> None:
        """Make the checkpoint that of a query which has done nothing yet. Raises OSError."""
        self.path.mkdir(parents=True, exist_ok=True)
        self._write("metadata", json.dumps({"id": query_id}))

    def move(
        self, query_id: str, ends: Mapping[int, Mapping[str, Any]], settings: str, is_finished: bool = False
    ) -> None:
        """Make the checkpoint say that the last of these batches was begun, and done if it `is_finished`, and that those
        before it are done. Raises OSError.

        `ends`: the offset behind each; Spark needs that of the one before the last, too. `settings`: what
        `settings_of` gave for one of these batches.
        """
        last = max(ends)
        for folder in ("offsets", "commits"):
            (self.path / folder).mkdir(parents=True, exist_ok=True)
            for number in self._batches(folder):
                if folder == "commits" or number > last:
                    (self.path / folder / str(number)).unlink()
        self._write("metadata", json.dumps({"id": query_id}))
        for number, end in sorted(ends.items()):
            self._write(f"offsets/{number}", f"{_VERSION}\n{settings}\n{json.dumps(end)}")
            if number < last or is_finished:
                self._write(f"commits/{number}", f'{_VERSION}\n{{"nextBatchWatermarkMs":0}}')

    def _write(self, name: str, text: str) -> None:
        """Write in one step, without the checksum that Spark may have made of what was there."""
        path = self.path / name
        path.with_name(f".{path.name}.crc").unlink(missing_ok=True)
        new = path.with_name(f".{path.name}.moved")
        new.write_text(text)
        sync_path(new)
        new.replace(path)

    def _is_marked(self, batch: int) -> bool:
        try:
            return (self.path / "commits" / str(batch)).read_text().startswith(_VERSION)
        except (OSError, ValueError):
            return False

    def _batches(self, folder: str) -> list[int]:
        names = (entry.name for entry in (self.path / folder).glob("[0-9]*"))
        return [int(name) for name in names if name.isdigit()]
