"""What is a problem, what a warning, and what the screen says."""

from __future__ import annotations

import pytest

from headrace.console.scrape import Scrape
from headrace.console.status import Status, lines, summary

GOOD = {
    'headrace_build_info{version="1.2.3",build="compiled"}': 1,
    "process_start_time_seconds": 1000,
    "process_resident_memory_bytes": 64 << 20,
    "headrace_connections": 2,
    'headrace_sessions{tenant="a"}': 3,
    'headrace_sessions{tenant="b"}': 4,
    "headrace_disk_free_bytes": 50 << 30,
    "headrace_disk_size_bytes": 100 << 30,
    "headrace_journal_consumer_retention_limit_bytes": 1000,
    'headrace_consumer_offset{consumer="archive"}': 70,
    'headrace_consumer_lag_records{consumer="archive"}': 30,
    'headrace_consumer_lag_bytes{consumer="archive"}': 800,
    'headrace_consumer_silent_seconds{consumer="archive"}': 61,
    'headrace_paused_connections{reason="disk_read"}': 0,
    'headrace_paused_connections{reason="socket"}': 5,
    'headrace_bridge_up{bridge="cloud"}': 1,
    'headrace_source_up{source="s"}': 1,
    'headrace_sink_up{sink="s",shard="0"}': 1,
    'headrace_sink_up{sink="s",shard="1"}': 1,
    'headrace_sink_lag_records{sink="s",shard="1"}': 7,
    "headrace_journal_damaged_reads_total": 0,
    'headrace_failures_total{place="apply"}': 0,
}
WARNINGS = [
    ({"headrace_disk_free_bytes": 9 << 30}, "the disk has 9.00 GiB left of 100 GiB"),
    (
        {'headrace_consumer_lag_bytes{consumer="archive"}': 801},
        "consumer archive is 801 B behind; beyond 1000 B its records are dropped",
    ),
    ({'headrace_bridge_up{bridge="cloud"}': 0}, "bridge cloud is down"),
    ({'headrace_source_up{source="s"}': 0}, "source s does not read from Kafka"),
    ({'headrace_sink_up{sink="s",shard="1"}': 0}, "sink s does not write to Kafka, 7 records behind"),
    (
        {'headrace_sink_lost_total{sink="s",shard="1"}': 5},
        "sink s lost 5 offsets of the journal before they were sent",
    ),
    (
        {"headrace_journal_damaged_reads_total": 2},
        "2 messages or pages could not be read from the journal: it is damaged",
    ),
    (
        {'headrace_failures_total{place="apply"}': 1},
        "1 failures were contained since the start: the log has them",
    ),
]


def of(changed: dict[str, float], reason: str = "") -> Status:
    text = "".join(f"{name} {value}\n" for name, value in (GOOD | changed).items())
    return summary("http://h:1", reason, Scrape(text, 0), 1061)


def test_a_node_whose_workers_have_told_nothing_yet_has_just_begun() -> None:
    text = 'headrace_worker_up{worker="0"} 0\nheadrace_worker_up{worker="1"} 0\n'
    status = summary("http://h:1", "starting", Scrape(text, 0), 1_795_000_000.0)
    assert status.uptime_s == 0.0
    assert "broker    http://h:1" in lines(status)
    assert "running   0 s, 0 B of memory" in lines(status)


def test_several_workers_are_one_broker() -> None:
    """Two of them, with a shard each on one disk; the second worker was started again."""
    single = ("process_start_time_seconds", "process_resident_memory_bytes", "headrace_disk_free_bytes")
    text = "".join(
        f"{name} {value}\n"
        for name, value in GOOD.items()
        if name not in (*single, "headrace_disk_size_bytes") and not name.startswith("headrace_consumer_")
    )
    for number in range(2):
        text += f"""process_start_time_seconds{{worker="{number}"}} {1000 + 50 * number}
process_resident_memory_bytes{{worker="{number}"}} 100
headrace_disk_free_bytes{{shard="{number}"}} {(9 + number) << 30}
headrace_disk_size_bytes{{shard="{number}"}} {100 << 30}
headrace_consumer_offset{{consumer="archive",shard="{number}"}} 70
headrace_consumer_lag_records{{consumer="archive",shard="{number}"}} 30
headrace_consumer_silent_seconds{{consumer="archive",shard="{number}"}} {61 + number}
"""
    status = summary("http://h:1", "", Scrape(text, 0), 1061)
    assert (status.uptime_s, status.memory_bytes) == (61, 200)
    assert (status.disk_free_bytes, status.disk_size_bytes) == (9 << 30, 100 << 30)
    assert status.warnings == ["the disk has 9.00 GiB left of 100 GiB"]
    [consumer] = status.consumers
    assert (consumer.lag_records, consumer.silent_s) == (60, 62)


def test_a_broker_that_is_well() -> None:
    status = of({})
    assert status.healthy
    assert status.warnings == []
    assert (status.version, status.build, status.uptime_s) == ("1.2.3", "compiled", 61)
    assert (status.connections, status.sessions) == (2, 7)
    [consumer] = status.consumers
    assert (consumer.name, consumer.offset, consumer.lag_records, consumer.lag_bytes) == (
        "archive",
        70,
        30,
        800,
    )
    said = lines(status)
    assert said[0] == "health    good"
    assert "running   1 min 1 s, 64.00 MiB of memory" in said
    assert "consumer  archive: offset 70, 30 records, 800 B behind, moved 1 min 1 s ago" in said
    assert status.as_dict()["healthy"] is True


@pytest.mark.parametrize(("changed", "warning"), WARNINGS)
def test_a_warning_leaves_it_healthy(changed: dict[str, float], warning: str) -> None:
    status = of(changed)
    assert status.healthy
    assert status.warnings == [warning]
    assert lines(status)[1] == f"warning   {warning}"


def test_a_problem_does_not() -> None:
    status = of({}, "the journal's disk is full: no space")
    assert not status.ready
    assert not status.healthy
    assert lines(status)[:2] == ["health    bad", "problem   not ready: the journal's disk is full: no space"]
    status = of({'headrace_paused_connections{reason="disk_read"}': 3})
    assert status.ready
    assert status.problems == ["3 sessions wait for messages that cannot be read from the disk"]


def test_the_consumer_that_is_most_behind_comes_first() -> None:
    more: dict[str, float] = {
        'headrace_consumer_offset{consumer="b"}': 1,
        'headrace_consumer_lag_records{consumer="b"}': 99,
        'headrace_consumer_offset{consumer="c"}': 100,
    }
    assert [consumer.name for consumer in of(more).consumers] == ["b", "archive", "c"]
