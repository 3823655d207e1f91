"""`headrace tenant` and `headrace quota`: the tenants of a directory, and what all of a tenant's clients may use."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import click
import msgspec

from headrace.commands.directory import (
    Where,
    actor,
    as_json,
    if_revision,
    moment,
    of_a_directory_or_broker,
    opened,
    row,
)
from headrace.commands.storage import ends_with_its_reader
from headrace.directory.errors import InvalidField


@click.group()
def tenant() -> None:
    """Tenants: each has users, rules, limits, topics and sessions of its own."""


@tenant.command("create")
@click.argument("name")
@of_a_directory_or_broker
def create_command(name: str, url: Where) -> None:
    """Make tenant NAME: 1 to 63 of a-z, 0-9 and -. Makes the directory too if there is none."""
    with opened(url, make=True) as store:
        store.tenants.create(actor(), name)
    click.echo(f"tenant {name} is there; its users may nothing yet: headrace acl add {name} --allow all '#'")


@tenant.command("list")
@as_json
@of_a_directory_or_broker
@ends_with_its_reader
def list_command(as_json: bool, url: Where) -> None:
    """Print a line for each tenant: name, state, since when."""
    with opened(url) as store:
        for one in store.tenants.all():
            line = f"{one.name}  {one.state}  since {moment(one.created_us)}"
            about = {"name": one.name, "state": one.state, "created_us": one.created_us}
            click.echo(row(**about, revision=one.revision) if as_json else line)


@tenant.command("show")
@click.argument("name")
@of_a_directory_or_broker
@ends_with_its_reader
def show_command(name: str, url: Where) -> None:
    """Print everything about tenant NAME but its users and rules, as JSON."""
    with opened(url) as store:
        found = store.tenants.get(name)
        about = {
            "name": found.name,
            "state": found.state,
            "created": moment(found.created_us),
            "revision": found.revision,
            "users": store.tenants.users(name),
            "rules": len(store.rules.all(name)),
            "quotas": store.tenants.quotas(name),
            "settings": store.tenants.settings(name),
        }
    click.echo(json.dumps(about, indent=2))


@tenant.command("disable")
@click.argument("name")
@if_revision
@of_a_directory_or_broker
def disable_command(name: str, if_revision: int | None, url: Where) -> None:
    """Let nobody of tenant NAME in any more; what it has stays."""
    with opened(url) as store:
        store.tenants.disable(actor(), name, if_revision)


@tenant.command("enable")
@click.argument("name")
@if_revision
@of_a_directory_or_broker
def enable_command(name: str, if_revision: int | None, url: Where) -> None:
    """Let the users of tenant NAME in again."""
    with opened(url) as store:
        store.tenants.enable(actor(), name, if_revision)


@tenant.command("delete")
@click.argument("name")
@if_revision
@of_a_directory_or_broker
def delete_command(name: str, if_revision: int | None, url: Where) -> None:
    """Delete tenant NAME with its users, rules and tokens. The name stays taken until it is released."""
    with opened(url) as store:
        store.tenants.delete(actor(), name, if_revision)
    click.echo(
        f"tenant {name} is being deleted; `headrace tenant release {name} --force` gives its name free"
    )


@tenant.command("release")
@click.argument("name")
@click.option(
    "--force",
    is_flag=True,
    help="although a new tenant NAME would have what brokers still hold of the old one",
)
@of_a_directory_or_broker
def release_command(name: str, force: bool, url: Where) -> None:
    """Give the name of a deleted tenant free, with --force.

    Brokers that run remove what they have of a deleted tenant, others when they run again, if the name is not given free
    before: then whoever is made under it finds sessions, with what waits in them, and retained messages.
    """
    if not force:
        raise click.ClickException(
            f"brokers may still have sessions and retained messages of {name}, which a new tenant of that name would "
            f"get: once `headrace session list` shows none of them on each, release it with --force"
        )
    with opened(url) as store:
        store.tenants.release(actor(), name)


@tenant.command("set")
@click.argument("name")
@click.argument("settings", nargs=-1, required=True, metavar="SETTING=VALUE...")
@if_revision
@of_a_directory_or_broker
def set_command(name: str, settings: tuple[str, ...], if_revision: int | None, url: Where) -> None:
    """Set settings of tenant NAME, and print all that it has; `default` takes one away."""
    with opened(url) as store:
        found = store.tenants.set_settings(actor(), name, pairs(settings, "setting"), if_revision)
    for key, value in found.items():
        click.echo(f"{key}={value}")


_CSV = click.option(
    "--csv", "part", type=click.Choice(("users", "rules")), help="CSV of these instead of JSON of everything"
)


@tenant.command("export")
@click.argument("name")
@_CSV
@click.option("--hashes", is_flag=True, help="with the hashes of the passwords: keep the output secret")
@of_a_directory_or_broker
@ends_with_its_reader
def export_command(name: str, part: str | None, hashes: bool, url: Where) -> None:
    """Print tenant NAME as JSON: state, quotas, settings, users and rules, for `import`."""
    with opened(url) as store:
        document = store.documents.export(name, hashes)
    from headrace.directory.document_files import as_csv, as_json

    click.echo(as_json(document) if part is None else as_csv(document, part), nl=False)


@tenant.command("import")
@click.argument("name")
@click.argument("file", type=click.Path(path_type=Path, allow_dash=True))
@click.option("--prune", is_flag=True, help="users and rules that are not in FILE are deleted")
@click.option("--dry-run", is_flag=True, help="say what would be changed, and change nothing")
@click.option("--csv", "is_table", is_flag=True, help="FILE is CSV, which one called *.csv is in any case")
@of_a_directory_or_broker
def import_command(name: str, file: Path, prune: bool, dry_run: bool, is_table: bool, url: Where) -> None:
    """Have tenant NAME, which is made if it is not there, be as FILE says, as a whole or not at all; - is stdin.

    FILE is JSON as `export` prints it, where what is left out stays as it is, or CSV of users
    (name,state,groups,hash,password) or of rules (effect,actions,filter,kind,subject). Prints what was changed, as JSON:
    the second time nothing.
    """
    content = sys.stdin.buffer.read() if str(file) == "-" else _content(file)
    with opened(url, make=not dry_run) as store:
        from headrace.directory.document_files import is_csv, read_document

        document = read_document(content, str(file), is_table or is_csv(file))
        done = store.documents.bring_in(actor(), name, document, prune=prune, dry_run=dry_run)
    click.echo(json.dumps(msgspec.to_builtins(done), ensure_ascii=False))


def _content(file: Path) -> bytes:
    """Return what is in a file. Raises InvalidField."""
    try:
        return file.read_bytes()
    except OSError as error:
        raise InvalidField("FILE", f"{file}: {error.strerror}") from None


@click.group()
def quota() -> None:
    """Limits of a tenant, over all its clients."""


@quota.command("set")
@click.argument("name", metavar="TENANT")
@click.argument("quotas", nargs=-1, required=True, metavar="QUOTA=NUMBER...")
@if_revision
@of_a_directory_or_broker
def quota_set_command(name: str, quotas: tuple[str, ...], if_revision: int | None, url: Where) -> None:
    """Set quotas of TENANT, and print all that it has; `none` takes one away."""
    with opened(url) as store:
        found = store.tenants.set_quotas(actor(), name, pairs(quotas, "quota"), if_revision)
    for key, value in found.items():
        click.echo(f"{key}={value}")


@quota.command("show")
@click.argument("name", metavar="TENANT")
@of_a_directory_or_broker
@ends_with_its_reader
def quota_show_command(name: str, url: Where) -> None:
    """Print the quotas that TENANT has."""
    with opened(url) as store:
        store.tenants.get(name)
        for key, value in store.tenants.quotas(name).items():
            click.echo(f"{key}={value}")


def pairs(words: tuple[str, ...], field: str) -> dict[str, str]:
    """Return words like `connections=1000` by name. Raises InvalidField."""
    found: dict[str, str] = {}
    for word in words:
        key, sign, value = word.partition("=")
        if not sign:
            raise InvalidField(field, f"{word!r} is not written NAME=VALUE")
        if key in found:
            raise InvalidField(field, f"{key!r} is there twice")
        found[key] = value
    return found
