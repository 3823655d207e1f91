"""The page of what waits for a session: its form is the one that is described, its place names where it goes on."""

from __future__ import annotations

import asyncio
from inspect import isawaitable
from typing import Any

import msgspec
import pytest

from conformance.peer import Peer
from harness import Harness
from headrace.api.backlogs import BACKLOG, of_backlogs
from headrace.core.homes import Homes
from headrace.errors import NotThere, ShardAway
from headrace.mqtt.properties import Properties
from headrace.services.backlog_rows import BacklogRows
from headrace.services.paging import ByHome, Place


def asked(found: ByHome[BacklogRows], **values: Any) -> Any:
    usual = {"tenant": "default", "client": "c", "limit": 1, "from": Place()}

    async def life() -> Any:
        answer = of_backlogs(found)[BACKLOG](usual | values)
        return await answer if isawaitable(answer) else answer

    return asyncio.run(life())


def backlog() -> ByHome[BacklogRows]:
    harness = Harness()
    Peer(harness, "c", clean=False, session_expiry_interval=99).subscribe("a/#")
    properties = Properties()
    properties.correlation_data, properties.user_properties = b"\x00\xff", [("n", "v")]
    for number in range(2):
        Peer(harness, "p").publish("a/b", b"%d" % number, 1, False, 7, properties.encode(), 9)
    return ByHome({0: BacklogRows(harness.broker)}, Homes().of_client)


def test_what_is_answered_is_what_is_described_page_by_page() -> None:
    found = backlog()
    texts: list[str] = []
    following: str | None = ""
    while following is not None:
        page = asked(found, **({"from": Place.parse(following)} if following else {}))
        assert msgspec.to_builtins(msgspec.convert(page, BACKLOG.answer, strict=True)) == page
        texts += [row["text"] for row in page["rows"]]
        following = page["next"]
    assert texts == ["0", "1"]


def test_one_that_is_not_there_and_one_whose_shard_is_away() -> None:
    with pytest.raises(NotThere):
        asked(backlog(), client="x")
    with pytest.raises(ShardAway):
        asked(ByHome({}, Homes().of_client, {0: "its journal has failed"}))
