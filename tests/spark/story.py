"""A broker that real clients publish odd messages through, in four stages, and one lake that goes through all of them.

A broker of one shard, whose retention takes the beginning before any job comes; a copy of its files, on which another
broker goes on; two shards that `headrace reshard` makes of that, with two workers; and what `headrace backup` and
`headrace restore` make of those. The jobs go on from one to the next, as the documents say.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from threading import Event
from typing import Any, Final

import pyarrow as pa
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from broker_process import BrokerProcess, free_port, headrace, wait_until
from headrace.data.layout import Layout
from headrace.journal.reader import JournalReader
from headrace_spark.base.progress import Progress
from headrace_spark.jobs import module_of
from headrace_spark.records.decode import decode
from headrace_spark.records.schema import MESSAGES, arrow_schema
from headrace_spark.source.local import LocalJournal
from spark.conftest import settings_of
from spark.odd_clients import AWAY, ENDED, Clients, Stage
from spark.odd_values import FILE

COUNT: Final = int(os.environ.get("HEADRACE_ODD_MESSAGES", "20"))
SEED: Final = int(os.environ.get("HEADRACE_ODD_SEED", "1"))
SMALL: Final[dict[str, object]] = {"journal.segment_bytes_max": 65536}
RESTLESS: Final[dict[str, object]] = SMALL | {
    "journal.snapshot_interval_bytes": 4096,
    "journal.retention_bytes": 65536,
}
"""Nothing is kept that nobody needs."""
LOST: Final = "lost"
GONE: Final = 200
"""Messages of the client LOST, of which retention takes some."""
START_S: Final = 240
COUNTED: Final = 30
STAGES: Final = ("trimmed", "copied", "divided", "restored")
COMMANDER: Final = "commands"
"""Begins the client ids of the job `publish`."""


class Story:
    """The clients, the brokers one after the other, and the lake. `tables_at`: the stages after which jobs run."""

    def __init__(self, spark: SparkSession, folder: Path, tables_at: frozenset[str]) -> None:
        self.spark = spark
        self.folder = folder
        self.lake = folder / "lake"
        self.tables_at = tables_at
        self.clients = Clients(SEED)
        self.data_dirs: list[Path] = []
        self.homes: list[list[str]] = []
        """Of each stage the uuids of the journals by shard."""
        self.trimmed = 0
        (folder / "schemas.toml").write_text(FILE, encoding="utf-8")

    def broker(self, name: str, settings: dict[str, object], *extra: str) -> tuple[BrokerProcess, int]:
        port = free_port()
        more = ["--listen", f"frame://127.0.0.1:{port}", *extra]
        return BrokerProcess(self.folder / name, settings, more), port

    @property
    def is_cleaned(self) -> bool:
        """Whether `clean` runs too, which has a test of its own for what is drawn here."""
        return self.tables_at == frozenset(STAGES)

    # The stages

    def trim(self) -> None:
        """A broker of one shard, which has let go of its beginning."""
        clients = self.clients
        clients.begin()
        broker, port = self.broker("first", RESTLESS)
        broker.start(START_S)
        try:
            with clients.connected(broker, LOST, 4, clean=True) as lost:
                clients.publish_numbers(lost, LOST, (b"%05d" % n * 400 for n in range(GONE)))
            wait_until(partial(is_trimmed, broker.data_dir), "retention", 120)
            broker.stop()
            broker.settings = SMALL
            broker.start(START_S)
            clients.subscribe(broker, AWAY)
            clients.subscribe(broker, ENDED)
            self.go_on(broker, port)
        finally:
            broker.end()

    def copy(self) -> None:
        copied = self.folder / "copied"
        shutil.copytree(self.data_dirs[-1], copied)
        self.continued("second", copied)

    def divide(self) -> None:
        two = self.folder / "two"
        self.made("reshard", "--data-dir", str(self.data_dirs[-1]), "--to", str(two), "--shards", "2")
        self.continued("third", two, "--workers", "2")

    def restore(self) -> None:
        backup, restored = self.folder / "backup", self.folder / "restored"
        self.made("backup", str(backup), "--data-dir", str(self.data_dirs[-1]))
        self.made("restore", str(backup), "--data-dir", str(restored))
        self.continued("fourth", restored, "--workers", "2")

    def made(self, *command: str) -> None:
        done = headrace(*command, deadline_s=START_S)
        assert done.returncode == 0, done.stderr

    def continued(self, name: str, data_dir: Path, *extra: str) -> None:
        """Another broker goes on with what lies in `data_dir`."""
        self.clients.begin()
        broker, port = self.broker(name, SMALL, *extra)
        broker.data_dir = data_dir
        broker.start(START_S)
        try:
            self.clients.come_back(broker)
            self.go_on(broker, port)
        finally:
            broker.end()

    def go_on(self, broker: BrokerProcess, port: int) -> None:
        """What every stage has; the broker has stopped at its end."""
        self.clients.publish_odd(broker, port, COUNT)
        wait_until(lambda: broker.metrics()["headrace_connections"] == 0, "every connection has ended", 60)
        self.clients.publish_counted(broker, COUNTED)
        broker.stop()
        self.clients.end()
        self.data_dirs.append(broker.data_dir)
        shards = Layout.open(broker.data_dir).directories()
        self.homes.append([JournalReader(shard).uuid for shard in shards])

    # The lake

    def run(self, job: str, **changes: Any) -> Progress:
        settings = settings_of(job, self.data_dirs[-1], self.lake, **changes)
        module_of(job).check(settings)
        done: Progress = module_of(job).run(self.spark, settings, Event(), lambda _: None)
        return done

    def rows(self, table: str) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = DeltaTable(self.lake / table).to_pyarrow_table().to_pylist()
        return found

    def journaled(self) -> list[dict[str, Any]]:
        """What a lake has of all journals so far: each place of a journal once, however often it was copied."""
        found: dict[tuple[str, int, int], dict[str, Any]] = {}
        for data_dir in self.data_dirs:
            for shard in Layout.open(data_dir).directories():
                for row in read(LocalJournal(shard)):
                    place = row["journal_uuid"], row["journal_epoch"], row["journal_offset"]
                    assert found.setdefault(place, row) == row, "a copy says something else"
        return list(found.values())

    def stage_of(self, row: dict[str, Any]) -> int:
        """The first stage in which there was the journal of a row; stages of one journal follow each other."""
        return next(n for n, uuids in enumerate(self.homes) if row["journal_uuid"] in uuids)

    def sent(self) -> list[dict[str, Any]]:
        """All that was sent and must be there: of the client LOST what retention has left."""
        rows = self.clients.rows
        gone = [row for row in rows if row["client_id"] == LOST][: self.trimmed]
        return [row for row in rows if not any(row is each for each in gone)]

    def sent_by(self, stage: Stage, client_id: str) -> Iterator[dict[str, Any]]:
        kept = [row for row in stage.rows if row["client_id"] == client_id]
        yield from kept[self.trimmed :] if client_id == LOST else kept


def read(journal: LocalJournal) -> list[dict[str, Any]]:
    schema = arrow_schema(MESSAGES)
    batches = journal.scan(journal.complete_offset(), journal.high_watermark())
    table = pa.Table.from_batches(decode(batches, journal.uuid, 0, 1 << 40, schema), schema)
    rows: list[dict[str, Any]] = table.to_pylist()
    return rows


def is_trimmed(data_dir: Path) -> bool:
    return JournalReader(data_dir).complete_offset() > 0
