"""The commands that keep and mend a data directory, with a broker that runs, and one that refuses to start."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from broker_process import BrokerExitedError, BrokerProcess, headrace
from e2e.raw import RawClient, SilenceError


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    made = BrokerProcess(tmp_path, {"journal.segment_bytes_max": 8192})
    yield made
    made.end()


def filled(broker: BrokerProcess) -> None:
    """A hundred messages for a session that is away."""
    broker.start()
    with RawClient(broker.address, "away") as away:
        away.connect(clean=False)
        away.subscribe("t", qos=1)
    with RawClient(broker.address, "p") as publisher:
        publisher.connect()
        for number in range(100):
            publisher.deliver("t", b"%03d" % number * 100)


def drained_to_the_end(broker: BrokerProcess) -> list[int]:
    found: list[int] = []
    with RawClient(broker.address, "away") as away:
        away.connect(clean=False)
        with suppress(SilenceError):
            while True:
                found.append(int(away.receive(0.5).payload[:3]))
    return found


def drained(broker: BrokerProcess, count: int) -> list[int]:
    with RawClient(broker.address, "away") as away:
        away.connect(clean=False)
        found = [int(away.receive().payload[:3]) for _ in range(count)]
        away.expect_nothing(0.2)
    return found


def run(*arguments: str, code: int = 0) -> str:
    done = headrace(*arguments)
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout + done.stderr


def test_a_backup_of_a_running_broker_is_restored(tmp_path: Path, broker: BrokerProcess) -> None:
    filled(broker)
    data, copy, other = str(broker.data_dir), str(tmp_path / "copy"), tmp_path / "other"
    said = run("backup", copy, "--data-dir", data)
    assert "epoch 1: offsets 0 up to" in said
    assert "is not empty" in run("backup", copy, "--data-dir", data, code=1)
    assert drained(broker, 100) == list(range(100))
    broker.kill()
    run("restore", copy, "--data-dir", str(other / "data"))
    assert "already holds a journal" in run("restore", copy, "--data-dir", data, code=1)
    restored = BrokerProcess(other).start()
    try:
        assert drained(restored, 100) == list(range(100))
        restored.stop()
    finally:
        restored.end()
    middle = str(int(said.split(" up to ")[1].split(",")[0]) // 2)
    run("restore", copy, "--data-dir", str(tmp_path / "early" / "data"), "--to-offset", middle)
    early = BrokerProcess(tmp_path / "early").start()
    try:
        found = drained_to_the_end(early)
        assert 0 < len(found) < 100
        assert found == list(range(len(found)))
    finally:
        early.end()


def test_damage_is_refused_shown_and_repaired(tmp_path: Path, broker: BrokerProcess) -> None:
    filled(broker)
    data = str(broker.data_dir)
    assert "has this data directory open" in run("journal", "repair", "--data-dir", data, code=1)
    broker.stop()
    path = sorted((broker.data_dir / "journal").glob("*.log"))[1]
    content = bytearray(path.read_bytes())
    content[4000] ^= 1
    path.write_bytes(content)
    with pytest.raises(BrokerExitedError) as refused:
        broker.start()
    assert refused.value.code == 1
    assert f"{path}, byte " in refused.value.stderr
    assert "bad checksum; offsets " in refused.value.stderr
    assert "DAMAGED" in run("journal", "verify", "--data-dir", data, code=1)
    shown = run("journal", "repair", "--data-dir", data, "--dry-run", code=1)
    assert "1 records would be lost; nothing was changed" in shown
    mended = run("journal", "repair", "--data-dir", data)
    assert "1 records lost" in mended
    assert shown.splitlines()[0] == mended.splitlines()[0]
    assert "nothing is damaged" in run("journal", "repair", "--data-dir", data)
    run("journal", "verify", "--data-dir", data)
    broker.start()
    found = drained(broker, 99)
    assert len(set(found)) == 99
    assert found == sorted(found)
    assert broker.metrics()['headrace_dropped_messages_total{reason="unreadable",tenant="default"}'] == 1
    broker.stop()
