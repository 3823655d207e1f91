"""Tenants, users, rules, quotas, tokens and bans from the command line."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import click
import pytest
from click.testing import CliRunner, Result

from headrace.commands.main import cli
from headrace.directory.store import open_store


class Typed:
    """Commands typed about one directory."""

    def __init__(self, url: str) -> None:
        self.url = url

    def run(self, *words: str, given: str | None = None) -> Result:
        return CliRunner().invoke(cli, [*words, "--directory", self.url], input=given)

    def __call__(self, *words: str, given: str | None = None) -> str:
        result = self.run(*words, given=given)
        assert result.exit_code == 0, (result.output, result.exception)
        return result.output

    def error(self, *words: str, given: str | None = None) -> str:
        result = self.run(*words, given=given)
        assert result.exit_code, result.output
        return str(result.exception) if result.output == "" else result.output


@pytest.fixture
def typed(tmp_path: Path) -> Typed:
    return Typed(f"sqlite:///{tmp_path}/directory.sqlite")


def test_a_tenant_from_its_first_day_to_its_last(typed: Typed) -> None:
    assert "tenant acme is there" in typed("tenant", "create", "acme")
    typed("user", "create", "acme/gateway-1", "--password-file", "-", "--group", "gateways", given="s3cret\n")
    number = typed("acl", "add", "acme", "--allow", "publish", "up/%u/#", "--user", "gateway-1").strip()
    typed("acl", "add", "acme", "--deny", "all", "secret/#", "--group", "gateways")
    typed("acl", "add", "acme", "--allow", "subscribe,publish", "c/#", "--client", "c1")
    assert typed("acl", "list", "acme").splitlines()[0] == f"{number}  allow publish  up/%u/#  user gateway-1"
    assert len(typed("acl", "list", "acme", "--json").splitlines()) == 3
    assert typed("quota", "set", "acme", "connections=1000", "publish_bytes_per_s=1000000") == (
        "connections=1000\npublish_bytes_per_s=1000000\n"
    )
    assert typed("quota", "show", "acme") == "connections=1000\npublish_bytes_per_s=1000000\n"
    assert typed("tenant", "set", "acme", "archive=no") == "archive=no\n"
    assert "acme  active" in typed("tenant", "list")
    shown = json.loads(typed("tenant", "show", "acme"))
    assert (shown["users"], shown["rules"], shown["settings"]) == (1, 3, {"archive": "no"})
    assert "gateway-1  active  of gateways" in typed("user", "list", "acme")
    typed("acl", "remove", "acme", number)
    for command in ("disable", "enable"):
        typed("tenant", command, "acme")
        typed("user", command, "acme/gateway-1")
    typed("user", "leave", "acme/gateway-1", "gateways")
    typed("user", "join", "acme/gateway-1", "others")
    typed("user", "password", "acme/gateway-1", given="n3w\nn3w\n")
    typed("user", "delete", "acme/gateway-1")
    assert typed("user", "list", "acme") == ""
    typed("tenant", "delete", "acme")
    assert "tenant release acme" in typed.error("tenant", "create", "acme")
    assert "a new tenant of that name would get" in typed.error("tenant", "release", "acme")
    typed("tenant", "release", "acme", "--force")
    assert typed("tenant", "list", "--json") == ""
    log = typed("directory", "changes")
    assert "s3cret" not in log + typed("directory", "changes", "--json")
    assert "  tenant created  acme" in log
    assert log.splitlines()[-1].endswith("tenant released  acme")
    assert len(typed("directory", "changes", "--since", "3").splitlines()) == len(log.splitlines()) - 3


def test_a_token_is_the_last_word(typed: Typed) -> None:
    typed("tenant", "create", "acme")
    for role, more in (
        ("owner", ()),
        ("viewer", ("--tenant", "acme", "--for", "10m")),
        ("tenant-admin", ("--tenant", "acme")),
    ):
        secret = typed("token", "create", "--role", role, *more).split()[-1]
        store = open_store(typed.url, make=False)
        found = store.tokens.find(secret)
        store.close()
        assert found is not None
        assert found.role == role
        assert secret not in typed("token", "list") + typed("token", "list", "--json")
        number = found.number
    typed("token", "revoke", number)
    assert len(typed("token", "list").splitlines()) == 2
    assert "is needed for the role tenant-admin" in typed.error("token", "create", "--role", "tenant-admin")


def test_bans(typed: Typed) -> None:
    assert "192.0.2.0/24 is banned until" in typed("ban", "add", "--address", "192.0.2.7/24", "--for", "10m")
    typed("tenant", "create", "acme")
    typed("ban", "add", "--user", "acme/gateway-1", "--reason", "noise")
    typed("ban", "add", "--client", "acme/a/b")
    lines = typed("ban", "list").splitlines()
    assert lines[1:] == ["client acme/a/b  without end", "user acme/gateway-1  without end  noise"]
    typed("ban", "remove", "--client", "acme/a/b")
    assert len(typed("ban", "list", "--json").splitlines()) == 2
    for wrong in ((), ("--address", "1.2.3.4", "--user", "acme/a")):
        assert "give one of --address, --client, --user" in typed.error("ban", "add", *wrong)
    assert "user: is written TENANT/NAME" in typed.error("ban", "add", "--user", "gateway-1")


def test_users_come_from_files_of_other_brokers(typed: Typed, tmp_path: Path) -> None:
    typed("tenant", "create", "acme")
    file = tmp_path / "passwd"
    file.write_text("anna:$7$1$c2FsdA==$c2FsdA==\nbob:$2b$04$" + "a" * 53 + "\n")
    assert typed("user", "import", "acme", str(file)) == "2 users\n"
    assert "nothing was imported" in typed.error("user", "import", "acme", str(file))
    assert typed("user", "import", "acme", str(file), "--replace") == "2 users\n"
    file.write_text("anna:plain\n")
    assert "line 1: hash: is of no known form" in typed.error("user", "import", "acme", str(file))


def test_a_password_file_that_others_may_read_is_refused(typed: Typed, tmp_path: Path) -> None:
    typed("tenant", "create", "acme")
    file = tmp_path / "password"
    for text, mode, said in (
        ("s3cret\n", 0o644, "everybody on this machine may read it"),
        ("\n", 0o600, "its first line is empty"),
        ("x" * 70_000, 0o600, "its first line is too long"),
    ):
        file.write_text(text)
        file.chmod(mode)
        found = typed.error("user", "create", "acme/gw", "--password-file", str(file))
        assert said in found
        assert "s3cret" not in found
    file.write_text("s3cret\nanother line\n")
    typed("user", "create", "acme/gw", "--password-file", str(file))
    assert "No such file" in typed.error("user", "create", "acme/a", "--password-file", f"{file}x")


def test_wrong_use_is_said(typed: Typed) -> None:
    assert "there is none" in typed.error("tenant", "list")
    typed("tenant", "create", "acme")
    assert "give one of --allow, --deny" in typed.error("acl", "add", "acme", "#")
    assert "at most one" in typed.error(
        "acl", "add", "acme", "#", "--allow", "all", "--user", "a", "--client", "b"
    )
    assert "with a name" in typed.error("acl", "add", "acme", "#", "--allow", "all", "--user", "")
    assert "allow: is all, or some of" in typed.error("acl", "add", "acme", "#", "--allow", "read")
    assert "is not written NAME=VALUE" in typed.error("quota", "set", "acme", "connections")
    assert "is there twice" in typed.error("quota", "set", "acme", "connections=1", "connections=2")
    assert "there is no tenant none" in typed.error("quota", "show", "none")
    assert "meanwhile, not 99" in typed.error("tenant", "disable", "acme", "--if-revision", "99")
    assert "is not in the range" in typed.error("directory", "changes", "--since", str(2**63))
    result = CliRunner().invoke(cli, ["tenant", "list"])
    assert (result.exit_code, "Missing option '--directory'" in result.output) == (2, True)


def test_the_tables_are_made_by_a_command_of_their_own(typed: Typed) -> None:
    assert typed("directory", "migrate") == "the tables are of version 0001, before: nothing\n"
    assert typed("directory", "migrate") == "the tables are of version 0001\n"


def test_nothing_of_a_broker_imports_a_database() -> None:
    """A broker without tenants starts as fast as before, and needs no extra."""
    code = (
        "import sys, headrace.commands.main, headrace.commands.frame, headrace.node.serving, headrace.offline.checking\n"
        "found = {'sqlalchemy', 'alembic', 'mako', 'bcrypt', 'headrace.directory'} & set(sys.modules)\n"
        "print(sorted(found))"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=200)
    assert (result.returncode, result.stdout, result.stderr) == (0, "[]\n", "")


def test_without_the_extra_there_is_help_and_its_name() -> None:
    code = (
        "import sys; sys.modules['sqlalchemy'] = sys.modules['alembic'] = sys.modules['bcrypt'] = None\n"
        "from headrace.commands.main import main\n"
        "main()"
    )
    for words, status, said in (
        (["--help"], 0, "Tenants: each has"),
        (["tenant", "list", "--directory", "sqlite:///x"], 1, "pip install 'headrace[directory]'"),
        (["directory", "migrate", "--directory", "sqlite:///x"], 1, "pip install 'headrace[directory]'"),
    ):
        command = [sys.executable, "-c", code, *words]
        result = subprocess.run(command, capture_output=True, text=True, timeout=200)
        assert (result.returncode, said in result.stdout + result.stderr) == (status, True), result


GROUPS = ("tenant", "quota", "user", "acl", "token", "ban", "directory")


def test_the_reference_has_every_command_and_option() -> None:
    page = (Path(__file__).parents[3] / "docs" / "reference" / "tenants.md").read_text("utf-8")
    context = click.Context(cli)
    for name in GROUPS:
        group = cli.get_command(context, name)
        assert isinstance(group, click.Group)
        lines = "\n".join(line for line in page.splitlines() if f"headrace {name} " in line)
        for word, command in group.commands.items():
            assert f"`headrace {name} {word}" in lines or f"`{word}" in lines, f"{name} {word}"
            options = [option for found in command.params for option in found.opts if option.startswith("--")]
            assert [option for option in options if f"{option}" not in page] == [], f"{name} {word}"


def test_a_tenant_goes_out_as_a_file_and_comes_in_elsewhere(typed: Typed, tmp_path: Path) -> None:
    typed("tenant", "create", "acme")
    typed("user", "create", "acme/gw", "--password-file", "-", "--group", "g", given="s3cret\n")
    typed("acl", "add", "acme", "--allow", "publish", "up/#", "--group", "g")
    file = tmp_path / "acme.json"
    file.write_text(typed("tenant", "export", "acme", "--hashes"))
    assert '"hash"' not in typed("tenant", "export", "acme")
    other = Typed(f"sqlite:///{tmp_path}/other.sqlite")
    done = json.loads(other("tenant", "import", "acme", str(file)))
    assert (done["tenant_changes"], done["users_created"], done["rules_added"]) == (["created"], ["gw"], 1)
    assert json.loads(other("tenant", "import", "acme", "-", given=file.read_text()))["users_changed"] == []
    assert other("tenant", "export", "acme", "--hashes") == file.read_text()
    assert typed("tenant", "export", "acme", "--csv", "users") == "name,state,groups,hash\ngw,active,g,\n"
    table = tmp_path / "users.csv"
    table.write_text("name,password,groups\nann,pw,g;h\n")
    planned = json.loads(other("tenant", "import", "acme", str(table), "--prune", "--dry-run"))
    assert (planned["users_created"], planned["users_deleted"], planned["is_dry_run"]) == (
        ["ann"],
        ["gw"],
        True,
    )
    json.loads(other("tenant", "import", "acme", str(table), "--prune"))
    assert other("tenant", "export", "acme", "--csv", "users") == "name,state,groups,hash\nann,active,g;h,\n"
    table.write_text("name,password\nann\n")
    assert "line 2" in other.error("tenant", "import", "acme", str(table))
    assert "FILE" in other.error("tenant", "import", "acme", str(tmp_path / "none.json"))
