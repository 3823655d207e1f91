"""What a node does while it stands by, and what the service manager hears of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import pytest

from headrace.node import candidacy as module
from headrace.node.candidacy import Candidacy


class Told:
    """Stands in the places of the candidate, the service manager and the log: it notes what is said to them."""

    def __init__(self) -> None:
        self.said: list[str] = []
        self.over: Callable[[], None] = self.ended
        self.waits = 0

    # The candidate

    def stand_by(self, alive: Callable[[], None], within_s: float) -> None:
        for _ in range(self.waits):
            alive()

    def poll_on_a_thread(self, alive: Callable[[], None]) -> None:
        self.said.append("a thread polls")

    def serve(self) -> None:
        self.said.append("the loop polls")

    def poll(self) -> None:
        self.over()

    # The service manager

    def ready(self, status: str) -> None:
        self.said.append(status)

    def alive(self) -> None: ...

    # The log, and who ends the node

    def info(self, event: str, **more: object) -> None:
        self.said.append(event)

    warning = info

    def ended(self) -> None:
        self.said.append("it ends")


@pytest.fixture
def told() -> Told:
    return Told()


@pytest.fixture
def candidacy(told: Told) -> Candidacy:
    told_to = cast(Any, told)
    return Candidacy(told_to, told_to, told.ended, told_to)


def test_who_is_named_soon_has_not_stood_by(candidacy: Candidacy, told: Told) -> None:
    told.waits = 3
    candidacy.stand_by(1.0)
    candidacy.hold()
    assert told.said == ["standing by", "a thread polls", "the loop polls"]
    assert not candidacy.is_over


def test_the_service_manager_hears_once_that_a_start_lasts(
    candidacy: Candidacy, told: Told, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "SOON_S", 0.0)
    told.waits = 3
    candidacy.stand_by(1.0)
    assert told.said == ["standing by", "stands by: another node of the cluster serves", "a thread polls"]


def test_a_turn_that_is_over_ends_the_node(candidacy: Candidacy, told: Told) -> None:
    candidacy.stand_by(1.0)
    candidacy.hold()
    assert candidacy.poll() == module.POLL_S
    assert candidacy.is_over
    assert told.said[-2:] == ["another node is to have the shards: this one ends", "it ends"]
