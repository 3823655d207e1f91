"""What is told to the topic of owners reaches it, whatever fails meanwhile; with a client of Kafka that is made here."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException

from headrace.storage.kafka import registry
from headrace.storage.kafka.cluster_url import ClusterUrl
from headrace.storage.kafka.registry import Registry

Delivered = Callable[[KafkaError | None, object], None]
Sent = tuple[bytes, bytes | None]


class Outside:
    """The client of Kafka: `taken` are the records that it was given, each with whom to tell what became of it."""

    def __init__(self) -> None:
        self.made = 0
        self.taken: list[tuple[Sent, Delivered]] = []
        self.refusal: Exception | None = None
        self.cannot_be_made: Exception | None = None

    def producer(self, _config: object) -> Outside:
        if self.cannot_be_made is not None:
            raise self.cannot_be_made
        self.made += 1
        return self

    def produce(
        self, _topic: str, *, key: bytes, value: bytes | None, partition: int, on_delivery: Delivered
    ) -> None:
        assert partition == 0
        refusal, self.refusal = self.refusal, None
        if refusal is not None:
            raise refusal
        self.taken.append(((key, value), on_delivery))

    def poll(self, _seconds: float) -> int:
        return 0

    def flush(self, _seconds: float) -> int:
        return 0

    def answer(self, error: KafkaError | None) -> list[Sent]:
        """Tell of all that was taken what became of it; return it."""
        taken, self.taken = self.taken, []
        for _, delivered in taken:
            delivered(error, None)
        return [sent for sent, _ in taken]


class Nothing:
    """A reader that has nothing to read."""

    def __init__(self, _config: object) -> None:
        return

    def consume(self, _most: int, _seconds: float) -> list[Any]:
        return []

    def close(self) -> None:
        return


@pytest.fixture
def outside(monkeypatch: pytest.MonkeyPatch) -> Outside:
    made = Outside()
    monkeypatch.setattr(registry, "Producer", made.producer)
    monkeypatch.setattr(registry, "Consumer", Nothing)
    return made


@pytest.fixture
def telling(outside: Outside) -> Registry:
    return Registry(ClusterUrl.parse("kafka://127.0.0.1:9/plant"))


def failed(*, fatal: bool = False) -> KafkaError:
    return KafkaError(KafkaError._MSG_TIMED_OUT, "too late", fatal=fatal)


def turn(telling: Registry) -> None:
    telling._turn(lambda _: None)


def test_what_kafka_has_not_taken_is_sent_again_until_it_is(telling: Registry, outside: Outside) -> None:
    telling.tell(b"shard/0", b"mine")
    for error in (failed(), failed(), None):
        turn(telling)
        assert outside.answer(error) == [(b"shard/0", b"mine")]
    turn(telling)
    assert outside.answer(None) == []


def test_what_is_told_meanwhile_is_not_followed_by_what_was_told_before(
    telling: Registry, outside: Outside
) -> None:
    telling.tell(b"shard/0", b"mine")
    turn(telling)
    telling.tell(b"shard/0", b"given up")
    telling.tell(b"node/a", None)
    outside.answer(failed())
    turn(telling)
    assert outside.answer(None) == [(b"shard/0", b"given up"), (b"node/a", None)]
    turn(telling)
    assert outside.taken == []


def test_the_same_words_told_twice_are_confirmed_each(telling: Registry, outside: Outside) -> None:
    telling.tell(b"shard/0", b"mine")
    turn(telling)
    telling.tell(b"shard/0", b"mine")
    outside.answer(None)
    turn(telling)
    assert outside.answer(failed()) == [(b"shard/0", b"mine")]
    turn(telling)
    assert outside.answer(None) == [(b"shard/0", b"mine")]


def test_a_full_client_and_one_that_is_over_lose_nothing(telling: Registry, outside: Outside) -> None:
    telling.tell(b"shard/0", b"mine")
    outside.refusal = BufferError()
    turn(telling)
    turn(telling)
    telling.tell(b"shard/1", b"ours")
    outside.refusal = KafkaException(failed(fatal=True))
    turn(telling)
    assert outside.made == 2
    lost = [sent for sent, _ in outside.taken]
    outside.taken.clear()  # with the client that had them
    turn(telling)
    assert lost == [(b"shard/0", b"mine")]
    assert outside.answer(None) == [(b"shard/0", b"mine"), (b"shard/1", b"ours")]


@pytest.mark.parametrize("why", [KafkaException(failed()), RuntimeError("no thread"), MemoryError()])
def test_a_client_that_cannot_be_made_just_now_is_made_later(
    telling: Registry, outside: Outside, why: Exception
) -> None:
    """Else the thread would have ended, and the node would hear of no other one any more."""
    telling.tell(b"shard/0", b"mine")
    outside.refusal, outside.cannot_be_made = KafkaException(failed(fatal=True)), why
    turn(telling)
    outside.refusal = KafkaException(failed(fatal=True))
    turn(telling)
    outside.refusal, outside.cannot_be_made = KafkaException(failed(fatal=True)), None
    turn(telling)
    turn(telling)
    assert outside.made == 2
    assert outside.answer(None) == [(b"shard/0", b"mine")]
