"""What sinks and sources have done since their process began, which tells it; the worker shows it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class SinkFigures:
    """What a sink has done at one shard. `lost`: offsets that went from the journal before they were sent; `trouble`: why
    it does not write, `odd`: why it did not go on where it was; "" where all is well."""

    sink: str
    shard: int
    records: int = 0
    transactions: int = 0
    left_out: int = 0
    lost: int = 0
    lag_records: int = 0
    is_up: bool = False
    trouble: str = ""
    odd: str = ""


@dataclass(slots=True)
class SourceFigures:
    """What a source has done. `refused`: records that the broker would not have; `trouble`: why it does not publish, ""
    where all is well."""

    source: str
    records: int = 0
    refused: int = 0
    lag_records: int = 0
    is_up: bool = False
    trouble: str = ""
