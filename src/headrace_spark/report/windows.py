"""The windows in which the job `metrics` has counted: how long each is, and which of them say something together."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from headrace_spark.base.errors import BadOption

START: Final = "window_start"
LENGTH: Final = "window_s"
KEY: Final = "pipeline.metrics.window_s"
_1970: Final = datetime(1970, 1, 1, tzinfo=UTC)

Window = tuple[datetime, timedelta]
"""Start and length."""


def with_lengths(rows: pa.Table, window_s: int) -> tuple[pa.Table, bool]:
    """Return rows that all say how long their windows are, and whether `window_s` was taken for it: a headrace of before
    did not write it. Raises BadOption if windows of that length do not begin there."""
    if LENGTH in rows.column_names:
        lengths = rows[LENGTH]
        unknown = rows.filter(pc.is_null(lengths))[START]
        rows = rows.set_column(rows.column_names.index(LENGTH), LENGTH, pc.fill_null(lengths, window_s))
    else:
        unknown = rows[START]
        rows = rows.append_column(LENGTH, pa.repeat(pa.scalar(window_s, pa.int64()), rows.num_rows))
    length = timedelta(seconds=window_s)
    for start in pc.unique(unknown).to_pylist():
        if (start - _1970) % length:
            raise BadOption(
                KEY,
                window_s,
                f"a window that begins {start.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC is of another length, which a "
                f"headrace of before did not write down. Give the length that the job had then: --set {KEY}=SECONDS",
            )
    return rows, len(unknown) > 0


def together(windows: Iterable[Window]) -> dict[Window, Window]:
    """Return for each window the one that it is shown in: itself or, where one of another length has counted a part of
    the same time, the time of both."""
    shown: dict[Window, Window] = {}
    held: list[Window] = []
    end = _1970

    def close() -> None:
        whole = (held[0][0], end - held[0][0])
        shown.update((window, whole) for window in held)

    for window in sorted(set(windows)):
        start, length = window
        if held and start >= end:
            close()
            held.clear()
        end = start + length if not held else max(end, start + length)
        held.append(window)
    if held:
        close()
    return shown
