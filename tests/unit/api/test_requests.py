"""Which requests the admin HTTP reads: those that end in one place, and mean this address."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from prometheus_client.registry import CollectorRegistry

from headrace.api.app import application
from headrace.api.requests import Checked, names_of

LOOPBACK = names_of("127.0.0.1", ["hub.example"])
ANY = names_of("0.0.0.0", [])


def ask(names: Any, path: str = "/healthz", **headers: str) -> tuple[int, dict[bytes, bytes], bytes]:
    """The answer to a request with these headers (`_` stands for `-`): status, headers, body."""
    given = [(name.replace("_", "-").encode(), value.encode("latin-1")) for name, value in headers.items()]
    scope = {
        "type": "http",
        "method": "GET",
        "path": path,
        "raw_path": path.encode(),
        "query_string": b"",
        "headers": given,
    }
    sent: list[Any] = []

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: Any) -> None:
        sent.append(message)

    app = application(lambda: "", CollectorRegistry())
    asyncio.run(Checked(app, names)(scope, receive, send))
    return sent[0]["status"], dict(sent[0]["headers"]), b"".join(part.get("body", b"") for part in sent[1:])


OURS = [
    *("localhost", "LOCALHOST:18830", "localhost.", "a.localhost:1", "127.0.0.1", "127.0.0.1:18830", "[::1]:18830"),
    *("192.0.2.1:80", "hub.example", "HUB.example:443", "hub.example."),
]  # fmt: skip
OTHERS = [
    "evil.example",
    "evil.example:18830",
    "127.0.0.1.evil.example",
    "localhost.evil.example",
    "xlocalhost",
    "7",
]
NONE = ["", "[", "[::1", "a b", "a:b", "a:99999999", "a/b", "a@b", "é", "a\x00"]


@pytest.mark.parametrize("host", OURS)
def test_addresses_localhost_and_the_names_given_are_ours(host: str) -> None:
    assert ask(LOOPBACK, host=host)[0] == 200
    assert ask(ANY, host=host)[0] == 200


@pytest.mark.parametrize("host", OTHERS)
def test_a_name_that_somebody_else_lets_point_here_is_misdirected(host: str) -> None:
    status, headers, body = ask(LOOPBACK, host=host)
    assert (status, headers[b"connection"]) == (421, b"close")
    assert "admin_names" in json.loads(body)["detail"]
    assert ask(ANY, host=host)[0] == 200


@pytest.mark.parametrize("host", NONE)
@pytest.mark.parametrize("names", [LOOPBACK, ANY], ids=["loopback", "any"])
def test_what_is_no_host_is_refused_everywhere(names: Any, host: str) -> None:
    status, headers, body = ask(names, host=host)
    assert (status, headers[b"connection"]) == (400, b"close")
    assert json.loads(body)["detail"].startswith("Host: ")


def test_names_are_asked_for_where_they_are_given() -> None:
    assert names_of("::1", []) == []
    assert names_of("localhost", []) == []
    assert names_of("hub.example", []) is None
    everywhere = names_of("0.0.0.0", ["hub.example"])
    assert (ask(everywhere, host="hub.example")[0], ask(everywhere, host="evil.example")[0]) == (200, 421)


def test_who_names_no_host_is_no_browser() -> None:
    assert ask(LOOPBACK)[0] == 200


def test_a_request_that_ends_in_two_places_is_refused_and_its_connection_closed() -> None:
    status, headers, _ = ask(LOOPBACK, host="localhost", content_length="5", transfer_encoding="chunked")
    assert (status, headers[b"connection"]) == (400, b"close")
    assert ask(LOOPBACK, host="localhost", content_length="0")[0] == 200


ACCEPTED = ["", "*/*", ";", "text/plain;version=", "a/b;q=", "\xff;q=x,,;"]
VERSIONS = ["x", "", "1", "1.0.0", "0.0.4", "1.x", "\xff", "-1", "9" * 400]
OPEN = [f"application/openmetrics-text;version={version};q=1" for version in VERSIONS]
PLAIN = [f"text/plain;version={version};escaping={version}" for version in VERSIONS]


@pytest.mark.parametrize("accept", [*ACCEPTED, *OPEN, *PLAIN])
def test_metrics_are_written_for_whoever_accepts_whatever(accept: str) -> None:
    status, headers, _ = ask(LOOPBACK, "/metrics", host="localhost", accept=accept)
    assert status == 200
    assert headers[b"content-type"].startswith((b"text/plain", b"application/openmetrics-text"))
