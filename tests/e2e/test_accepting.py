"""One shard of a node is put back from an older copy and accepted: what the other one has stays, and both go on."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from broker_process import headrace
from e2e.raw import RawClient
from e2e.test_workers import Workers, until, workers
from e2e.wire import PUBACK, PUBLISH
from headrace.core.homes import Homes
from headrace.core.ports.identity import DEFAULT_TENANT

pytestmark = pytest.mark.slow

BEFORE, LOST, SERVED, AFTER = range(100), range(100, 250), range(250, 300), range(300, 400)
COPIES = 'headrace_stream_copies_taken_total{shard="%d"} %.1f'


def name_in(shard: int, prefix: str) -> str:
    homes = Homes(2)
    names = (f"{prefix}{number}" for number in range(1000))
    return next(name for name in names if homes.of_client(DEFAULT_TENANT, name) == shard)


def connected(node: Workers, name: str) -> RawClient:
    client = RawClient(("127.0.0.1", node.port), name)
    client.connect(clean=False)
    return client


def subscribe(node: Workers, name: str) -> None:
    with connected(node, name) as reader:
        reader.subscribe("load/#", qos=1)
        reader.leave()


def publish(node: Workers, shard: int, numbers: range) -> None:
    with connected(node, name_in(shard, "w")) as writer:
        writer.deliver_many(f"load/{shard}", numbers)


def received(node: Workers, name: str, count: int) -> dict[str, list[int]]:
    """What comes to a session, by topic: so many messages, and nothing behind them."""
    found: dict[str, list[int]] = {"load/0": [], "load/1": []}
    with connected(node, name) as reader:
        for _ in range(count):
            packet = reader.expect(PUBLISH, 60.0)
            found[packet.topic].append(int(packet.payload))
            reader.ack(PUBACK, packet.packet_id)
        assert not any(packet.kind == PUBLISH for packet in reader.ping())
    return found


def accept(node: Workers, *options: str) -> tuple[int, str]:
    done = headrace("journal", "accept", "1", "--data-dir", str(node.folder / "data"), *options)
    return done.returncode, done.stdout + done.stderr


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Workers]:
    with workers(tmp_path, "--workers", "2") as made:
        made.start()
        yield made


@pytest.mark.parametrize("has_served", [pytest.param(False, marks=pytest.mark.deep), True])
def test_a_shard_put_back_alone_loses_what_it_alone_held(
    node: Workers, tmp_path: Path, has_served: bool
) -> None:
    readers = [name_in(shard, "r") for shard in range(2)]
    data_dir = node.folder / "data"
    for reader in readers:
        subscribe(node, reader)
    for shard in range(2):
        publish(node, shard, BEFORE)
    until(lambda: all(COPIES % (shard, 100) in node.get("/metrics") for shard in range(2)), "copies")
    assert headrace("backup", str(tmp_path / "copy"), "--data-dir", str(data_dir)).returncode == 0
    for shard in range(2):
        publish(node, shard, LOST)
    until(lambda: all(COPIES % (shard, 250) in node.get("/metrics") for shard in range(2)), "more copies")
    refusal = accept(node, "--yes")
    assert refusal[0] != 0
    assert "another process" in refusal[1]
    assert node.stop() == 0
    shutil.rmtree(data_dir / "shard-1")
    shutil.copytree(tmp_path / "copy" / "shard-1", data_dir / "shard-1")
    if has_served:
        node.start()
        until(lambda: "`headrace journal accept 1`" in node.get("/readyz"), "it is not ready, and says why")
        assert 'headrace_stream_refused{follower="0",shard="1"} 1.0' in node.get("/metrics")
        publish(node, 1, SERVED)
        assert node.stop() == 0
    code, said = accept(node, "--dry-run")
    assert (code, "records or more are gone" in said) == (1, True), said
    code, said = accept(node, "--yes")
    assert (code, "shard 0 goes on with shard 1" in said) == (0, True), said
    assert accept(node)[1] == "shard 1 fits all others: there is nothing to accept\n"
    node.start()
    for shard in range(2):
        publish(node, shard, AFTER)
    served = list(SERVED) if has_served else []
    held = received(node, readers[0], 700 + len(served))
    assert held == {"load/0": [*BEFORE, *LOST, *AFTER], "load/1": [*BEFORE, *LOST, *served, *AFTER]}
    put_back = received(node, readers[1], 550 + len(served))
    assert put_back == {"load/0": [*BEFORE, *LOST, *AFTER], "load/1": [*BEFORE, *served, *AFTER]}
    assert node.stop() == 0
