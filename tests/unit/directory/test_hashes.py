"""Hashes of passwords, ours and those that are imported."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Callable
from pathlib import Path

import bcrypt
import pytest

from headrace.directory.errors import InvalidField
from headrace.directory.hash_files import read_hash_file
from headrace.directory.hashes import OURS, checked_hash, cost_of, hashed, matches, nobody_of

SALT = b"0123456789abcdef"


def passlib(name: str, rounds: int, length: int, tag: str) -> str:
    digest = hashlib.pbkdf2_hmac(name, b"secret", SALT, rounds, length)
    salt, found = (base64.b64encode(raw).decode().rstrip("=").replace("+", ".") for raw in (SALT, digest))
    return f"{tag}${rounds}${salt}${found}"


def go_auth(name: str) -> str:
    digest = hashlib.pbkdf2_hmac(name, b"secret", b"c2FsdA==", 10)
    return f"PBKDF2${name}$10$c2FsdA==${base64.b64encode(digest).decode()}"


def mosquitto() -> str:
    digest = hashlib.pbkdf2_hmac("sha512", b"secret", SALT, 101)
    return f"$7$101${base64.b64encode(SALT).decode()}${base64.b64encode(digest).decode()}"


FOREIGN: dict[str, Callable[[], str]] = {
    "bcrypt": lambda: bcrypt.hashpw(b"secret", bcrypt.gensalt(4)).decode(),
    "bcrypt 2y": lambda: bcrypt.hashpw(b"secret", bcrypt.gensalt(4)).decode().replace("$2b$", "$2y$"),
    "passlib sha1": lambda: passlib("sha1", 7, 20, "$pbkdf2"),
    "passlib sha256": lambda: passlib("sha256", 7, 32, "$pbkdf2-sha256"),
    "passlib sha512": lambda: passlib("sha512", 7, 64, "$pbkdf2-sha512"),
    "go-auth sha256": lambda: go_auth("sha256"),
    "go-auth sha512": lambda: go_auth("sha512"),
    "mosquitto": mosquitto,
    "ours": lambda: hashed(b"secret"),
}


@pytest.mark.parametrize("kind", FOREIGN)
def test_every_kind_is_accepted_and_only_the_password_matches(kind: str) -> None:
    found = checked_hash(FOREIGN[kind]())
    assert matches(found, b"secret")
    assert not matches(found, b"Secret")
    assert not matches(found, b"")


@pytest.mark.parametrize("kind", FOREIGN)
def test_nobody_has_a_hash_of_the_same_cost(kind: str) -> None:
    cost = cost_of(FOREIGN[kind]())
    nobody = checked_hash(nobody_of(cost))
    assert cost_of(nobody) == cost
    assert not matches(nobody, b"secret")


def test_ours_is_what_the_password_file_has() -> None:
    assert cost_of(hashed(b"secret")) == OURS


def test_a_hash_of_passlib_s_own_documents() -> None:
    known = "$pbkdf2-sha256$6400$.6UI/S.nXIk8jcbdHx3Fhg$98jZicV16ODfEsEZeYPGHU3kbrUrvUEXOPimVSQDD44"
    assert matches(checked_hash(known), b"password")


@pytest.mark.parametrize(
    "wrong",
    [
        "",
        "secret",
        "$1$abc$def",
        "$2b$16$" + "a" * 53,
        "$2b$03$" + "a" * 53,
        "$2b$10$" + "a" * 52,
        "$pbkdf2-sha256$99999999$c2FsdA$c2FsdA",
        "$pbkdf2-sha256$0$c2FsdA$c2FsdA",
        "PBKDF2$md5$10$c2FsdA==$c2FsdA==",
        "PBKDF2$sha256$10$c2FsdA==$!!!",
        "$7$99999999$c2FsdA==$c2FsdA==",
        "$argon2id$v=19$m=99999999,t=2,p=1$c2FsdHNhbHQ$c2FsdHNhbHQ",
        "$argon2id$v=19$m=19456,t=9999,p=1$c2FsdHNhbHQ$c2FsdHNhbHQ",
        "$argon2id$v=19$m=19456,t=2,p=0$c2FsdHNhbHQ$c2FsdHNhbHQ",
        "é" * 20,
        "$2b$10$" + "a" * 2000,
    ],
)
def test_what_is_unknown_or_too_dear_is_refused_without_being_said(wrong: str) -> None:
    with pytest.raises(InvalidField) as caught:
        checked_hash(wrong)
    assert wrong == "" or wrong not in str(caught.value)


@pytest.mark.parametrize(
    "wrong", ["", "secret", "$2b$03$" + "a" * 53, "PBKDF2$sha256$10$c2FsdA==$!!!", "$7$x$y$z"]
)
def test_what_cannot_be_understood_matches_nothing(wrong: str) -> None:
    assert not matches(wrong, b"secret")


def test_a_bcrypt_password_of_more_than_72_bytes_is_what_bcrypt_makes_of_it() -> None:
    found = bcrypt.hashpw(b"x" * 72, bcrypt.gensalt(4)).decode()
    assert matches(found, b"x" * 80)
    assert not matches(found, b"x" * 71)


def test_files_of_hashes(tmp_path: Path) -> None:
    file = tmp_path / "passwd"
    file.write_text(f"# users\n\nanna:{mosquitto()}\r\nbob:{go_auth('sha256')}\nanna:{go_auth('sha512')}\n")
    assert read_hash_file(file) == {"anna": go_auth("sha512"), "bob": go_auth("sha256")}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (b"anna:plain-secret\n", "line 1: hash: is of no known form"),
        (b"\nanna\n", "line 2: line: is not written USER:HASH"),
        (b"\n\n:$7$\n", "line 3: user: is empty"),
        (b"\xff:x\n", "line 1: not UTF-8"),
        (b"", "has no user"),
    ],
)
def test_a_line_that_is_none_is_named_by_its_number(text: bytes, said: str, tmp_path: Path) -> None:
    file = tmp_path / "passwd"
    file.write_bytes(text)
    with pytest.raises(InvalidField) as caught:
        read_hash_file(file)
    assert str(caught.value) == f"FILE: {file}, {said}".replace(", has no", ": has no")
    assert "plain-secret" not in str(caught.value)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(InvalidField, match="No such file"):
        read_hash_file(tmp_path / "none")
