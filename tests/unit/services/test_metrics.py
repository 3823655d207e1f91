"""What waits, and what could not be read, is in the metrics."""

from __future__ import annotations

from prometheus_client.exposition import generate_latest
from prometheus_client.registry import Collector, CollectorRegistry

from harness import Harness
from headrace.services.metrics import BrokerCollector, ReadsCollector
from headrace.services.watchdog import Watchdog


def lines(collector: Collector) -> list[str]:
    registry = CollectorRegistry()
    registry.register(collector)
    return generate_latest(registry).decode().split("\n")


def paused(harness: Harness) -> dict[str, float]:
    found = [
        line
        for line in lines(BrokerCollector(harness.broker, Watchdog()))
        if line.startswith("headrace_paused_connections{")
    ]
    return {line.split('"')[1]: float(line.split()[-1]) for line in found}


def test_who_waits_for_what() -> None:
    harness = Harness()
    harness.settings.commit_bytes_max = 1000
    publisher = harness.client("p", clean=True)
    assert paused(harness) == {"journal": 0, "disk_full": 0, "socket": 0, "disk_read": 0}
    publisher.publish("t", b"x" * 2000, sync=False)
    assert paused(harness) == {"journal": 1, "disk_full": 0, "socket": 0, "disk_read": 0}
    harness.sync()
    assert paused(harness) == {"journal": 0, "disk_full": 0, "socket": 0, "disk_read": 0}
    harness.broker.set_storage_full(True)
    for _ in range(2):
        publisher.publish("t", b"x", sync=False)
    assert paused(harness) == {"journal": 0, "disk_full": 1, "socket": 0, "disk_read": 0}


def test_what_was_read_back() -> None:
    class Journal:
        disk_reads, damaged_reads, failed_reads = 7, 2, 3

    found = lines(ReadsCollector(Journal()))
    assert "headrace_journal_disk_reads_total 7.0" in found
    assert "headrace_journal_damaged_reads_total 2.0" in found
    assert "headrace_journal_failed_reads_total 3.0" in found
