"""A data directory that the broker before this one wrote is the same state here (tests/vectors/journal/state)."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from click.testing import CliRunner

from headrace.commands.main import cli
from headrace.core.state.session import Session
from headrace.journal.inspect import verify
from headrace.storage.embedded.recovery import folded

STATE = Path(__file__).parents[1] / "vectors" / "journal" / "state"
WITHOUT = {"both snapshots": (), "changes": ("*.changes",), "any snapshot": ("*.changes", "*.snapshot")}


@pytest.fixture(params=["both snapshots", "changes", "any snapshot"])
def data_dir(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """As it was left, and with what a start could miss: then it replays more, from the first record at last."""
    copied = Path(shutil.copytree(STATE, tmp_path / "data"))
    for pattern in WITHOUT[request.param]:
        for path in (copied / "journal").glob(pattern):
            path.unlink()
    return copied


def test_sessions_groups_and_retained_messages_are_those_of_then(data_dir: Path) -> None:
    result = CliRunner().invoke(cli, ["session", "dump", "--data-dir", str(data_dir)])
    assert result.exit_code == 0, result.output
    found = [json.loads(line) for line in result.output.splitlines()]
    expected = [json.loads(line) for line in (STATE / "sessions.jsonl").read_text().splitlines()]
    assert sorted(map(repr, found)) == sorted(map(repr, expected))


def unfinished(session: Session) -> int:
    return 0 if session.queue is None else session.queue.unfinished()


def test_every_queue_has_what_it_had(data_dir: Path) -> None:
    """Two of `online` were acknowledged; 601 messages were sent, 20 of them retained ones for `rr`."""
    fold = folded(data_dir)
    queues = {session.client_id: unfinished(session) for session in fold.by_incarnation.values()}
    assert {name: queues[name] for name in ("away4", "away2", "online", "online2", "rm3", "rr")} == {
        "away4": 601,
        "away2": 601,
        "online": 599,
        "online2": 601,
        "rm3": 601,
        "rr": 20,
    }


def test_nothing_of_it_is_damaged() -> None:
    assert verify(STATE).ok
