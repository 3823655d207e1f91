"""`headrace passwd`: users of a password file."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import IO

import click

from headrace.ownership import is_roots_alone
from headrace.services.passwords import hash_password, is_user_name, set_hash


@click.command("passwd")
@click.argument("file", type=click.Path(path_type=Path))
@click.argument("user")
@click.option("-b", "--password", help="instead of asking; others may see it in the list of processes")
@click.option(
    "--password-file",
    type=click.File("rb"),
    help="its first line is the password, instead of asking; - is stdin",
)
@click.option("-D", "--delete", is_flag=True, help="delete the user")
def passwd(
    file: Path, user: str, password: str | None, password_file: IO[bytes] | None, delete: bool
) -> None:
    """Set USER's password in a password FILE, which is made if it is not there."""
    if not is_user_name(user):
        raise click.BadParameter(
            "a user name has no colon, no control character, no space around it, no # in front",
            param_hint="USER",
        )
    if delete:
        if not set_hash(file, user, None):
            raise click.ClickException(f"{file} has no user {user!r}")
        return
    if password is not None and password_file is not None:
        raise click.UsageError("give one of --password, --password-file")
    secret = _secret(password, password_file)
    set_hash(file, user, hash_password(secret))
    if is_roots_alone(file):
        click.echo(
            f"headrace passwd: {file} can be read by root alone; for a service: "
            f"chgrp headrace {file} && chmod 640 {file}",
            err=True,
        )


def _secret(password: str | None, password_file: IO[bytes] | None) -> bytes:
    if password_file is not None:
        return bytes(password_file.readline()).rstrip(b"\r\n")
    if password is None:
        password = click.prompt("Password", hide_input=True, confirmation_prompt=True)
    return str(password).encode(sys.getfilesystemencoding(), "surrogateescape")
