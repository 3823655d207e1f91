"""A session that never returns keeps its few messages; the disk does not keep everything between them."""

from __future__ import annotations

from collections.abc import Callable

from broker_process import BrokerProcess, headrace, wait_until
from e2e.raw import RawClient
from e2e.wire import PUBACK

SETTINGS: dict[str, object] = {
    "journal.segment_bytes_max": 256 << 10,
    "journal.retention_bytes": 300_000,
    "journal.snapshot_interval_bytes": 256 << 10,
    "journal.reserve_bytes": 0,
}


def used(broker: BrokerProcess) -> int:
    return sum(path.stat().st_blocks * 512 for path in (broker.data_dir / "journal").glob("*.log"))


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
    assert used(broker) > sent // 4, "the first message holds all that came after it"

    snapshots: set[str] = set()

    def is_small() -> bool:
        now = {path.name for path in (broker.data_dir / "journal").glob("*.snapshot")}
        if not now <= snapshots:
            snapshots.update(now)
            busy()  # so that the next snapshot is due
            busy()
        return used(broker) < sent // 8

    wait_until(is_small, "compacted", 30)
    assert "compacted" in broker.stderr
    broker.kill()
    assert headrace("journal", "verify", "--data-dir", str(broker.data_dir)).returncode == 0
    broker.start()
    away = clients(broker, "away", clean=False)
    assert [away.receive().payload for _ in range(60)] == [b"%03d" % number for number in range(60)]
    broker.stop()
