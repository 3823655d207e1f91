"""Who is not read from, for which reasons, and when it is read from again."""

from __future__ import annotations

import pytest

from harness import Client, Harness
from headrace.core.inbound.gate import LET_GO_AT_ONCE
from headrace.core.ports.link import (
    HELD_FOR_DISK,
    HELD_FOR_SHARD,
    HELD_FOR_SHARE,
    HELD_FOR_TURN,
    Crowd,
)

REASONS = (HELD_FOR_DISK, HELD_FOR_SHARD)  # a share that is not exceeded is noticed in the next pass


def is_read(harness: Harness, client: Client) -> bool:
    """Return whether a client is read from when a pass of the loop is over."""
    harness.worker.end_tick()
    return client.link.reading


@pytest.mark.parametrize("first", REASONS)
@pytest.mark.parametrize("second", REASONS)
def test_a_client_is_read_again_when_its_last_reason_is_gone(first: int, second: int) -> None:
    harness = Harness()
    client, gate = harness.client("c"), harness.broker.gate
    gate.hold(client.link, first)
    gate.hold(client.link, second)
    assert not is_read(harness, client)
    gate.free(client.link, first)
    if second != first:
        assert client.link.holds == second
        assert not is_read(harness, client)
        gate.free(client.link, second)
    assert client.link.holds == HELD_FOR_TURN
    assert is_read(harness, client)
    assert client.link.holds == 0


def test_what_holds_a_client_that_waits_for_its_turn_holds_it_beyond_that() -> None:
    harness = Harness()
    client, gate = harness.client("c"), harness.broker.gate
    gate.hold(client.link, HELD_FOR_DISK)
    gate.free(client.link, HELD_FOR_DISK)
    gate.hold(client.link, HELD_FOR_SHARD)
    assert not is_read(harness, client)
    assert client.link.holds == HELD_FOR_SHARD
    gate.free(client.link, HELD_FOR_SHARD)
    assert is_read(harness, client)


def test_who_has_gone_is_forgotten_and_takes_nobodys_turn() -> None:
    harness = Harness()
    gate, crowd = harness.broker.gate, Crowd()
    clients = [harness.client(f"c{number}") for number in range(LET_GO_AT_ONCE + 2)]
    for client in clients:
        gate.join(client.link, crowd)
    for client in clients[:2]:
        client.lose()
    gate.disperse(crowd)
    harness.worker.end_tick()
    assert [client.link.holds for client in clients] == [0] * len(clients)
    assert gate.crowded == 0


def test_a_reason_that_is_not_there_is_freed_in_vain() -> None:
    harness = Harness()
    client, gate = harness.client("c"), harness.broker.gate
    gate.free(client.link, HELD_FOR_SHARE)
    assert client.link.holds == 0
    gate.hold(client.link, HELD_FOR_SHARE)
    gate.free(client.link, HELD_FOR_DISK)
    assert client.link.holds == HELD_FOR_SHARE


def test_who_has_gone_waits_in_no_crowd() -> None:
    harness = Harness()
    client, gate, crowd = harness.client("c"), harness.broker.gate, Crowd()
    client.lose()
    gate.join(client.link, crowd)
    assert (crowd.waiting, gate.crowded, client.link.crowd) == ({}, 0, None)


def test_who_is_held_for_a_full_disk_is_not_counted_for_its_share_as_well() -> None:
    harness = Harness()
    client, gate = harness.client("c"), harness.broker.gate
    gate.hold(client.link, HELD_FOR_SHARE)
    assert gate.waiting() == 1
    gate.hold(client.link, HELD_FOR_DISK)
    assert gate.waiting() == 0
