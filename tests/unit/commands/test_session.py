"""`headrace session drop`: it asks, says what is lost, and names what is wrong with what it was given."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from headrace.commands.session import drop_command, show_command
from headrace.console import sessions
from headrace.console.admin import AdminClient
from headrace.errors import ConfigError, NotThere
from headrace.storage.embedded.recovery import folded
from unit.data.journals import append
from unit.offline.test_dropping import clients, life

pytestmark = pytest.mark.interpreted


def run(*arguments: str, answer: str = "") -> Result:
    return CliRunner().invoke(drop_command, list(arguments), input=answer)


@pytest.fixture
def data_dir(tmp_path: Path) -> Path:
    append(tmp_path / "data", life())
    return tmp_path / "data"


def test_it_says_what_is_lost_and_asks(data_dir: Path) -> None:
    refused = run("c", "--data-dir", str(data_dir), answer="n\n")
    assert refused.exit_code == 1
    assert "1 subscriptions, 1 messages wait" in refused.output
    assert clients(folded(data_dir)) == ["c"]
    assert run("c", "--data-dir", str(data_dir)).exit_code == 1  # nobody answers
    done = run("c", "--data-dir", str(data_dir), answer="y\n")
    assert (done.exit_code, "is dropped, with 1 messages" in done.output) == (0, True)
    assert clients(folded(data_dir)) == []


def test_one_that_is_not_there_is_1_with_its_name(data_dir: Path) -> None:
    for arguments in (("x",), ("c", "--tenant", "other")):
        dropped = run(*arguments, "--yes", "--data-dir", str(data_dir))
        shown = CliRunner().invoke(show_command, [*arguments, "--data-dir", str(data_dir)])
        for found in (dropped, shown):
            assert found.exit_code == 1
            assert f"no session '{arguments[0]}'" in found.output
    assert clients(folded(data_dir)) == ["c"]


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (("",), "CLIENT_ID"),
        (("\udcff",), "CLIENT_ID"),
        (("$bridge/north",), "CLIENT_ID"),
        (("$member/1/7",), "CLIENT_ID"),
        (("c", "--tenant", ""), "--tenant"),
        (("c", "--data-dir", "/no/such"), "--data-dir"),
        ((), "CLIENT_ID"),
    ],
)
def test_wrong_use_is_2_and_names_the_key(arguments: tuple[str, ...], named: str) -> None:
    found = run(*arguments, "--yes")
    assert (found.exit_code, named in found.output) == (2, True)


def test_rules_that_cannot_be_read_are_named_and_nothing_is_done(data_dir: Path, tmp_path: Path) -> None:
    config = tmp_path / "headrace.toml"
    config.write_text(f'data_dir = "{data_dir}"\n[access]\nacl_file = "{tmp_path}/none"\n')
    found = run("c", "--yes", "--config", str(config))
    assert isinstance(found.exception, ConfigError)
    assert "access.acl_file" in str(found.exception)
    assert clients(folded(data_dir)) == ["c"]


def test_the_rules_of_the_configuration_hold_for_the_will(data_dir: Path, tmp_path: Path) -> None:
    acl = tmp_path / "acl"
    acl.write_text("topic read #\n")
    config = tmp_path / "headrace.toml"
    config.write_text(f'data_dir = "{data_dir}"\n[access]\nacl_file = "{acl}"\n')
    assert run("c", "--yes", "--config", str(config)).exit_code == 0
    assert clients(folded(data_dir)) == []


def test_a_broker_is_asked_by_its_admin_address(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[str, str, str]] = []

    def dropped(admin: AdminClient, tenant: str, client_id: str) -> dict[str, Any]:
        asked.append((admin.address, tenant, client_id))
        if client_id == "x":
            raise NotThere("tenant default has no session 'x'")
        return {"messages": 3}

    monkeypatch.setattr(sessions, "dropped_there", dropped)
    to = ("--admin", "http://127.0.0.1:1")
    assert run("a/b", *to, answer="n\n").exit_code == 1
    assert asked == []
    done = run("a/b", *to, "--tenant", "t", answer="y\n")
    assert (done.exit_code, "is dropped, with 3 messages" in done.output) == (0, True)
    assert asked == [("http://127.0.0.1:1", "t", "a/b")]
    assert run("x", *to, "--yes").exit_code == 1
