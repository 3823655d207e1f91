"""Documents as files: what is written is read as the same, and what is wrong is named with its line."""

from __future__ import annotations

import pytest

from headrace.directory.document_files import as_csv, as_json, is_csv, read_document
from headrace.directory.documents import RuleDocument, TenantDocument, UserDocument
from headrace.directory.errors import InvalidField

USERS = [UserDocument("gw,1", groups=["g", "h h"]), UserDocument('"größe"', "disabled", hash="$7$x")]
RULES = [
    RuleDocument("allow", ["publish", "retain"], "up/%u/#"),
    RuleDocument("deny", ["subscribe"], "#", "user", "a b"),
]
DOCUMENT = TenantDocument("acme", "active", {"sessions": 1}, {}, USERS, RULES)


def test_json_has_everything() -> None:
    text = as_json(DOCUMENT)
    assert read_document(text.encode()) == DOCUMENT
    assert as_json(read_document(text.encode())) == text
    assert text.endswith("}\n")
    assert "password" not in text


def test_csv_has_users_or_rules() -> None:
    assert read_document(as_csv(DOCUMENT, "users").encode(), is_csv=True) == TenantDocument(users=USERS)
    assert read_document(as_csv(DOCUMENT, "rules").encode(), is_csv=True) == TenantDocument(rules=RULES)
    few = b"\xef\xbb\xbfname,password\r\nann,secret\r\n"  # as a spreadsheet writes it
    assert read_document(few, is_csv=True) == TenantDocument(users=[UserDocument("ann", password="secret")])
    assert read_document(b"name\n", is_csv=True) == TenantDocument(users=[])
    with pytest.raises(InvalidField, match="take JSON"):
        as_csv(TenantDocument(users=[UserDocument("a", groups=["a;b"])]), "users")


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "line 1"),
        (b"a,b\n1,2\n", "line 1"),
        (b"name,name\nx,y\n", "line 1"),
        (b"name,state\nx\n", "line 2"),
        (b"name,state\nx,active,z\n", "line 2"),
        (b"name,state\nx,active\ny,gone\n", "line 3"),
        (b"effect,actions\nallow,publish\n", "line 2.*filter"),
        (b'name\n"x\n', "line"),
        (b"name\n\xff\n", "byte 6 is not UTF-8"),
    ],
)
def test_what_is_wrong_with_csv_is_named(content: bytes, said: str) -> None:
    with pytest.raises(InvalidField, match=said):
        read_document(content, is_csv=True)


@pytest.mark.parametrize(
    "content", [b"", b"[]", b'{"users": [{}]}', b'{"user": []}', b'{"users": [{"name": 1}]}', b"\xff"]
)
def test_what_is_wrong_with_json_is_named(content: bytes) -> None:
    with pytest.raises(InvalidField):
        read_document(content)


def test_the_name_of_a_file_says_what_it_is() -> None:
    from pathlib import Path

    assert [is_csv(Path(name)) for name in ("a.csv", "a.CSV", "a.json", "csv")] == [True, True, False, False]
