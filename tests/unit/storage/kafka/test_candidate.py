"""How one of a cluster's nodes comes to own its shards, and gives them up: with a fake in the place of Kafka's group."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any, ClassVar

import pytest
from confluent_kafka import KafkaException

from headrace.storage.kafka import candidate as module
from headrace.storage.kafka.candidate import Candidate
from headrace.storage.kafka.claims import Claims
from headrace.storage.kafka.cluster_url import ClusterUrl
from headrace.storage.kafka.topics import KafkaUnusable

URL = ClusterUrl.parse("kafka://127.0.0.1:1/c")
WITHIN_S = 10.0


class FakeGroup:
    """A member, who is told what `says` has for each poll: the partitions it is named for, None: nothing new."""

    says: ClassVar[list[list[int] | None]] = []
    made: FakeGroup

    def __init__(self, bootstrap: str, topic: str, worker: str, told: Claims) -> None:
        FakeGroup.made = self
        self.topic = topic
        self.trouble = ""
        self.claims = told
        self.asked: list[int] = []
        self.is_closed = threading.Event()
        self.polled_by: set[int] = set()

    def poll(self) -> None:
        self.polled_by.add(threading.get_ident())
        said = FakeGroup.says.pop(0) if FakeGroup.says else None
        if said is not None:
            self.claims.on_assigned(said, time.monotonic())

    def ask(self, shard: int, tell: Callable[[], None]) -> None:
        self.asked.append(shard)

    def close(self) -> None:
        self.is_closed.set()


@pytest.fixture
def said() -> list[str]:
    return []


@pytest.fixture
def candidate(monkeypatch: pytest.MonkeyPatch, said: list[str]) -> Candidate:
    monkeypatch.setattr(module, "Group", FakeGroup)
    monkeypatch.setattr(module, "POLL_S", 0.001)
    FakeGroup.says = []
    return Candidate(URL, "n0/0", said.append)


def nothing() -> None: ...


def test_it_stands_by_until_it_is_named(candidate: Candidate) -> None:
    FakeGroup.says = [[], None, [0]]
    calls: list[int] = []
    candidate.stand_by(lambda: calls.append(1), WITHIN_S)
    assert (candidate.is_named, len(calls)) == (True, 2)
    assert FakeGroup.made.topic == URL.owners
    candidate.ask(nothing)
    assert FakeGroup.made.asked == [0]


def test_it_does_not_stand_by_for_ever_where_somebody_waits(candidate: Candidate) -> None:
    with pytest.raises(KafkaUnusable, match="another one serves"):
        candidate.stand_by(nothing, 0.01)


def test_a_thread_polls_until_the_shards_are_served_and_the_loop_then(candidate: Candidate) -> None:
    FakeGroup.says = [[0]]
    candidate.stand_by(nothing, WITHIN_S)
    polled = threading.Event()
    candidate.poll_on_a_thread(polled.set)
    assert polled.wait(WITHIN_S)
    candidate.serve()
    FakeGroup.made.polled_by.clear()
    candidate.poll()
    assert FakeGroup.made.polled_by == {threading.get_ident()}


@pytest.mark.parametrize("stands_s", [0.0, 20.0])
def test_its_turn_is_over_when_another_node_has_been_named_for_a_while(
    candidate: Candidate, monkeypatch: pytest.MonkeyPatch, stands_s: float
) -> None:
    assert module.STANDS_S == 20.0
    monkeypatch.setattr(module, "STANDS_S", stands_s)
    candidate = Candidate(URL, "n0/0", print)
    over: list[bool] = []
    candidate.over = lambda: over.append(True)
    FakeGroup.says = [[0]]
    candidate.stand_by(nothing, WITHIN_S)
    candidate.serve()
    FakeGroup.says = [[]]
    candidate.poll()
    candidate.poll()
    is_over = stands_s == 0.0
    assert (candidate.is_named, over) == (not is_over, [True] * is_over)


def test_what_keeps_it_from_being_a_member_is_said_once(candidate: Candidate, said: list[str]) -> None:
    FakeGroup.made.trouble = "no such topic"
    candidate.poll()
    candidate.poll()
    FakeGroup.made.trouble = ""
    candidate.poll()
    assert said == [
        "the group of the cluster's nodes: no such topic",
        "the group of the cluster's nodes: it answers again",
    ]


def test_it_leaves_and_waits_for_that_and_not_for_long(
    candidate: Candidate, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "LEAVE_WITHIN_S", 0.01)
    group = FakeGroup.made
    monkeypatch.setattr(group, "close", lambda: group.is_closed.wait(WITHIN_S))
    candidate.leave()
    group.is_closed.set()


def test_a_group_that_cannot_be_joined_now_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*args: Any) -> None:
        raise KafkaException("no thread")

    monkeypatch.setattr(module, "Group", fail)
    with pytest.raises(KafkaUnusable, match="no thread"):
        Candidate(URL, "n0/0", print)
