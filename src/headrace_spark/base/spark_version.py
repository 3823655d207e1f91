"""Which Spark the pipeline and the source run on.

Read limits, `reportLatestOffset` and `SupportsTriggerAvailableNow` of Python sources came with 4.2: without them a stream
could neither limit a batch nor end. An older Spark is refused by its name instead of failing in an import.
"""

from __future__ import annotations

import re
from typing import Final

import pyspark

from headrace_spark.base.errors import EngineMissing

OLDEST: Final = (4, 2)


def require_spark(version: str = pyspark.__version__) -> None:
    """Raise EngineMissing unless this Spark can run the source."""
    numbers = tuple(int(number) for number in re.findall(r"\d+", version)[:2])
    if numbers < OLDEST:
        raise EngineMissing(
            f"this is Spark {version}, and headrace needs {OLDEST[0]}.{OLDEST[1]} or newer, whose Python sources can "
            "limit a batch and end a stream: pip install 'headrace[spark]'"
        )
