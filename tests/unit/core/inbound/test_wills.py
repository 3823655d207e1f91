"""Wills and access control: asked again when a will is due, also after a restart; and those of clients that do not come
back under the same id after one. The rest: test_broker, e2e."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from harness import Client, Harness
from headrace.core.ports.access import Access, SignIn
from headrace.core.ports.identity import Identity
from headrace.core.ports.link import Link
from headrace.core.records.message import Message, decode_batch
from headrace.core.records.record import DROP_NOT_ACCEPTED, DROP_RETAINED_LIMIT, FLAG_V5, FLAG_WILL
from headrace.mqtt import codec
from headrace.mqtt.packets import Will

NEVER = 0xFFFFFFFF


class Rules(Access):
    """Everybody is `user`; `withdrawn` are (user, client id, topic) that may no longer be published to, `fleeting` those
    where nothing may be retained any more."""

    def __init__(self) -> None:
        super().__init__()
        self.user: str | None = "somebody"
        self.withdrawn: set[tuple[str | None, str, bytes]] = set()
        self.fleeting: set[tuple[str | None, str, bytes]] = set()

    def authenticate(self, request: SignIn) -> Identity:
        return request.identity_of(self.user)

    def may_publish(self, link: Link, topic: bytes) -> bool:
        return True

    def may_leave_will(self, tenant: str, user: str | None, client_id: str, topic: bytes) -> bool:
        return (user, client_id, topic) not in self.withdrawn

    def may_retain_will(self, tenant: str, user: str | None, client_id: str, topic: bytes) -> bool:
        return (user, client_id, topic) not in self.fleeting

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


@pytest.mark.parametrize("retain", [False, True])
def test_a_will_is_retained_only_if_that_is_allowed_when_it_is_due(
    harness: Harness, rules: Rules, retain: bool
) -> None:
    watcher = Client(harness, "w")
    watcher.subscribe("wills")
    for client_id in ("a", "b"):
        will = Will("wills", client_id.encode(), 1, retain, delay_s=5)
        Client(harness, client_id, False, 5, None, NEVER, will).lose()
    rules.fleeting.add(("somebody", "a", b"wills"))
    harness.advance(6)
    assert sorted(heard(watcher)) == ([b"b"] if retain else [b"a", b"b"])
    assert drops(harness) == (1 if retain else 0)


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


@pytest.mark.parametrize("life", ["one", "by its event", "by a snapshot"])
@pytest.mark.parametrize("version", [3, 4, 5])
def test_a_will_is_of_the_version_that_its_client_speaks(
    harness: Harness, rules: Rules, version: int, life: str
) -> None:
    """As column `mqtt5` of the lake says of it; it is published by whichever life of the broker its time comes in."""
    client = Client(harness, "a", version=version, will=Will("wills", b"gone"))
    if life != "one":
        crash(harness, rules)
    if life == "by a snapshot":
        harness.take_snapshot()
        crash(harness, rules)
    if life == "one":
        client.lose()
    else:
        harness.advance(7)
    bodies = (decode_batch(body, 0) for body in harness.journal.bodies)
    records = [record for body in bodies for record in body]
    [will] = [each for each in records if isinstance(each, Message) and each.flags & FLAG_WILL]
    assert bool(will.flags & FLAG_V5) == (version == 5)


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


STATUS = "status"
GRACE_S = 1.0


def device(
    harness: Harness, client_id: str, clean: bool = True, version: int = 4, delay_s: int = 0
) -> Client:
    """A client whose presence is a retained message, as most have it."""
    will = Will(STATUS, b"offline", 1, True, delay_s=delay_s)
    client = Client(harness, client_id, clean, version, None, NEVER, will)
    client.publish(STATUS, b"online", 1, retain=True)
    return client


def presence(harness: Harness) -> bytes | None:
    found = harness.broker.fold.tenant("default").retained.get(STATUS.encode())
    return None if found is None else found.payload


def watching(harness: Harness) -> Client:
    """A persistent subscriber, whose queue tells what was published since."""
    watcher = Client(harness, "watcher")
    watcher.subscribe(STATUS)
    watcher.publishes()
    return watcher


def seen(watcher: Client) -> list[bytes]:
    """What a watcher is given now; all of it is acknowledged."""
    found = watcher.publishes()
    for packet_id, _, _, _ in found:
        watcher.ack(packet_id)
    return [payload for _, payload, _, _ in found]


@pytest.mark.parametrize("version", [4, 5])
def test_the_will_of_a_client_that_cannot_come_back_is_published_before_anybody_is_let_in(
    version: int,
) -> None:
    """Its client id was the broker's, and nothing is kept under it."""
    harness = Harness()
    watcher = watching(harness)
    device(harness, "", version=version)
    seen(watcher)
    harness.crash()
    assert presence(harness) == b"offline"
    watcher = Client(harness, "watcher")
    device(harness, "", version=version)
    harness.advance(10 * GRACE_S)
    assert seen(watcher)[-2:] == [b"offline", b"online"]
    assert presence(harness) == b"online"


def test_an_assigned_client_id_with_a_session_that_stays_is_waited_for() -> None:
    harness = Harness()
    client = Client(harness, "", False, 5, None, NEVER, Will(STATUS, b"offline", 1, True))
    client_id = client.link.client_id
    harness.crash()
    Client(harness, client_id, False, 5)
    harness.advance(10 * GRACE_S)
    assert presence(harness) is None


@pytest.mark.parametrize("payload", [b"online", b""])
@pytest.mark.parametrize("clean", [True, False])
def test_a_will_that_waits_for_its_client_does_not_replace_what_somebody_else_has_written(
    clean: bool, payload: bytes
) -> None:
    """Who makes a new client id at each start is back under that one, or somebody has cleared the topic."""
    harness = Harness()
    device(harness, "run-1", clean)
    harness.crash()
    watcher = watching(harness)
    device(harness, "run-2", clean).publish(STATUS, payload, 1, retain=True)
    seen(watcher)
    harness.advance(10 * GRACE_S)
    assert presence(harness) == (payload or None)
    assert seen(watcher) == []


def test_a_start_in_between_brings_no_will_back() -> None:
    harness = Harness()
    device(harness, "run-1")
    harness.crash()
    device(harness, "run-2").disconnect()
    harness.crash()
    harness.advance(10 * GRACE_S)
    assert presence(harness) == b"online"


def test_a_will_is_held_while_the_message_that_replaces_it_is_on_its_way() -> None:
    """What counts is the place in the journal: the will would have stood behind it."""
    harness = Harness()
    device(harness, "run-1")
    harness.crash()
    other = Client(harness, "run-2")
    other.publish(STATUS, b"online", 1, retain=True, sync=False)
    harness.now_us += 10_000_000
    harness.clock.mono_ms += 10_000
    harness.worker.on_timer()
    harness.sync()
    harness.advance(GRACE_S)
    assert presence(harness) == b"online"


def write_elsewhere(harness: Harness) -> None:
    Client(harness, "other").publish("status/of/another", b"online", 1, retain=True)


def write_live(harness: Harness) -> None:
    Client(harness, "other").publish(STATUS, b"online", 1)


def write_before_it_is_lost(harness: Harness) -> None:
    device(harness, "run-1").lose()


@pytest.mark.parametrize("write", [write_elsewhere, write_live, write_before_it_is_lost])
def test_a_will_is_published_after_the_grace_where_nobody_has_replaced_it(
    write: Callable[[Harness], None],
) -> None:
    harness = Harness()
    device(harness, "run-1")
    harness.crash()
    write(harness)
    harness.advance(GRACE_S + 0.2)
    assert presence(harness) == b"offline"
    device(harness, "run-2")
    assert presence(harness) == b"online"


def test_a_start_within_the_grace_begins_it_anew() -> None:
    harness = Harness()
    device(harness, "run-1")
    harness.crash()
    harness.advance(0.7 * GRACE_S)
    harness.crash()
    harness.advance(0.7 * GRACE_S)
    assert presence(harness) == b"online"
    harness.advance(0.7 * GRACE_S)
    assert presence(harness) == b"offline"


def test_of_several_held_wills_on_one_topic_each_is_published() -> None:
    harness = Harness()
    for number in range(3):
        device(harness, f"run-{number}")
    watching(harness)
    harness.crash()
    watcher = watching(harness)
    harness.advance(GRACE_S + 0.2)
    assert seen(watcher).count(b"offline") == 3


@pytest.mark.parametrize("clean_before", [True, False])
@pytest.mark.parametrize("clean", [True, False])
def test_who_is_back_under_the_same_id_ends_up_online(clean_before: bool, clean: bool) -> None:
    """Its session goes on, or another one begins: only an end of the session publishes the will, in front of it."""
    harness = Harness()
    device(harness, "fixed", clean_before)
    harness.crash()
    watcher = watching(harness)
    device(harness, "fixed", clean)
    harness.advance(10 * GRACE_S)
    assert presence(harness) == b"online"
    found = seen(watcher)
    assert found[-1] == b"online"
    assert (b"offline" in found) == (clean and not clean_before)


def test_a_will_delay_that_the_client_asked_for_is_kept_to() -> None:
    """While its session waits for it, the will is due whoever has written meanwhile, with or without a restart."""
    harness = Harness()
    device(harness, "run-1", False, 5, delay_s=5)
    harness.crash()
    Client(harness, "other").publish(STATUS, b"online", 1, retain=True)
    harness.advance(5.5)
    assert presence(harness) == b"online"
    harness.advance(1)
    assert presence(harness) == b"offline"


def test_a_will_delay_that_has_passed_while_the_broker_was_down_is_over_before_anybody_is_let_in() -> None:
    harness = Harness()
    device(harness, "away", False, 5, delay_s=5).lose()
    harness.now_us += 8_000_000
    harness.crash()
    assert presence(harness) == b"offline"
    Client(harness, "other").publish(STATUS, b"online", 1, retain=True)
    harness.advance(10)
    assert presence(harness) == b"online"


def test_nobody_listens_to_what_is_written_once_no_will_is_held() -> None:
    harness = Harness()
    device(harness, "run-1")
    device(harness, "fixed")
    harness.crash()
    retained = harness.broker.fold.tenant("default").retained
    assert retained.listener is not None
    device(harness, "fixed")
    assert retained.listener is None


def test_the_grace_begins_when_clients_can_come_back() -> None:
    """A start takes as long as the slowest worker's."""
    harness = Harness()
    device(harness, "run-1")
    harness.crash()
    harness.now_us += 60_000_000
    harness.clock.mono_ms += 60_000
    harness.broker.sessions.absences.serve()
    harness.advance(0.5 * GRACE_S)
    assert presence(harness) == b"online"
    harness.advance(0.7 * GRACE_S)
    assert presence(harness) == b"offline"


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_what_fails_while_a_held_will_is_forgotten_costs_its_publisher_nothing(qos: int) -> None:
    """The will is not published all the same, nor is it after another start."""
    harness = Harness()
    device(harness, "run-1", False)
    harness.crash()
    session = harness.broker.fold.tenant("default").sessions["run-1"]
    session.client_id = "\udc00"  # as long as no record can be made of that one
    other = Client(harness, "run-2", False)
    packet_id = other.publish(STATUS, b"again", qos, retain=True)
    assert not other.link.closed
    if qos == 2:  # sent again it is not taken again
        other.feed(codec.encode_publish(4, STATUS.encode(), b"again", 2, True, True, packet_id, b"", -1))
    assert len([m for m in harness.journal.records if isinstance(m, Message) and m.payload == b"again"]) == 1
    session.client_id = "run-1"
    watcher = watching(harness)
    harness.advance(2 * GRACE_S)
    assert presence(harness) == b"again"
    assert seen(watcher) == []
    harness.crash()
    harness.advance(2 * GRACE_S)
    assert presence(harness) == b"again"


def test_a_will_that_is_due_once_its_tenant_retains_nothing_is_published_and_not_kept(
    harness: Harness,
) -> None:
    watcher = Client(harness, "w")
    watcher.subscribe("wills")
    Client(harness, "c", False, 5, None, NEVER, Will("wills", b"gone", 1, True, delay_s=5)).lose()
    tenant = harness.broker.fold.tenant("default")
    tenant.limits.retain_available = False
    harness.advance(6)
    assert heard(watcher) == [b"gone"]
    assert (len(tenant.retained), tenant.counters.dropped) == (0, {DROP_RETAINED_LIMIT: 1})
