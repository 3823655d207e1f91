"""A shard alone waits for nobody and tells nobody."""

from __future__ import annotations

from harness import Harness
from headrace.core.shards.alone import Alone
from headrace.core.shards.enrolments import Enrolment
from headrace.core.shards.holding import Held

SUBACK = 9


def test_a_subscription_and_a_member_of_a_group_are_answered_when_they_are_durable() -> None:
    harness = Harness()
    harness.client("w").publish("a/1", b"kept", 1, retain=True)
    client = harness.client("c", version=5)
    client.subscribe("a/#", 1)
    client.subscribe("$share/g/b", 1)
    harness.sync()
    codes = [body[-1] for first, body in client.drain() if first >> 4 == SUBACK]
    assert codes == [1, 1]
    assert [payload for _, payload, _, _ in client.publishes()] == [b"kept"]


def test_nothing_is_held_back_and_no_home_is_asked() -> None:
    harness = Harness()
    harness.client("c")
    [session] = harness.broker.fold.by_incarnation.values()
    alone = harness.broker.neighbours
    assert type(alone) is Alone
    assert not alone.hold(Held())
    assert not alone.must_know(session, "$share/g/b")
    assert not alone.enrol(Enrolment(None, 0, session))
