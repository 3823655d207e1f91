"""What a job says: lines for people, or one JSON object a line with the broker's names of fields (`event`, `level`,
`timestamp`), on stderr."""

from __future__ import annotations

import json
import logging
import sys
from datetime import UTC, datetime
from time import monotonic
from types import TracebackType
from typing import Final, Self

from headrace_spark.base.progress import PLAIN_INTERVAL_S, Progress, Rate

LOG: Final = logging.getLogger("headrace.pipeline")
"""A record may have `fields`, a dictionary: what the words of the event are about."""


class JsonLine(logging.Formatter):
    """A record as a JSON object."""

    def __init__(self, job: str) -> None:
        super().__init__()
        self._job = job

    def format(self, record: logging.LogRecord) -> str:
        at = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="microseconds")
        entry = {"job": self._job, **getattr(record, "fields", {}), "event": record.getMessage()}
        entry |= {"level": record.levelname.lower(), "timestamp": at.replace("+00:00", "Z")}
        return json.dumps(entry, default=str)


def set_up(job: str, level: str, as_json: bool) -> None:
    """Send the records of this process to stderr. `level`: of the key log.level."""
    handler = logging.StreamHandler(sys.stderr)
    if as_json:
        handler.setFormatter(JsonLine(job))
    LOG.handlers = [handler]
    LOG.propagate = False
    LOG.setLevel(level.upper())


class ProgressLog:
    """The progress of a job as records, now and then; for who reads no lines. Used as `ProgressLine` is."""

    def __init__(self) -> None:
        self._rate = Rate()
        self._told_at = float("-inf")
        self._last: Progress | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._last is not None and kind is None:
            self._tell("done", self._last)

    def say(self, text: str) -> None:
        LOG.info(text)

    def show(self, progress: Progress) -> None:
        self._last = progress
        rate = self._rate.of(progress)
        if monotonic() - self._told_at >= PLAIN_INTERVAL_S:
            self._told_at = monotonic()
            self._tell("progress", progress, rows_per_s=round(rate, 1))

    def _tell(self, event: str, progress: Progress, **more: float) -> None:
        about = {"rows": progress.rows, "offset": progress.offset, "lag": progress.lag}
        LOG.info(event, extra={"fields": {**about, "elapsed_s": round(progress.elapsed_s, 3), **more}})
