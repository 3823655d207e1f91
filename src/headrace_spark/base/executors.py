"""Says that tasks wait for executors which do not come: Spark itself waits for them without a word, and without an end.

A standalone cluster gives the first job all of its cores unless `spark.cores.max` says otherwise, so the second one waits
until that has ended.
"""

from __future__ import annotations

from collections.abc import Callable
from threading import Event, Thread
from typing import Any, Final

from py4j.protocol import Py4JError
from pyspark.sql import SparkSession

from headrace_spark.base.logs import LOG

LOOK_EVERY_S: Final = 15.0
_TOLD_AT: Final = 2
"""The look in vain, in a row, at which it is said; an executor takes its time to start."""
_TOLD_EVERY: Final = 4


def watch_executors(spark: SparkSession, master: str) -> None:
    """Watch, on a thread of its own, until Spark ends."""
    advice = (
        f"tasks wait, and {master} has no executor for them: other jobs may have all of its cores (spark.cores.max "
        "limits what a job takes of a standalone cluster), no worker may be as large as spark.executor.memory and "
        "spark.executor.cores ask, or none be there; waiting until one is"
    )

    def tell() -> None:
        LOG.warning("%s", advice, extra={"fields": {"reason": "no_executor"}})

    Thread(target=watch, args=(lambda: waits_in_vain(spark), tell, Event().wait), daemon=True).start()


def watch(look: Callable[[], bool], tell: Callable[[], None], wait: Callable[[float], bool]) -> None:
    """Look now and then, until a look fails because Spark has ended; tell when several in a row were in vain, and now and
    then after that."""
    in_vain = 0
    while not wait(LOOK_EVERY_S):
        try:
            is_in_vain = look()
        except (Py4JError, ConnectionError, AttributeError):
            return
        in_vain = in_vain + 1 if is_in_vain else 0
        if in_vain % _TOLD_EVERY == _TOLD_AT:
            tell()


def waits_in_vain(spark: SparkSession) -> bool:
    """Return whether there are tasks to do and no executor. Raises Py4JError, ConnectionError or AttributeError when
    Spark has ended."""
    context: Any = spark.sparkContext._jsc.sc()
    with_the_driver = int(context.getExecutorMemoryStatus().size())
    return with_the_driver <= 1 and bool(context.statusTracker().getActiveStageIds())
