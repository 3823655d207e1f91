"""The benchmark of frames, small: what its load was answered for is there, and its verdicts are what they say."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from benchmarks import frames
from benchmarks.frames_chart import draw
from benchmarks.stomp_queue import frames as stomp_frames

pytestmark = pytest.mark.interpreted  # the folders of the contestants are there once


@pytest.mark.parametrize("mode", frames.MODES)
def test_what_senders_were_answered_for_is_there(mode: str) -> None:
    with frames.headrace() as ours, frames.plain() as simple:
        for server in (ours, simple):
            found = frames.measure(server, mode, 50, "small")
            assert (found.answered, found.found, found.repeated) == (50, 50, 0)
            assert 0 < found.p50_ms <= found.p99_ms <= found.max_ms <= found.total_ms


def test_nothing_is_lost_or_twice_through_a_kill() -> None:
    (found,) = frames.killed(50, kills=1)
    assert (found.answered, found.found, found.repeated) == (50, 50, 0)
    assert found.reconnected > 0


def test_frames_of_stomp_are_read_however_they_are_cut() -> None:
    body = b"\0" * 24
    message = b"MESSAGE\ncontent-length:24\nsubscription:1\n\n" + body + b"\0\n"
    stream = b"CONNECTED\nversion:1.2\n\n\0\n" + message + message
    found: list[bytes] = []
    rest = b""
    for at in range(len(stream)):
        new, rest = stomp_frames(rest + stream[at : at + 1])
        found += new
    assert found == [body, body]


def row(server: str, mode: str, senders: int, total_ms: float, found: int | None = None) -> frames.Times:
    there = senders if found is None else found
    return frames.Times(server, mode, senders, senders, there, 0, total_ms, total_ms, 1, 2, 3, 0)


def measured(slow: float = 1.0, lost: int = 0, frames_rate: float = 90.0) -> dict[str, bool]:
    found = []
    for mode in frames.MODES:
        for senders, factor in ((1000, 1.0), (6000, slow)):
            found.append(row("headrace", mode, senders, senders * factor, senders - lost))
            found.append(row("activemq", mode, senders, senders * 3.0))
            found.append(row("plain", mode, senders, senders * 9.0))
    load: dict[str, list[dict[str, Any]]] = {
        "frames": [{"per_cpu_s": frames_rate}],
        "mqtt": [{"per_cpu_s": 100.0}],
    }
    consumers = {1: 10.0, 2: 20.0, 16: 150.0}
    return {name: row["met"] for name, row in frames.verdicts(found, [], load, consumers).items()}


def test_verdicts() -> None:
    assert all(measured().values())
    assert [name for name, met in measured(slow=2.0).items() if not met] == [
        "arrive: time a message at 6000 by that at 1000",
        "burst: time a message at 6000 by that at 1000",
    ]
    assert not measured(lost=1)["accuracy, killed ones included, per cent"]
    assert not measured(frames_rate=79.0)["messages a CPU-second of frames by MQTT's at QoS 1"]


def test_the_picture_is_drawn(tmp_path: Path) -> None:
    found = [
        row(server, mode, 1000, 5) for server in ("headrace", "activemq", "plain") for mode in frames.MODES
    ]
    result = {
        "concurrent": [asdict(one) for one in found],
        "consumers": {"1": 10.0, "16": 150.0},
    }
    draw(result, tmp_path / "frames.png")
    assert (tmp_path / "frames.png").read_bytes().startswith(b"\x89PNG")
