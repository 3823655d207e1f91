"""What /metrics tells of the directory. Read on the loop: plain numbers that others count."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from headrace.directory.sql_directory import SqlDirectory


class DirectoryCollector(Collector):
    """Tells whether the database answers, what it is asked, and what is known of it."""

    def __init__(self, directory: SqlDirectory) -> None:
        self._directory = directory

    def collect(self) -> Iterator[Metric]:
        of = self._directory
        yield GaugeMetricFamily(
            "headrace_directory_away",
            "1 while the database of the directory does not answer",
            value=int(of.is_away),
        )
        yield CounterMetricFamily(
            "headrace_directory_lookups",
            "Tenants and users that were looked up in the database",
            value=of.lookups,
        )
        yield GaugeMetricFamily(
            "headrace_directory_waiting", "Look-ups that are made, or wait for a thread", value=of.calls
        )
        yield CounterMetricFamily(
            "headrace_directory_abandoned",
            "Look-ups that had waited too long at their turn",
            value=of.abandoned,
        )
        yield GaugeMetricFamily("headrace_directory_users", "Users that are known in memory", value=of.users)
