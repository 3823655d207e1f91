"""`headrace consumer`: who reads the journal, and handing a position over."""

from __future__ import annotations

import re
from pathlib import Path
from time import time_ns
from uuid import uuid4

import pytest
from click.testing import CliRunner

from headrace.commands.consumer import consumer
from headrace.data.layout import Layout
from headrace.journal.consumers import Alive, ConsumerPosition
from headrace.journal.errors import ConsumerAtWork, UnknownConsumer

pytestmark = pytest.mark.interpreted


def test_a_consumer_is_listed_with_its_owner_and_handed_over(tmp_path: Path) -> None:
    owner = "archive:1 in /lake/messages"
    (tmp_path / "journal").mkdir()
    ConsumerPosition.register_at(tmp_path, "archive", str(uuid4()), 1, 10, owner=owner)
    an_hour_ago_us = time_ns() // 1000 - 3_600_000_000
    ConsumerPosition.register(tmp_path, "own", str(uuid4()), 1, 3, now_us=an_hour_ago_us)
    directory = ["--data-dir", str(tmp_path)]
    said = CliRunner().invoke(consumer, ["list", *directory])
    archive, own = said.output.splitlines()
    assert re.fullmatch(rf"archive  offset 10  moved \d+ s ago  {owner}", archive)
    assert re.fullmatch(r"own  offset 3  moved 1 h 0 min ago  nobody", own)
    said = CliRunner().invoke(consumer, ["hand-over", "archive", *directory])
    assert (said.exit_code, f"archive, at offset 10, belonged to {owner}" in said.output) == (0, True)
    assert ConsumerPosition.read(tmp_path, "archive").owner == ""
    assert isinstance(CliRunner().invoke(consumer, ["hand-over", "x", *directory]).exception, UnknownConsumer)


def test_a_consumer_is_removed_from_all_shards_that_know_it(tmp_path: Path) -> None:
    data_dir = tmp_path / "data"
    layout = Layout.make(data_dir, 3)
    for directory in layout.directories():
        (directory / "journal").mkdir()
    for shard in (0, 2):
        ConsumerPosition.register(layout.directory(shard), "archive", str(uuid4()), 1, 10 + shard)
    ConsumerPosition.register(layout.directory(1), "own", str(uuid4()), 1, 3)
    removed = CliRunner().invoke(consumer, ["remove", "archive", "--data-dir", str(data_dir)])
    assert removed.exit_code == 0
    assert removed.output.splitlines() == [
        f"shard {shard}: archive was at offset {10 + shard}; nobody waits for it any more" for shard in (0, 2)
    ]
    assert [p.name for d in layout.directories() for p in ConsumerPosition.list(d)] == ["own"]
    again = CliRunner().invoke(consumer, ["remove", "archive", "--data-dir", str(data_dir)])
    assert isinstance(again.exception, UnknownConsumer)


def test_one_that_some_shards_know_is_handed_over_in_those(tmp_path: Path) -> None:
    data_dir = tmp_path / "data"
    layout = Layout.make(data_dir, 3)
    for directory in layout.directories():
        (directory / "journal").mkdir()
    for shard in (0, 2):
        ConsumerPosition.register_at(layout.directory(shard), "archive", str(uuid4()), 1, 10, owner="a lake")
    said = CliRunner().invoke(consumer, ["hand-over", "archive", "--data-dir", str(data_dir)])
    assert said.exit_code == 0
    assert [line.split(":")[0] for line in said.output.splitlines()] == ["shard 0", "shard 2"]
    assert [ConsumerPosition.read(layout.directory(shard), "archive").owner for shard in (0, 2)] == ["", ""]


@pytest.mark.parametrize("command", ["remove", "hand-over"])
@pytest.mark.parametrize("name", ["", ".x", "../x", "a b", "a\nb", "a.tmp", "é" * 300])
def test_a_name_that_no_consumer_can_have_is_a_wrong_argument(
    tmp_path: Path, command: str, name: str
) -> None:
    (tmp_path / "journal").mkdir()
    said = CliRunner().invoke(consumer, [command, "--data-dir", str(tmp_path), "--", name])
    assert said.exit_code == 2
    assert "only letters, digits" in said.output
    assert len(said.output) < 2000


def test_one_whose_process_is_at_work_is_removed_by_force_alone(tmp_path: Path) -> None:
    (tmp_path / "journal").mkdir()
    alive = Alive(tmp_path, "bootstrap")
    ConsumerPosition.register(tmp_path, "bootstrap", str(uuid4()), 1, 7, lease_s=60)
    arguments = ["remove", "bootstrap", "--data-dir", str(tmp_path)]
    refused = CliRunner().invoke(consumer, arguments)
    assert isinstance(refused.exception, ConsumerAtWork)
    assert ConsumerPosition.read(tmp_path, "bootstrap").offset == 7
    assert CliRunner().invoke(consumer, [*arguments, "--force"]).exit_code == 0
    alive.end()
    ConsumerPosition.register(tmp_path, "bootstrap", str(uuid4()), 1, 7, now_us=1, lease_s=60)
    assert CliRunner().invoke(consumer, arguments).exit_code == 0  # its process has gone
