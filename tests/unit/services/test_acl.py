"""The ACL file: who may read and write what."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace.services import acl as module
from headrace.services.acl import READ, WRITE, Acl, InvalidAcl, read_acl

TEXT = """
# what everybody may see
topic read public/#

user ada
topic readwrite ada/#
topic write commands/+
topic deny ada/secret/#
topic readwrite with spaces/x y

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


@pytest.mark.parametrize("kind", ["topic", "pattern"])
@pytest.mark.parametrize("word", ["dney", "Deny", "readwrtie", "wirte", "read,write", "plant/#", "%u", "#"])
@pytest.mark.parametrize("rest", ["plant/secret/#", "read plant/#", "a b"])
def test_an_unknown_access_word_is_refused_and_gives_nothing(
    tmp_path: Path, kind: str, word: str, rest: str
) -> None:
    (tmp_path / "acl").write_text(f"user ann\ntopic read plant/#\n{kind} {word} {rest}\n")
    with pytest.raises(InvalidAcl, match="line 3") as refused:
        read_acl(tmp_path / "acl")
    assert repr(word) in str(refused.value)


@pytest.mark.parametrize(
    ("line", "topic", "wanted"),
    [
        ("topic read a b c", "a b c", READ),
        ("topic  deny\ta b ", "a b", 0),
        ("topic a", "a", READ | WRITE),
        ("topic read", "read", READ | WRITE),  # one word is a topic, as Mosquitto has it
        ("topic read read", "read", READ),
        ("topic write deny a", "deny a", WRITE),
    ],
)
def test_a_topic_may_hold_blanks_behind_its_access_word(
    tmp_path: Path, line: str, topic: str, wanted: int
) -> None:
    (tmp_path / "acl").write_text(f"{line}\n")
    grants = read_acl(tmp_path / "acl").grants(None, "c")
    found = sum(right for right in (READ, WRITE) if grants.allows(right, topic.encode()))
    assert found == wanted


def read(tmp_path: Path, text: str) -> Acl:
    (tmp_path / "acl").write_text(text, newline="")
    return read_acl(tmp_path / "acl")


@pytest.mark.parametrize(
    ("rule", "user", "client_id"),
    [
        ("%c/up/#", None, "$share"),
        ("%u/data/#", "$share", "c"),
        ("up/%c/#", "+", "%u"),
        ("%c/#", None, "$SYS"),
    ],
)
def test_a_name_does_not_change_what_a_pattern_means(
    tmp_path: Path, rule: str, user: str | None, client_id: str
) -> None:
    grants = read(tmp_path, f"pattern readwrite {rule}\n").grants(user, client_id)
    for topic in (
        "admin/reset",
        "secret/plan",
        "up/other/x",
        "$SYS/x",
        f"{client_id}/up/x",
        f"{user}/data/x",
    ):
        assert not grants.allows(WRITE, topic.encode())
        assert not grants.allows_filter(topic)


def test_a_line_is_never_split_as_a_share(tmp_path: Path) -> None:
    grants = read(tmp_path, "topic read $share/g/a/#\n").grants(None, "c")
    assert not grants.allows(READ, b"a/x")
    assert not grants.allows_filter("a/#")
    assert not grants.allows_filter("$share/g/a/#")
    assert grants.allows(READ, b"$share/g/a/x")


def test_lines_end_with_a_newline_alone_and_blanks_may_be_tabs(tmp_path: Path) -> None:
    text = "\ufeff# \u2028topic readwrite #\r\nuser\tada \r\n\ttopic  read\t a b \r\nuser c\x0buser d\r\ntopic read e"
    acl = read(tmp_path, text)
    assert not acl.grants(None, "c").allows(READ, b"x")
    assert acl.grants("ada", "c").allows(READ, b"a b")
    assert list(acl.users) == ["ada", "c\x0buser d"]
    assert acl.grants("c\x0buser d", "c").allows(READ, b"e")


def test_a_file_that_is_not_utf_8_is_named(tmp_path: Path) -> None:
    (tmp_path / "acl").write_bytes(b"topic read a\xff\n")
    with pytest.raises(InvalidAcl, match=r"acl, line 1: not UTF-8"):
        read_acl(tmp_path / "acl")


def test_whose_client_ids_are_whose(tmp_path: Path) -> None:
    acl = read(
        tmp_path, "client-id anon?\nuser ada\nclient-id ada\nclient-id ada-[1]*\nuser bob\ntopic read #\n"
    )
    allowed = {
        (user, client_id)
        for user in (None, "ada", "bob", "eve")
        for client_id in ("ada", "ada-[1]x", "ada-1", "anon1", "anon")
        if acl.may_be(user, client_id)
    }
    assert allowed == {(None, "anon1"), ("ada", "ada"), ("ada", "ada-[1]x")} | {
        (user, one) for user in ("bob", "eve") for one in ("ada", "ada-[1]x", "ada-1", "anon1", "anon")
    }


def test_remembered_answers_are_bounded_by_their_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "REMEMBERED_BYTES_MAX", 10_000)
    acl = read(tmp_path, "user ada\ntopic read a/#\nuser bob\ntopic read #\n")
    users = [acl.grants(user, "c") for user in ("ada", "bob", None)]
    for number in range(300):
        for grants in users:
            assert grants.allows(READ, b"a/%d" % number) == (grants is not users[2])
        assert sum(len(topic) + 200 for grants in users for _, topic in grants.answers) <= 10_000
    long = b"a/" + b"x" * 300
    assert users[0].allows(READ, long)
    assert (READ, long) not in users[0].answers
