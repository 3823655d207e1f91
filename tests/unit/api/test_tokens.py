"""Tokens of the admin HTTP and their roles."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace.api.tokens import OPERATE, READ, Tokens

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
