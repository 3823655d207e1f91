"""CONNECT and the end of a connection: who is let in, what the session keeps, when it and its will end."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from harness import Client, Harness
from headrace.core.ports.settings import BrokerSettings
from headrace.core.state.session import Session
from headrace.mqtt import codec
from headrace.mqtt.packets import Will
from headrace.mqtt.properties import Properties

CONNACK = 0x20
ACCEPTED, RESUMED = b"\x00\x00", b"\x01\x00"


def payloads(client: Client) -> list[bytes]:
    return [payload for _, payload, _, _ in client.publishes()]


def answer(client: Client) -> bytes:
    """Flags and code of the CONNACK that the client got."""
    first, body = client.take()[0]
    assert first == CONNACK
    return body[:2]


def session(harness: Harness, client_id: str = "s") -> Session | None:
    return harness.broker.fold.tenants["default"].sessions.get(client_id)


# Who is let in


@pytest.mark.parametrize(
    ("version", "clean", "code"), [(4, False, 2), (3, True, 2), (4, True, 0), (5, False, 0)]
)
def test_an_empty_client_id_gets_a_name_where_the_version_allows_it(
    version: int, clean: bool, code: int
) -> None:
    harness = Harness()
    client = harness.client("", clean=clean, version=version)
    assert client.link.client_id.startswith("headrace-") == (code == 0)
    assert answer(client) == bytes((0, code))
    assert client.link.closed == bool(code)


@pytest.mark.parametrize(("version", "code"), [(3, 5), (4, 5), (5, 0x87)])
def test_a_broker_without_strangers_refuses_them_in_the_words_of_the_version(version: int, code: int) -> None:
    settings = BrokerSettings()
    settings.allow_anonymous = False
    harness = Harness(settings)
    client = harness.client("s", version=version)
    assert answer(client) == bytes((0, code))
    assert client.link.closed
    assert session(harness) is None


@pytest.mark.parametrize(("version", "code"), [(4, 2), (5, 0x85)])
def test_nobody_takes_over_the_session_of_a_bridge(version: int, code: int) -> None:
    assert answer(Harness().client("$bridge/roof", version=version)) == bytes((0, code))


def test_a_method_of_authentication_that_nobody_knows_is_refused() -> None:
    assert answer(Harness().client("s", version=5, method="SCRAM")) == b"\x00\x8c"


# What the session keeps


@pytest.mark.parametrize("version", [4, 5])
def test_session_present_says_whether_there_was_one(version: int) -> None:
    harness = Harness()
    assert answer(harness.client("s", version=version)) == ACCEPTED
    assert answer(harness.client("s", version=version)) == RESUMED
    harness.crash()
    assert answer(harness.client("s", version=version)) == RESUMED
    assert answer(harness.client("s", version=version, clean=True)) == ACCEPTED


def test_version_3_1_has_no_session_present() -> None:
    harness = Harness()
    harness.client("s", version=3)
    assert answer(harness.client("s", version=3)) == ACCEPTED


def test_a_clean_start_forgets_what_the_session_had() -> None:
    harness = Harness()
    harness.client("s").subscribe("t")
    harness.client("s").lose()
    harness.client("p", clean=True).publish("t", b"x")
    harness.client("s", clean=True).disconnect()
    harness.crash()
    again = harness.client("s")
    assert answer(again) == ACCEPTED
    assert payloads(again) == []


@pytest.mark.parametrize("expiry_s", [0, 30])
def test_connack_waits_for_the_journal_where_the_session_stays(expiry_s: int) -> None:
    harness = Harness()
    client = harness.client("s", version=5, expiry_s=expiry_s, sync=False)
    assert bool(client.take()) == (expiry_s == 0)
    harness.sync()
    assert bool(client.take()) == (expiry_s != 0)


def test_a_disconnect_may_shorten_the_expiry() -> None:
    harness = Harness()
    client = harness.client("s", version=5, expiry_s=1000)
    properties = Properties()
    properties.session_expiry_interval = 5
    client.feed(codec.encode_disconnect(5, 0, properties))
    harness.advance(4)
    assert session(harness) is not None
    harness.advance(2)
    assert session(harness) is None


def test_after_a_clean_disconnect_only_what_was_sent_has_dup() -> None:
    harness = Harness()
    subscriber = harness.client("s", version=5, receive_maximum=2)
    subscriber.subscribe("t")
    publisher = harness.client("p", clean=True)
    for n in range(4):
        publisher.publish("t", b"%d" % n)
    subscriber.lose()
    again = harness.client("s", version=5, receive_maximum=9).publishes()
    assert [(p, d) for _, p, d, _ in again] == [(b"0", True), (b"1", True), (b"2", False), (b"3", False)]


def test_a_session_expires() -> None:
    harness = Harness()
    harness.client("s", version=5, expiry_s=10).subscribe("t")
    harness.client("s", version=5, expiry_s=10).lose()
    harness.advance(5)
    assert "s" in harness.broker.fold.tenants["default"].sessions
    harness.crash()
    harness.advance(8)
    assert "s" not in harness.broker.fold.tenants["default"].sessions


def test_takeover_keeps_the_session_and_closes_the_old_connection() -> None:
    harness = Harness()
    old = harness.client("s", version=5)
    old.subscribe("t")
    old.take()
    new = harness.client("s", version=5)
    assert old.take() == [(0xE0, b"\x8e")]
    assert old.link.closed
    assert new.take()[0][1][:2] == b"\x01\x00"


def came(harness: Harness, waited_ms: int, version: int = 5, gone: bool = False) -> Client:
    """A connection of the same client whose CONNECT has waited elsewhere for so long."""
    return harness.client("s", version=version, came_ms=harness.clock.mono_ms - waited_ms, gone=gone)


@pytest.mark.parametrize(("version", "code"), [(4, 3), (5, 0x88)])
def test_a_connect_that_came_before_the_one_that_was_let_in_ends_nobody(version: int, code: int) -> None:
    harness = Harness()
    harness.advance(10)
    newer = came(harness, 100)
    late = came(harness, 3000, version)
    assert answer(late) == bytes((0, code))
    assert [link.closed for link in (newer.link, late.link)] == [False, True]
    newest = came(harness, 0)
    assert [link.closed for link in (newer.link, newest.link)] == [True, False]


@pytest.mark.parametrize("waited_ms", [0, 3000])
def test_who_has_waited_and_is_gone_ends_nobody(waited_ms: int) -> None:
    """Without the wait it is a client that says all it has to say at once and leaves."""
    harness = Harness()
    harness.advance(10)
    present = came(harness, 5000)
    gone = came(harness, waited_ms, gone=True)
    assert present.link.closed == (waited_ms == 0)
    assert gone.link.closed == (waited_ms > 0)


# When a will is published


def test_will_fires_on_loss_not_on_disconnect_and_a_return_cancels_its_delay() -> None:
    harness = Harness()
    watcher = harness.client("w")
    watcher.subscribe("will/#")
    harness.client("a", will=Will("will/a", b"a")).disconnect()
    harness.client("b", will=Will("will/b", b"b")).lose()
    assert payloads(watcher) == [b"b"]
    harness.client("c", version=5, will=Will("will/c", b"c", delay_s=5)).lose()
    harness.advance(3)
    harness.client("c", version=5)
    harness.advance(10)
    assert payloads(watcher) == []
    harness.client("d", version=5, will=Will("will/d", b"d", delay_s=5)).lose()
    harness.advance(6)
    assert payloads(watcher) == [b"d"]


def test_a_will_of_a_connection_open_at_a_crash_fires_after_the_grace() -> None:
    harness = Harness()
    harness.client("w").subscribe("will/#")
    harness.client("a", clean=True, will=Will("will/a", b"a", 1))
    harness.client("b", will=Will("will/b", b"b", 1))
    harness.crash()
    watcher = harness.client("w")
    harness.client("b")
    harness.advance(0.5)
    assert payloads(watcher) == []
    harness.advance(2)
    assert payloads(watcher) == [b"a"]


def test_who_loses_a_connection_to_a_node_that_stops_has_the_grace_before_the_will() -> None:
    harness = Harness()
    watcher = harness.client("w")
    watcher.subscribe("will/#")
    left = {
        "a": harness.client("a", clean=True, will=Will("will/a", b"a", 1)),
        "b": harness.client("b", version=5, clean=True, will=Will("will/b", b"b", 1)),
        "c": harness.client("c", will=Will("will/c", b"c", 1)),
        "d": harness.client("d", version=5, expiry_s=60, will=Will("will/d", b"d", 1)),
        "e": harness.client("e", clean=True),
    }
    left["c"].subscribe("x")
    left["d"].take()
    for client in left.values():
        harness.broker.put_out(client.link, 0x8B, "the node of its socket stops")
        assert client.link.closed
    assert left["d"].take() == [(0xE0, b"\x8b")]
    assert session(harness, "e") is None
    harness.client("p").publish("x", b"meanwhile", 1)
    harness.client("b", version=5)
    back = harness.client("c")
    assert answer(back) == RESUMED
    harness.advance(0.5)
    assert payloads(watcher) == []
    harness.advance(2)
    assert sorted(payloads(watcher)) == [b"a", b"d"]
    assert session(harness, "a") is None
    left["d"] = harness.client("d", version=5)
    harness.crash()
    watcher = harness.client("later")
    watcher.subscribe("will/#")
    harness.advance(5)
    assert payloads(watcher) == []


@pytest.mark.interpreted
def test_who_loses_a_connection_to_a_node_that_stops_has_the_grace_also_where_that_is_noted_late(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    settings = BrokerSettings()
    settings.restart_grace_ms = 30_000
    harness = Harness(settings)
    watcher = harness.client("w")
    watcher.subscribe("will/#")
    client = harness.client("a", clean=True, will=Will("will/a", b"a", 1))

    def no_memory() -> None:
        raise MemoryError

    with monkeypatch.context() as short:
        short.setattr(harness.worker._scheduler, "request_tick", no_memory)
        with pytest.raises(MemoryError):
            harness.broker.put_out(client.link, 0x8B, "the node of its socket stops")
    assert client.link.closed
    harness.advance(11)
    harness.advance(20)
    assert payloads(watcher) == []
    harness.advance(11)
    assert payloads(watcher) == [b"a"]


@pytest.mark.parametrize(("code", "published"), [(0x00, False), (0x04, True), (0x80, True)])
def test_a_disconnect_says_whether_the_will_is_published(code: int, published: bool) -> None:
    harness = Harness()
    watcher = harness.client("w")
    watcher.subscribe("will")
    client = harness.client("s", version=5, will=Will("will", b"last words"))
    client.feed(codec.encode_disconnect(5, code))
    assert payloads(watcher) == [b"last words"] * published


def test_a_will_goes_when_its_session_ends_before_its_delay_is_over() -> None:
    harness = Harness()
    watcher = harness.client("w")
    watcher.subscribe("will")
    harness.client("s", version=5, expiry_s=2, will=Will("will", b"x", delay_s=100)).lose()
    harness.advance(1)
    assert payloads(watcher) == []
    harness.advance(2)
    assert payloads(watcher) == [b"x"]
    assert session(harness) is None


# Silence


def test_silence_of_one_and_a_half_keep_alives_ends_the_connection_and_not_the_session() -> None:
    harness = Harness()
    client = harness.client("s", keep_alive_s=10)
    ended = []
    for step_s in (14, 2):
        harness.advance(step_s)
        ended.append(client.link.closed)
    assert ended == [False, True]
    assert session(harness) is not None


def pass_unseen(harness: Harness, seconds: float) -> None:
    """Time goes on, and whoever speaks next does so before the timer has come to it."""
    stand_still(harness, seconds)
    harness.clock.looked_ms = harness.clock.mono_ms


def stand_still(harness: Harness, seconds: float) -> None:
    """The loop stands still meanwhile: what is read next may have come before."""
    harness.now_us += int(seconds * 1_000_000)
    harness.clock.mono_ms += int(seconds * 1_000)
    harness.clock.now_us = harness.now_us + harness.set_by_us


def pass_while_down(harness: Harness, seconds: float) -> None:
    harness.now_us += int(seconds * 1_000_000)
    harness.crash()


def pass_over_two_starts(harness: Harness, seconds: float) -> None:
    pass_while_down(harness, seconds / 2)
    pass_while_down(harness, seconds / 2)


def pass_while_down_without_a_clock(harness: Harness, seconds: float) -> None:
    """The machine comes up in 1970, and the clock is set afterwards: only what it was up for is known to have passed."""
    harness.set_by_us = -harness.now_us
    harness.crash()
    harness.set_by_us = 0
    pass_unseen(harness, seconds + 5)


PASSING = [pass_unseen, pass_while_down, pass_over_two_starts, pass_while_down_without_a_clock]


def gone(harness: Harness, expiry_s: int = 60, delay_s: int = 0, username: str | None = None) -> None:
    """A client that is away, with a stale message in its queue."""
    will = Will("will", b"gone", 1, delay_s=delay_s) if delay_s else None
    client = Client(harness, "away", False, 5, None, expiry_s, will, username=username)
    client.subscribe("t")
    client.lose()
    Client(harness, "p").publish("t", b"stale", 1)


def is_present(client: Client) -> bool:
    return next(bool(body[0] & 1) for first, body in client.packets if first >> 4 == 2)


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("passes", PASSING)
def test_a_session_whose_time_is_over_is_not_resumed_whether_or_not_its_timer_has_fired(
    passes: Callable[[Harness, float], None], clean: bool
) -> None:
    harness = Harness()
    gone(harness)
    passes(harness, 61)
    back = Client(harness, "away", clean, 5, expiry_s=60)
    assert not is_present(back)
    assert back.publishes() == []
    harness.client("p2").publish("t", b"unheard", 1)
    assert back.publishes() == []
    assert harness.broker.sessions.absences.expired == 1


@pytest.mark.parametrize("passes", [pass_unseen, pass_while_down, pass_over_two_starts])
def test_a_session_whose_time_is_not_over_is_resumed(passes: Callable[[Harness, float], None]) -> None:
    harness = Harness()
    gone(harness)
    passes(harness, 59)
    back = Client(harness, "away", False, 5, expiry_s=60)
    assert is_present(back)
    assert [payload for _, payload, _, _ in back.publishes()] == [b"stale"]


@pytest.mark.parametrize(("before_s", "in_time"), [(0, True), (59, True), (61, False)])
def test_a_client_that_came_while_the_loop_stood_still_came_within_its_will_delay(
    before_s: float, in_time: bool
) -> None:
    """Nobody knows when CONNECT came: a will delay that was not over when the loop stopped is not over."""
    harness = Harness()
    watcher = harness.client("w")
    watcher.subscribe("will")
    gone(harness, 3600, 60)
    pass_unseen(harness, before_s)
    stand_still(harness, 600)
    back = Client(harness, "away", False, 5, expiry_s=3600)
    assert is_present(back)
    harness.advance(60)
    assert [payload for _, payload, _, _ in watcher.publishes()] == ([] if in_time else [b"gone"])


@pytest.mark.parametrize("will_delay_s", [30, 60])
def test_a_session_that_was_over_while_the_loop_stood_still_is_not_resumed(will_delay_s: int) -> None:
    harness = Harness()
    watcher = harness.client("w")
    watcher.subscribe("will")
    gone(harness, 60, will_delay_s)
    stand_still(harness, 600)
    assert not is_present(Client(harness, "away", False, 5, expiry_s=60))
    harness.advance(60)
    assert [payload for _, payload, _, _ in watcher.publishes()] == [b"gone"]


@pytest.mark.parametrize("set_by_s", [-86_400, -30, 30, 86_400])
def test_a_clock_that_is_set_ends_no_session_at_connect(set_by_s: int) -> None:
    harness = Harness()
    gone(harness)
    harness.set_by_us = set_by_s * 1_000_000
    pass_unseen(harness, 30)
    assert is_present(Client(harness, "away", False, 5, expiry_s=60))


@pytest.mark.parametrize("passes", [pass_unseen, pass_while_down])
def test_a_will_whose_delay_is_over_is_published_though_its_client_is_back_before_the_timer(
    passes: Callable[[Harness, float], None],
) -> None:
    harness = Harness()
    watcher = harness.client("w")
    watcher.subscribe("will")
    gone(harness, 3600, 5)
    passes(harness, 7)
    back = Client(harness, "away", False, 5, expiry_s=3600)
    assert is_present(back)
    watcher = harness.client("w")
    assert [payload for _, payload, _, _ in watcher.publishes()] == [b"gone"]
    harness.advance(60)
    assert watcher.publishes() == []


def test_a_will_is_published_before_the_session_that_is_over_is_replaced() -> None:
    """Its delay was longer than the session."""
    harness = Harness()
    watcher = harness.client("w")
    watcher.subscribe("will")
    gone(harness, 60, 3000)
    pass_unseen(harness, 61)
    assert not is_present(Client(harness, "away", False, 5, expiry_s=60))
    assert [payload for _, payload, _, _ in watcher.publishes()] == [b"gone"]


@pytest.mark.parametrize("passes", [pass_unseen, pass_while_down])
def test_a_client_id_belongs_to_nobody_once_its_session_is_over(
    passes: Callable[[Harness, float], None],
) -> None:
    harness = Harness()
    gone(harness, username="somebody")
    before = harness.broker.fold.tenant("default").sessions["away"]
    before.owner = "somebody"
    passes(harness, 59)
    assert harness.broker.sessions.absences.present(harness.broker.fold.tenant("default"), "away") is not None
    pass_unseen(harness, 2)
    assert harness.broker.sessions.owner_of("default", "away") is None
    assert harness.broker.devices.owner_of("default", "away") is None


@pytest.mark.parametrize("passes", [pass_unseen, pass_while_down])
def test_what_has_expired_is_given_to_nobody_whether_or_not_a_timer_has_fired(
    passes: Callable[[Harness, float], None],
) -> None:
    """A message that waits, one of a group, and a retained one."""
    harness = Harness()
    for client_id, topic_filter in (("away", "t"), ("member", "$share/g/t")):
        client = Client(harness, client_id, False, 5)
        client.subscribe(topic_filter)
        client.disconnect()
    publisher = Client(harness, "p", version=5)
    publisher.publish("t", b"old", 1, retain=True, expiry_s=5)
    publisher.publish("t", b"kept", 1, expiry_s=50)
    passes(harness, 6)
    assert [payload for _, payload, _, _ in Client(harness, "away", False, 5).publishes()] == [b"kept"]
    assert [payload for _, payload, _, _ in Client(harness, "member", False, 5).publishes()] == [b"kept"]
    asks = Client(harness, "asks", version=5)
    asks.subscribe("t")
    assert asks.publishes() == []
