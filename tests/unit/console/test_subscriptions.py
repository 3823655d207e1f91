"""The lines of `headrace subscription list`."""

from __future__ import annotations

from typing import Any

from headrace.console.subscriptions import HEADER, line

ROW: dict[str, Any] = {
    "tenant": "default",
    "client_id": "do\x1b[2Jor",
    "filter": "a/\n#",
    "qos": 1,
    "no_local": True,
    "retain_as_published": False,
    "retain_handling": 0,
    "subscription_id": 0,
    "state": "away",
    "shard": 2,
    "worker": 1,
}


def test_a_line_is_aligned_with_the_header_and_moves_no_cursor() -> None:
    said = line(ROW)
    assert said.split() == ["1", "away", "2", "no", "local", "default", "do\\x1b[2Jor", "a/\\n#"]
    assert said.index("no local") == HEADER.index("options")
    assert said.index("default") == HEADER.index("tenant client")
    assert line(ROW | {"no_local": False}).split()[3] == "-"
