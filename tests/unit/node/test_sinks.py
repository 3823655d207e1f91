"""The sinks of a worker, with their process in it: started, listened to, started again, ended."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from headrace.config import Config, InvalidKey, SinkConfig
from headrace.journal.consumers import ConsumerPosition
from headrace.node import sinks as module
from headrace.node.sinks import Sinks
from unit.journal.log_at import filled

NOBODY = "127.0.0.1:1"
WITHIN_S = 30.0


class Log:
    def __init__(self) -> None:
        self.lines: list[str] = []

    def warning(self, event: str, **fields: Any) -> None:
        self.lines.append(f"{event} {fields}")

    info = warning


def config(**fields: Any) -> Config:
    sink = {"name": "s", "servers": (NOBODY,), "topic_filter": "#", "kafka_topic": "t"} | fields
    return Config(sinks=(SinkConfig(**sink),))


async def until(sinks: Sinks, wanted: str) -> None:
    """Wait until it is said."""
    async with asyncio.timeout(WITHIN_S):
        while wanted not in sinks.trouble:
            await asyncio.sleep(0.01)


def test_without_sinks_there_is_no_process(tmp_path: Path) -> None:
    async def run() -> None:
        log = Log()
        sinks = Sinks(Config(), log)
        filled(tmp_path, [b"x"])
        sinks.hold([(0, tmp_path)])
        sinks.start()
        assert (sinks.trouble, sinks.figures, log.lines) == ("", [], [])
        assert ConsumerPosition.list(tmp_path) == []
        await sinks.stop()

    asyncio.run(run())


def test_what_the_library_does_not_know_is_named() -> None:
    with pytest.raises(InvalidKey, match=r"sinks\[0\]\.client: .*no\.such"):
        Sinks(config(client={"no.such": "1"}), Log())


def test_journals_are_held_from_their_ends_on_and_what_is_left_over_is_said(tmp_path: Path) -> None:
    filled(tmp_path, [b"x", b"y"])
    log = Log()
    Sinks(config(), log).hold([(0, tmp_path)])
    assert ConsumerPosition.read(tmp_path, "sink.s").offset == 2
    assert log.lines == []
    Sinks(config(name="other", start="beginning"), log).hold([(0, tmp_path)])
    assert ConsumerPosition.read(tmp_path, "sink.other").offset == 0
    (line,) = log.lines
    assert "sink.s" in line


def test_kafka_that_is_away_is_said_and_a_process_that_dies_is_started_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "SHORTEST_S", 0.01)
    filled(tmp_path, [b"x"])

    async def run() -> None:
        log = Log()
        sinks = Sinks(config(), log)
        sinks.hold([(0, tmp_path)])
        sinks.start()
        try:
            await until(sinks, "sink s: ")
            process = sinks._process
            assert process is not None
            os.kill(process.pid, signal.SIGKILL)
            await until(sinks, "its process has ended")
            await until(sinks, "sink s: ")
            again = sinks._process
            assert again is not None
            assert again.pid != process.pid
        finally:
            sinks.abandon()
        assert again.poll() is not None
        assert sinks._process is None

    asyncio.run(run())
