"""`headrace config from-mosquitto`: a configuration of ours from mosquitto.conf."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from pathlib import Path

import click

from headrace.config import examine
from headrace.errors import ConfigError
from headrace.mosquitto.converted import Converted

_PATH = click.Path(path_type=Path)
_SECRET_MODE = 0o600
Usable = Callable[[Path], tuple[list[str], list[str]]]


@click.command("from-mosquitto")
@click.argument("file", type=_PATH)
@click.option(
    "--out", "folder", type=_PATH, help="folder for headrace.toml and copies of password and ACL file"
)
def from_mosquitto(file: Path, folder: Path | None) -> None:
    """Make a configuration from FILE, a mosquitto.conf.

    It goes to stdout, or with the password and ACL files that it names into --out. Every line that has no counterpart is
    said on stderr, with its place and why."""
    from headrace.mosquitto.conversion import convert

    converted = convert(file)
    if folder is not None:
        folder.mkdir(parents=True, exist_ok=True)
    _take_files(converted, folder)
    text = converted.toml()
    for remark in converted.remarks:
        click.echo(f"headrace: {remark}", err=True)
    if folder is None:
        click.echo(text, nl=False)
    else:
        _write(folder / "headrace.toml", text)
        click.echo(str(folder / "headrace.toml"))
    wrong = _errors(text)
    if wrong:
        raise ConfigError(f"what came out needs a change by hand: {wrong[0]}")


def _take_files(converted: Converted, folder: Path | None) -> None:
    from headrace.mosquitto.files import usable_acl, usable_passwords

    kinds: dict[str, tuple[str, Usable]] = {
        "access.password_file": ("passwords", usable_passwords),
        "access.acl_file": ("acl", usable_acl),
    }
    for key, (name, usable) in kinds.items():
        file = converted.get(key)
        if file is None:
            continue
        try:
            lines, remarks = usable(Path(file))
        except (OSError, UnicodeDecodeError) as error:
            reason = getattr(error, "strerror", None) or "not UTF-8"
            converted.remarks.append(f"{file}: {reason}: {key} names it as it is")
            continue
        converted.remarks += remarks
        if folder is not None:
            _write(folder / name, "\n".join(lines).rstrip("\n") + "\n")
            converted.set(key, str((folder / name).absolute()))
        elif remarks:
            converted.remarks.append(
                f"{file}: with these lines it cannot be used; --out makes a copy without them"
            )


def _write(path: Path, text: str) -> None:
    """Write the file for its owner alone: there may be passwords in it."""
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, _SECRET_MODE)
    with os.fdopen(fd, "w", encoding="utf-8") as out:
        out.write(text)


def _errors(text: str) -> list[str]:
    with tempfile.TemporaryDirectory(prefix="headrace-") as folder:
        made = Path(folder) / "headrace.toml"
        made.write_text(text, encoding="utf-8")
        return [str(error) for error in examine(made, environment={})[1]]
