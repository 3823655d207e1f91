"""Password and ACL files: what can be used is kept, what cannot is named."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace.mosquitto.files import can_verify, usable_acl, usable_passwords
from headrace.services.passwords import hash_password


def test_passwords(tmp_path: Path) -> None:
    file = tmp_path / "pw"
    file.write_text("# users\nann:$7$101$c2FsdA==$aGFzaA==\neve:geheim\n\nbob:$6$c2FsdA==$aGFzaA==\nnobody\n")
    lines, remarks = usable_passwords(file)
    assert lines == ["# users", "ann:$7$101$c2FsdA==$aGFzaA==", "", "bob:$6$c2FsdA==$aGFzaA=="]
    assert [remark.split(": ")[:2] for remark in remarks] == [
        [f"{file}:3", "user eve"],
        [f"{file}:6", "user nobody"],
    ]
    assert "geheim" not in "".join(remarks)


@pytest.mark.parametrize(
    ("hashed", "possible"),
    [
        (hash_password(b"x"), True),
        ("$7$1000$c2FsdA==$aGFzaA==", True),
        ("$7$0$c2FsdA==$aGFzaA==", False),
        ("$7$many$c2FsdA==$aGFzaA==", False),
        ("$7$101$c2FsdA==", False),
        ("$6$c2FsdA==$aGFzaA==", True),
        ("$6$%%$aGFzaA==", False),
        ("$5$c2FsdA==$aGFzaA==", False),
        ("$argon2id$nothing", False),
        ("plain", False),
        ("", False),
    ],
)
def test_a_hash_that_can_be_verified(hashed: str, possible: bool) -> None:
    assert can_verify(hashed) is possible


def test_acl(tmp_path: Path) -> None:
    file = tmp_path / "acl"
    file.write_text("topic read a/#\ntopik x\nuser bob\ntopic a#\npattern write dev/%u/#")
    lines, remarks, closing = usable_acl(file)
    assert lines == ["topic read a/#", "# topik x", "user bob", "# topic a#", "pattern write dev/%u/#"]
    assert [remark.split(": ")[0] for remark in remarks] == [f"{file}:2", f"{file}:4"]
    assert closing == [(2, "topik x")]


@pytest.mark.parametrize(
    ("line", "closes"),
    [
        ("topic read a#", False),
        ("pattern a+b", False),
        ("topic deny a#", True),
        ("pattern deny a#/b", True),
        ("usr bob", True),
        ("user", True),
        ("client-id", True),
    ],
)
def test_a_line_that_is_more_than_a_grant(tmp_path: Path, line: str, closes: bool) -> None:
    """Without it something that it forbids is allowed, or the next lines are another user's."""
    file = tmp_path / "acl"
    file.write_text(f"user ada\ntopic a/#\n{line}\ntopic b/#\n")
    assert usable_acl(file)[2] == ([(3, line)] if closes else [])
