"""`headrace directory`: the tables of a directory, and what was changed in it. And what all commands about it share.

The database is imported when a command opens it: `headrace --help` knows every command, and needs no extra.
"""

from __future__ import annotations

import json
import os
import platform
import pwd
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import wraps
from typing import TYPE_CHECKING, Any, TypeVar, cast

import click

from headrace.commands.storage import ends_with_its_reader
from headrace.commands.watch import or_of_a_broker
from headrace.console.admin import AdminClient
from headrace.console.tenants import RemoteStore
from headrace.directory.entries import Actor
from headrace.directory.names import NUMBER_MAX, shown

if TYPE_CHECKING:
    from headrace.directory.store import Store

Command = TypeVar("Command", bound=Callable[..., Any])
Where = str | AdminClient  # a directory, or the broker that has it
_MIGRATION_S = 3600  # that a statement of a migration may take

_directory = click.option(
    "--directory",
    "url",
    metavar="URL",
    help="sqlite:///DIR/directory.sqlite, postgresql://USER@HOST/NAME or mysql://USER@HOST/NAME; "
    "?password_file=FILE has a password",
)


def of_a_directory(command: Command) -> Command:
    """Add the option that says which directory: the command gets `url`."""

    @wraps(command)
    def opening(*arguments: Any, url: str | None, **options: Any) -> Any:
        if url is None:
            raise click.UsageError("Missing option '--directory'.")
        return command(*arguments, url=url, **options)

    return _directory(cast(Command, opening))


def of_a_directory_or_broker(command: Command) -> Command:
    """Add the options that say which directory, or which broker is to ask its own: the command gets `url`, which is that
    of a directory or a client of the broker."""

    @wraps(command)
    def opening(*arguments: Any, url: str | None, client: AdminClient | None, **options: Any) -> Any:
        if url is None and client is None:
            raise click.UsageError("Missing option '--directory', or '--admin' of a broker that runs.")
        if url is not None and client is not None:
            raise click.UsageError("give one of --directory, --admin")
        return command(*arguments, url=client or url, **options)

    return _directory(or_of_a_broker(cast(Command, opening)))


as_json = click.option("--json", "as_json", is_flag=True, help="a JSON object a line")
if_revision = click.option(
    "--if-revision", type=int, help="change it only if nobody has since this revision of it"
)


@contextmanager
def opened(url: Where, *, make: bool = False) -> Iterator[Store]:
    """Open the directory at a URL, which `make` makes if there is none, or that of a broker, and close it."""
    if isinstance(url, AdminClient):
        yield cast("Store", RemoteStore(url))  # which has what those commands use that ask brokers
        return
    with _extra_named():
        from headrace.directory.store import open_store

    store = open_store(url, make=make)
    try:
        yield store
    finally:
        store.close()


@contextmanager
def _extra_named() -> Iterator[None]:
    """Name the extra that brings what cannot be imported. Raises ClickException."""
    try:
        yield
    except ModuleNotFoundError as error:
        raise click.ClickException(f"this needs {error.name}: pip install 'headrace[directory]'") from error


def actor() -> Actor:
    """Return who types this, for the table of changes: the user of this machine, and the machine."""
    try:
        who = pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        who = f"uid {os.getuid()}"
    return Actor(who, f"command line of {platform.node()}")


def moment(us: int) -> str:
    """Return a moment as UTC in ISO 8601."""
    return datetime.fromtimestamp(us // 1_000_000, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def end(us: int) -> str:
    """Return until when something holds; 0: without end."""
    return f"until {moment(us)}" if us else "without end"


def row(**fields: object) -> str:
    """Return an entry as one JSON object."""
    return json.dumps(fields, ensure_ascii=False)


@click.group()
def directory() -> None:
    """The tables of a directory of tenants, and what was changed in it."""


@directory.command("migrate")
@of_a_directory
def migrate_command(url: str) -> None:
    """Make the tables, or bring those of an older headrace forward, once no broker of that one uses them."""
    with _extra_named():
        from headrace.directory.engine import Patience, engine_of, make_file, url_of
        from headrace.directory.migrating import Migrator

    found = url_of(url)
    make_file(found)
    engine = engine_of(found, Patience(statement_s=_MIGRATION_S))
    try:
        before, now = Migrator(engine).migrate()
    finally:
        engine.dispose()
    click.echo(f"the tables are of version {now}" + ("" if before == now else f", before: {before}"))


@directory.command("changes")
@click.option(
    "--since",
    type=click.IntRange(0, NUMBER_MAX),
    default=0,
    help="revision behind which they begin  [default: 0]",
)
@click.option("--tenant", help="of this one alone")
@as_json
@of_a_directory
@ends_with_its_reader
def changes_command(since: int, tenant: str | None, as_json: bool, url: str) -> None:
    """Print what was changed, a line each, the oldest first: revision, time, who, from where, what, of which tenant."""
    with opened(url) as store:
        while found := store.changes.since(since, tenant=tenant):
            since = found[-1].revision
            for one in found:
                about = shown(f"{one.tenant}/{one.subject}" if one.subject else one.tenant)
                detail = json.dumps(one.detail, ensure_ascii=False) if one.detail else ""
                click.echo(
                    row(
                        revision=one.revision,
                        at_us=one.at_us,
                        who=one.who,
                        came_from=one.came_from,
                        what=one.what,
                        tenant=one.tenant,
                        subject=one.subject,
                        detail=one.detail,
                    )
                    if as_json
                    else f"{one.revision}  {moment(one.at_us)}  {shown(one.who)}  {shown(one.came_from)}  "
                    f"{one.what}  {about}  {shown(detail)}".rstrip()
                )
