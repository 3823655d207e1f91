"""The list of events is what is described, and a change is in it before it is answered."""

from __future__ import annotations

import asyncio
from inspect import isawaitable
from pathlib import Path
from typing import Any

import msgspec

from headrace.api.events import EVENTS, of_events
from headrace.services.events import EventLog, Key, key_of


def test_what_is_answered_is_what_is_described(tmp_path: Path) -> None:
    async def page(log: EventLog, behind: Key | None) -> Any:
        found = of_events(log)[EVENTS]({"tenant": "acme", "limit": 1, "from": behind})
        return await found if isawaitable(found) else found

    async def asked() -> Any:
        log = EventLog(tmp_path, 3)
        by = {"who": "token 7", "role": "operate", "came_from": "192.0.2.1:5"}
        for name in ("a", "b"):
            await log.add("client kicked", "acme", by, {"client_id": name, "session_kept": True})
        first = await page(log, None)
        second = await page(log, key_of(first["next"]))
        log.close()
        return first, second

    first, second = asyncio.run(asked())
    for content in (first, second):
        assert msgspec.to_builtins(msgspec.convert(content, EVENTS.answer, strict=True)) == content
    assert [page["rows"][0]["detail"]["client_id"] for page in (first, second)] == ["b", "a"]
    assert second["next"] is None
