"""The cluster of a node over the admin HTTP: who may see it, and what is said where Kafka does not answer."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.types import Message

from headrace.api.cluster import of_cluster
from headrace.api.resource import served
from headrace.api.tokens import Tokens
from headrace.errors import NotReadableNow

FOUND: dict[str, Any] = {"cluster": "fleet", "nodes": []}


def ask(folder: Path, token: str, is_away: bool = False) -> tuple[int, Any]:
    async def status() -> dict[str, Any]:
        if is_away:
            raise NotReadableNow("127.0.0.1:9092: no broker answers")
        return FOUND

    (folder / "tokens").write_text("read looks\nread tenant=a one\n")
    app = Starlette(routes=served(Tokens(folder / "tokens"), of_cluster(status)))
    path = "/v1/cluster"
    scope = {"type": "http", "method": "GET", "path": path, "raw_path": path.encode(), "query_string": b""}
    scope |= {"headers": [(b"authorization", f"Bearer {token}".encode())], "scheme": "http"}
    scope |= {"client": ("192.0.2.7", 4711), "root_path": ""}
    sent: list[Message] = []

    async def receive() -> Message:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: Message) -> None:
        sent.append(message)

    asyncio.run(app(scope, receive, send))
    return sent[0]["status"], json.loads(b"".join(message.get("body", b"") for message in sent))


def test_whoever_reads_sees_the_cluster(tmp_path: Path) -> None:
    assert ask(tmp_path, "looks") == (200, FOUND)


@pytest.mark.parametrize(("token", "is_away", "status"), [("nobody", False, 401), ("looks", True, 503)])
def test_others_do_not_and_nobody_does_while_kafka_is_away(
    tmp_path: Path, token: str, is_away: bool, status: int
) -> None:
    found, said = ask(tmp_path, token, is_away)
    assert (found, said["status"]) == (status, status)
    assert ("no broker answers" in said.get("detail", "")) == is_away
