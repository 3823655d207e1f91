"""`headrace pipeline report`: one HTML page, complete in itself, from the tables of a lake."""

from __future__ import annotations

import os
from collections.abc import Sequence
from datetime import UTC, datetime
from html import escape
from pathlib import Path
from typing import Final

from headrace_spark.base.errors import PageUnwritten
from headrace_spark.base.lake_url import Location
from headrace_spark.lake.table_log import Tables
from headrace_spark.report.charts import bars, lines, number, three_digits
from headrace_spark.report.figures import Figures, collect
from headrace_spark.report.windows import KEY

_JOBS: Final = {"quarantine": "clean"}
_STYLE: Final = """
:root{color-scheme:light dark}
body{font:15px/1.5 system-ui,sans-serif;max-width:900px;margin:2rem auto;padding:0 1rem;background:#fff;color:#111827}
h1{font-size:1.5rem;margin-bottom:0}h2{font-size:1.1rem;margin-top:2rem;border-bottom:1px solid #e5e7eb}
.about,.none,.note{color:#6b7280}.tiles{display:flex;flex-wrap:wrap;gap:.7rem;margin:1rem 0}
.tile{border:1px solid #e5e7eb;border-radius:8px;padding:.6rem .9rem;min-width:8rem}
.tile b{display:block;font-size:1.35rem}
.missing{background:#fef3c7;color:#78350f;border-radius:8px;padding:.6rem .9rem}
svg{width:100%;min-width:640px;height:auto}
section{overflow-x:auto}
svg text{font:12px system-ui,sans-serif;fill:#6b7280}.grid{stroke:#e5e7eb}table{border-collapse:collapse;width:100%}
th,td{text-align:right;padding:.25rem .6rem;border-bottom:1px solid #e5e7eb}th:first-child,td:first-child{text-align:left}
.legend span{margin-right:1rem}
.legend i{display:inline-block;width:.8rem;height:.8rem;border-radius:2px;margin-right:.35rem}
@media(prefers-color-scheme:dark){body{background:#111827;color:#e5e7eb}.tile,h2,th,td{border-color:#374151}
.grid{stroke:#374151}
.about,.none,.note{color:#9ca3af}svg text{fill:#9ca3af}}
"""


def write_report(
    lake: Location, out: Path, days: int, window_s: int, tables: Tables | None = None
) -> Figures:
    """Write the page, in one step where it is a file: on a full disk the one of before stays. `tables`: how they are
    read. Raises LakeConflict, BadOption, PageUnwritten."""
    figures = collect(lake, days, window_s, tables=tables)
    try:
        _put(out, page(figures))
    except OSError as error:
        raise PageUnwritten(f"{out} cannot be written: {error.strerror}") from None
    return figures


def _put(out: Path, text: str) -> None:
    """Put a page in the place of what is there. Raises OSError."""
    if out.exists() and not out.is_file():
        out.write_text(text, encoding="utf-8")  # a pipe or a terminal
        return
    at = out.resolve()  # a link stays one
    new = at.with_name(f".{at.name}.{os.getpid()}.new")
    try:
        new.write_text(text, encoding="utf-8")
        if at.exists():
            new.chmod(at.stat().st_mode & 0o7777)
        new.replace(at)
    except OSError:
        new.unlink(missing_ok=True)
        raise


def page(figures: Figures) -> str:
    """Return the whole page."""
    sections = (_read, _missing, _tiles, _rates, _latencies, _drops, _topics, _usage, _backlog, _quarantine)
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8"><title>headrace report</title>'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        f"<style>{_STYLE}</style></head><body><h1>headrace</h1>"
        f'<p class="about">{escape(str(figures.lake))}, {_period(figures)}</p>'
        f"{''.join(section(figures) for section in sections)}</body></html>\n"
    )


def _period(figures: Figures) -> str:
    """Return from when to when the figures are: to the newest that was counted, not to the time of the page."""
    if figures.until is None or figures.until < figures.since:
        return f"since {_at(figures.since)} UTC: nothing is counted of that time"
    return f"{_at(figures.since)} to {_at(figures.until)} UTC"


def _at(time: datetime) -> str:
    return f"{time.astimezone(UTC):%Y-%m-%d %H:%M}"


def _read(figures: Figures) -> str:
    """Return what the page was made from, and when: what came after that is in no figure."""
    tables = [
        f"{each.table} version {each.version}"
        + (", no rows" if each.newest is None else f", newest {_at(each.newest)}")
        for each in figures.read
    ]
    said = f" Read: {'; '.join(tables)}." if tables else ""
    if figures.taken_s is not None:
        said += (
            f" Rows of an older headrace do not say how long their windows are: they are taken for {figures.taken_s} s "
            f"(<code>{KEY}</code>)."
        )
    return f'<p class="note">Made {_at(figures.made)} UTC.{said}</p>'


def _missing(figures: Figures) -> str:
    notes = [
        f"Table <code>{name}</code> is not there yet: "
        f"run <code>headrace pipeline run {_JOBS.get(name, 'metrics')}</code>."
        for name in figures.missing
    ]
    return f'<p class="missing">{"<br>".join(notes)}</p>' if notes else ""


def _tiles(figures: Figures) -> str:
    tiles: list[tuple[str, str]] = []
    if (traffic := figures.traffic) is not None:
        peak = max((rate for _, rate in traffic.rates), default=0.0)
        tiles += [
            ("messages", f"{traffic.messages:,}"),
            ("payload bytes", number(traffic.payload_bytes)),
            ("publishers", f"{traffic.publishers:,}"),
            ("busiest window, messages/s", number(peak)),
        ]
        if traffic.devices:
            frames = dict(traffic.protocols)["frame"]
            tiles += [("messages as frames", f"{frames:,}"), ("devices of frames", f"{traffic.devices:,}")]
    if (online := figures.connections) is not None:
        tiles += [
            ("clients online", f"{online.online:,}"),
            ("connections", f"{online.sessions:,}"),
            ("online time", f"{online.online_s / 3600:,.1f} h"),
        ]
    if (deliveries := figures.deliveries) is not None:
        accuracy = deliveries.accuracy
        tiles.append(("accuracy: acknowledged of settled", "–" if accuracy is None else _percent(accuracy)))
        tiles += [(f"latency p{share}", _ms(value)) for share, value in deliveries.latency_ms.items()]
    drawn = (f'<div class="tile"><b>{value}</b>{escape(name)}</div>' for name, value in tiles)
    return f'<div class="tiles">{"".join(drawn)}</div>'


def _percent(share: float) -> str:
    """Return the share in percent, never 100 % unless it is all of them."""
    return "100 %" if share == 1 else f"{min(share * 100, 99.9999):.4f} %"


def _ms(value: float | None) -> str:
    """Return how long a delivery took: what waited for a device that was away took days."""
    if value is None:
        return "–"
    if value < 999.5:
        return f"{three_digits(value)} ms"
    return f"{three_digits(value / 1000)} s" if value < 120_000 else _duration(value / 1000)


def _duration(seconds: float) -> str:
    for size, name in ((86_400, "days"), (3600, "h"), (60, "min")):
        if seconds >= 2 * size:
            return f"{seconds / size:,.0f} {name}"
    return f"{seconds:,.0f} s"


def _section(title: str, inner: str) -> str:
    return f"<section><h2>{escape(title)}</h2>{inner}</section>"


def _rates(figures: Figures) -> str:
    if figures.traffic is None:
        return ""
    title = "Messages a second"
    return _section(title, lines({title: figures.traffic.rates}, title))


def _latencies(figures: Figures) -> str:
    if figures.deliveries is None:
        return ""
    series = {f"p{share}": values for share, values in figures.deliveries.latencies.items()}
    return _section("Publish to acknowledgement, milliseconds", lines(series, "latency", figures.window))


def _drops(figures: Figures) -> str:
    if figures.deliveries is None:
        return ""
    return _section("Dropped, by reason", bars(figures.deliveries.drops, "drops"))


def _topics(figures: Figures) -> str:
    if figures.traffic is None:
        return ""
    return _section("Busiest topics", bars(figures.traffic.topics, "messages by topic prefix"))


def _usage(figures: Figures) -> str:
    if figures.usage is None:
        return ""
    names = ("tenant", "in", "bytes in", "out", "bytes out", "dropped", "connections", "hours online")
    rows = [
        (
            used.tenant,
            used.messages_in,
            used.bytes_in,
            used.messages_out,
            used.bytes_out,
            used.messages_dropped,
            used.connections,
            f"{used.connected_s / 3600:,.1f}",
        )
        for used in figures.usage
    ]
    note = '<p class="note">Messages and payload bytes; connections that have ended.</p>'
    return _section("Use by tenant", note + _table(names, rows))


def _backlog(figures: Figures) -> str:
    backlog = figures.backlog
    if backlog is None:
        return ""
    age = "" if backlog.oldest_s is None else f", the oldest for {_duration(backlog.oldest_s)}"
    note = f'<p class="note">{backlog.messages:,} messages wait{age}.</p>'
    return _section("Waiting for clients", note + bars(backlog.longest, "backlog by client"))


def _quarantine(figures: Figures) -> str:
    if figures.quarantine is None:
        return ""
    return _section("Put aside by clean, by reason", bars(figures.quarantine, "quarantine by reason"))


def _table(names: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    head = "".join(f"<th>{escape(name)}</th>" for name in names)
    body = "".join("<tr>" + "".join(f"<td>{_cell(cell)}</td>" for cell in row) + "</tr>" for row in rows)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def _cell(value: object) -> str:
    return f"{value:,}" if isinstance(value, int) else escape(str(value))
