"""Wills and access control: asked again when a will is due, also after a restart. The rest: test_broker, e2e."""

from __future__ import annotations

import pytest

from harness import Client, Harness
from headrace.core.ports.access import Access, SignIn
from headrace.core.ports.identity import Identity
from headrace.core.ports.link import Link
from headrace.core.records.record import DROP_NOT_ACCEPTED
from headrace.mqtt.packets import Will

NEVER = 0xFFFFFFFF


class Rules(Access):
    """Everybody is `user`; `withdrawn` are (user, client id, topic) that may no longer be published to."""

    def __init__(self) -> None:
        super().__init__()
        self.user: str | None = "somebody"
        self.withdrawn: set[tuple[str | None, str, bytes]] = set()

    def authenticate(self, request: SignIn) -> Identity:
        return request.identity_of(self.user)

    def may_publish(self, link: Link, topic: bytes) -> bool:
        return True

    def may_leave_will(self, user: str | None, client_id: str, topic: bytes) -> bool:
        return (user, client_id, topic) not in self.withdrawn

    def may_receive(self, link: Link, topic: bytes) -> bool:
        return True

    def may_subscribe(self, link: Link, topic_filter: str) -> bool:
        return True


@pytest.fixture
def rules() -> Rules:
    return Rules()


@pytest.fixture
def harness(rules: Rules) -> Harness:
    harness = Harness()
    harness.worker.guard(rules)
    return harness


def crash(harness: Harness, rules: Rules) -> None:
    harness.crash()
    harness.worker.guard(rules)


def left(harness: Harness, client_id: str, expiry_s: int = NEVER, delay_s: int = 0) -> Client:
    """A client with a Will on `wills`."""
    return Client(
        harness, client_id, expiry_s == 0, 5, None, expiry_s, Will("wills", b"gone", 1, delay_s=delay_s)
    )


def heard(watcher: Client) -> list[bytes]:
    return [payload for _, payload, _, _ in watcher.publishes()]


def drops(harness: Harness) -> int:
    return harness.broker.fold.tenant("default").counters.dropped.get(DROP_NOT_ACCEPTED, 0)


@pytest.mark.parametrize("expiry_s", [0, NEVER])
def test_a_will_that_is_not_allowed_any_more_is_dropped_and_counted(
    harness: Harness, rules: Rules, expiry_s: int
) -> None:
    watcher = Client(harness, "w")
    watcher.subscribe("wills")
    allowed, withdrawn = left(harness, "a", expiry_s), left(harness, "b", expiry_s)
    rules.withdrawn.add(("somebody", "b", b"wills"))
    allowed.lose()
    withdrawn.lose()
    assert heard(watcher) == [b"gone"]
    assert drops(harness) == 1


def test_a_delayed_will_is_asked_for_when_it_is_due(harness: Harness, rules: Rules) -> None:
    watcher = Client(harness, "w")
    watcher.subscribe("wills")
    for client_id in ("a", "b"):
        left(harness, client_id, delay_s=5).lose()
    rules.withdrawn.add(("somebody", "a", b"wills"))
    harness.advance(6)
    assert len(heard(watcher)) == 1


@pytest.mark.parametrize("user", ["somebody", None])
def test_whose_a_will_is_outlives_the_broker(harness: Harness, rules: Rules, user: str | None) -> None:
    """As its event says, and as the snapshot of what was recovered from that."""
    rules.user = user
    watcher = Client(harness, "w")
    watcher.subscribe("wills")
    for client_id in ("a", "b"):
        left(harness, client_id, delay_s=5).lose()
    rules.withdrawn.add((user, "a", b"wills"))
    crash(harness, rules)
    harness.take_snapshot()
    crash(harness, rules)
    harness.advance(7)
    watcher = Client(harness, "w")
    assert heard(watcher) == [b"gone"]
    assert drops(harness) == 1
    crash(harness, rules)
    harness.advance(7)
    assert drops(harness) == 0  # it is not tried again


@pytest.mark.parametrize("set_by_s", [-4e8, -86_400, 86_400, 4e8])
@pytest.mark.parametrize("delay_s", [0, 5])
def test_a_clock_that_is_set_ends_no_session_before_its_time(
    harness: Harness, delay_s: int, set_by_s: float
) -> None:
    """The will is due while the session waits; what it was acknowledged to get is still there, and so is its end."""
    client = left(harness, "away", expiry_s=3600, delay_s=delay_s)
    client.subscribe("t")
    client.lose()
    Client(harness, "p").publish("t", b"kept", 1)
    harness.set_by_us = int(set_by_s * 1_000_000)
    for _ in range(10):
        harness.advance(1)
    back = Client(harness, "away", clean=False, version=5, expiry_s=3600)
    assert [payload for _, payload, _, _ in back.publishes()] == [b"kept"]


def test_a_session_with_a_delayed_will_ends_in_time(harness: Harness) -> None:
    left(harness, "away", expiry_s=60, delay_s=5).lose()
    for _ in range(59):
        harness.advance(1)
    assert len(harness.broker.fold.by_incarnation) == 1
    harness.advance(2)
    assert not harness.broker.fold.by_incarnation
