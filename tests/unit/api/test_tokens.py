"""Tokens of the admin HTTP and their roles."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace.api.tokens import OPERATE, READ, Grant, Tokens, lines_without_grant
from headrace.console.admin import Unreachable

FILE = """# of the jobs
read looker

operate mover
bare
odd words
"""


@pytest.fixture
def tokens(tmp_path: Path) -> Tokens:
    (tmp_path / "tokens").write_text(FILE)
    return Tokens(tmp_path / "tokens")


@pytest.mark.parametrize(
    ("given", "role", "status"),
    [
        ("Bearer looker", READ, 0),
        ("Bearer looker", OPERATE, 403),
        ("Bearer mover", READ, 0),
        ("Bearer mover", OPERATE, 0),
        ("Bearer bare", OPERATE, 0),  # a file with one token, as it was before there were roles
        ("Bearer read looker", READ, 401),
        ("Bearer words", READ, 401),
        ("Bearer odd words", READ, 401),
        ("Bearer # of the jobs", READ, 401),
        ("Bearer jobs", READ, 401),
        ("Bearer ", READ, 401),
        ("Bearer", READ, 401),
        ("", READ, 401),
        ("Bearer mövér", READ, 401),
    ],
)
def test_a_token_may_what_its_line_says(tokens: Tokens, given: str, role: str, status: int) -> None:
    refusal = tokens.refusal(given, role)
    assert (0 if refusal is None else refusal.status_code) == status


def test_without_a_file_or_with_one_that_cannot_be_read_nobody_is_let_in(tmp_path: Path) -> None:
    none = Tokens(None).refusal("Bearer x", READ)
    missing = Tokens(tmp_path / "missing").refusal("Bearer x", READ)
    (tmp_path / "binary").write_bytes(b"\xff\xfe")
    binary = Tokens(tmp_path / "binary").refusal("Bearer x", READ)
    found = [0 if one is None else one.status_code for one in (none, missing, binary)]
    assert found == [403, 500, 500]


@pytest.mark.parametrize(
    ("line", "word"),
    [
        ("read", "read"),
        ("operate", "operate"),
        ("READ", "READ"),
        ("Operate", "Operate"),
        ("Tenant=acme", "Tenant=acme"),
        ("tenant=acme", "tenant=acme"),
        ("read consumer=alarms", "consumer=alarms"),
        ("raed looker", "looker"),
        ("read tennant=acme looker", "looker"),
        ("read looker mover", "mover"),
        ("  # looker", "looker"),
        ("  #looker", "#looker"),
    ],
)
def test_a_line_that_is_not_understood_grants_nothing_and_is_named(
    tmp_path: Path, line: str, word: str
) -> None:
    (tmp_path / "tokens").write_text(f"read good\n\n{line}\n# said\n")
    refusal = Tokens(tmp_path / "tokens").refusal(f"Bearer {word}", READ)
    assert refusal is not None
    assert refusal.status_code == 401
    is_comment = line.strip().startswith("#")
    assert lines_without_grant((tmp_path / "tokens").read_text()) == ([] if is_comment else [3])


def test_words_of_a_line_are_parted_by_any_blanks(tmp_path: Path) -> None:
    (tmp_path / "tokens").write_text("read\tlooker \n")
    assert Tokens(tmp_path / "tokens").refusal("Bearer looker", READ) is None
    assert Tokens(tmp_path / "tokens").refusal("Bearer looker", OPERATE) is not None


LIMITED = """read tenant=acme eyes
operate tenant=acme consumer=alarms hands
consumer=a,b workers
read consumer=a reader
operate tenant=acme lonely
tenant= empty
consumer=, nobody
read tenant=x tenant=y twice
tenant=acme read turned
read tenancy=acme unknown
read tenant=acme both
read both
"""


@pytest.mark.parametrize(
    ("token", "role", "grant"),
    [
        ("eyes", READ, Grant(READ, "acme")),
        ("eyes", OPERATE, 403),
        ("hands", OPERATE, Grant(OPERATE, "acme", ("alarms",))),
        ("workers", OPERATE, Grant(OPERATE, "", ("a", "b"))),
        ("reader", OPERATE, 403),
        ("lonely", OPERATE, Grant(OPERATE, "acme")),
        ("both", READ, Grant(READ)),
        *((bad, READ, 401) for bad in ("empty", "nobody", "twice", "turned", "unknown", "tenant=acme eyes")),
    ],
)
def test_a_token_may_be_limited_to_a_tenant_and_to_consumers(
    tmp_path: Path, token: str, role: str, grant: Grant | int
) -> None:
    (tmp_path / "tokens").write_text(LIMITED)
    found = Tokens(tmp_path / "tokens").grant(f"Bearer {token}", role)
    assert (found if isinstance(found, Grant) else found.status_code) == grant


def test_what_is_not_of_the_journal_is_not_for_limited_tokens(tmp_path: Path) -> None:
    (tmp_path / "tokens").write_text(LIMITED)
    tokens = Tokens(tmp_path / "tokens")
    found = [tokens.refusal(f"Bearer {token}", READ) for token in ("eyes", "hands", "workers", "both")]
    assert [None if one is None else one.status_code for one in found] == [403, 403, 403, None]


@pytest.mark.parametrize(
    ("grant", "may"),
    [
        (Grant(OPERATE), True),
        (Grant(OPERATE, "acme"), False),
        (Grant(OPERATE, "acme", ("alarms",)), True),
        (Grant(OPERATE, "", ("others",)), False),
    ],
)
def test_which_consumers_a_token_names(grant: Grant, may: bool) -> None:
    assert grant.names("alarms") is may


def known(token: str) -> Grant | None:
    """What a directory says of a token."""
    if token == "away":
        raise Unreachable("nobody answers")
    return {
        "hrt_viewer": Grant(READ, number="1"),
        "hrt_operator": Grant(OPERATE, number="2"),
        "hrt_of_acme": Grant(OPERATE, "acme", number="3"),
    }.get(token)


@pytest.mark.parametrize(
    ("given", "role", "of_tenants", "status"),
    [
        ("Bearer hrt_viewer", READ, False, 0),
        ("Bearer hrt_viewer", OPERATE, False, 403),
        ("Bearer hrt_operator", OPERATE, False, 0),
        ("Bearer hrt_of_acme", READ, False, 403),
        ("Bearer hrt_of_acme", OPERATE, True, 0),
        ("Bearer hrt_none", READ, True, 401),
        ("hrt_operator", READ, False, 401),
        ("Bearer away", READ, False, 503),
        ("", READ, False, 401),
        ("Bearer mover", OPERATE, False, 0),  # of the file, which is looked at first
    ],
)
def test_tokens_of_a_directory_stand_beside_those_of_the_file(
    tmp_path: Path, given: str, role: str, of_tenants: bool, status: int
) -> None:
    (tmp_path / "tokens").write_text(FILE)
    found = Tokens(tmp_path / "tokens", known).unlimited(given, role, of_tenants)
    assert (0 if isinstance(found, Grant) else found.status_code) == status
    without = Tokens(None, known).unlimited(given, role, of_tenants)
    wanted = 401 if given == "Bearer mover" else status
    assert (0 if isinstance(without, Grant) else without.status_code) == wanted


def test_a_token_of_the_file_that_is_for_a_tenant_is_for_the_journal_alone(tmp_path: Path) -> None:
    (tmp_path / "tokens").write_text("operate tenant=acme mover\n")
    found = Tokens(tmp_path / "tokens", known).unlimited("Bearer mover", READ, of_tenants=True)
    assert not isinstance(found, Grant)
    assert found.status_code == 403


def test_the_log_says_whose_a_token_was() -> None:
    assert Grant(READ, line=3).whose == {"token_line": 3}
    assert Grant(READ, number="77").whose == {"token": "77"}
