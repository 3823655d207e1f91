"""What waits, and what could not be read, is in the metrics."""

from __future__ import annotations

import pytest
from prometheus_client.exposition import generate_latest
from prometheus_client.registry import Collector, CollectorRegistry

from conformance.peer import Peer
from harness import Harness
from headrace.mqtt import reason_codes as rc
from headrace.mqtt.protocol import ServerProtocol
from headrace.services.metrics import BrokerCollector, BuildCollector, ReadsCollector
from headrace.services.watchdog import Watchdog
from headrace.storage.memory import MemoryLink
from shards import Shards


def lines(collector: Collector) -> list[str]:
    registry = CollectorRegistry()
    registry.register(collector)
    return generate_latest(registry).decode().split("\n")


def paused(harness: Harness) -> dict[str, float]:
    found = [
        line
        for line in lines(BrokerCollector(harness.worker, Watchdog()))
        if line.startswith("headrace_paused_connections{")
    ]
    return {line.split('"')[1]: float(line.split()[-1]) for line in found}


def test_who_waits_for_what() -> None:
    harness = Harness()
    harness.settings.commit_bytes_max = 1000
    publisher = harness.client("p", clean=True)
    assert paused(harness) == {"journal": 0, "disk_full": 0, "shard": 0, "socket": 0, "disk_read": 0}
    publisher.publish("t", b"x" * 2000, sync=False)
    assert paused(harness) == {"journal": 1, "disk_full": 0, "shard": 0, "socket": 0, "disk_read": 0}
    harness.sync()
    assert paused(harness) == {"journal": 0, "disk_full": 0, "shard": 0, "socket": 0, "disk_read": 0}
    harness.broker.set_storage_full(True)
    for _ in range(2):
        publisher.publish("t", b"x", sync=False)
    assert paused(harness) == {"journal": 0, "disk_full": 1, "shard": 0, "socket": 0, "disk_read": 0}


def test_what_was_read_back() -> None:
    class Journal:
        disk_reads, damaged_reads, failed_reads = 7, 2, 3

    found = lines(ReadsCollector([Journal(), Journal()]))
    assert "headrace_journal_disk_reads_total 14.0" in found
    assert "headrace_journal_damaged_reads_total 4.0" in found
    assert "headrace_journal_failed_reads_total 6.0" in found


def test_which_build_runs() -> None:
    [line] = [line for line in lines(BuildCollector("1.2.3", "compiled")) if line and line[0] != "#"]
    assert line.startswith('headrace_build_info{build="compiled",python="3.')
    assert line.endswith('version="1.2.3"} 1.0')


def test_shards_are_counted_together_with_who_came_to_none_of_them() -> None:
    shards = Shards()
    for number in range(30):
        shards.client(f"c{number}", version=5).publish("t", b"x")
    stranger = MemoryLink(shards.worker)
    ServerProtocol(stranger, 1 << 20, 16).receive_data(b"no MQTT")
    found = lines(BrokerCollector(shards.worker, Watchdog()))
    assert 'headrace_publishes_received_total{tenant="default"} 30.0' in found
    assert 'headrace_sessions{tenant="default"} 30.0' in found
    assert "headrace_connections 30.0" in found
    assert 'headrace_protocol_errors_total{tenant="default"} 1.0' in found
    for broker in shards.brokers:
        watermark = (
            f'headrace_journal_high_watermark{{shard="{broker.shard}"}} {broker.commit.high_watermark}.0'
        )
        assert watermark in found


def test_refusals_have_a_packet_and_a_reason() -> None:
    harness = Harness()
    harness.settings.allow_anonymous = False
    refused = Peer(harness, "p")
    assert refused.connack.reason_code == rc.NOT_AUTHORIZED
    found = lines(BrokerCollector(harness.worker, Watchdog()))
    name = 'headrace_refused_packets_total{packet="connect",reason="not_authorized",tenant="default"} 1.0'
    assert name in found


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_payload_bytes_in_and_out(qos: int) -> None:
    harness = Harness()
    for number in range(3):
        Peer(harness, f"w{number}").subscribe("t", qos=qos)
    Peer(harness, "one").subscribe("$share/g/t", qos=qos)
    Peer(harness, "p").publish("t", b"x" * 100, qos)
    found = lines(BrokerCollector(harness.worker, Watchdog()))
    assert 'headrace_publish_received_bytes_total{tenant="default"} 100.0' in found
    assert 'headrace_publish_sent_bytes_total{tenant="default"} 400.0' in found
