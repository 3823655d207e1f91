"""Ranges of a partition by a client that says what Kafka may say. With a real Kafka: tests/e2e/test_kafka.py."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Any

import pytest
from confluent_kafka import KafkaError

from headrace.journal.consumers import ConsumerPosition
from headrace.storage.kafka import partition_reader
from headrace.storage.kafka.cluster_url import ClusterUrl
from headrace.storage.kafka.consumer_topic import ConsumerTopic, consumed_up_to, consumer_key, pack_position
from headrace.storage.kafka.partition_reader import PartitionReader
from headrace.storage.kafka.topics import KafkaUnusable

CLIENT = {"bootstrap.servers": "127.0.0.1:1"}


@dataclass
class Message:
    """A record, or how a reading ended: `at` is its offset."""

    at: int
    content: bytes | None = b"x"
    code: int | None = None
    name: bytes | None = None

    def offset(self) -> int:
        return self.at

    def value(self) -> bytes | None:
        return self.content

    def key(self) -> bytes | None:
        return self.name

    def error(self) -> KafkaError | None:
        return None if self.code is None else KafkaError(self.code)


def end_at(offset: int) -> Message:
    """That the broker knows of nothing from here on."""
    return Message(offset, None, KafkaError._PARTITION_EOF)


class Client:
    """A consumer of Kafka that says these bounds, and then this, a list a call."""

    def __init__(self, bounds: tuple[int, int], *calls: list[Message]) -> None:
        self._bounds = bounds
        self._calls = deque(calls)

    def assign(self, _places: Any) -> None:
        pass

    def unassign(self) -> None:
        pass

    def close(self) -> None:
        pass

    def get_watermark_offsets(self, _place: Any, **_how: Any) -> tuple[int, int]:
        return self._bounds

    def consume(self, _most: int, _timeout_s: float) -> list[Message]:
        return self._calls.popleft() if self._calls else []


def reader_of(
    monkeypatch: pytest.MonkeyPatch, *said: list[Message], timeout_s: float = 0.2
) -> PartitionReader:
    monkeypatch.setattr(partition_reader, "Consumer", lambda _config: Client((0, 4), *said))
    return PartitionReader(CLIENT, "t", 0, timeout_s)


def test_a_broker_that_knows_a_lower_end_than_was_told_is_not_the_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A new leader learns late what all replicas have: until then it gives less than the one before it has given."""
    later: tuple[list[Any], ...] = [Message(0), Message(1), end_at(2)], [], [Message(2), Message(3)]
    assert [at for at, _ in reader_of(monkeypatch, *later, timeout_s=60).records(0, 4)] == [0, 1, 2, 3]
    never = reader_of(monkeypatch, [Message(0), end_at(1)]).records(0, 4)
    assert next(never) == (0, b"x")
    with pytest.raises(KafkaUnusable, match="t, partition 0"):
        next(never)


def test_what_compaction_has_taken_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    found = reader_of(monkeypatch, [Message(1), end_at(4)], timeout_s=60).records(0, 4)
    assert list(found) == [(1, b"x")]


def test_a_consumer_behind_such_an_end_is_not_overlooked(monkeypatch: pytest.MonkeyPatch) -> None:
    """What it has not read would be deleted."""

    def told(at: int, name: str, offset: int) -> Message:
        position = ConsumerPosition(name, "", 0, offset, 0, 0)
        return Message(at, pack_position("id", position), None, consumer_key(0, name))

    first, second = told(0, "fast", 90), told(3, "slow", 7)
    url = ClusterUrl.parse("kafka://127.0.0.1:1/c")
    calls = [first, end_at(1)], [second]
    monkeypatch.setattr(partition_reader, "Consumer", lambda _config: Client((0, 4), *calls))
    assert consumed_up_to(url, "id", 0) == 7
    monkeypatch.setattr(partition_reader, "Consumer", lambda _config: Client((0, 4), calls[0]))
    topic = ConsumerTopic(url, "id", 0.2)
    with pytest.raises(KafkaUnusable):
        topic.look()
    monkeypatch.setattr(partition_reader, "Consumer", lambda _config: Client((0, 4), [second]))
    topic.close()
    assert topic.get(0, "slow") is not None
