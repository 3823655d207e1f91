"""Charts as inline SVG: lines over time, and bars beside names. No script, nothing from the network."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from decimal import Decimal
from html import escape
from typing import Final

WIDTH: Final = 860
HEIGHT: Final = 220
LEFT: Final = 64
BOTTOM: Final = 24
COLOURS: Final = ("#2563eb", "#d97706", "#dc2626")

Series = Sequence[tuple[datetime, float]]


def number(value: float) -> str:
    """Return a number of three digits, short enough for an axis: 12.5k, 3.1M."""
    for size, letter in ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= size * 0.9995:  # what is rounded to the next letter has that one
            return f"{three_digits(value / size)}{letter}"
    return three_digits(value)


def three_digits(value: float) -> str:
    """Return a number rounded to three digits that count, and never with an exponent."""
    return f"{Decimal(f'{value:.3g}'):,f}"


def lines(series: Mapping[str, Series], title: str, gap: timedelta = timedelta.max) -> str:
    """Return a chart with one line for each series, time from left to right, zero at the bottom; interrupted where
    nothing is for longer than `gap`."""
    points = [point for values in series.values() for point in values]
    if not points:
        return '<p class="none">nothing in this period</p>'
    first, last = min(at for at, _ in points), max(at for at, _ in points)
    top = max(value for _, value in points) or 1.0
    span = (last - first).total_seconds() or 1.0

    def place(at: datetime, value: float) -> str:
        x = LEFT + (at - first).total_seconds() / span * (WIDTH - LEFT - 10)
        y = HEIGHT - BOTTOM - value / top * (HEIGHT - BOTTOM - 16)
        return f"{x:.1f},{y:.1f}"

    drawn = [_grid(top)]
    for (name, values), colour in zip(series.items(), COLOURS, strict=False):
        runs = [[place(at, value) for at, value in run] for run in _runs(values, gap)]
        drawn += (_run(run, colour, name) for run in runs)
    return _svg(HEIGHT, title, "".join([*drawn, _times(first, last)])) + _legend(list(series))


def _runs(values: Series, gap: timedelta) -> Iterator[Series]:
    """Yield the parts without a gap."""
    begin = 0
    for n in range(1, len(values) + 1):
        if n == len(values) or values[n][0] - values[n - 1][0] > gap:
            yield values[begin:n]
            begin = n


def _run(points: Sequence[str], colour: str, name: str) -> str:
    """Return a line, with a dot at its end, which is all there is of a single point."""
    x, y = points[-1].split(",")
    line = f'<polyline points="{" ".join(points)}" fill="none" stroke="{colour}" stroke-width="1.6"/>'
    dot = f'<circle cx="{x}" cy="{y}" r="2" fill="{colour}"><title>{escape(name)}</title></circle>'
    return line + dot


def _times(first: datetime, last: datetime) -> str:
    middle = first + (last - first) / 2
    places = ((LEFT, first, "start"), ((LEFT + WIDTH - 10) / 2, middle, "middle"), (WIDTH - 10, last, "end"))
    return "".join(_text(x, HEIGHT - 6, f"{at:%d %b %H:%M}", anchor) for x, at, anchor in places)


def _grid(top: float) -> str:
    drawn = []
    for part in (0.0, 0.5, 1.0):
        y = HEIGHT - BOTTOM - part * (HEIGHT - BOTTOM - 16)
        drawn.append(f'<line x1="{LEFT}" x2="{WIDTH - 10}" y1="{y:.1f}" y2="{y:.1f}" class="grid"/>')
        drawn.append(_text(LEFT - 6, y + 4, number(top * part), "end"))
    return "".join(drawn)


def _legend(names: Sequence[str]) -> str:
    if len(names) < 2:
        return ""
    items = (
        f'<span><i style="background:{colour}"></i>{escape(name)}</span>'
        for name, colour in zip(names, COLOURS, strict=False)
    )
    return f'<p class="legend">{"".join(items)}</p>'


def bars(counts: Sequence[tuple[str, float]], title: str) -> str:
    """Return a chart with a bar for each, the number at its end."""
    if not counts:
        return '<p class="none">none</p>'
    top = max(value for _, value in counts) or 1.0
    drawn = []
    for row, (name, value) in enumerate(counts):
        y = row * 26 + 4
        length = max(2.0, value / top * (WIDTH - 420))
        drawn.append(f'<rect x="300" y="{y}" width="{length:.1f}" height="18" rx="2" fill="{COLOURS[0]}"/>')
        drawn.append(_text(292, y + 13, name if len(name) <= 42 else name[:41] + "…", "end", name))
        drawn.append(_text(306 + length, y + 13, f"{value:,.0f}"))
    return _svg(len(counts) * 26 + 6, title, "".join(drawn))


def _text(x: float, y: float, text: str, anchor: str = "start", whole: str | None = None) -> str:
    title = f"<title>{escape(whole)}</title>" if whole is not None and whole != text else ""
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}{title}</text>'


def _svg(height: int, title: str, inner: str) -> str:
    return f'<svg viewBox="0 0 {WIDTH} {height}" role="img" aria-label="{escape(title, quote=True)}">{inner}</svg>'
