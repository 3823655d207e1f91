"""The lines of `headrace frame clusters`, from a broker that is none."""

from __future__ import annotations

from typing import Any

from headrace.console.admin import AdminClient
from headrace.console.clusters import HEADER, line, rows

ROW: dict[str, Any] = {
    "tenant": "default",
    "topic": "do\x1b[2Jors",
    "messages": 1500,
    "bytes": 3 << 20,
    "cluster": "store",
    "lag": 1200,
    "in_flight": 20,
    "consumers": 3,
    "waiting": 1,
    "acked_per_s": 12.345,
    "oldest_s": 3700.2,
}


class Fake(AdminClient):
    """Answers pages one by one."""

    def __init__(self, pages: list[dict[str, Any]]) -> None:
        super().__init__("127.0.0.1", 1)
        self._pages = pages
        self.asked: list[str] = []

    def get(self, path: str) -> Any:
        self.asked.append(path)
        return self._pages.pop(0)


def test_all_pages_are_asked_for() -> None:
    fake = Fake([{"rows": [ROW], "next": "7.8"}, {"rows": [], "next": "9.-1"}, {"rows": [ROW], "next": None}])
    assert list(rows(fake, {"topic": "a/#&x", "cluster": None})) == [ROW, ROW]
    assert fake.asked == [
        "/v1/clusters?topic=a%2F%23%26x",
        "/v1/clusters?topic=a%2F%23%26x&from=7.8",
        "/v1/clusters?topic=a%2F%23%26x&from=9.-1",
    ]


def test_a_line_stands_below_its_header_and_moves_no_cursor() -> None:
    found = line(ROW)
    assert "\x1b" not in found
    assert found.split() == [
        *("1.20", "k", "20", "3", "1", "12.3", "1", "h", "1", "min", "1.50", "k", "3.00", "MiB"),
        *("default", "do\\x1b[2Jors", "store"),
    ]
    assert len(found) - len("default do\\x1b[2Jors store") == len(HEADER) - len("tenant topic cluster")


def test_a_queue_without_clusters() -> None:
    found = line(ROW | {"cluster": None, "oldest_s": None})
    assert found.split()[:7] == ["-", "-", "-", "-", "-", "-", "1.50"]
    assert found.endswith("default do\\x1b[2Jors")
