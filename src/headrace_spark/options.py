"""Options of the source `headrace-journal`, parsed once and checked. Names as in Spark's Kafka source where it has one.

path               data directory of the broker (also the argument of `load`)
schema             messages (default) | events | progress: which records, and their columns
                   (`headrace_spark.schema`)
consumer           name under which a stream registers with the journal, so that retention waits for it;
                   mandatory for streams, not for batch reads
columns            comma-separated columns of the schema; default all. What is not named is not decoded
startingOffsets    earliest (default) | latest | an offset. For streams: where a query without a checkpoint
                   begins; `latest` is the consumer's position, if it is registered already
endingOffsets      latest (default: the high watermark) | an offset, exclusive. Batch reads only
maxRowsPerTrigger  records a micro-batch takes at most; a record of `messages` is at most one row. Default: no
                   limit
maxBytesPerTrigger bytes of the journal a micro-batch takes at most, estimated from the segments. Default: no
                   limit
partitions         tasks that share a large read; default: the CPUs of this machine
failOnDataLoss     true (default): fail when retention has removed records still to be read; false: go on
                   behind them
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from headrace_spark.errors import BadOption
from headrace_spark.schema import SCHEMAS

EARLIEST: Final = "earliest"
LATEST: Final = "latest"
_NAMES: Final = (
    "path",
    "schema",
    "consumer",
    "columns",
    "startingOffsets",
    "endingOffsets",
    "maxRowsPerTrigger",
    "maxBytesPerTrigger",
    "partitions",
    "failOnDataLoss",
)
_CONSUMER: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")


@dataclass(frozen=True)
class SourceOptions:
    data_dir: Path
    schema: str
    consumer: str | None
    columns: str
    starting: str | int
    ending: str | int | None
    rows_per_trigger_max: int | None
    bytes_per_trigger_max: int | None
    partitions: int
    fail_on_data_loss: bool

    @classmethod
    def parse(cls, given: Mapping[str, str]) -> SourceOptions:
        """Raises BadOption. Names are case-insensitive, as everywhere in Spark."""
        values = {name.lower(): value for name, value in given.items()}
        known = {name.lower() for name in _NAMES}
        for name in values:
            if name not in known:
                raise BadOption(name, values[name], f"no such option; there are {', '.join(_NAMES)}")
        if not values.get("path"):
            raise BadOption("path", "", "the data directory of a broker is needed: .load('<data-dir>')")
        return cls(
            data_dir=Path(values["path"].removeprefix("file://")),
            schema=_schema(values.get("schema", "messages")),
            consumer=_consumer(values.get("consumer")),
            columns=values.get("columns", ""),
            starting=_offset("startingOffsets", values.get("startingoffsets", EARLIEST), (EARLIEST, LATEST)),
            ending=None
            if "endingoffsets" not in values
            else _offset("endingOffsets", values["endingoffsets"], (LATEST,)),
            rows_per_trigger_max=_count("maxRowsPerTrigger", values.get("maxrowspertrigger")),
            bytes_per_trigger_max=_count("maxBytesPerTrigger", values.get("maxbytespertrigger")),
            partitions=_count("partitions", values.get("partitions")) or os.cpu_count() or 1,
            fail_on_data_loss=_flag("failOnDataLoss", values.get("failondataloss", "true")),
        )


def check_consumer(name: str) -> str:
    """Consumer names become file names: letters, digits, dot, dash and underscore. Raises BadOption."""
    if _CONSUMER.fullmatch(name) is None:
        raise BadOption(
            "consumer", name, "letters, digits, '.', '_' and '-' only, at most 100, not a sign first"
        )
    return name


def _consumer(name: str | None) -> str | None:
    return None if name is None else check_consumer(name)


def _schema(name: str) -> str:
    if name.lower() not in SCHEMAS:
        raise BadOption("schema", name, f"there are {', '.join(SCHEMAS)}")
    return name.lower()


def _offset(option: str, value: str, words: tuple[str, ...]) -> str | int:
    if value.lower() in words:
        return value.lower()
    if value.isdecimal():
        return int(value)
    raise BadOption(option, value, f"{', '.join(words)} or an offset")


def _count(option: str, value: str | None) -> int | None:
    if value is None:
        return None
    if not value.isdecimal() or int(value) == 0:
        raise BadOption(option, value, "a number above 0")
    return int(value)


def _flag(option: str, value: str) -> bool:
    if value.lower() not in ("true", "false"):
        raise BadOption(option, value, "true or false")
    return value.lower() == "true"
