"""Whatever is raised while a record takes effect, a timer fires or a tick ends costs one connection at most."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType

import pytest

import headrace.core.broker
from harness import Client, Harness, state
from headrace.core.ports.access import Access, SignIn
from headrace.core.ports.failures import PLACES, Failures
from headrace.core.ports.identity import Identity
from headrace.core.ports.link import Link, Rendering
from headrace.core.ports.settings import BrokerSettings
from headrace.core.ports.timers import RETRY_MS
from headrace.core.records.message import Message
from headrace.core.records.record import Record
from headrace.core.state.backlog import Backlog
from headrace.core.state.session import Session
from headrace.mqtt import codec
from headrace.mqtt import reason_codes as rc
from headrace.mqtt.packets import SubscriptionRequest, Will

COMPILED = not str(headrace.core.broker.__file__).endswith(".py")
SOURCES = Path(__file__).parents[4] / "src" / "headrace"
CORE = str(Path(headrace.core.broker.__file__).parent)
# Where the work is done. What calls it, and contains what it raises, is not made to fail itself.
LEAVES = {
    "access", "acknowledging", "admission", "backlog", "delivery", "drop_events", "group_delivery", "groups", "inflight",
    "message", "producers", "queue", "retained", "retained_replay", "retained_tree", "session", "spilling", "subscribing",
    "subscriptions", "wills",
}  # fmt: skip


CASTS = {"session_of"}  # which say of what type something is, and cannot fail
STRIDE = 7  # of the calls that are made to fail; all of them take a minute


class Boom(Exception):
    """What nobody expects."""


class Moody(Access):
    """Lets everybody do everything, but fails when it is asked about some topics."""

    def __init__(self, topics: set[bytes]) -> None:
        super().__init__()
        self.topics = topics
        self.victim = ""

    def authenticate(self, request: SignIn) -> Identity:
        return request.identity_of(None)

    def may_publish(self, link: Link, topic: bytes) -> bool:
        return True

    def may_leave_will(self, tenant: str, user: str | None, client_id: str, topic: bytes) -> bool:
        return self._answer(client_id, topic)

    def may_receive(self, link: Link, topic: bytes) -> bool:
        return self._answer(link.client_id, topic)

    def may_subscribe(self, link: Link, topic_filter: str) -> bool:
        return True

    def _answer(self, client_id: str, topic: bytes) -> bool:
        if client_id == self.victim and topic in self.topics:
            raise Boom(topic)
        return True


def moody(*topics: bytes) -> tuple[Harness, Moody]:
    harness = Harness()
    access = Moody(set(topics))
    harness.worker.guard(access)
    return harness, access


def bodies(client: Client) -> list[bytes]:
    return [payload for _, payload, _, _ in client.publishes()]


def is_closed(client: Client) -> bool:
    return client.link.closed


def counted(harness: Harness) -> dict[str, int]:
    return {place: count for place, count in harness.worker.failures.counts.items() if count}


@pytest.mark.parametrize("qos", [1, 2])
def test_a_subscriber_that_cannot_be_given_a_message_loses_its_connection_and_nothing_else(qos: int) -> None:
    harness, access = moody(b"t")
    access.victim = "s1"
    clients = [harness.client(f"s{number}", version=5) for number in range(3)]
    for client in clients:
        client.subscribe("t", qos)
        client.take()
    publisher = harness.client("p", version=5)
    publisher.publish("t", b"first", qos, sync=False)
    publisher.publish("t", b"second", qos, sync=False)
    harness.sync()
    assert [first >> 4 for first, _ in publisher.take()] == [2, *[4 if qos == 1 else 5] * 2]
    assert [bodies(clients[0]), bodies(clients[2])] == [[b"first", b"second"]] * 2
    first, body = clients[1].take()[-1]
    assert (first, body[0]) == (0xE0, rc.IMPLEMENTATION_SPECIFIC_ERROR)
    assert is_closed(clients[1])
    assert not is_closed(clients[2])
    assert counted(harness) == {"delivery": 1}
    live = state(harness.broker.fold)
    access.victim = ""
    assert bodies(harness.client("s1", version=5)) == [b"first", b"second"]
    harness.crash()
    assert len(live) == len(state(harness.broker.fold))
    assert bodies(harness.client("s1", version=5)) == [b"first", b"second"]


def numbers(harness: Harness) -> list[tuple[str, int, int]]:
    """How many entries each session has numbered, and how many of them are unfinished."""
    found = []
    for session in harness.broker.fold.by_incarnation.values():
        queue = session.outbound()
        found.append((session.client_id, int(queue.next_serial), int(queue.unfinished())))
    return sorted(found)


def test_what_a_session_is_numbered_is_what_a_replay_numbers() -> None:
    harness, access = moody(b"t")
    access.victim = "s"
    harness.client("s").subscribe("#")
    publisher = harness.client("p")
    for topic in ("t", "u", "t", "v"):
        publisher.publish(topic, topic.encode())
    harness.worker.end_tick()
    live = numbers(harness)
    harness.crash()
    assert numbers(harness) == live
    assert bodies(harness.client("s")) == [b"t", b"u", b"t", b"v"]


def test_a_message_that_was_dropped_at_once_is_not_numbered_again() -> None:
    """It is too large for the client; what fails comes behind that, when the session looks into its group."""
    harness, access = moody(b"u")
    client = harness.client("s", version=5)
    client.subscribe("t")
    client.subscribe("$share/g/u")
    client.link.max_packet_size = 100
    publisher = harness.client("p")
    client.link.paused = True
    publisher.publish("u", b"waits")
    client.link.paused = False
    access.victim = "s"
    publisher.publish("t", b"x" * 200)
    assert counted(harness) == {"delivery": 1}
    publisher.publish("t", b"fits")
    live = numbers(harness)
    harness.crash()
    assert numbers(harness) == live
    assert sorted(bodies(harness.client("s", version=5))) == [b"fits", b"waits"]


@pytest.mark.skipif(COMPILED, reason="compiled, nothing can be made to fail there")
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_a_member_that_a_message_of_its_group_cannot_be_written_to_loses_its_connection(qos: int) -> None:
    """Nobody reads half a packet, and what it had drawn goes on: to another at QoS 1, to itself at QoS 2."""

    class HalfWritten(Rendering):
        """Fails in the middle of a packet."""

        def write(
            self, link: Link, message: Message, qos: int, packet_id: int, first: int, ids: bytes
        ) -> None:
            link.writer().write(b"\x32\x7fhalf")
            raise Boom

        def size(self, link: Link, message: Message, qos: int, ids: bytes) -> int:
            return 100

    harness = Harness()
    members = [harness.client(f"m{number}", version=5) for number in range(2)]
    for member in members:
        member.subscribe("$share/g/t", 2)
        member.take()
    members[0].link.rendering = HalfWritten()
    publisher = harness.client("p")
    publisher.publish("t", b"one", qos)
    assert [member.link.closed for member in members] == [True, False]
    assert b"half" not in members[0].link.sent
    if qos == 1:
        assert bodies(members[1]) == [b"one"]
    if qos == 2:
        assert bodies(harness.client("m0", version=5)) == [b"one"]


def test_many_receivers_and_lanes_go_on_behind_one_that_fails() -> None:
    settings = BrokerSettings()
    settings.deliveries_at_once = 10
    harness = Harness(settings)
    access = Moody({b"t"})
    access.victim = "s17"
    harness.worker.guard(access)
    clients = [harness.client(f"s{number}", clean=True) for number in range(45)]
    for client in clients:
        client.subscribe("t", 1)
        client.take()
    publisher = harness.client("p")
    for qos in (0, 1):
        publisher.publish("t", b"%d" % qos, qos)
    for number, client in enumerate(clients):
        assert bodies(client) == ([] if number == 17 else [b"0", b"1"])
    assert [client for client in clients if is_closed(client)] == [clients[17]]


def test_deferred_work_that_fails_costs_who_it_was_done_for() -> None:
    """A retained message that its subscriber cannot be given."""
    harness, access = moody(b"r")
    access.victim = "s"
    harness.client("p").publish("r", b"x", retain=True)
    subscriber, other = harness.client("s", version=5), harness.client("o")
    subscriber.feed(codec.encode_subscribe(5, 1, [_request("r")]), sync=False)
    other.feed(codec.encode_subscribe(4, 1, [_request("r")]), sync=False)
    harness.sync()
    assert is_closed(subscriber)
    assert bodies(other) == [b"x"]
    assert counted(harness)
    assert harness.broker.commit.deferred_bytes == 0


def test_a_timer_that_fails_is_tried_again_and_the_others_fire() -> None:
    harness, access = moody(b"w1")
    access.victim = "c1"
    watcher = harness.client("watcher")
    watcher.subscribe("#")
    for number in range(3):
        will = Will(f"w{number}", b"%d" % number, 1, delay_s=5)
        harness.client(f"c{number}", version=5, will=will).lose()
    harness.advance(6)
    assert sorted(bodies(watcher)) == [b"0", b"2"]
    assert counted(harness) == {"timer": 1}
    access.victim = ""
    harness.advance(RETRY_MS / 1000 + 1)
    assert bodies(watcher) == [b"1"]


def test_a_record_that_cannot_be_encoded_was_never_appended() -> None:
    harness = Harness()
    subscriber, publisher = harness.client("s"), harness.client("p")
    subscriber.subscribe("t")
    publisher.publish("t", b"before", sync=False)
    commit = harness.broker.commit
    offset = commit.next_offset
    bad = Message(0, 1, 1, 1, "default", b"x", 0, b"t", b"", -1, b"x")
    bad.timestamp_us = 1 << 70
    with pytest.raises((OverflowError, ValueError)):
        commit.append(bad)
    assert commit.next_offset == offset
    publisher.publish("t", b"behind")
    assert bodies(subscriber) == [b"before", b"behind"]
    harness.crash()


def test_who_waits_for_a_read_is_tried_again_behind_one_that_fails() -> None:
    harness, access = moody(b"t")
    publisher = harness.client("p", version=5)
    for number in range(3):
        client = harness.client(f"s{number}", version=5)
        client.subscribe("t")
        client.lose()
    publisher.publish("t", b"waits")
    harness.journal.reads_fail = True
    clients = [harness.client(f"s{number}", version=5) for number in range(3)]
    access.victim = "s0"
    harness.journal.reads_fail = False
    harness.advance(10)
    harness.advance(10)
    assert [bodies(client) for client in clients] == [[], [b"waits"], [b"waits"]]
    assert counted(harness) == {"unread": 1}
    assert [client.link.closed for client in clients] == [True, False, False]


class Forbidding(Moody):
    """Fails when it is asked whether a client may publish."""

    def may_publish(self, link: Link, topic: bytes) -> bool:
        return self._answer(link.client_id, topic)


def test_messages_that_waited_for_space_are_taken_up_behind_one_that_fails() -> None:
    harness = Harness()
    access = Forbidding({b"t"})
    harness.worker.guard(access)
    clients = [harness.client(f"p{number}", version=5) for number in range(3)]
    for client in clients:
        client.take()
    harness.broker.set_storage_full(True)
    for client in clients:
        client.publish("t", b"x")
    access.victim = "p0"
    harness.broker.set_storage_full(False)
    harness.sync()
    assert [[first for first, _ in client.take()] for client in clients] == [[0xE0], [0x40], [0x40]]
    assert counted(harness) == {"read": 1}
    assert [client.link.holds for client in clients[1:]] == [False, False]


def test_who_comes_and_goes_while_the_disk_is_full_leaves_nothing() -> None:
    harness = Harness()
    harness.broker.set_storage_full(True)
    stays = harness.client("stays", clean=True)
    stays.publish("t", b"kept")
    for _ in range(500):
        client = harness.client("goes", clean=True)
        client.publish("t", b"x" * 1000)
        client.lose()
    assert harness.broker.publishing.waiting()[1] < 130
    stays.take()
    harness.broker.set_storage_full(False)
    harness.sync()
    assert [first for first, _ in stays.take()] == [0x40]


def test_who_logs_may_fail_too() -> None:
    failures = Failures()
    told: list[str] = []

    def tell(place: str, client_id: str, error: BaseException) -> None:
        told.append(f"{place} {client_id} {error}")
        raise Boom

    failures.tell = tell
    failures.note(PLACES[0], "c", Boom("x"))
    assert told == ["journal c x"]
    assert failures.counts["journal"] == 1


def test_every_place_under_which_something_is_noted_is_known() -> None:
    noted = re.compile(r'(?:failures\.note|_repeat|\.contain)\(\s*"(\w+)"')
    found = {name for path in SOURCES.rglob("*.py") for name in noted.findall(path.read_text("utf-8"))}
    assert {"peer", "timer", "cluster"} <= found <= set(PLACES)


def _request(topic_filter: str) -> SubscriptionRequest:
    return SubscriptionRequest(topic_filter, 1)


# Systematically: the k-th call of anything that does the work fails, for every k of a scenario.


def _is_of_the_fake(frame: FrameType | None) -> bool:
    """The journal in memory decodes what it is given; a real one does not."""
    while frame is not None:
        if frame.f_code.co_name == "decode_batch":
            return True
        frame = frame.f_back
    return False


class Injected:
    """Makes the k-th call in LEAVES raise MemoryError, while a record takes effect, a timer fires or a tick ends."""

    def __init__(self, k: int) -> None:
        self.left = k
        self.place = ""

    def __call__(self, frame: FrameType, event: str, _: object) -> None:
        code = frame.f_code
        if not code.co_filename.startswith(CORE) or Path(code.co_filename).stem not in LEAVES:
            return
        if code.co_name.startswith("<") or code.co_name in CASTS or _is_of_the_fake(frame):
            return
        self.left -= 1
        if self.left == 0:
            self.place = f"{Path(code.co_filename).stem}.{code.co_name}"
            raise MemoryError(self.place)

    def around(self, call: Callable[[], object]) -> None:
        sys.settrace(self)
        try:
            call()
        finally:
            sys.settrace(None)


class Scenario:
    """Persistent subscribers, a group, retained messages, a will; what the subscribers got is noted."""

    def __init__(self, injected: Injected) -> None:
        self.injected = injected
        settings = BrokerSettings()
        settings.deliveries_at_once = 4
        self.harness = Harness(settings)
        self.subscribers = [self.harness.client(f"s{number}", version=4 + number % 2) for number in range(6)]
        self.got: dict[str, list[bytes]] = {f"s{number}": [] for number in range(6)}
        for client in self.subscribers:
            client.subscribe("t/#", 2)
        self.promised = {b"m0", b"m1", b"m2", b"m4", b"m5", b"check"}
        self.member = self.harness.client("member")
        self.member.subscribe("$share/g/t/1")
        self.publisher = self.harness.client("p", version=5)
        self.harness.client("w", version=5, will=Will("t/w", b"will", 1, delay_s=1)).lose()
        self.harness.sync()

    def run(self) -> None:
        for number, (topic, qos, retain) in enumerate(
            [
                ("t/1", 1, False),
                ("t/2", 2, False),
                ("t/3", 1, True),
                ("t/1", 0, False),
                ("t/3", 1, True),
                ("t/4", 1, False),
            ]
        ):
            self.publisher.publish(topic, b"m%d" % number, qos, retain, sync=False)
        late = self.harness.client("late", sync=False)
        late.feed(codec.encode_subscribe(4, 1, [_request("t/#")]), sync=False)
        self._passes()
        if not self.subscribers[0].link.closed:
            self.promised.add(b"m6")
            self.subscribers[0].publish("t/5", b"m6", 1, sync=False)
        self.harness.now_us += 3_000_000
        self.harness.clock.now_us, self.harness.clock.mono_ms = (
            self.harness.now_us,
            self.harness.now_us // 1000,
        )
        self.injected.around(self.harness.worker.on_timer)
        self._passes()

    def _passes(self) -> None:
        broker, journal = self.harness.broker, self.harness.journal
        for _ in range(200):
            self.injected.around(broker.worker.end_tick)
            journal.durable = len(journal.records)
            self.injected.around(lambda: broker.commit.on_high_watermark(journal.durable))
            if broker.idle:
                break
        assert broker.idle, self.injected.place

    def collect(self) -> list[Client]:
        """What every subscriber got; who lost its connection comes back for the rest. Returns those."""
        lost = []
        for number, client in enumerate(self.subscribers):
            name = f"s{number}"
            self.got[name] += bodies(client)
            if client.link.closed:
                lost.append(client)
                again = self.harness.client(name)
                self.got[name] += bodies(again)
                self.subscribers[number] = again
        return lost


def acknowledged(client: Client) -> int:
    return sum(first >> 4 in (4, 5) for first, _ in client.take())


class Full(Backlog):
    """A queue that there is no memory for, `times` times: it fails half way."""

    times = 1 << 30

    def push(self, ref: int, size: int) -> None:
        if self.times > 0:
            self.times -= 1
            self.refs.append(ref)
            raise MemoryError("push")
        super().push(ref, size)


@pytest.mark.skipif(COMPILED, reason="a compiled class has no subclass here")
@pytest.mark.parametrize("at_once", [2, 500])
def test_a_session_that_cannot_be_given_a_message_even_later_is_alone_with_that(at_once: int) -> None:
    settings = BrokerSettings()
    settings.deliveries_at_once = at_once
    harness = Harness(settings)
    clients = [harness.client(f"s{number}") for number in range(5)]
    for client in clients:
        client.subscribe("t")
        client.lose()
    tenant = harness.broker.fold.tenant("default")
    tenant.sessions["s1"].outbound().backlog = Full(tenant.space)
    harness.client("p").publish("t", b"m")
    assert counted(harness) == {"delivery": 2}
    assert [bodies(harness.client(f"s{number}")) for number in (0, 2, 3, 4)] == [[b"m"]] * 4


@pytest.mark.skipif(COMPILED, reason="a compiled class has no subclass here")
@pytest.mark.parametrize("connected", [True, False])
@pytest.mark.parametrize("times", [1, 2, 5])
@pytest.mark.parametrize("topic_filter", ["t", "$share/g/t"])
def test_what_a_session_or_a_group_could_not_be_given_comes_before_the_next(
    connected: bool, times: int, topic_filter: str
) -> None:
    harness = Harness()
    client = harness.client("s", version=5, receive_maximum=1)
    client.subscribe(topic_filter)
    tenant = harness.broker.fold.tenant("default")
    full = Full(tenant.space)
    full.times = times
    if topic_filter == "t":
        tenant.sessions["s"].outbound().backlog = full
    else:
        tenant.groups[topic_filter].backlog = full
    if not connected:
        client.lose()
    publisher = harness.client("p", clean=True)
    for number in range(5):
        publisher.publish("t", b"%d" % number)
    client.lose()
    harness.take_snapshot()
    live = state(harness.broker.fold)
    harness.crash()
    assert state(harness.broker.fold) == live
    came = bodies(client) + bodies(harness.client("s", version=5))
    assert list(dict.fromkeys(came)) == [b"%d" % number for number in range(5)]


class Once(list[object]):
    """A list that there is no memory for, once."""

    fails = True

    def append(self, item: object) -> None:
        if self.fails:
            self.fails = False
            raise MemoryError("append")
        super().append(item)


@pytest.mark.skipif(COMPILED, reason="compiled, a list is not asked by name")
@pytest.mark.parametrize("place", ["_leaving", "gone", "roster._free"])
def test_a_session_whose_end_fails_half_way_is_found_by_nobody(place: str) -> None:
    harness = Harness()
    harness.client("s").subscribe("t")
    harness.take_snapshot()
    fold = harness.broker.fold
    owner = fold.roster if place.startswith("roster") else fold
    setattr(owner, place.rpartition(".")[2], Once())
    with pytest.raises(MemoryError):
        harness.client("s", clean=True)
    harness.sync()
    client = harness.client("s")
    assert client.take()[0][1][0] == 0  # no session present
    client.subscribe("u")
    publisher = harness.client("p", clean=True)
    publisher.publish("u", b"new")
    assert bodies(client) == [b"new"]
    publisher.publish("u", b"later")
    harness.crash()
    assert [body for body in bodies(harness.client("s")) if body != b"new"] == [b"later"]


@pytest.mark.skipif(COMPILED, reason="a compiled class has no subclass here")
@pytest.mark.parametrize("version", [4, 5])
def test_a_session_whose_connection_could_not_be_closed_is_closed_later(version: int) -> None:
    harness = Harness()
    client = harness.client("s", version=version, clean=True)
    lasting = harness.client("l", version=5, expiry_s=100)
    client.subscribe("t")
    lasting.subscribe("t")
    append = harness.broker.commit.append

    def fails(record: Record) -> int:
        raise MemoryError("append")

    for each in (client, lasting):
        each.link.closed = True
        harness.broker.commit.append = fails  # type: ignore[method-assign]
        with pytest.raises(MemoryError):
            harness.broker.on_connection_lost(each.link)
        harness.broker.commit.append = append  # type: ignore[method-assign]
    tenant = harness.broker.fold.tenant("default")
    harness.advance(RETRY_MS / 1000 + 1)
    assert list(tenant.sessions) == ["l"]
    assert tenant.sessions["l"].closed_at_us > 0
    harness.advance(200)
    assert not tenant.sessions


@pytest.mark.skipif(COMPILED, reason="a compiled class has no subclass here")
def test_a_session_whose_client_fails_to_take_it_over_runs_out_all_the_same() -> None:
    harness = Harness()
    harness.client("s", version=5, expiry_s=100)
    session = harness.broker.fold.tenant("default").sessions["s"]

    def fails(session: Session, chunk: int) -> int:
        raise MemoryError("limit")

    reserving = harness.broker.delivery.reserving
    limit_of_resumed = reserving.limit_of_resumed
    reserving.limit_of_resumed = fails  # type: ignore[method-assign]
    with pytest.raises(MemoryError):
        harness.client("s", version=5, expiry_s=100)
    reserving.limit_of_resumed = limit_of_resumed  # type: ignore[method-assign]
    assert session.link is None
    harness.advance(90)
    assert not session.ended
    harness.advance(20)
    assert session.ended


@pytest.mark.skipif(COMPILED, reason="compiled code is not traced")
def test_whatever_fails_at_any_call_others_go_on() -> None:
    calls = Injected(1 << 60)
    Scenario(calls).run()
    total = (1 << 60) - calls.left
    assert total > 500
    missing: dict[str, set[int]] = {}
    for k in range(1, total + 1, STRIDE):
        injected = Injected(k)
        scenario = Scenario(injected)
        scenario.run()
        assert sum(counted(scenario.harness).values()) >= 1, injected.place
        lost = scenario.collect()
        assert len(lost) <= 1, injected.place
        if not scenario.publisher.link.closed:
            assert acknowledged(scenario.publisher) >= 5, injected.place
        scenario.harness.client("check").publish("t/check", b"check", 1)
        scenario.harness.advance(RETRY_MS / 1000 + 1)  # a start would do at once what is tried again later
        scenario.collect()
        live = numbers(scenario.harness)
        scenario.harness.crash()
        if (
            numbers(scenario.harness) != live and injected.place != "backlog.pop"
        ):  # behind what it is paired with
            missing.setdefault(f"{injected.place}: another replay", set()).add(k)
        for got in scenario.got.values():
            if not scenario.promised <= set(got):
                missing.setdefault(f"{injected.place} {sorted(scenario.promised - set(got))}", set()).add(k)
    assert missing == {}
