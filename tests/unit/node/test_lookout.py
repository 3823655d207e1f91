"""What a node says when somebody changes the topics of its cluster while it runs."""

from __future__ import annotations

import threading

import pytest

from headrace.errors import HeadraceError
from headrace.node.lookout import INTERVAL_S, Lookout

WITHIN_S = 10.0


class Cluster:
    """What Kafka answers, and what the log is told."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.is_away = False
        self.asked = 0
        self.said: list[str] = []
        self.may_answer = threading.Event()
        self.may_answer.set()

    def ask(self) -> list[str]:
        self.asked += 1
        assert self.may_answer.wait(WITHIN_S)
        if self.is_away:
            raise HeadraceError("no answer")
        return self.lines

    def error(self, event: str, detail: str) -> None:
        self.said.append(detail)

    def warning(self, event: str) -> None:
        self.said.append("")


@pytest.fixture
def cluster() -> Cluster:
    return Cluster()


def test_what_changes_is_said_once_each_way(cluster: Cluster) -> None:
    lookout = Lookout(cluster.ask, [], cluster)
    for cluster.lines in ([], ["a", "b"], ["a", "b"], [], []):
        lookout.look()
    assert (cluster.said, lookout.trouble) == (["a; b", ""], "")


def test_what_was_found_at_the_start_is_not_said_again(cluster: Cluster) -> None:
    lookout = Lookout(cluster.ask, ["a"], cluster)
    cluster.lines = ["a"]
    lookout.look()
    assert (cluster.said, lookout.trouble) == ([], "a")


def test_without_an_answer_nothing_new_is_known(cluster: Cluster) -> None:
    lookout = Lookout(cluster.ask, ["a"], cluster)
    cluster.is_away = True
    lookout.look()
    assert (cluster.said, lookout.trouble) == ([], "a")


def test_nobody_waits_for_kafka_and_it_is_asked_once_at_a_time(cluster: Cluster) -> None:
    lookout = Lookout(cluster.ask, [], cluster)
    cluster.may_answer.clear()
    assert lookout.turn() == INTERVAL_S
    thread = lookout._thread
    lookout.turn()
    assert lookout._thread is thread
    cluster.may_answer.set()
    assert thread is not None
    thread.join(WITHIN_S)
    assert cluster.asked == 1
