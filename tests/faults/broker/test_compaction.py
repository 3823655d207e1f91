"""A session that never returns keeps its few messages; the disk does not keep everything between them."""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import suppress

import pytest

from broker_process import BrokerProcess, headrace, wait_until
from e2e.raw import RawClient
from e2e.wire import PUBACK, RECEIVE_MAXIMUM, SESSION_EXPIRY

SETTINGS: dict[str, object] = {
    "journal.segment_bytes_max": 256 << 10,
    "journal.retention_bytes": 300_000,
    "journal.snapshot_interval_bytes": 256 << 10,
    "journal.reserve_bytes": 0,
}
WINDOW = {SESSION_EXPIRY: 600, RECEIVE_MAXIMUM: 4}


def used(broker: BrokerProcess) -> int:
    total = 0
    for path in (broker.data_dir / "journal").glob("*.log"):
        with suppress(FileNotFoundError):  # merged into another one meanwhile
            total += path.stat().st_blocks * 512
    return total


def freed(broker: BrokerProcess) -> int:
    """Bytes, by compaction alone."""
    return sum(map(int, re.findall(r"compacted.*freed_bytes=(\d+)", broker.stderr)))


@pytest.mark.slow
def test_disk_use_stays_near_what_is_live(
    brokers: Callable[..., BrokerProcess], clients: Callable[..., RawClient]
) -> None:
    broker = brokers(SETTINGS).start()
    away = clients(broker, "away", clean=False)
    away.subscribe("rare", qos=1)
    away.close()
    publisher = clients(broker, "p")

    def busy() -> None:
        waiting = [publisher.publish("busy", bytes(4000), 1) for _ in range(50)]
        for identifier in waiting:
            publisher.expect_ack(PUBACK, identifier)

    for number in range(60):
        publisher.deliver("rare", b"%03d" % number)
        busy()
    sent = 60 * 50 * 4000

    snapshots: set[str] = set()

    def is_small() -> bool:
        now = {path.name for path in (broker.data_dir / "journal").glob("*.snapshot")}
        if not now <= snapshots:
            snapshots.update(now)
            busy()  # so that the next snapshot is due
            busy()
        return used(broker) < sent // 8

    wait_until(is_small, "compacted", 60)
    # Compaction begins while a slow machine still publishes, so only its own words tell what it had to free.
    assert freed(broker) > sent // 2
    oldest = min(path.name for path in (broker.data_dir / "journal").glob("*.log"))
    assert oldest == f"{0:020d}.log", "the first message holds all that came after it"

    def are_few() -> bool:
        is_small()
        few = len(list((broker.data_dir / "journal").glob("*.log"))) < 20
        return few and "merged" in broker.stderr

    wait_until(are_few, "merged", 60)
    broker.kill()
    assert headrace("journal", "verify", "--data-dir", str(broker.data_dir)).returncode == 0
    broker.start()
    away = clients(broker, "away", clean=False)
    assert [away.receive().payload for _ in range(60)] == [b"%03d" % number for number in range(60)]
    broker.stop()


@pytest.mark.slow
def test_what_is_drained_while_compaction_looks_is_not_lost(
    brokers: Callable[..., BrokerProcess], clients: Callable[..., RawClient]
) -> None:
    """References move from backlogs to what is in flight all the time; after a kill -9 nothing may be unreadable."""
    broker = brokers(SETTINGS).start()
    names = [f"c{number}" for number in range(10)]
    for name in names:
        away = clients(broker, name, clean=False)
        away.subscribe(f"to/{name}", qos=1)
        away.close()
    publisher = clients(broker, "p")
    count = 60
    for number in range(count):
        for name in names:
            publisher.publish(f"to/{name}", b"%03d" % number + bytes(300), 1)
        for _ in names:
            publisher.read()
    got: dict[str, set[int]] = {name: set() for name in names}
    seen = len(broker.lines)

    def compacts() -> bool:
        publisher.deliver("busy", bytes(20_000))
        return any("compacted" in line for line in broker.lines[seen:])

    for _ in range(2):
        back = {name: clients(broker, name, 5, clean=False, properties=WINDOW) for name in names}
        for _ in range(count // 3):
            for name, client in back.items():
                got[name].add(int(client.receive().payload[:3]))
            for _ in range(20):  # so that snapshots and compaction go on meanwhile
                publisher.deliver("busy", bytes(20_000))
        broker.crash()
        publisher = clients(broker, "p")
    for name in names:
        client = clients(broker, name, clean=False)
        while len(got[name]) < count:
            got[name].add(int(client.receive().payload[:3]))
        assert got[name] == set(range(count))
        client.close()
    assert broker.metrics()['headrace_dropped_messages_total{reason="unreadable",tenant="default"}'] == 0
    broker.stop()
