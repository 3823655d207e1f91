"""`headrace config from-mosquitto`: a configuration of ours from mosquitto.conf."""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

import click

from headrace.config import examine
from headrace.errors import ConfigError
from headrace.mosquitto.converted import Converted
from headrace.ownership import make_directory, replace_secret

_PATH = click.Path(path_type=Path)
_CONFIGURATION, _PASSWORDS, _ACL = "headrace.toml", "passwords", "acl"


@click.command("from-mosquitto")
@click.argument("file", type=_PATH)
@click.option(
    "--out", "folder", type=_PATH, help="folder for headrace.toml and copies of password and ACL file"
)
@click.option(
    "--accept",
    "accepted",
    multiple=True,
    metavar="OPTION",
    help="leave this option out although it keeps somebody out; may be repeated",
)
@click.option("--force", is_flag=True, help="replace files that are in --out already")
def from_mosquitto(file: Path, folder: Path | None, accepted: tuple[str, ...], force: bool) -> None:
    """Make a configuration from FILE, a mosquitto.conf.

    It goes to stdout, or with the password and ACL files that it names into --out. Every line that has no counterpart is
    said on stderr, with its place and why. The listener, the bridge or all of it that would let in more than Mosquitto
    does is left out, and the exit status is 1: until you --accept the option that kept it closed."""
    from headrace.mosquitto.conversion import convert

    converted = convert(file, accepted)
    copies = _read_files(converted, folder)
    text = converted.toml()
    if folder is not None and converted.is_made:
        _refuse_to_replace(folder, [_CONFIGURATION, *copies], force)
    for remark in converted.remarks:
        click.echo(f"headrace: {remark}", err=True)
    if converted.is_made:
        _put(folder, {_CONFIGURATION: text, **copies})
    if converted.left_out or not converted.is_made:
        said = ", ".join(converted.left_out)
        made = "" if converted.is_made else "no configuration is made"
        click.echo("headrace: " + "; ".join(filter(None, [said and f"left out: {said}", made])), err=True)
        sys.exit(1)
    wrong = _errors(text)
    if wrong:
        raise ConfigError(f"what came out needs a change by hand: {wrong[0]}")


def _read_files(converted: Converted, folder: Path | None) -> dict[str, str]:
    """Return what goes into the copies of password and ACL file, by name, and let the configuration name them."""
    from headrace.mosquitto.files import usable_acl, usable_passwords

    copies: dict[str, str] = {}
    for key, name in (("access.password_file", _PASSWORDS), ("access.acl_file", _ACL)):
        file = converted.get(key)
        if file is None:
            continue
        closing: list[tuple[int, str]] = []
        try:
            if name == _ACL:
                lines, remarks, closing = usable_acl(Path(file))
            else:
                lines, remarks = usable_passwords(Path(file))
        except (OSError, UnicodeDecodeError) as error:
            reason = getattr(error, "strerror", None) or "not UTF-8"
            converted.remarks.append(f"{file}: {reason}: {key} names it as it is")
            continue
        converted.remarks += remarks
        _close(converted, file, closing)
        if folder is not None:
            copies[name] = "\n".join(lines).rstrip("\n") + "\n"
            converted.set(key, str((folder / name).absolute()))
        elif remarks:
            converted.remarks.append(
                f"{file}: with these lines it cannot be used; --out makes a copy without them"
            )
    return copies


def _close(converted: Converted, file: str, closing: list[tuple[int, str]]) -> None:
    """Make nothing where lines of the ACL file that forbid something, or say whose the next lines are, are lost."""
    for number, text in closing:
        if "acl_file" not in converted.accepted:
            converted.is_made = False
            converted.left_out = ["everything"]
            converted.remarks.append(
                f"{file}:{number}: {text}: without this line more would be allowed; mend it, or say --accept acl_file"
            )


def _refuse_to_replace(folder: Path, names: list[str], force: bool) -> None:
    there = [str(folder / name) for name in names if os.path.lexists(folder / name)]
    if there and not force:
        raise ConfigError(f"{', '.join(there)}: there already; --force replaces what is there")


def _put(folder: Path | None, files: dict[str, str]) -> None:
    """Write the files into the folder and say where the configuration is; without a folder print it."""
    if folder is None:
        click.echo(files[_CONFIGURATION], nl=False)
        return
    make_directory(folder)
    for name, text in files.items():
        replace_secret(folder / name, text)
    click.echo(str(folder / _CONFIGURATION))


def _errors(text: str) -> list[str]:
    with tempfile.TemporaryDirectory(prefix="headrace-") as folder:
        made = Path(folder) / _CONFIGURATION
        made.write_text(text, encoding="utf-8")
        return [str(error) for error in examine(made, environment={})[1]]
