"""What real clients sent through a broker is in `messages`, in every column, whatever became of its journal meanwhile.

A broker of one shard, whose retention takes the beginning; a copy of its files, on which another broker goes on; and two
shards that `headrace reshard` makes of that, with two workers. Each journal is read as `archive` reads it, from where it
is complete on, and without Spark. What must come out is noted where it is sent (`odd_clients`), and in no journal.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Iterator
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from broker_process import BrokerProcess, free_port, headrace, wait_until
from e2e.raw import RawClient
from headrace.core.homes import Homes
from headrace.data.layout import Layout
from headrace.journal.reader import JournalReader
from headrace_spark.records.decode import decode
from headrace_spark.records.schema import MESSAGES, arrow_schema
from headrace_spark.source.local import LocalJournal
from spark.journals import EPOCH
from spark.odd_clients import AWAY, DEVICE, Clients, Stage

pytestmark = [pytest.mark.spark, pytest.mark.time_limit(900)]
COUNT = int(os.environ.get("HEADRACE_ODD_MESSAGES", "20"))
SEED = int(os.environ.get("HEADRACE_ODD_SEED", "1"))
SMALL: dict[str, object] = {"journal.segment_bytes_max": 65536}
RESTLESS: dict[str, object] = SMALL | {
    "journal.snapshot_interval_bytes": 4096,
    "journal.retention_bytes": 65536,
}
"""Nothing is kept that nobody needs."""
GONE = 200
"""Messages of the client `lost`, of which retention takes some."""
START_S = 240
COUNTED = 30


class Story:
    """The clients, and the brokers one after the other."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.data_dirs: list[Path] = []
        self.clients = Clients(SEED)
        self.homes: list[list[str]] = []
        """Of each stage the uuids of the journals by shard."""
        self.trimmed = 0

    def broker(self, name: str, settings: dict[str, object], *extra: str) -> tuple[BrokerProcess, int]:
        port = free_port()
        more = ["--listen", f"frame://127.0.0.1:{port}", *extra]
        return BrokerProcess(self.folder / name, settings, more), port

    def begin(self) -> None:
        """A broker of one shard, which has let go of its beginning."""
        clients = self.clients
        clients.begin()
        broker, port = self.broker("first", RESTLESS)
        broker.start(START_S)
        try:
            with RawClient(broker.address, "lost") as lost:
                lost.connect()
                clients.publish_numbers(lost, "lost", (b"%05d" % n * 400 for n in range(GONE)))
                lost.disconnect()
            wait_until(partial(is_trimmed, broker.data_dir), "retention", 120)
            broker.stop()
            broker.settings = SMALL
            broker.start(START_S)
            clients.subscribe(broker, AWAY)
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

    def continued(self, name: str, data_dir: Path, *extra: str) -> None:
        """Another broker goes on with what lies in `data_dir`."""
        self.clients.begin()
        broker, port = self.broker(name, SMALL, *extra)
        broker.data_dir = data_dir
        broker.start(START_S)
        try:
            self.go_on(broker, port)
        finally:
            broker.end()

    def rows(self) -> list[dict[str, Any]]:
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
        """All that was sent and must be there: of the client `lost` what retention has left."""
        rows = self.clients.rows
        gone = [row for row in rows if row["client_id"] == "lost"][: self.trimmed]
        return [row for row in rows if not any(row is each for each in gone)]


def read(journal: LocalJournal) -> list[dict[str, Any]]:
    schema = arrow_schema(MESSAGES)
    batches = journal.scan(journal.complete_offset(), journal.high_watermark())
    table = pa.Table.from_batches(decode(batches, journal.uuid, 0, 1 << 40, schema), schema)
    rows: list[dict[str, Any]] = table.to_pylist()
    return rows


def is_trimmed(data_dir: Path) -> bool:
    return JournalReader(data_dir).complete_offset() > 0


def per_client(rows: Iterable[dict[str, Any]]) -> dict[str, list[dict[str, Any]]]:
    found: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        found.setdefault(row["client_id"], []).append(row)
    return found


def require_messages(story: Story) -> None:
    """Nothing is missing, nothing is there twice, nothing is other than it was sent."""
    rows = story.rows()
    places = [(row["journal_uuid"], row["journal_epoch"], row["journal_offset"]) for row in rows]
    assert len(set(places)) == len(rows)
    rows.sort(key=lambda row: (story.stage_of(row), row["journal_epoch"], row["journal_offset"]))
    found = per_client(rows)
    kept = len(found.get("lost", ()))
    assert 0 < kept < GONE, "retention took all, or nothing"
    story.trimmed = GONE - kept
    wanted = per_client(story.sent())
    assert found.keys() == wanted.keys()
    for client_id, sent in wanted.items():
        own = [{name: row[name] for name in sent[0]} for row in found[client_id]]
        for row, expected in zip(own, sent, strict=False):
            others = [name for name, value in expected.items() if row[name] != value]
            assert not others, f"{client_id[:40]}: {[(name, row[name], expected[name]) for name in others]}"
        assert len(own) == len(sent), f"{client_id[:40]}: {len(own)} of {len(sent)}, sent last: {sent[-1]}"
        require_places(story, client_id, found[client_id])


def require_places(story: Story, client_id: str, rows: list[dict[str, Any]]) -> None:
    """Check the columns that the broker has made: of one client's rows, in the order in which they were sent."""
    stages = [stage for stage in story.clients.stages for row in sent_by(story, stage, client_id)]
    uuids = [story.homes[story.clients.stages.index(stage)] for stage in stages]
    for row, stage, homes in zip(rows, stages, uuids, strict=True):
        assert row["journal_uuid"] == homes[Homes(len(homes)).of_client("default", client_id)]
        at_us = (row["publish_timestamp"] - EPOCH) // timedelta(microseconds=1)
        assert stage.began_us <= at_us <= stage.ended_us
        assert row["date"] == row["publish_timestamp"].date()
        own = [pair["value"] for pair in row["user_properties"] if pair["name"] == "message-id"][:1]
        name = client_id.replace("%", "%25").replace("/", "%2F")
        place = f"{row['journal_uuid']}:{row['journal_epoch']}:{row['journal_offset']}"
        wanted = f"client:default/{name}/{own[0]}" if own and own[0] else f"journal:{place}"
        assert row["message_id"] == wanted
        assert (row["incarnation"] == 0) == (client_id == DEVICE), "a frame has no session"
        assert row["incarnation"] <= row["journal_offset"]
    times = [row["publish_timestamp"] for row in rows]
    assert times == sorted(times)


def sent_by(story: Story, stage: Stage, client_id: str) -> Iterator[dict[str, Any]]:
    kept = [row for row in stage.rows if row["client_id"] == client_id]
    yield from kept[story.trimmed :] if client_id == "lost" else kept


@pytest.fixture(scope="module")
def story(tmp_path_factory: pytest.TempPathFactory) -> Story:
    return Story(tmp_path_factory.mktemp("story"))


def test_of_a_trimmed_journal(story: Story) -> None:
    story.begin()
    require_messages(story)


def test_a_copy_of_its_files_goes_on(story: Story) -> None:
    copied = story.folder / "copied"
    shutil.copytree(story.data_dirs[0], copied)
    story.continued("second", copied)
    require_messages(story)


def test_two_shards_that_were_made_of_it(story: Story) -> None:
    two = story.folder / "two"
    done = headrace(
        "reshard",
        "--data-dir",
        str(story.data_dirs[1]),
        "--to",
        str(two),
        "--shards",
        "2",
        deadline_s=START_S,
    )
    assert done.returncode == 0, done.stderr
    story.continued("third", two, "--workers", "2")
    require_messages(story)
