"""The jobs: one module each, named here and nowhere else.

A module has three things, which `headrace_spark.base.runner` uses:

    Settings                                   frozen dataclass below `RunSettings`; its own fields are the keys
                                               of `[pipeline.<job>]`, under the same names
    check(settings)                            raise what can be known without Spark: most mistakes show here
    run(spark, settings, stop, report)         work to the present end or, with `follow`, until `stop` is set;
                                               `report` takes a `Progress` about twice a second
"""

from __future__ import annotations

from importlib import import_module
from typing import Any, Final

JOBS: Final = {
    "archive": "headrace_spark.jobs.archive",
    "compact-events": "headrace_spark.jobs.compact_events",
    "publish": "headrace_spark.jobs.publish",
    "replay": "headrace_spark.jobs.replay",
    "clean": "headrace_spark.jobs.clean",
    "mend": "headrace_spark.jobs.mend",
    "metrics": "headrace_spark.jobs.metrics",
}
# The tables that each job writes, which a catalog may have by their names; `replay` writes one that it is told.
TABLES_OF: Final = {
    "archive": ("messages",),
    "compact-events": ("event_snapshot",),
    "publish": ("dead_letters",),
    "clean": ("clean", "quarantine", "repeats"),
    "mend": ("clean", "quarantine"),
    "metrics": ("traffic", "deliveries", "usage", "devices", "connections", "backlog"),
}
# Jobs that another one's table of the configuration is for too.
SETTINGS_OF: Final = {"mend": "clean"}


def module_of(job: str) -> Any:
    """Return the module of a job. Imports Spark."""
    return import_module(JOBS[job])
