"""`headrace top`: a running broker on a terminal, renewed every few seconds. Drawn with `rich`, an extra.

Rates and latencies are those since the last time, out of two scrapes; the clients that are slow or behind are asked for
with a token, and without one the screen says how to get them.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from headrace.console.admin import AdminClient, AdminRefused, Unreachable
from headrace.console.scrape import Between, Scrape
from headrace.console.status import Status, summary, why_not_ready
from headrace.console.units import count, duration, latency, size
from headrace.services.audit import clean

CLIENTS = 10
SLEEP_S_MAX = 0.5  # a signal that comes just before a sleep does not shorten it, and is seen when it is over
QUANTILES = (0.5, 0.9, 0.99)
RATES = (
    ("PUBLISH in", "headrace_publishes_received_total", count),
    ("PUBLISH out", "headrace_publishes_sent_total", count),
    ("bytes in", "headrace_network_received_bytes_total", size),
    ("bytes out", "headrace_network_sent_bytes_total", size),
    ("connects", "headrace_connects_total", count),
    ("refused", "headrace_refused_packets_total", count),
    ("dropped", "headrace_dropped_messages_total", count),
    ("batches", "headrace_journal_batches_total", count),
)
LATENCIES = (
    ("PUBACK", "headrace_puback_latency_seconds"),
    ("delivery", "headrace_delivery_latency_seconds"),
    ("journal sync", "headrace_journal_sync_duration_seconds"),
)
WITHOUT_TOKEN = "--token-file with a token of the role `read` shows who is slow or behind"  # noqa: S105


def rest(seconds: float) -> None:
    """Wait so long, and past a signal for SLEEP_S_MAX at most. Raises what the signal's handler raises."""
    until = time.monotonic() + seconds
    while (left := until - time.monotonic()) > 0:
        time.sleep(min(left, SLEEP_S_MAX))


def watch(
    admin: AdminClient,
    interval_s: float,
    rounds: int,
    console: Console,
    pause: Callable[[float], None] = rest,
) -> None:
    """Draw until somebody interrupts it, or `rounds` times where that is not 0. A broker that is away is waited for.
    Raises Unreachable, AdminRefused if the first answer is none."""
    before = _scrape(admin)
    with Live(console=console, screen=True, auto_refresh=False) as live:
        drawn = 0
        while True:
            try:
                now = _scrape(admin)
                live.update(screen(admin, before, now), refresh=True)
                before = now
            except (Unreachable, AdminRefused) as error:
                live.update(Text(str(error), style="bold red"), refresh=True)
            drawn += 1
            if drawn == rounds:
                return
            pause(interval_s)


def _scrape(admin: AdminClient) -> Scrape:
    return Scrape(admin.text("/metrics"), time.monotonic())


def screen(admin: AdminClient, before: Scrape, now: Scrape) -> RenderableType:
    """Return all that `headrace top` shows. Raises Unreachable, AdminRefused."""
    status = summary(admin.address, why_not_ready(admin), now, time.time())
    between = Between(before, now)
    above = Table.grid(expand=True)
    above.add_row(Panel(_rates(between), title="a second"), Panel(_latencies(between), title="latency"))
    return Group(
        _head(status),
        above,
        Panel(_clients(admin), title="clients that are slow or behind"),
        Panel(_consumers(status, between, now), title="consumers and jobs"),
        Text("Ctrl-C ends", style="dim"),
    )


def _head(status: Status) -> RenderableType:
    health = Text("good" if status.healthy else "bad", style="bold green" if status.healthy else "bold red")
    lines = [
        Text.assemble(
            f"headrace {status.version} ({status.build}) at {status.address}, {duration(status.uptime_s)}, "
            f"{size(status.memory_bytes)}: ",
            health,
        ),
        *(Text(text, style="red") for text in status.problems),
        *(Text(text, style="yellow") for text in status.warnings),
        Text(
            f"{status.connections} connections, {status.sessions} sessions, {status.subscriptions} subscriptions, "
            f"{count(status.backlog_messages)} messages ({size(status.backlog_bytes)}) wait; "
            f"journal {size(status.journal_bytes)}, disk {size(status.disk_free_bytes)} free"
        ),
    ]
    return Group(*lines)


def _rates(between: Between) -> Table:
    table = Table.grid(padding=(0, 2))
    half = len(RATES) // 2
    for left, right in zip(RATES[:half], RATES[half:], strict=True):
        cells = []
        for label, name, shown in (left, right):
            cells += [label, shown(between.rate(name))]
        table.add_row(*cells)
    return table


def _latencies(between: Between) -> Table:
    table = Table(box=None, padding=(0, 2))
    for heading in ("", *(f"p{100 * share:g}" for share in QUANTILES)):
        table.add_column(heading, justify="left" if not heading else "right")
    for label, name in LATENCIES:
        table.add_row(label, *(latency(between.quantile(name, share)) for share in QUANTILES))
    return table


def _clients(admin: AdminClient) -> RenderableType:
    try:
        rows: list[dict[str, Any]] = admin.get(f"/v1/clients/behind?limit={CLIENTS}")["clients"]
    except AdminRefused as error:
        if error.status not in (401, 403):
            raise
        return Text(WITHOUT_TOKEN, style="dim")
    if not rows:
        return Text("nobody", style="dim")
    table = Table(box=None, padding=(0, 2))
    for heading in ("client", "address", "state"):
        table.add_column(heading)
    for heading in ("in flight", "messages", "bytes"):
        table.add_column(heading, justify="right")
    for row in rows:
        state = "slow" if row["slow"] else "connected" if row["connected"] else "away"
        table.add_row(
            Text(clean(row["client_id"])),
            Text(row["address"]),
            state,
            str(row["in_flight"]),
            count(row["messages"]),
            size(row["bytes"]),
        )
    return table


def _consumers(status: Status, between: Between, now: Scrape) -> RenderableType:
    end = int(now.total("headrace_journal_high_watermark"))
    if not status.consumers:
        return Text(f"none; the journal ends at offset {end}", style="dim")
    table = Table(box=None, padding=(0, 2))
    table.add_column("consumer")
    for heading in ("offset", "records a second", "behind", "bytes behind", "moved"):
        table.add_column(heading, justify="right")
    for one in status.consumers:
        table.add_row(
            Text(clean(one.name)),
            str(one.offset),
            count(between.rate("headrace_consumer_offset", consumer=one.name)),
            count(one.lag_records),
            size(one.lag_bytes),
            f"{duration(one.silent_s)} ago",
        )
    return table
