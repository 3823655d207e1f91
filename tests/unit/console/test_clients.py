"""The lines of `headrace client list`."""

from __future__ import annotations

import time
from typing import Any

from headrace.console.clients import HEADER, line

ROW: dict[str, Any] = {
    "tenant": "default",
    "client_id": "do\x1b[2Jor",
    "user": "",
    "address": "192.0.2.1:4711",
    "listener": "tls://0.0.0.0:8883",
    "transport": "tls",
    "version": "5.0",
    "connected_at_us": 0,
    "keep_alive_s": 0,
    "in_flight": 3,
    "shard": 2,
    "worker": 1,
}


def test_a_line_is_aligned_with_the_header_and_moves_no_cursor() -> None:
    row = ROW | {"connected_at_us": (time.time() - 7260) * 1_000_000}
    said = line(row)
    assert said.strip().startswith("2 h 1 min")
    rest = ["3", "-", "2", "tls", "5.0", "192.0.2.1:4711", "-", "default", "do\\x1b[2Jor"]
    assert said.split()[4:] == rest
    assert said.index("192.0.2.1") == HEADER.index("address")
    assert said.index("default") == HEADER.index("tenant client")
