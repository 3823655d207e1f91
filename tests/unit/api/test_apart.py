"""The admin HTTP on a thread of its own: it serves while it is entered, and not after."""

from __future__ import annotations

import socket
import urllib.error
import urllib.request

import pytest
from prometheus_client.registry import CollectorRegistry

from headrace.api.apart import CONNECTIONS_MAX, ServedApart
from headrace.api.app import application, bind


def told(_event: str, _detail: str) -> None:
    """Nobody listens."""


def test_it_serves_while_it_is_entered() -> None:
    reason = ["Spark is starting"]
    bound = bind("here", "127.0.0.1", 0)
    url = f"http://127.0.0.1:{bound.getsockname()[1]}"
    with ServedApart(application(lambda: reason[0], CollectorRegistry()), bound, url, told):
        with urllib.request.urlopen(f"{url}/healthz", timeout=60) as answer:
            assert answer.status == 200
        with pytest.raises(urllib.error.HTTPError, match="503") as refused:
            urllib.request.urlopen(f"{url}/readyz", timeout=60)
        refused.value.close()
        assert refused.value.headers["content-type"] == "application/problem+json"
        reason[0] = ""
        with urllib.request.urlopen(f"{url}/readyz", timeout=60) as answer:
            assert answer.status == 200
    with pytest.raises(urllib.error.URLError):
        urllib.request.urlopen(f"{url}/healthz", timeout=60)


def test_half_requests_keep_nobody_out() -> None:
    bound = bind("here", "127.0.0.1", 0)
    port = int(bound.getsockname()[1])
    with ServedApart(application(lambda: "", CollectorRegistry()), bound, "here", told):
        held = [socket.create_connection(("127.0.0.1", port), timeout=60) for _ in range(2 * CONNECTIONS_MAX)]
        for one in held:
            one.sendall(b"GET /metrics HTTP/1.1\r\n")
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=60) as answer:
            assert answer.status == 200
        for one in held:
            one.close()


def test_what_goes_wrong_when_it_begins_is_raised() -> None:
    bound = bind("here", "127.0.0.1", 0)
    bound.close()
    with (
        pytest.raises(OSError),
        ServedApart(application(lambda: "", CollectorRegistry()), bound, "here", told),
    ):
        pass
