"""What backup tools, hands and power cuts leave behind: every file of checkpoint, lake and consumer registry deleted,
emptied, put back from earlier or taken from another lake; then the job runs again.

    python -m faults.pipeline.leftovers --share 1/4 --seed 3

Either its tables equal what the journal has acknowledged, row for row, or the job has refused in a sentence of ours that
says what to do, and no table has a row twice. Tables are read without Spark.
"""

from __future__ import annotations

import argparse
import random
import shutil
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from threading import Event
from typing import Any

from deltalake import DeltaTable
from deltalake.exceptions import DeltaError
from pyspark.sql import SparkSession

from headrace_spark.base.errors import PipelineError, QueryFailed
from headrace_spark.base.session import open_session
from headrace_spark.base.settings import SparkSettings
from headrace_spark.jobs import module_of
from spark.conftest import QUICK, Writer, settings_of
from spark.journals import mixed

RECORDS = 120
TABLES = {"archive": ("messages",), "clean": ("clean", "quarantine", "repeats")}
CHECKPOINTS = {"archive": "archive-archive", "clean": "clean-messages"}
REMEDIES = ("Remove", "remove", "Restore", "Use another", "use the right", "hand-over", "move it away")


@dataclass(frozen=True)
class Case:
    """One thing done to one path, which is relative to the folder of a scene."""

    job: str
    path: str
    harm: str

    def __str__(self) -> str:
        return f"{self.job}: {self.path} {self.harm}"


class Harm(Exception):
    """Rows are missing or there twice, or nobody is told what to do."""


class Scene:
    """A folder with a broker's journal and a lake, at two times, and another one for what is swapped."""

    def __init__(self, spark: SparkSession, root: Path, job: str) -> None:
        self.spark = spark
        self.job = job
        self.now, self.earlier, self.other = root / "now", root / "earlier", root / "other"
        self._work = root / "work"
        self.journal = self._begin(self.now, 1)
        shutil.copytree(self.now, self.earlier)
        self._go_on(self.journal, self.now, 2)
        self._go_on(self._begin(self.other, 11), self.other, 12)

    def _begin(self, folder: Path, seed: int) -> Writer:
        folder.mkdir()
        (folder / "schemas.toml").write_text('[[schema]]\nname = "raw"\ntopics = ["t", "a//b"]\n')
        journal = Writer(folder / "data")
        self._go_on(journal, folder, seed)
        return journal

    def _go_on(self, journal: Writer, folder: Path, seed: int) -> None:
        journal.write(mixed(RECORDS, seed))
        self.run(folder)

    def run(self, folder: Path) -> None:
        """The job, behind those that make what it reads. Raises PipelineError."""
        for job in ("archive", self.job) if self.job != "archive" else ("archive",):
            own = {"topic_schemas": str(folder / "schemas.toml")} if job == "clean" else {}
            settings = settings_of(job, folder / "data", folder / "lake", **own)
            module_of(job).check(settings)
            module_of(job).run(self.spark, settings, Event(), lambda _: None)

    def cases(self) -> Iterator[Case]:
        """Every file of the checkpoint and of the registry, the newest of the logs, and the folders as wholes."""
        checkpoint = f"lake/_checkpoints/{CHECKPOINTS[self.job]}"
        files = [path for path in (self.now / checkpoint).rglob("*") if path.is_file()]
        files += (self.now / "data" / "consumers").glob("[a-z]*")
        for table in TABLES[self.job]:
            files += sorted((self.now / "lake" / table / "_delta_log").glob("*.json"))[-1:]
        folders = [self.now / checkpoint, self.now / "data" / "consumers"]
        folders += [self.now / "lake" / table for table in TABLES[self.job]]
        for path in [*sorted(files), *folders]:
            relative = str(path.relative_to(self.now))
            for harm in HARMS:
                source = {"put back": self.earlier, "swapped": self.other}.get(harm)
                if (source is None or (source / relative).exists()) and (harm != "emptied" or path.is_file()):
                    yield Case(self.job, relative, harm)

    def outcome(self, case: Case) -> str:
        """What the job made of it: `whole`, or `refused: ...`. Raises Harm."""
        shutil.rmtree(self._work, ignore_errors=True)
        shutil.copytree(self.now, self._work)
        HARMS[case.harm](self, self._work / case.path, case.path)
        journal = Writer(self._work / "data")
        journal.made.records = list(self.journal.made.records)
        journal.write(mixed(RECORDS, 3))
        expected = Counter(row["journal_offset"] for row in journal.rows())
        try:
            self.run(self._work)
        except (PipelineError, DeltaError) as error:
            return self._refused(error, expected)
        found = self._found()
        if found != expected:
            raise Harm(f"{(expected - found).total()} rows missing, {(found - expected).total()} too many")
        return "whole"

    def _refused(self, error: Exception, expected: Counter[int]) -> str:
        """A refusal that helps: ours, with what to do, and not after rows were written twice. Raises Harm."""
        if not isinstance(error, PipelineError) or (isinstance(error, QueryFailed) and not error.is_ours):
            raise Harm(f"not a refusal of ours: {error}")
        if not any(word in str(error) for word in REMEDIES):
            raise Harm(f"says nothing to do: {error}")
        if doubled := (self._found() - expected).total():
            raise Harm(f"refused, and {doubled} rows are there twice: {error}")
        return f"refused: {error}"

    def _found(self) -> Counter[int]:
        """Offsets in the tables of the job, all together. One that cannot be read, or is gone, has none."""
        found: Counter[int] = Counter()
        for table in TABLES[self.job]:
            try:
                rows = DeltaTable(self._work / "lake" / table).to_pyarrow_table(columns=["journal_offset"])
            except (DeltaError, OSError):
                continue
            found.update(rows["journal_offset"].to_pylist())
        return found

    def put(self, source: Path, path: Path, relative: str) -> None:
        remove(path)
        if (source / relative).is_dir():
            shutil.copytree(source / relative, path)
        else:
            shutil.copyfile(source / relative, path)


def remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink()


HARMS: dict[str, Callable[[Scene, Path, str], Any]] = {
    "deleted": lambda _scene, path, _relative: remove(path),
    "emptied": lambda _scene, path, _relative: path.write_bytes(b""),
    "put back": lambda scene, path, relative: scene.put(scene.earlier, path, relative),
    "swapped": lambda scene, path, relative: scene.put(scene.other, path, relative),
}


def chosen(cases: list[Case], share: float, seed: int) -> list[Case]:
    """A share of them; all of them come up with some seed."""
    shuffled = random.Random(seed).sample(cases, len(cases))
    return shuffled[: max(1, round(share * len(cases)))]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--share", default="1", help="of the cases, like 1/4")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--job", choices=list(TABLES), action="append")
    given = parser.parse_args()
    whole, _, parts = given.share.partition("/")
    spark = open_session(SparkSettings(master="local[2]", driver_memory="768m", extra=QUICK))
    failed = 0
    for job in given.job or TABLES:
        with tempfile.TemporaryDirectory() as root:
            scene = Scene(spark, Path(root), job)
            for case in chosen(list(scene.cases()), int(whole) / int(parts or 1), given.seed):
                try:
                    print(f"{case}: {scene.outcome(case)}", flush=True)
                except Harm as error:
                    failed += 1
                    print(f"FAILED {case}: {error}", flush=True)
    spark.stop()
    raise SystemExit(bool(failed))


if __name__ == "__main__":
    main()
