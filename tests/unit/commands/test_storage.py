"""The commands that keep and mend a data directory, with a broker that runs, and one that refuses to start."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from click.testing import CliRunner

from broker_process import BrokerExitedError, BrokerProcess, headrace
from e2e.raw import RawClient, SilenceError
from headrace import __version__
from headrace.commands.main import cli
from headrace.commands.storage import ended_by_signals
from headrace.data.backup import backup_shards
from headrace.data.layout import Layout
from headrace.journal.backup import backup
from headrace.journal.log import LogSettings, SegmentedLog

pytestmark = pytest.mark.slow


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


def test_nothing_is_made_of_a_data_directory_that_would_go_with_it(tmp_path: Path) -> None:
    data = tmp_path / "data"
    SegmentedLog.open(data, LogSettings(), lambda _line: None).close()
    (tmp_path / "link").symlink_to(data)
    for inside in (data / "copy", tmp_path / "link" / "deeper" / "copy"):
        for command in (["backup", str(inside)], ["reshard", "--to", str(inside), "--shards", "2"]):
            said = CliRunner().invoke(cli, [*command, "--data-dir", str(data)])
            assert said.exit_code == 2
            assert "lies in the data directory and would go with it" in said.output
    assert not list(data.rglob("copy*"))


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


@pytest.mark.parametrize("shards", [1, 2])
def test_a_backup_of_a_newer_version_is_refused_in_words(tmp_path: Path, shards: int) -> None:
    data, copy, new = tmp_path / "data", tmp_path / "copy", tmp_path / "new"
    if shards == 1:
        SegmentedLog.open(data, LogSettings(), lambda _line: None).close()
        backup(data, copy)
    else:
        layout = Layout.make(data, shards)
        for directory in layout.directories():
            SegmentedLog.open(directory, LogSettings(), lambda _line: None).close()
        backup_shards(layout, copy)
    manifest = json.loads((copy / "manifest.json").read_text())
    assert manifest["made_by"] == __version__
    changes: tuple[dict[str, object], ...] = ({"version": 99, "made_by": "9.9.9"}, {"version": 99, "new": 7})
    for change in changes:
        (copy / "manifest.json").write_text(json.dumps(manifest | change))
        said = CliRunner().invoke(cli, ["restore", str(copy), "--data-dir", str(new)])
        assert said.exit_code == 2
        assert "DIRECTORY" in said.output
        assert "the backup is newer: version 99" in said.output
        assert "Restore it with the version that made it, or a newer one" in said.output
        assert ("made by headrace 9.9.9" in said.output) == ("made_by" in change)
        assert not new.exists()


def test_a_signal_ends_a_copy_as_an_exception_does_unless_it_is_ignored() -> None:
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)}
    with pytest.raises(SystemExit) as ended, ended_by_signals():
        os.kill(os.getpid(), signal.SIGTERM)
    assert ended.value.code == 143
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # as a shell does for what runs in the background
    try:
        with ended_by_signals():
            os.kill(os.getpid(), signal.SIGINT)
    finally:
        signal.signal(signal.SIGINT, before[signal.SIGINT])
    assert {number: signal.getsignal(number) for number in before} == before


def test_a_broker_does_not_start_on_half_a_restore(tmp_path: Path, broker: BrokerProcess) -> None:
    filled(broker)
    copy, other = str(tmp_path / "copy"), tmp_path / "other"
    run("backup", copy, "--data-dir", str(broker.data_dir))
    broker.stop()
    (other / "data" / "restore.tmp" / "journal").mkdir(parents=True)
    (other / "data" / "watermark").write_bytes((broker.data_dir / "watermark").read_bytes())
    with pytest.raises(BrokerExitedError) as refused:
        BrokerProcess(other).start()
    assert "interrupted; run `headrace restore` again" in refused.value.stderr
    assert "removing what an interrupted restore left" in run(
        "restore", copy, "--data-dir", str(other / "data")
    )
    restored = BrokerProcess(other).start()
    try:
        assert drained(restored, 100) == list(range(100))
    finally:
        restored.end()


@pytest.mark.parametrize(
    ("command", "status", "said"),
    [
        (["backup", "--data-dir", "DIR", "OTHER"], 2, "DIR holds no journal"),
        (["restore", "DIR", "--data-dir", "OTHER"], 1, "not a complete backup: there is no such file"),
    ],
)
def test_a_folder_without_anything_is_named(
    tmp_path: Path, command: list[str], status: int, said: str
) -> None:
    folder = tmp_path / "empty"
    folder.mkdir()
    places = {"DIR": str(folder), "OTHER": str(tmp_path / "other")}
    found = run(*(places.get(word, word) for word in command), code=status)
    assert said.replace("DIR", str(folder)) in found
    assert not (tmp_path / "other").exists()


def test_a_wrong_manifest_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "copy").mkdir()
    (tmp_path / "copy" / "manifest.json").write_text('{"version": "1", "files": 3}')
    said = run("restore", str(tmp_path / "copy"), "--data-dir", str(tmp_path / "new"), code=1)
    assert said.count("\n") == 1
    assert "manifest.json: not a complete backup" in said


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
