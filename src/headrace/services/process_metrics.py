"""What Prometheus' clients tell of every process: `process_*`.

`refresh` asks the system, on a thread, before each scrape: with a hundred thousand connections the count of open files
alone takes longer than the loop may stand still.
"""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.core import Metric
from prometheus_client.process_collector import ProcessCollector
from prometheus_client.registry import Collector


class ProcessFigures(Collector):
    """Holds the figures of this process as of the last `refresh`; nothing before the first, and where there is no
    /proc."""

    def __init__(self) -> None:
        self._asks = ProcessCollector(registry=None)
        self._found: list[Metric] = []

    def refresh(self) -> None:
        """Ask for the figures anew. Runs on a thread."""
        self._found = list(self._asks.collect())

    def collect(self) -> Iterator[Metric]:
        return iter(self._found)
