"""`headrace subscription` and `headrace retained`: what is asked, printed, and the exit status."""

from __future__ import annotations

import json
from typing import Any

import pytest

from headrace.console.admin import AdminRefused
from unit.commands.test_client import Broker, page, run
from unit.console.test_retained import ROW as RETAINED
from unit.console.test_subscriptions import ROW as SUBSCRIPTION


@pytest.mark.parametrize(
    ("what", "path", "row"),
    [
        ("subscription", "/v1/subscriptions?", SUBSCRIPTION),
        ("retained", "/v1/retained?tenant=default", RETAINED),
    ],
)
def test_a_list_has_all_pages_and_names_the_shards_that_did_not_answer(
    monkeypatch: pytest.MonkeyPatch, what: str, path: str, row: dict[str, Any]
) -> None:
    broker = Broker(page(row, "1.0.-1", []), page(row, None, []))
    done = run(monkeypatch, broker, what, "list", "--json")
    assert (done.exit_code, [json.loads(line) for line in done.output.splitlines()]) == (0, [row, row])
    assert [each.partition("from=")[0].rstrip("&") for each in broker.asked] == [f"GET {path}"] * 2
    partial = run(monkeypatch, Broker(page(row, "1.0.-1", []), page(row, None, [1])), what, "list")
    assert (partial.exit_code, "shard 1 did not answer" in partial.output) == (1, True)


def test_what_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    broker = Broker(page(SUBSCRIPTION, None, []), page(RETAINED, None, []))
    run(monkeypatch, broker, "subscription", "list", "--pattern", "a*", "--state", "away", "--topic", "a/b")
    run(monkeypatch, broker, "retained", "list", "--tenant", "t", "--filter", "a/#")
    assert broker.asked == [
        "GET /v1/subscriptions?pattern=a%2A&state=away&topic=a%2Fb",
        "GET /v1/retained?tenant=t&filter=a%2F%23",
    ]


@pytest.mark.parametrize("verb", ["show", "delete"])
@pytest.mark.parametrize("topic", ["a/#", "+/b", "#", ""])
def test_a_wildcard_names_no_message(monkeypatch: pytest.MonkeyPatch, verb: str, topic: str) -> None:
    broker = Broker()
    done = run(monkeypatch, broker, "retained", verb, topic)
    assert (done.exit_code, broker.asked) == (2, [])
    assert "TOPIC" in done.output


@pytest.mark.parametrize(
    "command",
    [
        ("subscription", "list"),
        ("retained", "list"),
        ("client", "list"),
        ("client", "refused"),
        ("session", "peek", "c"),
        ("session", "list"),
        ("frame", "queue", "list"),
        ("frame", "clusters"),
    ],
)
@pytest.mark.parametrize("status", [401, 404])
def test_no_header_stands_before_a_refusal(
    monkeypatch: pytest.MonkeyPatch, command: tuple[str, ...], status: int
) -> None:
    done = run(monkeypatch, Broker(AdminRefused(status, "x", "not like this")), *command)
    assert done.exit_code == 1
    assert done.stdout == ""


def test_a_header_stands_over_an_empty_table(monkeypatch: pytest.MonkeyPatch) -> None:
    empty: dict[str, Any] = {"rows": [], "next": None, "unanswered": []}
    assert run(monkeypatch, Broker(empty), "retained", "list").stdout.startswith("qos")
    assert run(monkeypatch, Broker(empty), "retained", "list", "--json").stdout == ""


@pytest.mark.parametrize(("verb", "method"), [("show", "GET"), ("delete", "DELETE")])
def test_one_is_named_in_the_query_and_1_says_that_it_is_not_there(
    monkeypatch: pytest.MonkeyPatch, verb: str, method: str
) -> None:
    broker = Broker({"topic": "a//b"}, AdminRefused(404, "x", "there is no 'x\x1b'"))
    done = run(monkeypatch, broker, "retained", verb, "a//b", "--tenant", "t")
    assert (done.exit_code, json.loads(done.output)) == (0, {"topic": "a//b"})
    missing = run(monkeypatch, broker, "retained", verb, "x")
    assert (missing.exit_code, missing.output) == (1, "Error: there is no 'x\\x1b'\n")
    assert broker.asked == [
        f"{method} /v1/retained?tenant=t&topic=a%2F%2Fb",
        f"{method} /v1/retained?tenant=default&topic=x",
    ]
