"""What all connections of a user may take together: messages a second, connections, subscriptions."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from harness import Client, Harness
from headrace.core.ports.settings import BrokerSettings
from headrace.mqtt import codec
from headrace.services.access import AccessSettings, FileAccess
from headrace.services.audit import Audit
from headrace.services.node_counts import NodeCounts
from headrace.services.node_times import NodeTimes
from shards import Shards


class Loop:
    """No password is asked for."""

    def call_soon_threadsafe(self, *_: object) -> None: ...

    def call_soon(self, *_: object) -> None: ...

    def call_later(self, *_: object) -> None: ...


class Told:
    def __init__(self) -> None:
        self.reasons: list[tuple[str, object]] = []

    def __call__(self, event: str, **more: Any) -> None:
        self.reasons.append((event, more.get("reason")))


def limited(told: Told | None = None, settings: BrokerSettings | None = None, **limits: Any) -> Harness:
    made = Harness(settings)
    audit = Audit(told or Told(), clock=iter(range(0, 1 << 20, 100)).__next__)
    made.worker.guard(FileAccess(AccessSettings(), audit, Loop()))
    limit(made, **limits)
    return made


def limit(harness: Harness, **limits: Any) -> None:
    """Change limits of the tenant, as a reload does."""
    for name, value in limits.items():
        setattr(harness.worker.anyone.limits, name, value)
    access_of(harness).limit(AccessSettings())


def access_of(harness: Harness) -> FileAccess:
    found = harness.broker.sessions.access
    assert isinstance(found, FileAccess)
    return found


def said(client: Client, kind: int) -> bytes:
    """The body of the last packet of this kind, b"" if there was none."""
    return next((body for first, body in reversed(client.drain()) if first >> 4 == kind), b"")


def publish(client: Client, count: int) -> None:
    for _ in range(count):
        if not client.link.closed:
            client.feed(codec.encode_publish(client.version, b"t", b"x", 0, False, False, 0), False)
    client.harness.worker.end_tick()


def test_connections_of_a_user_share_its_messages_a_second() -> None:
    harness = limited(user_messages_per_s=100)
    both = [harness.client(name, username="ada") for name in "ab"]
    other = harness.client("c", username="bob")
    for _ in range(10):
        for client in both:
            publish(client, 10)
    publish(other, 90)
    assert [client.link.reading for client in (*both, other)] == [False, False, True]
    sent = 200
    for _ in range(40):
        harness.advance(0.25)
        for client in both:
            while client.link.reading and sent < 5_000:
                publish(client, 1)
                sent += 1
    assert 1_000 <= sent <= 1_150  # a hundred saved up, ten seconds, and a portion each


def test_a_user_has_so_many_connections_on_all_workers(tmp_path: Path) -> None:
    both = [limited(user_connections_max=2) for _ in range(2)]
    for worker, harness in enumerate(both):
        access_of(harness).paces.counts = NodeCounts(tmp_path / "counts", worker, 2)
    first = both[0].client("a", username="ada")
    assert not both[1].client("b", username="ada").link.closed
    for harness in both:
        assert harness.client("c", username="ada").link.closed
        assert not harness.client("d", username="bob").link.closed
    again = both[0].client("a", username="ada")
    assert (first.link.closed, again.link.closed) == (True, False)
    assert both[1].client("c", username="ada").link.closed
    again.lose()
    assert not both[1].client("c", username="ada").link.closed


def test_a_user_publishes_so_many_messages_a_second_on_all_workers(tmp_path: Path) -> None:
    both = [limited(user_messages_per_s=100) for _ in range(2)]
    for worker, harness in enumerate(both):
        access = access_of(harness)
        counts, times = NodeCounts(tmp_path / "counts", worker, 2), NodeTimes(tmp_path / "times", worker, 2)
        access.count_with(counts, times)
    clients = [harness.client(f"{number}", username="ada") for number, harness in enumerate(both)]
    other = both[0].client("c", username="bob")
    sent = 0
    for _ in range(41):
        for client in clients:
            while client.link.reading and sent < 5_000:
                publish(client, 1)
                sent += 1
        for harness in both:
            harness.advance(0.25)
    publish(other, 90)
    assert other.link.reading
    assert 1_000 <= sent <= 1_150  # as on one worker


def test_a_user_has_so_many_connections_and_takes_its_own_over() -> None:
    told = Told()
    harness = limited(told, user_connections_max=2)
    first, second = (harness.client(name, username="ada") for name in "ab")
    refused = harness.client("c", username="ada", version=5)
    assert refused.link.closed
    assert said(refused, 2)[1] == 0x97
    assert not harness.client("d", username="bob").link.closed
    again = harness.client("a", username="ada")
    assert (first.link.closed, again.link.closed) == (True, False)
    assert harness.client("c", username="ada").link.closed
    second.lose()
    assert not harness.client("c", username="ada").link.closed
    assert ("login failed", "user_connections") in told.reasons


def test_nothing_is_left_of_who_has_gone() -> None:
    harness = limited(user_connections_max=5, user_messages_per_s=10)
    for turn in range(20):
        client = harness.client(f"{turn}", username=f"user {turn % 3}")
        publish(client, 3)
        if turn % 2:
            client.lose()
        else:
            client.disconnect()
            client.lose()
    assert access_of(harness).paces._users == {}


@pytest.mark.parametrize(("version", "code"), [(4, 0xFF), (5, 0x96)])
def test_who_must_not_wait_is_ended(version: int, code: int) -> None:
    told = Told()
    harness = limited(told, user_messages_per_s=10, over_rate="disconnect")
    client = harness.client("c", username="ada", version=version)
    publish(client, 10)
    before = client.link.closed
    publish(client, 5)
    assert (before, client.link.closed) == (False, True)
    assert (said(client, 14) or b"\xff")[0] == code
    assert ("too many messages", "user_messages_per_s") in told.reasons


def test_a_reload_changes_what_connected_clients_may_do() -> None:
    harness = limited()
    client = harness.client("c", username="ada")
    publish(client, 1_000)
    found = [client.link.reading]
    limit(harness, user_messages_per_s=10)
    publish(client, 20)
    found.append(client.link.reading)
    limit(harness, user_messages_per_s=0)
    for _ in range(6):
        harness.advance(0.5)
    publish(client, 1_000)
    assert [*found, client.link.reading] == [True, False, True]


def codes(client: Client) -> list[int]:
    return [body[-1] for kind, body in client.take() if kind >> 4 == 9]


def ask(client: Client, number: int, filters: list[str]) -> None:
    body = number.to_bytes(2, "big") + (b"\0" if client.version == 5 else b"")
    for text in filters:
        body += len(text).to_bytes(2, "big") + text.encode() + b"\1"
    client.feed(bytes([0x82, len(body)]) + body)


def test_subscriptions_of_all_sessions_of_a_user_count_together() -> None:
    harness = limited(user_subscriptions_max=3, user_connections_max=9)
    one, two = (harness.client(name, username="ada", clean=False) for name in "ab")
    for client in (one, two):
        ask(client, 1, ["x/#", "y"])
    assert (codes(one), codes(two)) == ([1], [0x80])
    ask(two, 2, ["x/#"])
    assert codes(two) == [1]  # it has that one
    bob = harness.client("c", username="bob", version=5, clean=True)
    ask(bob, 1, ["1", "2", "3"])
    ask(bob, 2, ["4"])
    assert codes(bob) == [1, 0x97]
    tenant = harness.broker.fold.tenant("default")
    assert tenant.owned == {"ada": 3, "bob": 3}
    bob.lose()
    assert tenant.owned == {"ada": 3}
    one.lose()
    harness.crash()
    assert harness.broker.fold.tenant("default").owned == {"ada": 3}


def limited_tenant(made: Harness, **limits: int) -> Harness:
    for name, value in limits.items():
        setattr(made.worker.anyone.limits, name, value)
    return made


def codes_of(client: Client) -> list[int]:
    """The codes of CONNACKs and SUBACKs that have come."""
    return [body[1] if first >> 4 == 2 else body[-1] for first, body in client.take() if first >> 4 in (2, 9)]


@pytest.mark.parametrize("shards", [1, 3])
def test_a_tenant_has_so_many_sessions_in_all_shards_and_each_is_resumed(shards: int) -> None:
    harness = limited_tenant(Shards(shards) if shards > 1 else Harness(), tenant_sessions_max=3)
    for name in ("a", "b"):
        Client(harness, name, False, version=5, expiry_s=1000).lose()
    here = Client(harness, "c", True, 5)
    assert codes_of(Client(harness, "d", version=5)) == [0x97]
    assert codes_of(Client(harness, "d", version=4)) == [3]
    assert codes_of(Client(harness, "a", False, version=5, expiry_s=1000)) == [0], "it has one already"
    assert codes_of(Client(harness, "b", True, 5)) == [0], "another one in place of its own"
    here.lose()  # which ends its session
    assert codes_of(Client(harness, "d", False, version=5, expiry_s=1000)) == [0]
    assert codes_of(Client(harness, "e", version=5)) == [0x97]
    if isinstance(harness, Shards):
        harness.restart()
    else:
        harness.crash()
    limited_tenant(harness, tenant_sessions_max=3)
    harness.advance(10)  # sessions of those who were connected are over
    assert [codes_of(Client(harness, name, False, version=5, expiry_s=9)) for name in ("e", "f")] == [
        [0],
        [0x97],
    ]


@pytest.mark.parametrize("shards", [1, 3])
def test_a_tenant_has_so_many_subscriptions_in_all_shards(shards: int) -> None:
    harness = limited_tenant(Shards(shards) if shards > 1 else Harness(), tenant_subscriptions_max=3)
    clients = [Client(harness, name, False, version=5, expiry_s=1000) for name in "abcd"]
    for client in clients:
        client.take()
        client.subscribe("t/" + client.link.client_id, 1)
    assert [codes_of(client) for client in clients] == [[1], [1], [1], [0x97]]
    clients[0].subscribe("t/a", 0)  # which it has
    assert codes_of(clients[0]) == [0]
    clients[1].lose()
    clients[3].subscribe("$share/g/t", 1)
    assert codes_of(clients[3]) == [0x97], "those of one who is away count"
    harness.advance(1001)
    clients[3].subscribe("$share/g/t", 1)
    assert codes_of(clients[3]) == [1]
    clients[0].feed(codec.encode_unsubscribe(5, 9, ["t/a"]))
    clients[3].subscribe("t/again", 1)
    assert codes_of(clients[3]) == [1]
