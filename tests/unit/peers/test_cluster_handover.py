"""A connection waits for its shard, whichever node owns it when its turn comes."""

from __future__ import annotations

from typing import cast

import pytest

from headrace.net.connection import Connection
from headrace.peers.channel import Channel
from headrace.peers.cluster_handover import ShardRoad
from headrace.peers.departures import NotNow
from headrace.workers.owners import Owners

RUN = 7


class Opened:
    """The nodes that a channel was asked to, none of which has a link."""

    def __init__(self) -> None:
        self.nodes: list[int] = []

    def open(self, node: int, opening: bytes) -> Channel | None:
        self.nodes.append(node)
        return None


class Dialled:
    """As much of a connection as a road asks for."""

    came_ms = 5
    certificate_name = ""

    def listener(self) -> str:
        return "tcp://127.0.0.1:1883"

    def peer(self) -> str:
        return "127.0.0.1:5"

    def unparsed(self) -> bytes:
        return b"x"


def test_a_connection_goes_to_whoever_owns_its_shard_now() -> None:
    owners, opened = Owners.unowned(2), Opened()
    road, link = ShardRoad(1, RUN, owners, opened.open), cast(Connection, Dialled())
    with pytest.raises(NotNow):
        road.send(link)
    assert opened.nodes == []
    for node in (3, 9):
        owners.move(1, node)
        with pytest.raises(NotNow):
            road.send(link)
    assert opened.nodes == [3, 9]
    owners.move(1, RUN)
    with pytest.raises(ConnectionError):
        road.send(link)
