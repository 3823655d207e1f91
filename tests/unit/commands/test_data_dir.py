"""Every command that looks into a data directory says so when there is none, and finds that of the package."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from broker_process import free_port
from headrace.commands.main import cli
from headrace.config import examine
from headrace.journal.consumers import ConsumerPosition

pytestmark = pytest.mark.interpreted
CONTRIB = Path(__file__).resolve().parents[3] / "contrib"
MAKES_IT = {"restore", "serve"}


def commands(
    group: click.Group, path: tuple[str, ...] = ()
) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    context = click.Context(group)
    for name in group.list_commands(context):
        if name == "pipeline":  # its jobs begin Spark before anything
            continue
        command = group.get_command(context, name)
        assert command is not None
        if isinstance(command, click.Group):
            yield from commands(command, (*path, name))
        else:
            yield (*path, name), command


def looking() -> Iterator[tuple[str, ...]]:
    """The commands that look into a data directory, with something for each argument and option that they need."""
    for path, command in commands(cli):
        names = {parameter.name for parameter in command.params}
        if "data_dir" not in names or path[-1] in MAKES_IT:
            continue
        needed = [one for one in command.params if one.required]
        words = []
        for one in needed:
            words += [one.opts[0]] if isinstance(one, click.Option) else []
            words.append("2" if one.name in ("shard", "shards") else "something")
        yield (*path, *words)


LOOKING = list(looking())


def test_they_are_found() -> None:
    assert len(LOOKING) >= 11
    assert ("consumer", "list") in LOOKING


@pytest.mark.parametrize("command", LOOKING, ids=" ".join)
def test_a_directory_that_is_not_there_is_no_empty_answer(
    tmp_path: Path, command: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    configuration = tmp_path / "headrace.toml"
    configuration.write_text(f'data_dir = "{tmp_path}/named"')
    for options, place in (
        ((), "headrace-data"),
        (("--data-dir", "given"), "given"),
        (
            ("--config", str(configuration)),
            f"there is no directory {tmp_path}/named",
        ),
    ):
        said = CliRunner().invoke(cli, [*command, *options])
        assert (said.exit_code, place in said.output) == (2, True), said.output
    assert os.listdir(tmp_path) == ["headrace.toml"]


@pytest.mark.parametrize("command", LOOKING, ids=" ".join)
def test_neither_is_one_without_a_journal(tmp_path: Path, command: tuple[str, ...]) -> None:
    (tmp_path / "d").mkdir()
    said = CliRunner().invoke(cli, [*command, "--data-dir", str(tmp_path / "d")])
    assert said.exit_code != 0
    assert str(tmp_path / "d") in said.output + str(said.exception)


def test_a_configuration_that_names_it_is_enough(tmp_path: Path) -> None:
    (tmp_path / "journal").mkdir()
    ConsumerPosition.register(tmp_path, "job", "0" * 32, 1, 3)
    configuration = tmp_path / "headrace.toml"
    configuration.write_text(f'data_dir = "{tmp_path}"')
    said = CliRunner().invoke(cli, ["consumer", "list", "--config", str(configuration)])
    assert re.fullmatch(r"job  offset 3  moved \d+ s ago  nobody\n", said.output)


def test_who_asks_a_broker_needs_no_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    said = CliRunner().invoke(
        cli, ["consumer", "remove", "job", "--admin", f"http://127.0.0.1:{free_port()}"]
    )
    assert "no directory" not in said.output
    assert said.exit_code == 1


# What the package brings


@pytest.mark.parametrize(("folder", "unit"), [("systemd", True), ("docker", False)])
def test_the_packaged_configuration_names_the_directory_of_the_service(folder: str, unit: bool) -> None:
    assert examine(CONTRIB / folder / "headrace.toml", environment={})[0].data_dir == "/var/lib/headrace"
    if unit:
        service = (CONTRIB / "systemd/headrace.service").read_text("utf-8")
        assert re.findall(r"--data-dir (\S+)", service.replace("%S", "/var/lib")) == ["/var/lib/headrace"]


def test_commands_in_a_pod_find_the_directory_of_its_broker() -> None:
    text = (CONTRIB / "helm/headrace/templates/statefulset.yaml").read_text("utf-8")
    [served] = re.findall(r'"--data-dir", "([^"]+)"', text)
    assert re.findall(r"name: HEADRACE_DATA_DIR\n +value: (\S+)", text) == [served]


@pytest.mark.parametrize("overridden", [False, True])
def test_the_package_gives_its_folder_the_group_of_the_service(tmp_path: Path, overridden: bool) -> None:
    """postinst, with what it calls replaced by notes of the calls; an administrator's own mode stays."""
    for name in ("systemd-sysusers", "systemctl", "chgrp", "chmod", "dpkg-statoverride"):
        end = f"exit {int(not overridden)}" if name == "dpkg-statoverride" else ""
        (tmp_path / name).write_text(f'#!/bin/sh\necho "{name} $*" >>"{tmp_path}/called"\n{end}\n')
        (tmp_path / name).chmod(0o755)
    environment = {"PATH": f"{tmp_path}:/usr/bin:/bin"}
    subprocess.run(
        ["/bin/sh", CONTRIB / "debian/postinst", "configure"], env=environment, check=True, timeout=30
    )
    called = (tmp_path / "called").read_text().splitlines()
    assert called[0] == "systemd-sysusers headrace.conf"
    given = ["chgrp headrace /etc/headrace", "chmod 2750 /etc/headrace"]
    assert [line for line in called if line.startswith("ch")] == ([] if overridden else given)
