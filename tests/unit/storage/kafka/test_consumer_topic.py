"""What the records of registered consumers say, and to whom they say nothing. With a real Kafka: tests/spark/source."""

from __future__ import annotations

import json
from uuid import UUID

import pytest

from headrace.journal.consumers import ConsumerPosition
from headrace.storage.kafka.consumer_topic import Registered, consumer_key, pack_position, registered_in
from headrace.storage.kafka.envelope import uuid_of
from headrace.storage.kafka.roster import Roster

POSITION = ConsumerPosition("archive", str(UUID(bytes=uuid_of("id", 3))), 0, 42, 7, 5, 0, "archive at /lake")
KEY = consumer_key(3, "archive")


def test_a_record_says_what_it_was_made_of() -> None:
    assert registered_in("id", KEY, pack_position("id", POSITION)) == Registered(3, "archive", POSITION)
    assert registered_in("id", KEY, None) == Registered(3, "archive", None)


@pytest.mark.parametrize(
    "key",
    [
        None,
        b"",
        b"node/n0",
        b"shard/3",
        b"consumer/3",
        b"consumer/x/archive",
        b"consumer/-1/a",
        b"consumer/3/a/b",
        b"\xff",
    ],
)
def test_other_records_tell_of_no_consumer(key: bytes | None) -> None:
    assert registered_in("id", key, pack_position("id", POSITION)) is None


def test_what_was_told_of_another_journal_means_nothing() -> None:
    assert registered_in("other", KEY, pack_position("id", POSITION)) is None
    assert registered_in("id", KEY, b"no JSON") is None


@pytest.mark.parametrize("change", [{"level": 2}, {"offset": "many"}, {"owner": None, "epoch": None}])
def test_a_consumer_that_is_not_understood_holds_everything(change: dict[str, object]) -> None:
    value = json.dumps(json.loads(pack_position("id", POSITION)) | change).encode()
    found = registered_in("id", KEY, value)
    assert found is not None
    assert found.position is not None
    assert found.position.offset == 0


def test_the_roster_of_nodes_passes_it_over() -> None:
    roster = Roster("id")
    roster.take(0, KEY, pack_position("id", POSITION))
    assert (roster.nodes, roster.shards) == ({}, {})
