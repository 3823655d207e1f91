"""The password file: our hashes and mosquitto_passwd's."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
from argon2 import PasswordHasher
from argon2.exceptions import VerifyMismatchError

from headrace.services import passwords
from headrace.services.passwords import (
    InvalidPasswordFile,
    PasswordFile,
    hash_password,
    matches_hash,
    read_hashes,
    write_hashes,
)


def test_argon2id_with_19_mib_two_passes_one_lane() -> None:
    hashed = hash_password(b"secret")
    assert hashed.startswith("$argon2id$v=19$m=19456,t=2,p=1$")
    assert matches_hash(hashed, b"secret")
    assert not matches_hash(hashed, b"Secret")


@pytest.mark.mosquitto
@pytest.mark.skipif(shutil.which("mosquitto_passwd") is None, reason="needs mosquitto_passwd")
def test_lines_of_mosquitto_passwd(tmp_path: Path) -> None:
    file = tmp_path / "passwords"
    subprocess.run(
        ["mosquitto_passwd", "-c", "-b", str(file), "ada", "geheim é"], check=True, capture_output=True
    )
    hashed = read_hashes(file)["ada"]
    assert hashed.startswith("$7$")
    assert matches_hash(hashed, "geheim é".encode())
    assert not matches_hash(hashed, b"geheim")


def test_the_old_sha512_lines() -> None:
    # "secret" with the salt b"0123456789ab"
    digest = "qEXipeLbgxRlwd06QHfY5WITkUZg0jLg9SZbXzq3ifXjfj+v3GbJGrSfC5PA"
    hashed = "$6$MDEyMzQ1Njc4OWFi$" + digest + "g3UNCS+UFfbhUIZX4bmIAs330w=="
    assert matches_hash(hashed, b"secret")
    assert not matches_hash(hashed, b"Secret")


@pytest.mark.parametrize(
    "hashed", ["", "plain", "$7$x$y$z", "$7$101$MDEy", "$argon2id$v=19$broken", "$1$a$b", "$6$%$%"]
)
def test_what_is_no_hash_matches_nothing(hashed: str) -> None:
    assert not matches_hash(hashed, b"")


def test_a_verified_password_is_remembered_for_its_time_and_no_other() -> None:
    now = [0.0]
    file = PasswordFile({"ada": hash_password(b"right")}, 10.0, lambda: now[0])
    assert file.verify("ada", b"right")
    assert not file.remembered("ada", b"right")
    file.remember("ada", b"right")
    file.remember("eve", b"right")
    assert file.remembered("ada", b"right")
    assert not file.remembered("ada", b"wrong")
    assert not file.remembered("eve", b"right")  # what is remembered is bounded by the file
    now[0] = 10.0
    assert not file.remembered("ada", b"right")


def test_another_reading_remembers_who_has_the_same_line() -> None:
    old = {user: hash_password(b"right") for user in ("ada", "bob", "eve")}
    file = PasswordFile(old)
    for user in old:
        file.remember(user, b"right")
    again = PasswordFile({"ada": old["ada"], "bob": hash_password(b"right")})
    again.take_over(file)
    assert [again.remembered(user, b"right") for user in old] == [True, False, False]


SHA512 = "$6$MDEyMzQ1Njc4OWFi$" + "A" * 86 + "=="
PBKDF2 = "$7$101$MDEyMzQ1Njc4OWFi$" + "A" * 86 + "=="
OTHER_ARGON2 = "$argon2id$v=19$m=8,t=1,p=1$" + "A" * 22 + "$" + "A" * 43


def test_a_user_whom_nobody_knows_costs_a_hash_as_we_make_them() -> None:
    known, unknown = PasswordFile({"ann": hash_password(b"secret")}), PasswordFile({})
    assert known._costs.keys() == unknown._costs.keys()
    [hashed] = unknown._costs.values()
    with pytest.raises(VerifyMismatchError):  # a hash that was computed, not one that nobody understands
        PasswordHasher().verify(hashed, b"secret")


def test_every_user_costs_the_same_hashes_whoever_there_is(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def matches(hashed: str, _: bytes) -> bool:
        asked.append(hashed)
        return False

    monkeypatch.setattr(passwords, "matches_hash", matches)
    file = PasswordFile({"new": hash_password(b"x"), "old": SHA512, "older": PBKDF2, "other": OTHER_ARGON2})
    costs = set()
    for user in ("new", "old", "older", "other", "nobody"):
        asked.clear()
        file.verify(user, b"x")
        costs.add(tuple(hashed.rsplit("$", 2)[0] for hashed in asked))
    assert costs == {("$argon2id$v=19$m=19456,t=2,p=1", "$6", "$7$101", "$argon2id$v=19$m=8,t=1,p=1")}
    asked.clear()
    PasswordFile({}).verify("nobody", b"x")
    assert [hashed.rsplit("$", 2)[0] for hashed in asked] == ["$argon2id$v=19$m=19456,t=2,p=1"]


def test_only_the_user_s_own_hash_counts() -> None:
    digest = "qEXipeLbgxRlwd06QHfY5WITkUZg0jLg9SZbXzq3ifXjfj+v3GbJGrSfC5PA"
    old = "$6$MDEyMzQ1Njc4OWFi$" + digest + "g3UNCS+UFfbhUIZX4bmIAs330w=="
    many = {f"u{number}": f"$7${number}$MDEy${'A' * 86}==" for number in range(100, 110)}
    file = PasswordFile({"ada": hash_password(b"right"), "bob": old, **many})
    assert file.verify("ada", b"right")
    assert file.verify("bob", b"secret")
    assert not file.verify("bob", b"right")
    assert not file.verify("ada", b"secret")
    assert not file.verify("eve", b"right")
    assert not file.verify("u105", b"right")


def test_written_at_once_for_its_owner_only_and_read_back(tmp_path: Path) -> None:
    file = tmp_path / "passwords"
    hashes = {"ada": hash_password(b"a"), "bob": hash_password(b"b")}
    write_hashes(file, hashes)
    assert file.stat().st_mode & 0o777 == 0o600
    assert read_hashes(file) == hashes
    file.chmod(0o640)
    write_hashes(file, {"ada": hashes["ada"]})
    assert file.stat().st_mode & 0o777 == 0o640
    assert list(read_hashes(file)) == ["ada"]
    assert [path.name for path in tmp_path.iterdir()] == ["passwords"]


@pytest.mark.parametrize("line", ["ada", ":x", "ada:plain", "ada:"])
def test_a_bad_line_is_named_and_not_shown(tmp_path: Path, line: str) -> None:
    (tmp_path / "passwords").write_text(f"# fine\n{line}\n")
    with pytest.raises(InvalidPasswordFile, match="line 2") as raised:
        read_hashes(tmp_path / "passwords")
    assert "plain" not in str(raised.value)
