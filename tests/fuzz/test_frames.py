"""`make fuzz`: mutated frames against a real broker, with right checksums every other time. They harm nobody.

HEADRACE_FUZZ_PACKETS and HEADRACE_FUZZ_SEED make it longer or other; the seed of a failure is in its message.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import socket
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from broker_process import BrokerProcess, free_port, make_broker
from e2e.device import Device, checksum

FRAMES = int(os.environ.get("HEADRACE_FUZZ_PACKETS", "20000"))
SEED = int(os.environ.get("HEADRACE_FUZZ_SEED", "1"))
AT_ONCE = 20  # of a connection
PROBE_EVERY = 10  # connections
GROWTH_MAX = 64 << 20
ROWS = json.loads((Path(__file__).parents[1] / "vectors/frames/frames.json").read_text("utf-8"))
CORPUS = [bytes.fromhex(row[0]) for row in ROWS["requests"]] + [
    bytes.fromhex(row[1]) for row in ROWS["refused"]
]


def mutated(chance: random.Random) -> bytes:
    """A frame of the vectors with up to three changes; its length and checksum are right every other time."""
    found = bytearray(chance.choice(CORPUS))
    for _ in range(chance.randrange(4)):
        at = chance.randrange(len(found))
        kind = chance.randrange(4)
        if kind == 0:
            found[at] ^= 1 << chance.randrange(8)
        elif kind == 1:
            found[at] = chance.choice((0x00, 0x01, 0x7F, 0x80, 0xFF))
        elif kind == 2:
            found[at:at] = chance.randbytes(chance.randrange(1, 5))
        elif len(found) > 12:
            del found[at : at + chance.randrange(1, 4)]
    if chance.random() < 0.5 and len(found) > 9:
        found[1:5] = len(found).to_bytes(4, "big")
        found[-1] = checksum(2 if found[0] == 2 else 1, bytes(found[:-1]))
    return bytes(found)


@pytest.fixture
def served(tmp_path: Path) -> Iterator[tuple[BrokerProcess, int]]:
    port = free_port()
    settings = {
        "durability": "none",
        "frames.queues_max": 20,
        "frames.clusters_max": 5,
        "limits.packet_bytes_max": 4096,
    }
    running = make_broker(tmp_path, settings, ["--listen", f"frame://127.0.0.1:{port}"]).start()
    yield running, port
    running.end()


def play(port: int, data: bytes) -> None:
    """One connection: everything at once, then read until the broker has closed."""
    with (
        socket.create_connection(("127.0.0.1", port), timeout=60) as client,
        contextlib.suppress(ConnectionError),
    ):
        client.sendall(data)
        client.shutdown(socket.SHUT_WR)
        while client.recv(1 << 16):
            pass


@pytest.mark.slow
def test_mutated_frames_harm_nobody(served: tuple[BrokerProcess, int]) -> None:
    broker, port = served
    chance = random.Random(SEED)
    process = psutil.Process(broker.pid)
    resident: list[int] = []
    with Device(port, b"probe") as probe:
        for number in range(FRAMES // AT_ONCE):
            play(port, b"".join(mutated(chance) for _ in range(AT_ONCE)))
            if number % PROBE_EVERY == 0:
                probe.publish(number, "probe", b"%d" % number)
                resident.append(process.memory_info().rss)
        probe.ping()
    assert broker.running, f"seed {SEED}:\n{broker.stderr}"
    assert not broker.trouble, f"seed {SEED}: {broker.trouble}"
    failures = [
        (name, value)
        for name, value in broker.metrics().items()
        if name.startswith("headrace_failures_total")
    ]
    assert not [name for name, value in failures if value], f"seed {SEED}: {failures}"
    warm = resident[len(resident) // 4 :]
    assert warm[-1] - warm[0] < GROWTH_MAX, f"grew from {warm[0] >> 20} to {warm[-1] >> 20} MiB"
    broker.stop()
