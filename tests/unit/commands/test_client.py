"""`headrace client` and `headrace session` of a running broker: what is asked, printed, and the exit status."""

from __future__ import annotations

import json
from typing import Any

import pytest
from click.testing import CliRunner, Result

from headrace.commands.main import cli
from headrace.console.admin import AdminClient, AdminRefused
from unit.console.test_clients import ROW

SESSION = {
    "tenant": "default",
    "client_id": "c",
    "type": "DEVICE",
    "state": "away",
    "inflight": 1,
    "backlog": 2,
}


class Broker:
    """Answers what is asked of it, one after the other."""

    def __init__(self, *answers: Any) -> None:
        self.answers = list(answers)
        self.asked: list[str] = []

    def ask(self, method: str, path: str) -> Any:
        self.asked.append(f"{method} {path}")
        answer = self.answers.pop(0)
        if isinstance(answer, AdminRefused):
            raise answer
        return answer


def run(monkeypatch: pytest.MonkeyPatch, broker: Broker, *arguments: str) -> Result:
    monkeypatch.setattr(AdminClient, "ask", broker.ask)
    return CliRunner().invoke(cli, [*arguments, "--admin", "http://127.0.0.1:1"])


def page(row: dict[str, Any], following: str | None, unanswered: list[int]) -> dict[str, Any]:
    return {"rows": [row], "next": following, "unanswered": unanswered}


@pytest.mark.parametrize(("what", "row"), [("client", ROW), ("session", SESSION)])
def test_a_list_has_all_pages_and_names_the_shards_that_did_not_answer(
    monkeypatch: pytest.MonkeyPatch, what: str, row: dict[str, Any]
) -> None:
    broker = Broker(page(row, "1.0.-1", []), page(row, None, []))
    done = run(monkeypatch, broker, what, "list", "--json")
    assert (done.exit_code, [json.loads(line) for line in done.output.splitlines()]) == (0, [row, row])
    assert broker.asked == [f"GET /v1/{what}s?", f"GET /v1/{what}s?from=1.0.-1"]
    partial = run(monkeypatch, Broker(page(row, "1.0.-1", []), page(row, None, [1])), what, "list")
    assert (partial.exit_code, "shard 1 did not answer" in partial.output) == (1, True)


def test_what_is_listed_of_clients(monkeypatch: pytest.MonkeyPatch) -> None:
    broker = Broker(page(ROW, None, []))
    run(monkeypatch, broker, "client", "list", "--tenant", "t", "--pattern", "a/*")
    assert broker.asked == ["GET /v1/clients?tenant=t&pattern=a%2F%2A"]


@pytest.mark.parametrize(
    ("arguments", "asked"),
    [
        (("client", "show"), "GET /v1/clients"),
        (("client", "kick"), "DELETE /v1/clients"),
        (("session", "show"), "GET /v1/sessions"),
    ],
)
def test_one_is_named_in_the_query_and_1_says_that_it_is_not_there(
    monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...], asked: str
) -> None:
    broker = Broker({"client_id": "a//b%"}, AdminRefused(404, "x", "there is no 'x\x1b'"))
    done = run(monkeypatch, broker, *arguments, "a//b%", "--tenant", "t")
    assert (done.exit_code, json.loads(done.output)) == (0, {"client_id": "a//b%"})
    missing = run(monkeypatch, broker, *arguments, "behind")
    assert (missing.exit_code, missing.output) == (1, "Error: there is no 'x\\x1b'\n")
    assert broker.asked == [f"{asked}?tenant=t&client=a%2F%2Fb%25", f"{asked}?tenant=default&client=behind"]
