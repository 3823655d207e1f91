"""Configuration and reload over the admin HTTP: who may, what is answered and told in the log."""

from __future__ import annotations

import asyncio
import json
import logging
from pathlib import Path
from typing import Any

import msgspec
import pytest
from starlette.applications import Starlette
from starlette.types import Message

from headrace.api.configuration import CONFIGURATION, PENDING, RELOAD, of_configuration
from headrace.api.resource import served
from headrace.api.tokens import Tokens
from headrace.services.configuration import Reloaded

FOUND = Reloaded(["limits.a"], ["data_dir"], ["bans"], "no such file")


class Broker:
    """A configuration that is read again."""

    def __init__(self) -> None:
        self.reloads = 0

    def shown(self) -> dict[str, Any]:
        return {"data_dir": "x", "limits": {"a": 1}}

    def pending(self) -> Reloaded:
        return FOUND

    def reload(self) -> Reloaded:
        self.reloads += 1
        return FOUND


def ask(folder: Path, broker: Broker, method: str, path: str, token: str) -> tuple[int, Any]:
    (folder / "tokens").write_text("read looks\noperate does\noperate consumer=x moves\n")
    app = Starlette(routes=served(Tokens(folder / "tokens"), of_configuration(broker)))
    scope = {"type": "http", "method": method, "path": path, "raw_path": path.encode(), "query_string": b""}
    scope |= {"headers": [(b"authorization", f"Bearer {token}".encode())], "scheme": "http"}
    scope |= {"client": ("192.0.2.7", 4711), "root_path": ""}
    sent: list[Message] = []

    async def receive() -> Message:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: Message) -> None:
        sent.append(message)

    asyncio.run(app(scope, receive, send))
    return sent[0]["status"], json.loads(b"".join(message.get("body", b"") for message in sent))


@pytest.mark.parametrize(
    ("method", "path", "statuses"),
    [
        ("GET", "/v1/configuration", (200, 200, 403, 401)),
        ("GET", "/v1/reload", (403, 200, 403, 401)),
        ("POST", "/v1/reload", (403, 200, 403, 401)),
    ],
)
def test_who_may(tmp_path: Path, method: str, path: str, statuses: tuple[int, ...]) -> None:
    broker = Broker()
    found = [ask(tmp_path, broker, method, path, token)[0] for token in ("looks", "does", "moves", "other")]
    assert tuple(found) == statuses
    assert broker.reloads == (method == "POST")


def test_what_is_answered_is_what_is_described(tmp_path: Path) -> None:
    for method, resource in (("GET", PENDING), ("POST", RELOAD)):
        status, answer = ask(tmp_path, Broker(), method, "/v1/reload", "does")
        assert (status, msgspec.convert(answer, resource.answer)) == (200, FOUND)
    assert ask(tmp_path, Broker(), "GET", CONFIGURATION.path, "looks")[1] == Broker().shown()


def test_a_reload_is_told_with_who_and_from_where(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        ask(tmp_path, Broker(), "GET", "/v1/reload", "does")
        ask(tmp_path, Broker(), "POST", "/v1/reload", "does")
    [record] = caplog.records
    assert record.getMessage() == "configuration reloaded"
    fields = record.__dict__["fields"]
    assert (fields["changed"], fields["token_line"], fields["by"]) == (["limits.a"], 2, "192.0.2.7:4711")
