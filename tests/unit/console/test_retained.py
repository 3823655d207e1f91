"""The lines of `headrace retained list`."""

from __future__ import annotations

import time
from typing import Any

from headrace.console.retained import HEADER, line

ROW: dict[str, Any] = {
    "tenant": "default",
    "topic": "a/\x1b[2J",
    "qos": 1,
    "size": 2048,
    "client_id": "",
    "is_will": False,
    "received_at_us": 0,
    "expires_at_us": None,
    "shard": 2,
    "worker": 1,
}


def test_a_line_is_aligned_with_the_header_and_moves_no_cursor() -> None:
    now_us = time.time() * 1_000_000
    said = line(ROW | {"received_at_us": now_us - 7260e6, "expires_at_us": now_us + 90e6})
    assert "2 h 1 min" in said
    assert "1 min" in said
    assert said.split()[-4:] == ["2", "-", "default", "a/\\x1b[2J"]
    assert said.index("default") == HEADER.index("tenant topic")
    assert line(ROW).split()[-5] == "-"
