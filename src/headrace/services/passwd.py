"""`headrace passwd`: users of a password file."""

from __future__ import annotations

from pathlib import Path

import click

from headrace.services.passwords import hash_password, read_hashes, write_hashes


@click.command("passwd")
@click.argument("file", type=click.Path(path_type=Path))
@click.argument("user")
@click.option("-b", "--password", help="instead of asking; others may see it in the list of processes")
@click.option("-D", "--delete", is_flag=True, help="delete the user")
def passwd(file: Path, user: str, password: str | None, delete: bool) -> None:
    """Set USER's password in a password FILE, which is made if it is not there."""
    if not user or ":" in user or user != user.strip() or user.startswith("#"):
        raise click.BadParameter(
            "a user name has no colon, no space around it, no # in front", param_hint="USER"
        )
    hashes = read_hashes(file) if file.exists() else {}
    if delete:
        if hashes.pop(user, None) is None:
            raise click.ClickException(f"{file} has no user {user!r}")
    else:
        if password is None:
            password = click.prompt("Password", hide_input=True, confirmation_prompt=True)
        hashes[user] = hash_password(password.encode("utf-8"))
    write_hashes(file, hashes)
