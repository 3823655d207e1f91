"""Commands over a data directory of several shards: all of them, named, or a refusal."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest

from broker_process import headrace
from headrace.core.homes import Homes
from headrace.core.records.event import SessionOpened
from headrace.core.records.message import message_flags
from headrace.core.state.session import NEVER_EXPIRES
from headrace.data.layout import Layout
from headrace.journal.consumers import ConsumerPosition
from headrace.journal.reader import JournalReader
from unit.data.journals import START_US, append, copy, made, message, taken

pytestmark = pytest.mark.slow

SHARDS = 3


@pytest.fixture
def layout(tmp_path: Path) -> Layout:
    return made(tmp_path / "d", [[message(f"{shard}")] for shard in range(SHARDS)])


def run(layout: Layout, *arguments: str, code: int = 0) -> str:
    done = headrace(*arguments, "--data-dir", str(layout.path))
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout + done.stderr


def listed(layout: Layout) -> list[str]:
    """What `consumer list` says, without how long ago each has moved."""
    lines = run(layout, "consumer", "list").splitlines()
    assert all(re.search(r"  moved \d+ s ago  ", line) for line in lines)
    return [re.sub(r"  moved \d+ s ago", "", line) for line in lines]


def test_verify_and_repair_name_the_shard(layout: Layout) -> None:
    said = run(layout, "journal", "verify").splitlines()
    assert {line.partition(":")[0] for line in said} == {"shard 0", "shard 1", "shard 2"}
    segment = next((layout.directory(1) / "journal").glob("*.log"))
    data = bytearray(segment.read_bytes())
    data[100] ^= 1
    segment.write_bytes(data)
    run(layout, "journal", "verify", code=1)
    assert "shard 1: 1 records would be lost" in run(layout, "journal", "repair", "--dry-run", code=1)
    mended = run(layout, "journal", "repair")
    assert "shard 0: nothing is damaged" in mended
    assert "shard 1: 1 records lost" in mended
    run(layout, "journal", "verify")


def test_dump_names_the_shard_of_each_record(layout: Layout) -> None:
    append(layout.directory(2), [copy(0, 0), taken(1, 1)])
    rows = [json.loads(line) for line in run(layout, "journal", "dump").splitlines()]
    assert [(row["shard"], row["offset"], row["kind"]) for row in rows] == [
        (0, 0, "message"), (1, 0, "message"), (2, 0, "message"), (2, 1, "copy"), (2, 2, "stream"),
    ]  # fmt: skip
    some = run(layout, "journal", "dump", "--shard", "2", "--from", "1", "--to", "2").splitlines()
    assert [json.loads(row)["kind"] for row in some] == ["copy"]
    assert "name it by --shard" in run(layout, "journal", "dump", "--from", "1", code=2)
    for wrong in (("--from", "5", "--to", "1"), ("--shard", "2", "--from", "2", "--to", "0")):
        assert "for --from, --to: " in run(layout, "journal", "dump", *wrong, code=2)
    assert "--from" in run(layout, "journal", "dump", "--shard", "2", "--from", "-1", code=2)
    assert run(layout, "journal", "dump", "--shard", "2", "--from", "1", "--to", "1") == ""
    assert "there are 3 shards" in run(layout, "journal", "dump", "--shard", "3", code=2)


def test_sessions_are_those_of_all_shards_and_one_is_found_at_its_home(layout: Layout) -> None:
    for client in ("a", "b", "c", "d", "e"):
        shard = Homes(SHARDS).of_client("default", client)
        opened = SessionOpened.at(START_US, "default", client, 0, 3600, 5, None, 1000, None)
        append(layout.directory(shard), [opened])
    stand_in = SessionOpened.at(START_US, "default", "$member/1/7", 0, NEVER_EXPIRES, 5, None, 0, None)
    append(layout.directory(0), [stand_in])  # of a client that is listed in its own shard
    rows = [json.loads(line) for line in run(layout, "session", "list", "--json").splitlines()]
    assert sorted(row["client_id"] for row in rows) == ["a", "b", "c", "d", "e"]
    for client in ("a", "e"):
        found = json.loads(run(layout, "session", "show", client))
        assert (found["client_id"], found["shard"]) == (client, Homes(SHARDS).of_client("default", client))
    assert "has no session 'x'" in run(layout, "session", "show", "x", code=1)


def test_of_retained_messages_each_shard_shows_those_that_it_keeps(layout: Layout) -> None:
    """A publisher's shard has the message; the topic's home, which has a copy, keeps what is retained."""
    kept = message("kept")
    kept.flags = message_flags(1, True, False, 4)
    for directory in layout.directories():
        append(directory, [kept])
    lines = [line for line in run(layout, "session", "dump").splitlines() if "topic" in line]
    assert len(lines) == 1


def test_consumers_are_listed_and_handed_over_in_each_shard(layout: Layout) -> None:
    for shard, directory in enumerate(layout.directories()):
        reader = JournalReader(directory)
        ConsumerPosition.register_at(
            directory, "archive", reader.uuid, reader.epoch, shard, owner="a:1 in /lake"
        )
    assert listed(layout) == [
        f"shard {shard}: archive  offset {shard}  a:1 in /lake" for shard in range(SHARDS)
    ]
    run(layout, "consumer", "hand-over", "archive")
    assert all(ConsumerPosition.read(directory, "archive").owner == "" for directory in layout.directories())


def test_backup_and_restore_are_of_all_shards(layout: Layout, tmp_path: Path) -> None:
    said = run(layout, "backup", str(tmp_path / "copy")).splitlines()
    assert [line.partition(" up to ")[0][:8] for line in said] == ["shard 0:", "shard 1:", "shard 2:"]
    run(Layout(tmp_path / "copy", SHARDS), "journal", "verify")
    new = Layout(tmp_path / "new", SHARDS)
    assert "--shard" not in run(new, "restore", str(tmp_path / "copy"))
    assert Layout.open(new.path).shards == SHARDS
    assert "no order" in run(new, "restore", str(tmp_path / "copy"), "--to-offset", "1", code=2)
    alone = Layout(layout.directory(1), 1)
    assert f"name {layout.path}" in run(alone, "backup", str(tmp_path / "one"), code=2)


def test_one_shard_of_several_is_neither_restored_nor_divided(layout: Layout, tmp_path: Path) -> None:
    run(layout, "backup", str(tmp_path / "b"))
    new = tmp_path / "new"
    for arguments in (
        ["restore", str(tmp_path / "b" / "shard-1"), "--data-dir", str(new)],
        ["reshard", "--data-dir", str(layout.directory(1)), "--to", str(new), "--shards", "2"],
        ["config", "check", "--set", f"data_dir={layout.directory(1)}"],
    ):
        done = headrace(*arguments)
        assert done.returncode, arguments
        assert "one shard of several" in done.stdout + done.stderr
        assert not new.exists()


def test_a_shard_that_is_missing_is_named_by_every_command(layout: Layout, tmp_path: Path) -> None:
    shutil.rmtree(layout.directory(1))
    for command in (["journal", "verify"], ["session", "list"], ["backup", str(tmp_path / "copy")]):
        assert "shard-1 is missing" in run(layout, *command, code=2)
