"""`headrace status`, `top` and `trace`: a running broker seen through its admin HTTP."""

from __future__ import annotations

import json
import signal
import ssl
import sys
from collections.abc import Callable
from contextlib import suppress
from functools import wraps
from pathlib import Path
from typing import Any, TypeVar, cast

import click

from headrace.clients.options import FiniteRange
from headrace.commands.storage import ends_with_its_reader
from headrace.config import InvalidKey, endpoint, load
from headrace.console.admin import AdminClient, token_of

ADMIN = "http://127.0.0.1:18830"
Command = TypeVar("Command", bound=Callable[..., Any])
_FILE = click.Path(path_type=Path, exists=True, dir_okay=False)


def of_a_broker(command: Command) -> Command:
    """Add the options that say which broker, and what lets in there: the command gets `client`, which asks it."""

    @wraps(command)
    def asking(
        *arguments: Any,
        admin: str | None,
        config_file: Path | None,
        token_file: Path | None,
        ca_file: Path | None,
        **options: Any,
    ) -> Any:
        client = client_for(admin, config_file, token_file, ca_file)
        return command(*arguments, client=client, **options)

    return _with(
        cast(Command, asking),
        click.option("--admin", metavar="URL", help=f"its admin address  [default: {ADMIN}]"),
        click.option(
            "--config",
            "config_file",
            type=_FILE,
            help="take the admin address and the token file from the broker's configuration",
        ),
        click.option("--token-file", type=_FILE, help="file with a token of journal.token_file"),
        click.option("--ca-file", type=_FILE, help="PEM of who signs its certificate, for https"),
    )


def or_of_a_broker(command: Command) -> Command:
    """Add the options by which a command asks a broker instead of looking into a directory: it gets `client`, which asks
    the broker, None for a directory."""

    @wraps(command)
    def asking(
        *arguments: Any, admin: str | None, token_file: Path | None, ca_file: Path | None, **options: Any
    ) -> Any:
        client = None if admin is None else client_for(admin, None, token_file, ca_file)
        return command(*arguments, client=client, **options)

    return _with(
        cast(Command, asking),
        click.option(
            "--admin", metavar="URL", help="ask a broker at its admin address, instead of a directory"
        ),
        click.option(
            "--token-file", type=_FILE, help="with --admin: file with a token of journal.token_file"
        ),
        click.option(
            "--ca-file", type=_FILE, help="with --admin: PEM of who signs its certificate, for https"
        ),
    )


def _with(command: Command, *options: Callable[[Command], Command]) -> Command:
    for option in reversed(options):
        command = option(command)
    return command


def client_for(
    admin: str | None, config_file: Path | None, token_file: Path | None, ca_file: Path | None
) -> AdminClient:
    """Return a client for these options. Raises InvalidKey, OSError."""
    if config_file is not None:
        config = load(config_file, [])
        admin = admin or config.admin or None
        if token_file is None and config.journal.token_file:
            token_file = Path(config.journal.token_file)
    found = endpoint("--admin", admin or ADMIN, "http", "https")
    context = None
    if found.scheme == "https":
        context = ssl.create_default_context(cafile=None if ca_file is None else str(ca_file))
    return AdminClient(found.host, found.port, context, "" if token_file is None else _token(token_file))


def _token(file: Path) -> str:
    """Return the token in a file. Raises InvalidKey for a file that has none, OSError."""
    try:
        token = token_of(file)
    except UnicodeDecodeError:
        raise InvalidKey("--token-file", f"{file} is no text in UTF-8") from None
    if not token:
        raise InvalidKey("--token-file", f"{file} has no token in it")
    return token


@click.command()
@click.argument("kind", type=click.Choice(["client", "topic", "address"]))
@click.argument("pattern")
@click.option("--seconds", type=FiniteRange(0, 3600, min_open=True), default=60.0, show_default=True)
@click.option("--json", "as_json", is_flag=True, help="a JSON object a line")
@of_a_broker
@ends_with_its_reader
def trace(
    kind: str,
    pattern: str,
    seconds: float,
    as_json: bool,
    client: AdminClient,
) -> None:
    """Show what some clients send and get, packet by packet, for a limited time.

    PATTERN is a shell pattern of client ids ("sensor-*"), a topic filter ("a/+/c"), or an address or network
    ("192.0.2.0/24"). Needs a token with the role `operate`.
    """
    from headrace.console.trace import follow

    follow(client, kind, pattern, seconds, as_json, click.echo)


@click.command()
@click.option("--json", "as_json", is_flag=True, help="one JSON object")
@of_a_broker
@ends_with_its_reader
def status(
    as_json: bool,
    client: AdminClient,
) -> None:
    """Show on one screen how a broker is. Exit 0 if it is well, 1 if it is not, or not reached."""
    from headrace.console.status import lines, look

    found = look(client)
    click.echo(json.dumps(found.as_dict(), indent=2) if as_json else "\n".join(lines(found)))
    sys.exit(0 if found.healthy else 1)


@click.command()
@click.option("--interval", type=FiniteRange(0.2, 3600), default=2.0, show_default=True, help="seconds")
@click.option(
    "-n", "--rounds", type=click.IntRange(0), default=0, help="end after so many  [default: Ctrl-C]"
)
@of_a_broker
def top(
    interval: float,
    rounds: int,
    client: AdminClient,
) -> None:
    """Watch a broker on the terminal: rates, latencies, slow and behind clients, backlogs, consumers.

    Needs the extra `headrace[progress]`; clients need a token with the role `read`.
    """
    try:
        from rich.console import Console

        from headrace.console.top import watch
    except ModuleNotFoundError as error:
        missing = str(error.name).partition(".")[0]
        raise click.ClickException(f"top needs {missing}: pip install 'headrace[progress]'") from error
    console = Console()
    if not console.is_terminal:
        raise click.ClickException("top needs a terminal; `headrace status --json` is for programs")
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # the terminal is given back whoever ends it
    with suppress(KeyboardInterrupt):
        watch(client, interval, rounds, console)
