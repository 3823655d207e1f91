"""The sets of Subscription Identifiers that references of a session name."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from harness import Client, Harness, state
from headrace.core.records.message import encode_varint
from headrace.core.state.session import ID_SETS_BYTES_MAX, ID_SETS_MAX, IDS_LOOKED_UP, Session
from headrace.core.state.tenant import Tenant
from headrace.storage.memory import MemoryJournal


def session() -> Session:
    return Session(Tenant("default", MemoryJournal()), "c", 1, 0, 60)


def encoded(number: int) -> bytes:
    return b"\x0b" + encode_varint(number)


def identifiers(client: Client) -> Iterator[tuple[bytes, list[int]]]:
    """(payload, Subscription Identifiers) of each PUBLISH that came; identifiers below 128, no other property."""
    for first, body in client.take():
        if first >> 4 == 3:
            at = 2 + int.from_bytes(body[:2], "big") + (2 if first & 6 else 0)
            end = at + 1 + body[at]
            yield body[end:], sorted(body[at + 2 : end : 2])


def test_a_set_has_one_index_and_none_is_searched_for() -> None:
    """30 000 sets in as many look-ups: the list alone took the square of them."""
    one = session()
    indexes = [one.ids_index(encoded(1 + number % 10_000)) for number in range(30_000)]
    assert indexes[:10_000] == indexes[10_000:20_000] == list(range(1, 10_001))
    assert one.ids_of(77, b"t") == encoded(77)
    assert (one.ids_index(b""), one.ids_of(0, b"t")) == (0, b"")


def test_the_sets_of_a_session_are_bounded_in_number_and_bytes() -> None:
    one = session()
    assert [one.ids_index(encoded(number)) for number in range(1, ID_SETS_MAX + 2)][-1] == IDS_LOOKED_UP
    assert one.id_sets is not None
    assert len(one.id_sets) == ID_SETS_MAX
    other = session()
    large = [b"%d" % number + bytes(60_000) for number in range(100)]
    for found in large:
        other.ids_index(found)
    assert other.id_sets is not None
    assert sum(len(found) for found in other.id_sets) <= ID_SETS_BYTES_MAX
    assert other.ids_index(large[0]) == 1


@pytest.mark.parametrize("away", [False, True])
def test_beyond_the_bound_no_identifier_vanishes(away: bool) -> None:
    harness = Harness()
    client = harness.client("c", version=5)
    found = harness.broker.fold.tenant("default").sessions["c"]
    for number in range(1000, 1000 + ID_SETS_MAX):
        found.ids_index(encoded(number))
    client.subscribe("a/+", identifier=7)
    client.subscribe("a/b", identifier=8)
    if away:
        client.lose()
    publisher = harness.client("p", clean=True)
    publisher.publish("a/b", b"both")
    publisher.publish("a/c", b"one")
    if away:
        before = state(harness.broker.fold)
        harness.take_snapshot()
        harness.crash()
        assert state(harness.broker.fold) == before
        client = harness.client("c", version=5)
    assert list(identifiers(client)) == [(b"both", [7, 8]), (b"one", [7])]
