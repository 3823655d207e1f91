"""The tables of a lake as DuckDB reads them, compared with what a publisher had acknowledged."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import duckdb
from deltalake import DeltaTable

from faults.pipeline.devices import BROKEN_EVERY, PUBLISHER, Published
from headrace_spark.lake.table_log import dataset_of

NAMES = ("messages", "clean", "quarantine", "repeats", "traffic", "deliveries", "backlog")
_ID = f"client:default/{PUBLISHER}/"


class Lake:
    """Read without Spark, and without locks: the jobs may be running."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def ask(self, table: str, query: str) -> list[Any]:
        """Rows of a query over `rows`; none where there is no such table yet."""
        if not DeltaTable.is_deltatable(str(self.root / table)):
            return []
        rows = dataset_of(self.root / table)
        with duckdb.connect() as connection:
            connection.register("rows", rows)
            return connection.execute(query).fetchall()

    def _one(self, table: str, query: str) -> int:
        return int(next(iter(self.ask(table, query)), (0,))[0] or 0)

    def rows(self, table: str) -> int:
        return self._one(table, "select count(*) from rows")

    def numbers(self) -> int:
        """Different messages of the publisher in `messages`."""
        return self._one(
            "messages", f"select count(distinct message_id) from rows where starts_with(message_id, '{_ID}')"
        )

    def counted(self) -> int:
        return self._one("traffic", "select sum(messages) from rows")

    def backlog(self) -> int:
        return self._one("backlog", "select sum(messages) from rows")

    def delivered(self, client: str) -> int:
        """Messages that this client acknowledged, as the job `metrics` counted them."""
        return self._one(
            "deliveries",
            f"select sum(messages) from rows where client_id = '{client}' and outcome = 'acked'",
        )

    def describe(self) -> str:
        counts = ", ".join(f"{name} {self.rows(name)}" for name in NAMES)
        return f"rows: {counts}; counted {self.counted()}, waiting {self.backlog()}"

    def verify_messages(self, acknowledged: Mapping[int, Published]) -> dict[str, int]:
        """Row for row: nothing is missing, nothing is changed, nothing of QoS 2 is there twice; -> rows by table."""
        columns = "topic, qos, payload, count(*), count(distinct journal_offset)"
        found = self.ask(
            "messages",
            f"select message_id, {columns} from rows where starts_with(message_id, '{_ID}') group by all",
        )
        copies: Counter[int] = Counter()
        for message_id, topic, qos, payload, count, offsets in found:
            number = int(message_id.removeprefix(_ID))
            assert number in acknowledged, f"{number} is in the table and was never acknowledged"
            assert acknowledged[number] == Published(number, topic, bytes(payload), qos), (
                f"{number} is changed"
            )
            assert count == offsets, f"{number} is there twice from one place of the journal"
            copies[number] += count
        assert copies.keys() == acknowledged.keys(), (
            f"missing: {sorted(acknowledged.keys() - copies.keys())[:10]}"
        )
        twice = [number for number, count in copies.items() if count > 1 and acknowledged[number].qos == 2]
        assert not twice, f"of QoS 2, and there twice: {twice[:10]}"
        return {name: self.rows(name) for name in NAMES}

    def verify_clean(self, acknowledged: Mapping[int, Published]) -> None:
        """Every message once, decoded or put aside with its reason."""
        own = f"where starts_with(message_id, '{_ID}')"
        good = self.ask("clean", f"select message_id, reading.value from rows {own}")
        bad = self.ask("quarantine", f"select message_id, reason from rows {own}")
        expected = {number: number for number in acknowledged if number % BROKEN_EVERY}
        found = Counter((int(name.removeprefix(_ID)), value) for name, value in good)
        assert found == Counter(expected.items()), "clean is not what was acknowledged"
        aside = Counter((int(name.removeprefix(_ID)), reason) for name, reason in bad)
        assert aside == Counter((n, "not_json") for n in acknowledged if n % BROKEN_EVERY == 0)
