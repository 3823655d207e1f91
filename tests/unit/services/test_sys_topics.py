"""$SYS topics: names, values, and what they cost."""

from __future__ import annotations

from pathlib import Path

import pytest

from conformance.peer import Peer
from harness import Harness
from headrace.core.worker import Worker
from headrace.mqtt.packets import Publish
from headrace.services.sys_topics import Load, SystemValues, heap, numbers, tell
from shards import Shards


class System:
    """What a node of one worker does every now and then."""

    def __init__(self, worker: Worker, version: str, now_s: float, accepted: int = 0) -> None:
        self._worker, self._accepted = worker, accepted
        self._values = SystemValues(version, now_s)

    def publish(self, now_s: float) -> None:
        tell(self._worker, self._values.of(numbers(self._worker, self._accepted), now_s))


def values(peer: Peer) -> dict[str, str]:
    return {packet.topic.decode(): packet.payload.decode() for packet in peer.publishes()}


def test_names_and_values() -> None:
    harness = Harness()
    system = System(harness.worker, "1.2.3", 100.0)
    watcher = Peer(harness, "w")
    watcher.subscribe("$SYS/#", "x/+")
    away = Peer(harness, "away", clean=False, session_expiry_interval=99)
    away.lose()
    Peer(harness, "p").publish("x/1", b"four", 1, True)
    watcher.take()
    system.publish(110.0)
    seen = values(watcher)
    expected = {
        "version": "headrace version 1.2.3",
        "uptime": "10 seconds",
        "clients/total": "3",
        "clients/connected": "2",
        "clients/disconnected": "1",
        "clients/maximum": "2",
        "messages/received": "1",
        "messages/sent": "1",
        "publish/bytes/received": "4",
        "publish/bytes/sent": "4",
        "clients/expired": "0",
        "messages/stored": "1",
        "retained messages/count": "1",
        "subscriptions/count": "2",
        "connections": "3",
    }
    assert {name: seen[f"$SYS/broker/{name}"] for name in expected} == expected
    for name in ("messages/received", "publish/received", "publish/messages/received"):
        assert float(seen[f"$SYS/broker/load/{name}/1min"]) == pytest.approx(0.92, abs=0.01)
    assert float(seen["$SYS/broker/load/messages/received/1min"]) == pytest.approx(0.92, abs=0.01)


def test_sockets_are_those_that_listeners_let_in() -> None:
    harness = Harness()
    system = System(harness.worker, "1", 0.0, 6)
    watcher = Peer(harness, "w")
    watcher.subscribe("$SYS/broker/load/sockets/1min")
    system.publish(60.0)
    assert float(values(watcher)["$SYS/broker/load/sockets/1min"]) == pytest.approx(3.79, abs=0.01)


def test_an_expired_session_and_what_waited_for_it() -> None:
    harness = Harness()
    system = System(harness.worker, "1", 0.0)
    watcher = Peer(harness, "w")
    watcher.subscribe("$SYS/broker/clients/expired", "$SYS/broker/messages/stored")
    away = Peer(harness, "away", clean=False, session_expiry_interval=5)
    away.subscribe("t")
    away.lose()
    for _ in range(3):
        Peer(harness, "p").publish("t", qos=1)
    system.publish(1.0)
    assert values(watcher) == {"$SYS/broker/clients/expired": "0", "$SYS/broker/messages/stored": "3"}
    harness.advance(10)
    system.publish(2.0)
    assert values(watcher) == {"$SYS/broker/clients/expired": "1", "$SYS/broker/messages/stored": "0"}


def test_without_proc_nothing_is_said_of_memory(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert 0 < heap()["heap/current"] <= heap()["heap/maximum"]
    monkeypatch.setattr("headrace.services.sys_topics.STATM", tmp_path / "statm")
    assert heap() == {}


def test_only_changes_are_sent_and_late_subscribers_get_all() -> None:
    harness = Harness()
    system = System(harness.worker, "1", 0.0)
    watcher = Peer(harness, "w")
    watcher.subscribe("$SYS/broker/clients/+", "$SYS/broker/uptime")
    system.publish(1.0)
    watcher.take()
    system.publish(2.0)
    assert values(watcher) == {"$SYS/broker/uptime": "2 seconds"}
    late = Peer(harness, "late").subscribe("$SYS/broker/uptime")
    assert [(p.payload, p.retain) for p in late if isinstance(p, Publish)] == [(b"2 seconds", True)]


def test_a_steady_rate_is_its_own_average() -> None:
    load = Load()
    for step in range(1, 1000):
        load.update(step * 20, 10)
    assert load.averages == {1: pytest.approx(120), 5: pytest.approx(120), 15: pytest.approx(120, rel=1e-3)}


def test_every_shard_is_told_the_sums_of_all() -> None:
    shards = Shards()
    watchers = [shards.client_in(shard) for shard in range(3)]
    for watcher in watchers:
        watcher.subscribe("$SYS/broker/clients/connected", 0)
        watcher.publish("t", b"x")
        watcher.take()
    System(shards.worker, "1", 0.0).publish(10.0)
    shards.sync()
    assert [[payload for _, payload, _, _ in watcher.publishes()] for watcher in watchers] == [[b"3"]] * 3
