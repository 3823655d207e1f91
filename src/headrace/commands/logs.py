"""The log of `headrace serve` and of its workers: lines on stderr, by structlog, which this is the first to import."""

from __future__ import annotations

import importlib
import logging
import sys
from typing import TYPE_CHECKING

from headrace.config import Config
from headrace.services.audit import clean

if TYPE_CHECKING:
    from structlog.typing import EventDict, Processor


def import_without(name: str, other: str) -> None:
    """Import a module as if another one, which it uses where that is installed, were not.

    With the extra `progress` structlog would import rich, to draw tracebacks that we never log: a tenth of each start.
    """
    if name in sys.modules or other in sys.modules:
        return
    sys.modules[other] = None  # type: ignore[assignment]  # by which Python says that it cannot be imported
    try:
        importlib.import_module(name)
    finally:
        del sys.modules[other]


import_without("structlog", "rich")


def set_up_logs(config: Config, worker: int | None = None) -> None:
    """Send logs to stderr, as JSON or text as `log.format` says; those of a worker with its number."""
    import structlog

    renderer: Processor = (
        structlog.processors.JSONRenderer()
        if config.log.format == "json"
        else structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty())
    )
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            *([] if worker is None else [_named(worker)]),
            renderer,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(
            logging.getLevelNamesMapping()[config.log.level.upper()]
        ),
        logger_factory=structlog.WriteLoggerFactory(file=sys.stderr),
    )
    ours = logging.getLogger("headrace")
    ours.setLevel(logging.INFO)
    ours.handlers = [_Structured()]


class _Structured(logging.Handler):
    """What a module says by the standard library, as a line of this log: else Python writes the words alone to stderr,
    without their time, their level and the fields that they were given as `extra={"fields": ...}`."""

    def emit(self, record: logging.LogRecord) -> None:
        import structlog

        fields = {
            name if name != "event" else "of_event": clean(value) if isinstance(value, str) else value
            for name, value in record.__dict__.get("fields", {}).items()
        }
        if record.exc_info:
            fields["error"] = repr(record.exc_info[1])
        structlog.get_logger("headrace").log(record.levelno, clean(record.getMessage()), **fields)


def _named(worker: int) -> Processor:
    def name(_: object, __: str, event: EventDict) -> EventDict:
        event.setdefault("worker", worker)
        return event

    return name
