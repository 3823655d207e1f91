"""`headrace user`: the users of the tenants of a directory."""

from __future__ import annotations

from pathlib import Path

import click

from headrace.commands.directory import (
    Where,
    actor,
    as_json,
    if_revision,
    moment,
    of_a_directory,
    of_a_directory_or_broker,
    opened,
    row,
)
from headrace.commands.storage import ends_with_its_reader
from headrace.directory.hash_files import read_hash_file
from headrace.directory.names import shown, tenant_and
from headrace.directory.secret_files import secret_of

named_user = click.argument("name", metavar="TENANT/USER")
password_file = click.option(
    "--password-file",
    "password_file",
    type=click.Path(path_type=Path, allow_dash=True),
    help="its first line is the password, instead of asking; - is stdin",
)


@click.group()
def user() -> None:
    """Users of a tenant, who sign in as TENANT/USER."""


@user.command("create")
@named_user
@password_file
@click.option("--group", "groups", multiple=True, help="a group that the user is of, may be repeated")
@of_a_directory_or_broker
def create_command(name: str, password_file: Path | None, groups: tuple[str, ...], url: Where) -> None:
    """Make a user with a password."""
    tenant, user = tenant_and(name, "user")
    secret = _secret(password_file)
    with opened(url) as store:
        store.users.create(actor(), tenant, user, secret, groups)


@user.command("password")
@named_user
@password_file
@if_revision
@of_a_directory_or_broker
def password_command(name: str, password_file: Path | None, if_revision: int | None, url: Where) -> None:
    """Give a user another password."""
    tenant, user = tenant_and(name, "user")
    secret = _secret(password_file)
    with opened(url) as store:
        store.users.set_password(actor(), tenant, user, secret, if_revision)


@user.command("list")
@click.argument("tenant")
@as_json
@of_a_directory_or_broker
@ends_with_its_reader
def list_command(tenant: str, as_json: bool, url: Where) -> None:
    """Print a line for each user of TENANT: name, whether it may come in, groups, since when."""
    with opened(url) as store:
        store.tenants.get(tenant)
        for one in store.users.all(tenant):
            state = "disabled" if one.disabled else "active"
            about = {"tenant": tenant, "name": one.name, "state": state, "groups": list(one.groups)}
            groups = f"  of {', '.join(map(shown, one.groups))}" if one.groups else ""
            line = f"{shown(one.name)}  {state}{groups}  since {moment(one.created_us)}"
            click.echo(row(**about, created_us=one.created_us, revision=one.revision) if as_json else line)


@user.command("disable")
@named_user
@if_revision
@of_a_directory_or_broker
def disable_command(name: str, if_revision: int | None, url: Where) -> None:
    """Let a user in no more; its sessions stay."""
    with opened(url) as store:
        store.users.disable(actor(), *tenant_and(name, "user"), if_revision)


@user.command("enable")
@named_user
@if_revision
@of_a_directory_or_broker
def enable_command(name: str, if_revision: int | None, url: Where) -> None:
    """Let a user in again."""
    with opened(url) as store:
        store.users.enable(actor(), *tenant_and(name, "user"), if_revision)


@user.command("delete")
@named_user
@if_revision
@of_a_directory_or_broker
def delete_command(name: str, if_revision: int | None, url: Where) -> None:
    """Delete a user with the rules about it."""
    with opened(url) as store:
        store.users.delete(actor(), *tenant_and(name, "user"), if_revision)


@user.command("join")
@named_user
@click.argument("group")
@of_a_directory
def join_command(name: str, group: str, url: str) -> None:
    """Have a user be of GROUP, which is made if it is not there."""
    with opened(url) as store:
        store.users.join(actor(), *tenant_and(name, "user"), group)


@user.command("leave")
@named_user
@click.argument("group")
@of_a_directory
def leave_command(name: str, group: str, url: str) -> None:
    """Have a user be of GROUP no more."""
    with opened(url) as store:
        store.users.leave(actor(), *tenant_and(name, "user"), group)


@user.command("import")
@click.argument("tenant")
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--replace", is_flag=True, help="users that are there get the password of the file")
@of_a_directory
def import_command(tenant: str, file: Path, replace: bool, url: str) -> None:
    """Make users of TENANT from the lines `user:hash` of FILE: a password file of headrace or Mosquitto, hashes of bcrypt
    or PBKDF2. All of them or none."""
    hashes = read_hash_file(file)
    with opened(url) as store:
        count = store.users.import_hashes(actor(), tenant, hashes, replace)
    click.echo(f"{count} users")


def _secret(file: Path | None) -> bytes:
    if file is not None:
        return secret_of(file, "--password-file")
    found: str = click.prompt("Password", hide_input=True, confirmation_prompt=True)
    return found.encode("utf-8", "surrogateescape")
