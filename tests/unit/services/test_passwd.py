"""`headrace passwd`."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from headrace.services.passwd import passwd
from headrace.services.passwords import matches_hash, read_hashes


def test_set_ask_change_and_delete(tmp_path: Path) -> None:
    run, file = CliRunner(), tmp_path / "p"
    assert run.invoke(passwd, [str(file), "ada", "-b", "old"]).exit_code == 0
    assert run.invoke(passwd, [str(file), "bob"], input="hidden\nhidden\n").exit_code == 0
    assert run.invoke(passwd, [str(file), "ada", "-b", "new"]).exit_code == 0
    hashes = read_hashes(file)
    assert list(hashes) == ["ada", "bob"]
    assert matches_hash(hashes["ada"], b"new")
    assert matches_hash(hashes["bob"], b"hidden")
    assert run.invoke(passwd, [str(file), "ada", "-D"]).exit_code == 0
    assert list(read_hashes(file)) == ["bob"]
    assert run.invoke(passwd, [str(file), "ada", "-D"]).exit_code == 1


@pytest.mark.parametrize("user", ["a:b", " a", "#a", ""])
def test_names_that_the_file_cannot_hold(tmp_path: Path, user: str) -> None:
    assert CliRunner().invoke(passwd, [str(tmp_path / "p"), user, "-b", "x"]).exit_code == 2
    assert not (tmp_path / "p").exists()
