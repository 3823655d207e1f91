"""Where a stream over a table stands, as a number that grows."""

from __future__ import annotations

from typing import Any

import pytest

from headrace_spark.base.errors import ForeignOffset
from headrace_spark.lake.table_position import TablePosition


def at(version: int, index: int, is_first: bool = False) -> TablePosition:
    given: dict[str, Any] = {"sourceVersion": 1, "reservoirId": "t", "reservoirVersion": version}
    return TablePosition.from_dict(given | {"index": index, "isStartingVersion": is_first})


def test_it_grows_through_files_and_versions() -> None:
    way = [
        at(3, 0, True),
        at(3, 70, True),
        at(4, -100),
        at(4, -1),
        at(4, 5),
        at(4, (1 << 63) - 100),
        at(5, -1),
    ]
    numbers = [position.number for position in way]
    assert numbers == sorted(set(numbers))
    assert numbers[-1] < 1 << 63
    assert [position.read_version for position in way] == [3, 3, 3, 3, 4, 4, 4]


def test_what_is_no_position_is_refused() -> None:
    with pytest.raises(ForeignOffset, match="no offset of a Delta table"):
        TablePosition.from_dict({"uuid": "u", "epoch": 0, "offset": 3})
