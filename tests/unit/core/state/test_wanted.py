"""The filters of a shard's sessions are those that its sessions have, whoever comes and goes."""

from __future__ import annotations

from harness import Harness
from headrace.core.state.wanted import Unasked, Wanted, WantedListener
from headrace.mqtt import codec


class Heard(WantedListener):
    def __init__(self) -> None:
        self.said: list[str] = []

    def wanted(self, tenant: str, topic_filter: str) -> None:
        self.said.append(f"+{tenant}:{topic_filter}")

    def unwanted(self, tenant: str, topic_filter: str) -> None:
        self.said.append(f"-{tenant}:{topic_filter}")


def test_the_first_and_the_last_session_of_a_filter_are_told_of() -> None:
    wanted, heard = Wanted(), Heard()
    wanted.add("default", "before")
    wanted.listener = heard
    for _ in range(2):
        wanted.add("default", "a/+")
    wanted.add("other", "a/+")
    for _ in range(3):
        wanted.remove("default", "a/+")
    assert heard.said == ["+default:a/+", "+other:a/+", "-default:a/+"]
    assert wanted.filters() == [("default", "before"), ("other", "a/+")]


def test_sessions_are_counted_until_their_subscriptions_are_gone() -> None:
    harness = Harness()
    harness.broker.fold.wanted = harness.broker.fold.groups.wanted = wanted = Wanted()
    one, two = harness.client("one"), harness.client("two")
    one.subscribe("a/b", 1)
    one.subscribe("a/b", 2)
    one.subscribe("$share/g/c", 1)
    two.subscribe("a/b", 0)
    one.feed(codec.encode_unsubscribe(4, 9, ["a/b"]))
    assert wanted.filters() == [("default", "a/b"), ("default", "c")]
    two.lose()
    harness.client("two", clean=True)
    harness.sync()
    harness.sync()
    assert wanted.filters() == [("default", "c")]
    one.feed(codec.encode_unsubscribe(4, 10, ["$share/g/c"]))
    assert wanted.filters() == []


def test_a_shard_alone_counts_no_filters() -> None:
    harness = Harness()
    client = harness.client("one")
    client.subscribe("a/b", 1)
    fold = harness.broker.fold
    assert [type(fold.wanted), type(fold.queues.wanted)] == [Unasked, Unasked]
    client.feed(codec.encode_unsubscribe(4, 9, ["a/b"]))
    [session] = fold.by_incarnation.values()
    assert not session.subscriptions
