"""A bit flipped anywhere in the data directory: the broker refuses and names the file, or serves all it acknowledged."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from broker_process import BrokerExitedError, BrokerProcess, wait_until
from e2e.raw import RawClient

Brokers = Callable[..., BrokerProcess]
Clients = Callable[..., RawClient]

SETTINGS: dict[str, object] = {
    "journal.segment_bytes_max": 96 << 10,
    "journal.snapshot_interval_bytes": 20_000,
    "journal.reserve_bytes": 4096,
    "sys_interval_s": 0,
}
MESSAGES, RETAINED = 300, 5


def payload(number: int) -> bytes:
    return b"%06d" % number + b"x" * 500


@pytest.fixture
def killed(brokers: Brokers, clients: Clients, tmp_path: Path) -> Path:
    """The folder of a broker that was killed: a backlog, retained messages, segments, indexes, a snapshot."""
    broker = brokers(SETTINGS, tmp_path / "killed").start()
    away = clients(broker, "away", clean=False)
    away.subscribe("t/#", qos=1)
    away.close()
    publisher = clients(broker, "p")
    for number in range(RETAINED):
        publisher.deliver(f"r/{number}", payload(number), retain=True)
    for number in range(MESSAGES):
        publisher.deliver("t/1", payload(number))
    journal = broker.data_dir / "journal"

    def snapshot_taken() -> bool:
        publisher.deliver("filler", bytes(4096))
        return any(journal.glob("*.snapshot"))

    wait_until(snapshot_taken, "a snapshot", 30)
    for number in range(3):
        publisher.deliver("filler", b"%d" % number)  # the last batch is the one case that nobody can decide
    broker.kill()
    return broker.folder


def flips(folder: Path, rng: random.Random) -> list[tuple[Path, int]]:
    """Two positions of each file: in its header and anywhere; never in the last batch of the journal."""
    found = []
    files = [path for path in sorted((folder / "data").rglob("*")) if path.is_file()]
    last_log = max(path for path in files if path.suffix == ".log")
    for path in files:
        used = len(path.read_bytes().rstrip(b"\0"))
        if used:
            end = used - 150 if path == last_log else used
            name = path.relative_to(folder)
            found += [(name, rng.randrange(min(64, end))), (name, rng.randrange(end))]
    return found


def serves_everything(broker: BrokerProcess, clients: Clients) -> None:
    away = clients(broker, "away", clean=False)
    assert away.connack.session_present
    assert [away.receive().payload for _ in range(MESSAGES)] == [payload(n) for n in range(MESSAGES)]
    reader = clients(broker, "reader")
    reader.subscribe("r/#", qos=1)
    kept = sorted((m.topic, m.payload) for m in (reader.receive() for _ in range(RETAINED)))
    assert kept == [(f"r/{number}", payload(number)) for number in range(RETAINED)]


def start_refused(broker: BrokerProcess) -> BrokerExitedError | None:
    try:
        broker.start()
    except BrokerExitedError as error:
        return error
    return None


@pytest.mark.slow
def test_a_flipped_bit_is_refused_or_costs_nothing(
    killed: Path, brokers: Brokers, clients: Clients, tmp_path: Path
) -> None:
    rng = random.Random(7)
    refused = served = 0
    for at, (name, place) in enumerate(flips(killed, rng)):
        folder = tmp_path / f"flip-{at}"
        shutil.copytree(killed, folder)
        damaged = folder / name
        content = bytearray(damaged.read_bytes())
        content[place] ^= 1 << rng.randrange(8)
        damaged.write_bytes(content)
        broker = brokers(SETTINGS, folder)
        refusal = start_refused(broker)
        if refusal is None:
            serves_everything(broker, clients)
            served += 1
            broker.kill()
        else:
            assert refusal.code == 1, refusal.stderr
            assert name.name in refusal.stderr, f"{name} byte {place}: {refusal.stderr}"
            refused += 1
        shutil.rmtree(folder)
    assert refused
    assert served
