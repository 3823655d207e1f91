"""`headrace bench`: load on any MQTT broker, with what came of it: rates, latency, losses, the broker's CPU.

One process on one loop. What is run is in `plan`, the runs are `steady`, `storm` and `away`.
"""

from __future__ import annotations

import json
import secrets
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click
import uvloop

from headrace.clients.away import Away
from headrace.clients.crew import Crew
from headrace.clients.endpoint import Endpoint
from headrace.clients.load import HEAD_BYTES
from headrace.clients.meter import Meter
from headrace.clients.options import VERSIONS, FiniteRange, endpoint_from
from headrace.clients.plan import MODES, Plan
from headrace.clients.processor import Processor
from headrace.clients.report import Result, faults
from headrace.clients.steady import Steady
from headrace.clients.storm import Storm
from headrace.errors import HeadraceError


class BenchFailed(click.ClickException):
    """The run could not be set up, or something was wrong with what came of it."""

    exit_code = 1


def _processor(_context: click.Context, _option: click.Parameter, value: str | None) -> Processor | None:
    """Return the processes that `--pid` names, which must be there."""
    if value is None:
        return None
    try:
        return Processor([int(pid) for pid in value.split(",")])
    except ValueError:
        raise click.BadParameter(f"{value!r} is no process id, nor several with commas between") from None
    except OSError:
        raise click.BadParameter(f"there is no such process: {value}") from None


_MESSAGES = "what each session has to wait for in mode backlog"


@click.command("bench")
@click.option("--url", default="tcp://127.0.0.1:1883", show_default=True, help="tcp, tls, ws or wss")
@click.option("--ca", default="", help="PEM: who signs the broker's certificate  [default: the system's]")
@click.option("--cert", default="", help="PEM: the clients' certificate")
@click.option("--key", default="", help="PEM: its key, if it is in a file of its own")
@click.option("--insecure", is_flag=True, help="do not check the broker's certificate")
@click.option("--mode", type=click.Choice(MODES), default="p2p", show_default=True)
@click.option("-n", "--pairs", type=click.IntRange(1, 9000), default=100, show_default=True)
@click.option("-q", "--qos", type=click.IntRange(0, 2), default=1, show_default=True)
@click.option("-w", "--window", type=click.IntRange(1, 1000), default=1, show_default=True)
@click.option("--rate", type=FiniteRange(0), default=0.0, help="messages a second in all; 0: closed loop")
@click.option("-s", "--size", type=click.IntRange(HEAD_BYTES, 1 << 20), default=64, show_default=True)
@click.option("-t", "--seconds", type=FiniteRange(0.1, 86_400), default=5.0, show_default=True)
@click.option("--warm-up", "warm_up_s", type=FiniteRange(0), default=1.0, show_default=True)
@click.option("--messages", type=click.IntRange(1, 65_535), default=100, show_default=True, help=_MESSAGES)
@click.option("-c", "--persistent", is_flag=True, help="subscribers keep their sessions")
@click.option("--protocol", type=click.Choice(list(VERSIONS)), default="3.1.1", show_default=True)
@click.option(
    "--pid",
    "processor",
    callback=_processor,
    help="the broker's processes (1,2,...), to measure their CPU; workers count with their supervisor",
)
@click.option("--json", "json_file", type=click.Path(path_type=Path), help="write the result there")
def bench(processor: Processor | None, json_file: Path | None, **options: Any) -> None:
    """Put load on a broker and say what came of it. Exit 1 if something was lost, out of order or closed."""
    plan = _plan(options)
    try:
        endpoint = endpoint_from(options | {"host": None, "port": None})
        result = uvloop.run(_run(plan, endpoint, processor))
    except (OSError, TimeoutError, HeadraceError) as error:
        raise BenchFailed(str(error) or "the broker did not answer in time") from error
    for line in result.lines():
        click.echo(line)
    if json_file is not None:
        report = {"plan": asdict(plan), "result": asdict(result)}
        json_file.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
    if wrong := faults(result, plan):
        raise BenchFailed(f"the run is not sound: {wrong}")


def _plan(options: dict[str, Any]) -> Plan:
    """Return the plan that the options ask for. Raises click.UsageError for what does not go together."""
    mode = options["mode"]
    if mode == "backlog" and not options["qos"]:
        raise click.UsageError(
            "--qos 0: nothing waits for a client that is away; --mode backlog needs 1 or 2"
        )
    if options["rate"] and mode in ("connect", "backlog"):
        raise click.UsageError(f"--rate: not in --mode {mode}")
    return Plan(
        **{
            name: options[name]
            for name in (
                "url",
                "mode",
                "pairs",
                "qos",
                "window",
                "rate",
                "size",
                "seconds",
                "warm_up_s",
                "messages",
            )
        },
        persistent=options["persistent"] or mode == "backlog",
        version=VERSIONS[options["protocol"]],
        prefix="bench" + secrets.token_hex(4),
    )


async def _run(plan: Plan, endpoint: Endpoint, processor: Processor | None) -> Result:
    crew = Crew(plan, endpoint)
    kinds: dict[str, type[Storm | Away]] = {"connect": Storm, "backlog": Away}
    kind = kinds.get(plan.mode, Steady)
    with Meter() as meter:
        try:
            return await kind(crew, processor, meter).run()
        finally:
            crew.abort()
