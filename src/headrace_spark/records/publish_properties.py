"""Columns from the MQTT 5 properties of messages: decoded for the rows that have any, null or empty for the others."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from itertools import chain
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.mqtt.properties import Properties
from headrace_spark.records.schema import MESSAGE_ID_PROPERTY

_PUBLISH: Final = 3
_PAIR: Final = pa.struct([pa.field("name", pa.string()), pa.field("value", pa.string())])
_PAIRS: Final = pa.list_(pa.field("element", _PAIR))


class PropertyColumns:
    """The properties of messages as columns. `areas[i]` are the properties of row `rows[i]` out of `count`, in wire
    encoding without their length."""

    def __init__(self, count: int, rows: npt.NDArray[np.int64], areas: Sequence[bytes]) -> None:
        self._count = count
        self._rows = rows
        self._decoded = [Properties.decode(area, 0, len(area), _PUBLISH) for area in areas]

    @cached_property
    def _spread(self) -> pa.Array:
        """Return for each row the index of its properties, null where it has none."""
        index = np.zeros(self._count, np.int32)
        index[self._rows] = np.arange(len(self._rows))
        absent = np.ones(self._count, np.bool_)
        absent[self._rows] = False
        return pa.array(index, mask=absent)

    def column(self, attribute: str, kind: pa.DataType) -> pa.Array:
        """Return a property that occurs at most once in a message."""
        values: list[Any] = [getattr(properties, attribute) for properties in self._decoded]
        if all(value is None for value in values):
            return pa.nulls(self._count, kind)
        return pa.array(values, kind).take(self._spread)

    def user_properties(self) -> pa.ListArray:
        pairs = list(chain.from_iterable(properties.user_properties for properties in self._decoded))
        names = pa.array([name for name, _ in pairs], pa.string())
        values = pa.array([value for _, value in pairs], pa.string())
        ends = np.zeros(self._count + 1, np.int32)
        ends[self._rows + 1] = [len(properties.user_properties) for properties in self._decoded]
        flat = pa.StructArray.from_arrays([names, values], fields=list(_PAIR))
        return pa.ListArray.from_arrays(pa.array(np.cumsum(ends, dtype=np.int32)), flat, type=_PAIRS)

    @cached_property
    def message_ids(self) -> tuple[list[int], list[str]]:
        """Return the rows whose publisher sent a message id of its own, and that id: the first, if it sent several. An
        empty one is none, as in `headrace.core.records.message_id`."""
        rows, ids = [], []
        for row, properties in zip(self._rows.tolist(), self._decoded, strict=True):
            own = next(
                (value for name, value in properties.user_properties if name == MESSAGE_ID_PROPERTY), None
            )
            if own:
                rows.append(row)
                ids.append(own)
        return rows, ids
