"""The lines of `headrace session peek`."""

from __future__ import annotations

import time
from typing import Any

from headrace.console.backlogs import HEADER, line

ROW: dict[str, Any] = {
    "serial": 7,
    "state": "waiting",
    "packet_id": None,
    "qos": 1,
    "retain": False,
    "absent": "",
    "topic": "a/\x1b[2J",
    "size": 2048,
    "client_id": "p",
    "received_at_us": 0,
    "expires_at_us": None,
    "is_expired": False,
    "payload": "eAp5",
    "text": "x\ny",
    "is_cut": False,
    "properties": {},
}


def test_a_line_is_aligned_with_the_header_and_moves_no_cursor() -> None:
    said = line(ROW | {"received_at_us": (time.time() - 7260) * 1_000_000})
    assert said.split()[:3] == ["7", "waiting", "1"]
    assert "2 h 1 min" in said
    assert said.endswith("a/\\x1b[2J x\\ny")
    assert said.index("a/") == HEADER.index("topic payload")


def test_what_is_no_text_is_base64_what_is_long_is_cut_and_what_is_absent_says_why() -> None:
    assert line(ROW | {"text": None}).endswith(" eAp5")
    assert line(ROW | {"text": "x" * 100}).endswith(" " + "x" * 80 + "...")
    assert line(ROW | {"is_cut": True, "is_expired": True}).endswith("x\\ny... (expired)")
    gone = line(ROW | {"absent": "it is gone", "topic": None, "text": None})
    assert gone.endswith(" (it is gone)")
