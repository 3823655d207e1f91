"""The lines of `headrace client refused`."""

from __future__ import annotations

import time
from typing import Any

from headrace.console.refusals import HEADER, line

ROW: dict[str, Any] = {
    "event": "refused",
    "reason": "not_authorized",
    "client_id": "c\x1b[2J",
    "user": "",
    "source": "192.0.2.1",
    "address": "192.0.2.1:4711",
    "listener": "tcp://127.0.0.1:1883",
    "detail": "",
    "count": 7,
    "first_us": 0,
    "last_us": 0,
    "worker": 0,
}


def test_a_line_is_aligned_with_the_header_and_moves_no_cursor() -> None:
    said = line(ROW | {"last_us": (time.time() - 90) * 1_000_000})
    assert said.split()[:4] == ["1", "min", "30", "s"] or said.split()[:4] == ["1", "min", "31", "s"]
    assert said.index("c\\x1b[2J - -") == HEADER.index("client user detail")
