"""The password file: our hashes and mosquitto_passwd's."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

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


def test_a_verified_password_is_remembered_and_no_other() -> None:
    file = PasswordFile({"ada": hash_password(b"right")})
    assert not file.remembered("ada", b"right")
    assert not file.verify("ada", b"wrong")
    assert not file.remembered("ada", b"wrong")
    assert file.verify("ada", b"right")
    assert file.remembered("ada", b"right")
    assert not file.remembered("ada", b"wrong")
    assert not file.remembered("bob", b"right")


def test_an_unknown_user_costs_a_hash_too(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def matches(hashed: str, _: bytes) -> bool:
        asked.append(hashed)
        return False

    monkeypatch.setattr(passwords, "matches_hash", matches)
    assert not PasswordFile({}).verify("eve", b"x")
    assert len(asked) == 1
    assert asked[0].startswith("$argon2id$")


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
