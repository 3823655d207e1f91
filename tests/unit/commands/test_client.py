"""`headrace client` and `headrace session` of a running broker: what is asked, printed, and the exit status."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from headrace.commands.main import cli
from headrace.config import InvalidKey
from headrace.console.admin import AdminClient, AdminRefused
from unit.console.test_backlogs import ROW as ENTRY
from unit.console.test_clients import ROW
from unit.console.test_refusals import ROW as REFUSAL

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


def entry(serial: int) -> dict[str, Any]:
    return ENTRY | {"serial": serial}


def test_what_waits_is_peeked_at_up_to_a_limit_page_by_page(monkeypatch: pytest.MonkeyPatch) -> None:
    pages = ({"rows": [entry(1), entry(2)], "next": "3.7"}, {"rows": [entry(3), entry(4)], "next": "5.7"})
    broker = Broker(*pages)
    done = run(monkeypatch, broker, "session", "peek", "a//b", "--tenant", "t", "-n", "3", "--json")
    assert (done.exit_code, [json.loads(one)["serial"] for one in done.output.splitlines()]) == (0, [1, 2, 3])
    first = "GET /v1/backlogs?tenant=t&client=a%2F%2Fb&limit=3"
    assert broker.asked == [first, f"{first}&from=3.7"]
    few = run(monkeypatch, Broker({"rows": [entry(1)], "next": None}), "session", "peek", "c")
    assert (few.exit_code, len(few.output.splitlines())) == (0, 2)
    missing = run(monkeypatch, Broker(AdminRefused(404, "x", "no session 'c\x1b'")), "session", "peek", "c")
    assert (missing.exit_code, missing.output.splitlines()[-1]) == (1, "Error: no session 'c\\x1b'")


def test_who_was_refused_is_printed(monkeypatch: pytest.MonkeyPatch) -> None:
    broker = Broker({"rows": [REFUSAL, REFUSAL]}, {"rows": [REFUSAL]})
    done = run(monkeypatch, broker, "client", "refused", "--pattern", "a*", "-n", "5", "--json")
    assert [json.loads(one) for one in done.output.splitlines()] == [REFUSAL, REFUSAL]
    assert broker.asked == ["GET /v1/refusals?limit=5&pattern=a%2A"]
    shown = run(monkeypatch, broker, "client", "refused")
    assert (shown.exit_code, len(shown.output.splitlines())) == (0, 2)


@pytest.mark.parametrize(
    ("text", "said"), [(b"\xff\x92", "is no text in UTF-8"), (b"# none\n\n", "has no token in it")]
)
def test_a_file_without_a_token_is_named(tmp_path: Path, text: bytes, said: str) -> None:
    file = tmp_path / "token"
    file.write_bytes(text)
    for command in (["client", "list"], ["status"], ["session", "list"], ["trace", "client", "x"]):
        done = CliRunner().invoke(cli, [*command, "--admin", "http://127.0.0.1:1", "--token-file", str(file)])
        assert isinstance(done.exception, InvalidKey)
        assert str(done.exception) == f"--token-file: {file} {said}"
