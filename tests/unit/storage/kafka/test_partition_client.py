"""What the clients of a partition do when one of them cannot be made, or fails: with fakes in their places."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
from confluent_kafka import KafkaException

from headrace.storage.kafka import partition_client as module
from headrace.storage.kafka.cluster_url import client_at
from headrace.storage.kafka.partition_client import PartitionClient

WITHIN_S = 10.0
RECORDS = [b"zero", b"one", b"two"]


class Heard:
    """What clients have told, in its order."""

    def __init__(self) -> None:
        self.events: list[tuple[Any, ...]] = []
        self.client: Any = None
        self._changed = threading.Condition()

    def _note(self, *event: Any) -> None:
        with self._changed:
            self.events.append(event)
            self._changed.notify_all()

    def on_report(self, token: int, offset: int | None, error: str) -> None:
        self._note("report", token, offset, error)

    def on_records(self, reading: int, records: list[tuple[int, bytes | None]]) -> None:
        self._note("records", reading, records)
        self.client.taken()

    def on_end(self, reading: int, end: int) -> None:
        self._note("end", reading, end)

    def on_missing(self, reading: int, start: int) -> None:
        self._note("missing", reading, start)

    def on_trouble(self, what: str) -> None:
        self._note("trouble", what)

    def until(self, *wanted: Any) -> None:
        def is_there() -> bool:
            return any(event[: len(wanted)] == wanted for event in self.events)

        with self._changed:
            assert self._changed.wait_for(is_there, WITHIN_S), (wanted, self.events)


class Message:
    """A record as a consumer gives it."""

    def __init__(self, offset: int) -> None:
        self._offset = offset

    def error(self) -> None: ...

    def offset(self) -> int:
        return self._offset

    def value(self) -> bytes:
        return RECORDS[self._offset]


class FakeConsumer:
    """A consumer of `RECORDS`."""

    def __init__(self, config: object) -> None:
        self.at = 0

    def get_watermark_offsets(self, *args: object, **kwargs: object) -> tuple[int, int]:
        return 0, len(RECORDS)

    def assign(self, places: list[Any]) -> None:
        self.at = places[0].offset

    def consume(self, count: int, timeout: float) -> list[Message]:
        self.at += 1
        return [Message(self.at - 1)]

    def unassign(self) -> None: ...

    def close(self) -> None: ...


def failing(times: int, made: Callable[..., Any]) -> Callable[..., Any]:
    """What makes a client, and cannot for so many times."""
    left = [times]

    def make(*args: object) -> Any:
        if left[0]:
            left[0] -= 1
            raise KafkaException("no thread can be started")
        return made(*args)

    return make


@pytest.fixture
def heard() -> Heard:
    return Heard()


@pytest.fixture
def client(heard: Heard) -> Any:
    heard.client = client = PartitionClient(client_at("127.0.0.1:1"), "t", 0, heard)
    yield client
    client.close()


def test_a_reader_that_cannot_be_made_is_made_later(
    heard: Heard, client: PartitionClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "Consumer", failing(2, FakeConsumer))
    client.read(1, 0)
    heard.until("end", 1, 3)
    assert [event[0] for event in heard.events].count("trouble") == 2
    client.read(2, 2)
    heard.until("records", 2, [(2, b"two")])


def test_a_reading_that_fails_begins_again(
    heard: Heard, client: PartitionClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    class FailsOnce(FakeConsumer):
        fails = True

        def consume(self, count: int, timeout: float) -> list[Message]:
            if self.at == 1 and FailsOnce.fails:
                FailsOnce.fails = False
                raise KafkaException("broken")
            return super().consume(count, timeout)

    monkeypatch.setattr(module, "Consumer", FailsOnce)
    client.read(1, 0)
    heard.until("end", 1, 3)
    told = [offset for event in heard.events if event[0] == "records" for offset, _ in event[2]]
    assert told == [0, 0, 1, 2]  # whoever is told knows what it has


def test_a_reader_without_a_thread_reads_what_is_wanted_next(
    heard: Heard, client: PartitionClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "Consumer", FakeConsumer)
    start = threading.Thread.start
    monkeypatch.setattr(threading.Thread, "start", failing(1, start))
    client.read(1, 0)
    heard.until("trouble")
    client.read(2, 2)
    heard.until("end", 2, 3)


def test_an_append_without_a_producer_is_reported_as_failed(
    heard: Heard, client: PartitionClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "Producer", failing(1, object))
    client.append(7, b"x")
    heard.until("report", 7, None)
    assert "cannot be made now" in heard.events[0][3]


def test_a_deletion_without_a_client_is_told_and_not_made(
    heard: Heard, client: PartitionClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "AdminClient", failing(1, object))
    client.delete(3)
    heard.until("trouble")
