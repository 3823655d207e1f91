"""Bridges over several shards: each has its session where its name is at home, and all shards hear of it."""

from __future__ import annotations

from dataclasses import replace

from headrace.bridge.rendering import trace_of
from headrace.core.state.session import BRIDGE_PREFIX
from headrace.services.bridges import Bridges
from shards import Shards
from unit.bridge.test_bridge import settings

UUID = "01234567-89ab-cdef-0123-456789abcdef"


class Told:
    """A broker's log: the sessions it was told of."""

    def __init__(self) -> None:
        self.sessions: list[object] = []

    def __call__(self, line: str, **more: object) -> None:
        self.sessions.append(more.get("session"))


def test_each_bridge_is_opened_where_its_name_is_at_home_and_told_of_in_every_shard() -> None:
    shards, told = Shards(), Told()
    names = [shards.name_in(shard, BRIDGE_PREFIX + "b").removeprefix(BRIDGE_PREFIX) for shard in range(3)]
    watching = [shards.client_in(shard) for shard in range(3)]
    for client in watching:
        client.subscribe("$SYS/broker/connection/+/state", 0)
    bridges = Bridges(shards.worker, UUID, told, told)
    bridges.open([replace(settings("tcp://127.0.0.1:1"), name=name, notifications="local") for name in names])
    shards.sync()
    for broker, name in zip(shards.brokers, names, strict=True):
        assert BRIDGE_PREFIX + name in broker.fold.tenant("default").sessions
        assert len(broker.fold.by_incarnation) == 2
        assert broker.publishing.trace == trace_of(UUID.replace("-", "")[:16])
    said: list[dict[str, int]] = []
    bridges.changed = lambda: said.append(dict(bridges.states))
    bridges._publish(bridges.bridges[1], True)
    shards.sync()
    assert [[payload for _, payload, _, _ in client.publishes()] for client in watching] == [[b"1"]] * 3
    assert said == [{names[1]: 1}]  # for the other workers of the node


def test_what_waits_for_a_bridge_that_has_gone_is_told_of_in_its_shard() -> None:
    shards, told = Shards(), Told()
    name = shards.name_in(2, BRIDGE_PREFIX + "b").removeprefix(BRIDGE_PREFIX)
    Bridges(shards.worker, UUID, told, told).open([replace(settings("tcp://127.0.0.1:1"), name=name)])
    shards.sync()
    shards.client_in(2).publish("t/x", b"waits")
    shards.restart()
    assert told.sessions == []
    Bridges(shards.worker, UUID, told, told).open([])
    shards.sync()
    assert told.sessions == [BRIDGE_PREFIX + name]
