"""What root makes beside a service is the service's: every command that writes into its directories, and what it says."""

from __future__ import annotations

import os
import stat
import subprocess
from collections.abc import Callable
from pathlib import Path
from uuid import uuid4

import pytest
from click.testing import CliRunner

from headrace.commands.main import cli
from headrace.config import load
from headrace.journal.consumers import DIRECTORY, ConsumerPosition
from headrace.journal.disk import DISK
from headrace.offline.checking import problems
from headrace.ownership import hidden_from, make_directory, open_new, replace_secret
from headrace.services.passwords import hash_password, read_hashes, set_hash
from unit.journal.log_at import filled

pytestmark = [
    pytest.mark.interpreted,
    pytest.mark.skipif(os.geteuid() != 0, reason="only root may give files away"),
]
USER, GROUP = 4321, 4322
ROOT = (0, 0)
SERVICE = (USER, GROUP)


def owner(path: Path) -> tuple[int, int]:
    found = path.lstat()
    return found.st_uid, found.st_gid


def owners(folder: Path) -> set[tuple[int, int]]:
    return {owner(path) for path in (folder, *folder.rglob("*"))}


def give_all(folder: Path) -> None:
    for path in (folder, *folder.rglob("*")):
        os.chown(path, *SERVICE)


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """The data directory of a service, with a journal."""
    filled(tmp_path / "data", [])
    give_all(tmp_path / "data")
    return tmp_path / "data"


def run(*arguments: object) -> str:
    said = CliRunner().invoke(cli, [str(one) for one in arguments])
    assert said.exit_code == 0, (said.output, said.exception)
    return said.output


def test_a_backup_leaves_nothing_of_roots_in_the_data_directory(data: Path, tmp_path: Path) -> None:
    """A consumer is registered while it copies: `consumers` is made for that."""
    run("backup", tmp_path / "copy", "--data-dir", data)
    assert (data / DIRECTORY).is_dir()
    assert owners(data) == {SERVICE}
    assert owners(tmp_path / "copy") == {ROOT}


def test_what_root_has_left_before_is_given_back(data: Path, tmp_path: Path) -> None:
    (data / DIRECTORY).mkdir()
    assert owner(data / DIRECTORY) == ROOT
    run("backup", tmp_path / "copy", "--data-dir", data)
    assert owners(data) == {SERVICE}


def test_a_backup_and_a_restore_into_somebodys_directory_are_theirs(data: Path, tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    os.chown(home, 77, 78)
    run("backup", home / "new/copy", "--data-dir", data)
    assert owners(home) == {(77, 78)}
    run("restore", home / "new/copy", "--data-dir", home / "restored")
    run("reshard", "--data-dir", home / "restored", "--to", home / "sharded", "--shards", 2)
    assert owners(home) == {(77, 78)}


def test_commands_that_change_a_data_directory(data: Path) -> None:
    ConsumerPosition.register(data, "job", str(uuid4()), 1, 0, owner="job:1")
    run("consumer", "hand-over", "job", "--data-dir", data)
    run("journal", "repair", "--data-dir", data)
    run("journal", "verify", "--data-dir", data)
    run("consumer", "list", "--data-dir", data)
    run("session", "list", "--data-dir", data)
    assert owners(data) == {SERVICE}


@pytest.fixture
def links(data: Path, tmp_path: Path) -> Path:
    """What belongs to root, and names in the directory of the service that lead there."""
    secret = tmp_path / "shadow"
    secret.write_text("root:x")
    (data / "file").symlink_to(secret)
    (data / "dangling").symlink_to(tmp_path / "made")
    (data / "hard").hardlink_to(secret)
    return secret


@pytest.mark.parametrize("name", ["file", "dangling", "hard"])
@pytest.mark.parametrize("door", [DISK.open_or_create, DISK.create])
def test_root_follows_no_link_in_the_directory_of_another_user(
    data: Path, links: Path, name: str, door: Callable[[Path], int]
) -> None:
    with pytest.raises(OSError, match="link"):
        door(data / name)
    assert (links.read_text(), owner(links)) == ("root:x", ROOT)
    assert not (links.parent / "made").exists()
    os.chown(data, *ROOT)  # in a directory of root's own nobody else has put it there
    os.close(door(data / name))


def test_a_directory_of_roots_behind_a_link_is_not_given_away(data: Path, tmp_path: Path) -> None:
    (tmp_path / "roots").mkdir()
    (data / "folder").symlink_to(tmp_path / "roots")
    make_directory(data / "folder")
    assert owner(tmp_path / "roots") == ROOT


@pytest.mark.parametrize("name", ["file", "dangling", "hard"])
def test_secrets_that_root_writes_go_to_no_file_behind_a_link(data: Path, links: Path, name: str) -> None:
    replace_secret(data / name, "secret")
    assert (links.read_text(), owner(links)) == ("root:x", ROOT)
    assert not (links.parent / "made").exists()
    assert (data / name).read_text() == "secret"
    assert owner(data / name) == (SERVICE if name == "dangling" else ROOT)


@pytest.mark.parametrize("force", [[], ["--force"]])
def test_a_conversion_into_the_directory_of_another_user_follows_no_link(
    data: Path, links: Path, tmp_path: Path, force: list[str]
) -> None:
    conf = tmp_path / "mosquitto.conf"
    conf.write_text("listener 1883 127.0.0.1\nallow_anonymous true\n")
    (data / "headrace.toml").symlink_to(tmp_path / "made")
    said = CliRunner().invoke(cli, ["config", "from-mosquitto", str(conf), "--out", str(data), *force])
    assert (said.exit_code == 0) == bool(force), said.output
    assert not (tmp_path / "made").exists()
    assert (data / "headrace.toml").is_symlink() == (not force)


def test_nothing_is_given_away_in_roots_own_directories(tmp_path: Path) -> None:
    os.chown(tmp_path, 0, GROUP)
    os.close(open_new(tmp_path / "a", os.O_RDWR, 0o640))
    make_directory(tmp_path / "c/d")
    assert {*owners(tmp_path / "c"), owner(tmp_path / "a")} == {ROOT}


# Passwords


def service_reads(file: Path) -> bool:
    """Whether the user of the service can read a file."""
    done = subprocess.run(
        ["cat", file], user=USER, group=GROUP, extra_groups=[], capture_output=True, timeout=30, cwd="/"
    )
    return done.returncode == 0


def passable(folder: Path) -> Path:
    """Let others through to a folder of pytest's, which are for root alone."""
    for above in (folder, *folder.parents):
        above.chmod(above.stat().st_mode | 0o011)
    return folder


@pytest.mark.parametrize("group", [GROUP, 0])
def test_a_password_file_that_root_makes_is_read_by_the_service_alone(tmp_path: Path, group: int) -> None:
    """As the package leaves /etc/headrace: root's, with the group of the service."""
    etc = tmp_path / "etc"
    etc.mkdir()
    os.chown(etc, 0, group)
    etc.chmod(0o2750 if group else 0o755)
    passable(tmp_path)
    said = run("passwd", etc / "passwords", "ada", "-b", "x")
    mode = stat.S_IMODE((etc / "passwords").stat().st_mode)
    assert (mode, owner(etc / "passwords")) == ((0o640, (0, GROUP)) if group else (0o600, ROOT))
    assert service_reads(etc / "passwords") == bool(group)
    assert ("can be read by root alone" in said) == (not group)
    run("passwd", etc / "passwords", "bob", "-b", "y")  # and a replaced one stays what it is
    assert (stat.S_IMODE((etc / "passwords").stat().st_mode), owner(etc / "passwords")) == (mode, (0, group))


def test_a_password_file_in_the_directory_of_a_user_is_theirs(tmp_path: Path) -> None:
    os.chown(tmp_path, *SERVICE)
    set_hash(tmp_path / "p", "ada", hash_password(b"x"))
    assert owner(tmp_path / "p") == SERVICE
    assert stat.S_IMODE((tmp_path / "p").stat().st_mode) == 0o600
    assert list(read_hashes(tmp_path / "p")) == ["ada"]


# What `config check` says as root


def test_check_names_what_the_service_cannot_read(data: Path, tmp_path: Path) -> None:
    etc = passable(tmp_path) / "etc"
    etc.mkdir(mode=0o755)
    (etc / "passwords").write_text("")
    (etc / "acl").write_text("topic read a")
    (etc / "acl").chmod(0o640)
    (etc / "passwords").chmod(0o600)
    os.chown(etc / "acl", 0, GROUP)
    file = etc / "headrace.toml"
    file.write_text(
        f'data_dir = "{data}"\nlisteners = ["tcp://127.0.0.1:0"]\n'
        f'[access]\npassword_file = "{etc}/passwords"\nacl_file = "{etc}/acl"\n'
    )
    assert [line.partition(": ")[0] for line in problems(load(file))] == ["access.password_file"]
    os.chown(etc / "passwords", 0, GROUP)
    (etc / "passwords").chmod(0o640)
    assert problems(load(file)) == []
    etc.chmod(0o700)
    assert {line.partition(": ")[0] for line in problems(load(file))} == {
        "access.password_file",
        "access.acl_file",
    }


@pytest.mark.parametrize("mode", [0o600, 0o640, 0o604, 0o044, 0o400, 0o040, 0o004])
@pytest.mark.parametrize("whose", [(0, 0), (USER, 0), (0, GROUP), (USER, GROUP)])
def test_what_a_user_may_read_is_what_the_system_says(
    tmp_path: Path, mode: int, whose: tuple[int, int]
) -> None:
    file = passable(tmp_path) / "f"
    file.write_text("x")
    os.chown(file, *whose)
    file.chmod(mode)
    assert (hidden_from(USER, GROUP, file) is None) == service_reads(file)


def test_a_device_or_a_pipe_is_not_replaced_by_a_file_of_secrets(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with pytest.raises(OSError, match="is no regular file"):
        replace_secret(pipe, "secret")
    assert pipe.is_fifo()
    assert list(tmp_path.iterdir()) == [pipe]
