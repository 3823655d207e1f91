"""`headrace passwd`."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from headrace.services.passwd import passwd
from headrace.services.passwords import matches_hash, read_hashes

HASH = "$7$101$c2FsdA==$aGFzaA=="
FILE = f"# users of the plant\n\nada:{HASH}\n# temporary:\n  bob:{HASH}  \n\ncarl:{HASH}"
SLOW = """
import sys
from headrace.services.passwords import set_hash
from pathlib import Path
for number in range(int(sys.argv[3])):
    set_hash(Path(sys.argv[1]), f"{sys.argv[2]}-{number}", "$7$101$c2FsdA==$aGFzaA==")
"""


def test_set_ask_change_and_delete(tmp_path: Path) -> None:
    run, file = CliRunner(), tmp_path / "p"
    assert run.invoke(passwd, [str(file), "ada", "-b", "old"]).exit_code == 0
    assert file.stat().st_mode & 0o777 == 0o600
    assert run.invoke(passwd, [str(file), "bob"], input="hidden\nhidden\n").exit_code == 0
    assert run.invoke(passwd, [str(file), "ada", "-b", "new"]).exit_code == 0
    hashes = read_hashes(file)
    assert list(hashes) == ["ada", "bob"]
    assert matches_hash(hashes["ada"], b"new")
    assert matches_hash(hashes["bob"], b"hidden")
    assert run.invoke(passwd, [str(file), "ada", "-D"]).exit_code == 0
    assert list(read_hashes(file)) == ["bob"]
    assert run.invoke(passwd, [str(file), "ada", "-D"]).exit_code == 1
    assert run.invoke(passwd, [str(tmp_path / "none"), "ada", "-D"]).exit_code == 1
    assert not (tmp_path / "none").exists()


def test_the_password_comes_from_a_file_or_from_stdin(tmp_path: Path) -> None:
    run, file, secret = CliRunner(), tmp_path / "p", tmp_path / "secret"
    secret.write_bytes(b"first line\nsecond\n")
    assert run.invoke(passwd, [str(file), "ada", "--password-file", str(secret)]).exit_code == 0
    assert run.invoke(passwd, [str(file), "bob", "--password-file", "-"], input="piped\n").exit_code == 0
    assert matches_hash(read_hashes(file)["ada"], b"first line")
    assert matches_hash(read_hashes(file)["bob"], b"piped")
    both = [str(file), "ada", "--password-file", str(secret), "-b", "x"]
    assert run.invoke(passwd, both).exit_code == 2


@pytest.mark.parametrize(
    "user",
    ["a:b", " a", "#a", "", "a\nb:c", "a\rb", "a\tb", "a\x00", "a\x85b", "a\u2028b", "a\udcffb", "a\x1cb"],
)
def test_names_that_the_file_cannot_hold(tmp_path: Path, user: str) -> None:
    assert CliRunner().invoke(passwd, [str(tmp_path / "p"), user, "-b", "x"]).exit_code == 2
    assert not (tmp_path / "p").exists()


def test_all_other_lines_stay_as_and_where_they_are(tmp_path: Path) -> None:
    file = tmp_path / "p"
    file.write_text(FILE)
    assert CliRunner().invoke(passwd, [str(file), "bob", "-b", "new"]).exit_code == 0
    assert CliRunner().invoke(passwd, [str(file), "dora", "-b", "new"]).exit_code == 0
    before, after = FILE.split("\n"), file.read_text().split("\n")
    assert after[:4] + after[5:7] == before[:4] + before[5:7]
    assert [line.partition(":")[0] for line in (after[4], after[7])] == ["bob", "dora"]
    assert CliRunner().invoke(passwd, [str(file), "bob", "-D"]).exit_code == 0
    assert file.read_text().split("\n")[:4] == before[:4]
    assert list(read_hashes(file)) == ["ada", "carl", "dora"]


def test_a_user_who_stands_there_twice_is_changed_and_deleted(tmp_path: Path) -> None:
    file = tmp_path / "p"
    file.write_text(f"ada:{HASH}\nbob:{HASH}\nada:{HASH}\n")
    assert CliRunner().invoke(passwd, [str(file), "ada", "-b", "new"]).exit_code == 0
    assert matches_hash(read_hashes(file)["ada"], b"new")
    file.write_text(f"ada:{HASH}\nbob:{HASH}\nada:{HASH}\n")
    assert CliRunner().invoke(passwd, [str(file), "ada", "-D"]).exit_code == 0
    assert list(read_hashes(file)) == ["bob"]


def test_mode_and_symbolic_link_stay(tmp_path: Path) -> None:
    (tmp_path / "etc").mkdir()
    file, link = tmp_path / "etc" / "users", tmp_path / "p"
    file.write_text(FILE)
    file.chmod(0o640)
    link.symlink_to("etc/users")
    assert CliRunner().invoke(passwd, [str(link), "ada", "-b", "new"]).exit_code == 0
    assert link.is_symlink()
    assert file.stat().st_mode & 0o7777 == 0o640
    assert matches_hash(read_hashes(file)["ada"], b"new")
    assert [path.name for path in (tmp_path / "etc").iterdir()] == ["users"]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may give files away")
def test_the_owner_stays(tmp_path: Path) -> None:
    file = tmp_path / "p"
    file.write_text(FILE)
    os.chown(file, 1234, 1235)
    assert CliRunner().invoke(passwd, [str(file), "ada", "-b", "new"]).exit_code == 0
    assert (file.stat().st_uid, file.stat().st_gid) == (1234, 1235)


def test_runs_in_parallel_lose_nobody(tmp_path: Path) -> None:
    file = tmp_path / "p"
    commands = [[sys.executable, "-c", SLOW, str(file), f"user{number}", "20"] for number in range(4)]
    processes = [subprocess.Popen(command) for command in commands]
    assert [process.wait(60) for process in processes] == [0] * 4
    assert len(read_hashes(file)) == 80


def test_what_is_no_text_is_said(tmp_path: Path) -> None:
    file = tmp_path / "p"
    file.write_bytes(b"ada:\xff\n")
    result = CliRunner().invoke(passwd, [str(file), "ada", "-b", "x"])
    assert "not UTF-8" in str(result.exception)
    assert file.read_bytes() == b"ada:\xff\n"
