"""`make fuzz`: mutated packets against a real broker. No crash, no effect on others, memory flat, a quiet log.

HEADRACE_FUZZ_PACKETS and HEADRACE_FUZZ_SEED make it longer or other; the seed of a failure is in its message.
"""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from broker_process import BrokerProcess, make_broker
from e2e.raw import RawClient
from fuzz.mutations import conversations

PACKETS = int(os.environ.get("HEADRACE_FUZZ_PACKETS", "20000"))
SEED = int(os.environ.get("HEADRACE_FUZZ_SEED", "1"))
PROBE_EVERY = 100
GROWTH_MAX = 40 << 20  # the cache of recent records fills up to 32 MiB, however long the run is
SETTINGS = {
    "durability": "none",
    "session.session_expiry_max_s": 1,
    "session.v311_session_expiry_s": 1,
    "limits.retained_messages_max": 50,
    "limits.packet_bytes_max": 4096,
}


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    running = make_broker(tmp_path, SETTINGS).start()
    yield running
    running.end()


def play(address: tuple[str, int], packets: list[bytes]) -> None:
    """One connection: everything at once, then read until the broker has closed."""
    with socket.create_connection(address, timeout=10) as client, contextlib.suppress(ConnectionError):
        client.sendall(b"".join(packets))
        client.shutdown(socket.SHUT_WR)
        while client.recv(1 << 16):
            pass


def probed(probe: RawClient, number: int) -> None:
    """The second connection hears its own message, and nothing else."""
    payload = b"%d" % number
    probe.publish("fuzz probe", payload, 1)
    kinds = sorted(probe.read().kind for _ in range(2))
    assert kinds == [3, 4], f"PUBLISH and PUBACK expected, got {kinds} (seed {SEED})"
    assert probe.ping() == []


@pytest.mark.slow
def test_mutated_packets_harm_nobody(broker: BrokerProcess) -> None:
    process = psutil.Process(broker.pid)
    probe = RawClient(broker.address, "probe", 4)
    probe.connect()
    probe.subscribe("fuzz probe", qos=0)
    resident: list[int] = []
    lines = len(broker.stderr.splitlines())
    number = 0
    for number, packets in enumerate(conversations(SEED, PACKETS), 1):
        play(broker.address, packets)
        if number % PROBE_EVERY == 0:
            probed(probe, number)
            resident.append(process.memory_info().rss)
    probed(probe, number)
    assert broker.running, f"seed {SEED}:\n{broker.stderr}"
    assert not broker.trouble, f"seed {SEED}: {broker.trouble}"
    assert len(broker.stderr.splitlines()) - lines <= number
    assert len(process.net_connections()) <= 4  # listeners, and the probe
    metrics = broker.metrics()
    accepted = sum(value for name, value in metrics.items() if name.startswith("headrace_connects_total"))
    assert accepted > number / 2, "most connections should get as far as their mutated packets"
    warm = resident[len(resident) // 4 :]
    assert warm[-1] - warm[0] < GROWTH_MAX, f"grew from {warm[0] >> 20} to {warm[-1] >> 20} MiB"
    probe.disconnect()
    broker.stop()
