"""The ACL file: who may read and write what."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace.services.acl import READ, WRITE, Acl, InvalidAcl, read_acl

TEXT = """
# what everybody may see
topic read public/#

user ada
topic readwrite ada/#
topic write commands/+
topic deny ada/secret/#
topic with spaces/x y

user bob
topic read #
pattern readwrite clients/%c/#
pattern read users/%u/in
"""


@pytest.fixture
def acl(tmp_path: Path) -> Acl:
    (tmp_path / "acl").write_text(TEXT)
    return read_acl(tmp_path / "acl")


@pytest.mark.parametrize(
    ("user", "access", "topic", "allowed"),
    [
        (None, READ, "public/a", True),
        (None, WRITE, "public/a", False),
        (None, READ, "ada/a", False),
        (None, READ, "clients/c7/x", True),
        (None, READ, "users//in", False),
        ("ada", READ, "public/a", False),  # the lines before the first user are not hers
        ("ada", WRITE, "ada/a", True),
        ("ada", READ, "ada/secret/a", False),
        ("ada", WRITE, "commands/1", True),
        ("ada", READ, "commands/1", False),
        ("ada", WRITE, "commands/1/2", False),
        ("ada", READ, "with spaces/x y", True),
        ("ada", READ, "users/ada/in", True),
        ("ada", WRITE, "users/ada/in", False),
        ("ada", READ, "users/bob/in", False),
        ("ada", WRITE, "clients/c7/x", True),
        ("ada", WRITE, "clients/c8/x", False),
        ("bob", READ, "anything/at/all", True),
        ("bob", READ, "$SYS/broker/uptime", False),
        ("eve", READ, "public/a", False),
    ],
)
def test_rules(acl: Acl, user: str | None, access: int, topic: str, allowed: bool) -> None:
    grants = acl.grants(user, "c7")
    assert grants.allows(access, topic.encode()) == allowed
    assert grants.allows(access, topic.encode()) == allowed  # remembered


@pytest.mark.parametrize(
    ("user", "topic_filter", "allowed"),
    [
        (None, "public/#", True),
        (None, "#", True),  # it gets what it may read of it
        (None, "private/#", False),
        ("ada", "ada/+", True),
        ("ada", "ada/secret/+", False),
        ("ada", "commands/+", False),
        ("ada", "$share/g/ada/+", False),  # ada/secret/# matches ada/secret: not all of it
        ("bob", "$share/g/a/+", True),
        ("bob", "$share/g/#", True),
        ("eve", "#", True),  # by the pattern for her client
    ],
)
def test_filters(acl: Acl, user: str | None, topic_filter: str, allowed: bool) -> None:
    assert acl.grants(user, "c7").allows_filter(topic_filter) == allowed


@pytest.mark.parametrize("client_id", ["+", "#", "a/b", "a+"])
def test_a_pattern_does_not_reach_beyond_its_level(acl: Acl, client_id: str) -> None:
    assert not acl.grants("ada", client_id).allows(WRITE, b"clients/a/b")
    assert not acl.grants("ada", client_id).allows_filter("clients/#")


@pytest.mark.parametrize(
    "line", ["user", "topic", "topic read a/#/b", "nonsense", "topic read a+/b", "pattern"]
)
def test_a_bad_line_is_named(tmp_path: Path, line: str) -> None:
    (tmp_path / "acl").write_text(f"topic read a\n{line}\n")
    with pytest.raises(InvalidAcl, match="line 2"):
        read_acl(tmp_path / "acl")
