"""`headrace drain`: a running broker lets no client in any more, and asks those away that are there, before it is
stopped."""

from __future__ import annotations

import json
import sys
import time

import click

from headrace.commands.watch import of_a_broker
from headrace.console.admin import AdminClient
from headrace.services.draining import RATE_MAX, REASONS

PATH = "/v1/drain"
LOOK_S = 0.5


@click.command()
@click.option(
    "--rate",
    type=click.IntRange(1, RATE_MAX),
    default=200,
    show_default=True,
    help="clients that are asked away in a second",
)
@click.option(
    "--reason",
    type=click.Choice(list(REASONS)),
    default="use_another_server",
    show_default=True,
    help="what clients of MQTT 5 are told (0x9C, 0x8B)",
)
@click.option("--wait", is_flag=True, help="until no client is left")
@click.option("--status", "is_status", is_flag=True, help="begin nothing: say how far it is")
@click.option("--undo", is_flag=True, help="let clients in again")
@of_a_broker
def drain(rate: int, reason: str, wait: bool, is_status: bool, undo: bool, client: AdminClient) -> None:
    """Let no client in, and ask those away that are there; print how far that is, as JSON.

    `/readyz` says that the broker is not ready meanwhile. Sessions stay, and so does what waits in them. Needs a token
    with the role `operate`, with --status `read`. Exit status 1 if --wait finds that somebody has ended the drain.
    """
    if undo + is_status + wait > 1:
        raise click.UsageError("--wait, --status and --undo exclude each other")
    if undo:
        client.ask("DELETE", PATH)
    elif not is_status:
        client.ask("POST", PATH, {"rate": rate, "reason": reason})
    found = client.get(PATH)
    until = time.monotonic() + 2 * LOOK_S + 1  # for workers that have not read of it yet
    while wait and (found["left"] or found["unanswered"]) and (found["draining"] or time.monotonic() < until):
        time.sleep(LOOK_S)
        found = client.get(PATH)
    click.echo(json.dumps(found, indent=2))
    if wait and not found["draining"]:
        sys.exit(1)
