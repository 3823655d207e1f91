"""Access control by a directory that answers late, never, in another order, or by what has changed since."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from broker_process import wait_until
from harness import Client, Harness
from headrace.core.inbound.pace import Meter
from headrace.core.ports.directory import (
    Account,
    Directory,
    Grants,
    Inquiry,
    Rules,
    Secrets,
    TokenClaims,
    Tokens,
)
from headrace.core.ports.limits import NO_LIMIT, Limits
from headrace.core.records.message import Message
from headrace.core.records.record import DROP_NOT_ACCEPTED
from headrace.core.state.session import APPLICATION, session_of
from headrace.mqtt import codec
from headrace.mqtt import reason_codes as rc
from headrace.mqtt.packets import Connect, Will
from headrace.mqtt.properties import Properties
from headrace.mqtt.protocol import ServerProtocol
from headrace.net.gate import Gate, GateSettings
from headrace.services.access import AccessSettings, DirectoryAccess
from headrace.services.accounts import ASKED_MAX
from headrace.services.audit import Audit
from headrace.services.pacing import known_of
from headrace.storage.memory import MemoryLink
from tenants import BLUE, GREEN, ByName

CONNACK, PUBACK, SUBACK, DISCONNECT = 0x20, 0x40, 0x90, 0xE0
REFUSED = 0x80
SECONDS = 60.0


class Loop:
    """Calls nothing before it is told to."""

    def __init__(self) -> None:
        self.calls: list[tuple[Callable[..., object], tuple[Any, ...]]] = []

    def call_soon_threadsafe(self, callback: Callable[..., object], *args: Any) -> None:
        self.calls.append((callback, args))

    def call_soon(self, callback: Callable[..., object], *args: Any) -> None:
        self.calls.append((callback, args))

    def call_later(self, delay: float, callback: Callable[..., object], *args: Any) -> None:
        self.calls.append((callback, args))

    def run(self) -> None:
        calls, self.calls = self.calls, []
        for callback, args in calls:
            callback(*args)


class Lines(Secrets):
    """Passwords that were all verified before."""

    def __init__(self, lines: dict[str, str]) -> None:
        super().__init__()
        self.lines = lines

    def knows(self, user: str) -> bool:
        return user in self.lines

    def line(self, user: str) -> str | None:
        return self.lines.get(user)

    def remembered(self, user: str, password: bytes) -> bool:
        return self.lines.get(user) == password.decode()

    def remember(self, user: str, password: bytes) -> None:
        """Do nothing: all are known."""

    def verify(self, user: str, password: bytes) -> bool:
        return self.remembered(user, password)


class Unsure(Lines):
    """Passwords of a directory that is away: what does not fit the one that is known may be another one by now."""

    def __init__(self, lines: dict[str, str]) -> None:
        super().__init__(lines)
        self.guessed = False

    def verify(self, user: str, password: bytes) -> bool:
        self.guessed = user in self.lines
        raise OSError("away")

    def was_guess(self, user: str) -> bool:
        return self.guessed


class Own(Rules):
    """A tenant may use the topics that begin with its name."""

    def __init__(self, tenant: str) -> None:
        super().__init__()
        self.tenant = tenant

    def may_be(self, user: str | None, client_id: str) -> bool:
        return True

    def grants(self, user: str | None, client_id: str) -> OwnTopics:
        return OwnTopics(self.tenant)


class OwnTopics(Grants):
    def __init__(self, tenant: str) -> None:
        super().__init__()
        self.tenant = tenant

    def allows(self, access: int, topic: bytes) -> bool:
        return topic.startswith(self.tenant.encode())

    def may_retain(self, topic: bytes) -> bool:
        return topic.endswith(b"kept")

    def allows_filter(self, topic_filter: str) -> bool:
        return topic_filter.startswith(self.tenant)


class Late(Directory):
    """Answers when the test says so. `revisions` are those of tenants, 1 unless they are there."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[Inquiry] = []
        self.revisions: dict[str, int] = {}
        self.of: dict[str, Lines] = {}
        self.limits: dict[str, Limits] = {}
        self.with_rules = False
        self.why = ""

    def name_of(self, user: str) -> str:
        return user.removesuffix("+again")

    def find(self, inquiry: Inquiry) -> None:
        self.asked.append(inquiry)

    def revision(self, tenant: str) -> int:
        return self.revisions.get(tenant, 1)

    def rules(self, tenant: str) -> Rules | None:
        return Own(tenant) if self.with_rules else None

    def secrets(self, tenant: str) -> Secrets | None:
        return self.of.get(tenant)

    def account(self, tenant: str) -> Account:
        """What there is to say of a tenant now."""
        limits = self.limits.get(tenant)
        return Account(self.revision(tenant), self.secrets(tenant), self.rules(tenant), limits)

    def answer(self, at: int, account: Account | None = None) -> None:
        inquiry = self.asked.pop(at)
        inquiry.answer(account or self.account(inquiry.tenant))

    def closed(self, tenant: str, user: str | None) -> str:
        return self.why

    def reload(self) -> None:
        """Do nothing."""

    def close(self) -> None:
        """Do nothing."""


class Door:
    """A broker whose access control goes by a late directory."""

    def __init__(self, patience_s: float = 8.0, tokens: Tokens | None = None) -> None:
        self.harness, self.loop, self.directory = Harness(), Loop(), Late()
        self.harness.worker.tenancy = ByName()
        settings = AccessSettings(patience_s=patience_s, chain=("password",) if tokens is None else ("jwt",))
        audit = Audit(lambda *_, **__: None)
        self.access = DirectoryAccess(self.directory, settings, audit, self.loop, tokens)
        self.harness.worker.guard(self.access)

    @property
    def waiting(self) -> int:
        return len(self.access.accounts.waiting)

    def client(self, client_id: str = "c", **options: object) -> Client:
        return self.harness.client(client_id, **options)

    def signs_in(self, user: str, password: bytes) -> MemoryLink:
        """A CONNECT with a password."""
        link = MemoryLink(self.harness.worker)
        protocol = link.protocol = link.parser = ServerProtocol(link, 1 << 20, 16)
        packet = Connect(4, "c", True, 0, user, password, None, Properties())
        protocol.receive_data(codec.encode_connect(packet))
        return link

    def is_in(self, client: Client) -> bool:
        self.harness.sync()
        return not client.link.closed and client.link.session is not None


@pytest.fixture
def door() -> Iterator[Door]:
    made = Door()
    yield made
    made.access.close()


def codes(client: Client) -> list[int]:
    return [body[1] for first, body in client.take() if first == CONNACK]


def test_a_client_comes_in_when_the_directory_has_answered(door: Door) -> None:
    client = door.client()
    assert (codes(client), door.waiting) == ([], 1)
    assert not client.link.reading
    door.directory.answer(0)
    assert door.is_in(client)
    assert (codes(client), door.waiting) == ([0], 0)
    assert client.link.reading


def test_a_directory_that_never_answers_keeps_nobody_for_ever() -> None:
    door = Door(patience_s=0.0)
    client = door.client(version=5)
    inquiry = door.directory.asked[0]
    door.loop.run()
    assert codes(client) == [rc.SERVER_UNAVAILABLE]
    assert client.link.closed
    assert door.waiting == 0
    inquiry.answer(door.directory.account("default"))  # after all
    assert door.harness.broker.fold.tenant("default").sessions == {}
    door.access.close()


def test_who_cannot_be_found_now_is_told_to_come_later(door: Door) -> None:
    client = door.client(version=5)
    door.directory.asked[0].answer(None)
    assert codes(client) == [rc.SERVER_UNAVAILABLE]
    assert door.waiting == 0


def test_a_second_answer_is_none(door: Door) -> None:
    client = door.client()
    inquiry = door.directory.asked[0]
    inquiry.answer(door.directory.account("default"))
    inquiry.answer(None)
    assert door.is_in(client)
    assert codes(client) == [0]


def test_an_answer_for_who_has_gone_lets_nobody_in(door: Door) -> None:
    client = door.client(username="blue/ada")
    client.lose()
    door.directory.limits[BLUE] = Limits()
    door.directory.answer(0)
    assert door.waiting == 0
    assert set(door.harness.broker.fold.tenants) == {"default"}
    assert len(door.harness.broker.sessions._sign_ins) == 0
    assert door.harness.worker.quotas.look(BLUE) is door.harness.worker.quotas.usual


@pytest.mark.parametrize("order", [(0, 0), (1, 0)], ids=["as asked", "the later one first"])
def test_of_two_connects_the_one_that_was_read_later_wins(door: Door, order: tuple[int, int]) -> None:
    first, second = door.client(clean=True), door.client(clean=True)
    for at in order:
        if door.directory.asked:
            door.directory.answer(at)
    assert (door.is_in(first), door.is_in(second)) == (False, True)
    assert first.link.closed
    assert len(door.harness.broker.sessions._sign_ins) == 0
    assert door.waiting == 0


def test_a_later_connect_that_is_refused_takes_nothing_over(door: Door) -> None:
    first, second = door.client(), door.client()
    door.directory.asked[1].answer(None)
    assert second.link.closed
    door.directory.answer(0)
    assert door.is_in(first)


def test_who_is_connected_is_taken_over_by_a_late_answer(door: Door) -> None:
    first = door.client()
    door.directory.answer(0)
    second = door.client()
    assert door.is_in(first)
    door.directory.answer(0)
    assert (door.is_in(first), door.is_in(second)) == (False, True)


def test_an_answer_of_an_older_revision_is_asked_again(door: Door) -> None:
    door.directory.of["default"] = Lines({"ada": "old"})
    link = door.signs_in("ada", b"old")
    old = door.directory.account("default")
    door.directory.revisions["default"] = 2
    door.directory.of["default"] = Lines({})
    door.directory.answer(0, old)
    assert len(door.directory.asked) == 1
    assert link.session is None
    assert door.harness.broker.fold.tenant("default").sessions == {}


def test_a_directory_that_changes_all_the_time_is_not_asked_for_ever(door: Door) -> None:
    client = door.client(version=5)
    for number in range(ASKED_MAX):
        old = door.directory.account("default")
        door.directory.revisions["default"] = 2 + number
        door.directory.answer(0, old)
    assert door.directory.asked == []
    assert codes(client) == [rc.SERVER_UNAVAILABLE]


def test_a_password_opens_its_own_tenant_alone(door: Door) -> None:
    door.directory.of = {BLUE: Lines({"blue/ada": "b"}), GREEN: Lines({"green/ada": "g"})}
    right = door.signs_in("blue/ada", b"b")
    wrong = door.signs_in("green/ada", b"b")
    assert {inquiry.tenant for inquiry in door.directory.asked} == {BLUE, GREEN}
    for _ in range(2):
        door.directory.answer(0)
    assert right.session is not None
    assert wrong.session is None
    assert set(door.harness.broker.fold.tenants) == {"default", BLUE}


def test_rules_and_limits_are_those_of_the_tenant(door: Door) -> None:
    few = Limits()
    few.subscriptions_max = 1
    door.directory.limits[BLUE] = few
    door.directory.with_rules = True
    clients = [door.client(tenant, username=f"{tenant}/ada") for tenant in (BLUE, GREEN)]
    for _ in clients:
        door.directory.answer(0)
    granted = []
    for client in clients:
        for topic_filter in ("blue/a", "blue/b", "green/a", "green/b"):
            client.subscribe(topic_filter)
        granted.append([body[-1] for first, body in client.take() if first == SUBACK])
    assert granted == [[1, 0x80, 0x80, 0x80], [0x80, 0x80, 1, 1]]


def test_to_retain_is_asked_for_beside_to_publish(door: Door) -> None:
    door.directory.with_rules = True
    client = door.client("c", version=5, username=f"{BLUE}/ada", clean=True)
    door.directory.answer(0)
    assert door.is_in(client)
    client.take()
    for topic in (f"{BLUE}/kept", f"{BLUE}/other", f"{GREEN}/kept"):
        client.publish(topic, b"x", qos=1, retain=True)
    client.publish(f"{BLUE}/other", b"x", qos=1)
    door.harness.sync()
    answers = [body[2] if len(body) > 2 else 0 for first, body in client.take() if first == PUBACK]
    assert [code if code >= REFUSED else 0 for code in answers] == [
        0,
        rc.NOT_AUTHORIZED,
        rc.NOT_AUTHORIZED,
        0,
    ]


@pytest.mark.parametrize(("topic", "retain", "code"), [("kept", True, 0), ("x", True, 0x87), ("x", False, 0)])
def test_a_will_that_is_to_be_retained_is_asked_for_at_connect(
    door: Door, topic: str, retain: bool, code: int
) -> None:
    door.directory.with_rules = True
    will = Will(f"{BLUE}/{topic}", b"gone", 1, retain)
    client = door.client("c", version=5, username=f"{BLUE}/ada", will=will)
    door.directory.answer(0)
    door.harness.sync()
    assert codes(client) == [code]


def test_a_will_that_is_to_be_retained_is_asked_for_when_it_is_due(door: Door) -> None:
    door.directory.with_rules = True
    access = door.access
    for topic, kept in ((f"{BLUE}/kept", True), (f"{BLUE}/x", False)):
        assert access.may_leave_will(BLUE, f"{BLUE}/ada", "c", topic.encode())
        assert access.may_retain_will(BLUE, f"{BLUE}/ada", "c", topic.encode()) is kept


@pytest.mark.parametrize(("user", "is_out"), [("ada", True), ("eve", False)])
def test_guesses_count_also_where_nobody_can_say_that_they_are_wrong(
    door: Door, user: str, is_out: bool
) -> None:
    """Of a user who is not known nothing was tried: it is told to come later, as often as it comes."""
    gate = door.access.guard = Gate(GateSettings(ban_after_failures=3))
    for _ in range(3):
        door.directory.of[BLUE] = Unsure({f"{BLUE}/ada": "right"})
        assert not gate.bans("memory")
        link = door.signs_in(f"{BLUE}/{user}", b"wrong")
        door.directory.answer(0)

        def refused(link: MemoryLink = link) -> bool:
            door.loop.run()
            return link.closed

        wait_until(refused, "it is refused", SECONDS)
        assert link.sent[3] == 3  # server unavailable
    assert gate.bans("memory") is is_out


def restricted(door: Door) -> None:
    """Have a tenant whose clients can have next to nothing."""
    limits = door.directory.limits[BLUE] = Limits()
    limits.maximum_qos, limits.session_type = 1, "application"
    limits.retain_available = limits.wildcard_subscriptions = limits.shared_subscriptions = False


def comes(door: Door, client_id: str, version: int, will: Will | None = None) -> Client:
    client = door.client(client_id, version=version, username=f"{BLUE}/ada", will=will)
    door.directory.answer(0)
    door.harness.sync()
    return client


def test_what_a_tenant_cannot_have_is_said_in_connack_and_refused(door: Door) -> None:
    restricted(door)
    client = comes(door, "c", 5)
    (answer,) = [body for first, body in client.take() if first == CONNACK]
    for said in (b"\x24\x01", b"\x25\x00", b"\x28\x00", b"\x2a\x00"):
        assert said in answer
    session = session_of(client.link)
    assert session is not None
    assert session.session_type == APPLICATION
    for topic_filter, code in (("a/#", 0xA2), ("+", 0xA2), ("$share/g/a", 0x9E), ("a", 1)):
        client.subscribe(topic_filter, 2)
        assert [body[-1] for first, body in client.take() if first == SUBACK] == [code]
    for qos, retain, code in ((2, False, 0x9B), (1, True, 0x9A), (0, True, 0x9A)):
        client = comes(door, "c", 5)
        client.take()
        client.publish("a", b"x", qos, retain)
        assert [body[0] for first, body in client.take() if first == DISCONNECT] == [code]
        assert client.link.closed


@pytest.mark.parametrize(("version", "codes_of"), [(5, [0x9B, 0x9A, 0]), (4, [5, 5, 0])])
def test_a_will_of_what_a_tenant_cannot_have_is_refused(
    door: Door, version: int, codes_of: list[int]
) -> None:
    restricted(door)
    wills = Will("w", b"x", 2), Will("w", b"x", 1, True), Will("w", b"x", 1)
    assert [codes(comes(door, "c", version, will))[0] for will in wills] == codes_of


def test_who_cannot_be_told_is_acknowledged_and_nobody_gets_it(door: Door) -> None:
    restricted(door)
    client = comes(door, "c", 4)
    client.subscribe("a", 1)
    client.take()
    client.publish("a", b"x", 1, True)
    client.publish("a", b"y", 0, True)
    assert [first & 0xF0 for first, _ in client.take()] == [PUBACK]
    client.publish("a", b"z", 1)
    assert [payload for _, payload, _, _ in client.publishes()] == [b"z"]
    assert door.harness.broker.fold.tenants[BLUE].counters.dropped == {DROP_NOT_ACCEPTED: 2}


def test_who_signs_in_under_two_names_is_one_user(door: Door) -> None:
    door.directory.limits[BLUE] = Limits()
    door.directory.limits[BLUE].client_ids = "first-user"
    door.directory.limits[BLUE].user_connections_max = 1
    for client_id, name, code in (("c", "ada", 0), ("c", "ada+again", 0), ("d", "ada+again", 3)):
        client = door.client(client_id, username=f"{BLUE}/{name}", clean=False)
        assert [inquiry.user for inquiry in door.directory.asked] == [f"{BLUE}/ada"]
        door.directory.answer(0)
        door.harness.sync()
        assert codes(client) == [code]


def test_who_is_closed_by_the_directory_must_go_and_is_held_while_here(door: Door) -> None:
    held = object()
    client = door.client("c", username=f"{BLUE}/ada")
    account = door.directory.account(BLUE)
    account.held = held
    door.directory.answer(0, account)
    assert door.is_in(client)
    assert known_of(client.link).held is held
    assert door.access.must_go(client.link) == ""
    door.directory.why = "tenant_disabled"
    assert door.access.must_go(client.link) == "tenant_disabled"


@pytest.mark.parametrize(("client_ids", "code"), [("first-user", 2), ("any", 0), ("", 0)])
def test_whose_a_client_id_is_can_be_of_one_tenant_alone(door: Door, client_ids: str, code: int) -> None:
    for tenant in (BLUE, GREEN):
        door.directory.limits[tenant] = Limits()
    door.directory.limits[BLUE].client_ids = client_ids
    for tenant, wanted in ((BLUE, code), (GREEN, 0)):
        found = []
        for user in ("ada", "bob"):
            client = door.client("c", username=f"{tenant}/{user}", clean=False)
            door.directory.answer(0)
            door.harness.sync()
            found += codes(client)
        assert found == [0, wanted]


def test_who_publishes_is_metered_as_long_as_the_bytes_of_its_tenant_are_limited(door: Door) -> None:
    limits = door.directory.limits[BLUE] = Limits()
    limits.tenant_bytes_per_s = 1000
    both = [comes(door, name, 5) for name in ("c", "d")]
    for client in both:
        client.publish("a", b"x", 0)
    meters = [client.link.meter for client in both]
    assert all(isinstance(meter, Meter) for meter in meters)
    assert len({id(meter.budget) for meter in meters if isinstance(meter, Meter)}) == 1
    tenant = door.harness.broker.fold.tenant(BLUE)
    for most, metered in ((1000, True), (500, True), (NO_LIMIT, False)):
        tenant.limits.tenant_bytes_per_s = most
        door.access.changed()
        both[0].publish("a", b"x", 0)
        meter = both[0].link.meter
        assert (meter is not None) is metered
        assert not isinstance(meter, Meter) or meter.budget.per_s == most
    both[1].lose()
    assert both[1].link.meter is None


def test_messages_live_no_longer_than_their_tenant_allows(door: Door) -> None:
    limits = door.directory.limits[BLUE] = Limits()
    limits.message_expiry_max_s = 60
    will = Will("w", b"x", 1)
    client = comes(door, "c", 5, will)
    for expiry_s in (None, 30, 90):
        found = -1 if expiry_s is None else expiry_s
        client.feed(codec.encode_publish(5, b"t", b"x", 1, False, False, 1, b"", found))
    client.lose()
    published = [one for one in door.harness.journal.records if isinstance(one, Message)]
    assert [(one.topic, one.message_expiry_s) for one in published] == [
        (b"t", 60),
        (b"t", 30),
        (b"t", 60),
        (b"w", 60),
    ]


class AnyToken(Tokens):
    def looks_like(self, password: bytes) -> bool:
        return True

    def verify(self, tenant: str, user: str, token: bytes) -> TokenClaims | str:
        return TokenClaims(time.time() + 3600, None)


@pytest.mark.parametrize("why", ["", "user_disabled"])
def test_who_was_nobody_when_its_token_was_looked_at_and_is_disabled_by_now_stays_outside(why: str) -> None:
    """What has changed since was told to those who were connected then: nobody would look at it again."""
    door = Door(tokens=AnyToken())
    door.directory.of[BLUE] = Lines({})
    link = door.signs_in(f"{BLUE}/gw", b"a token")
    door.directory.answer(0)
    wait_until(lambda: len(door.loop.calls) > 1, "the token is looked at", SECONDS)
    door.loop.run()
    door.directory.why = why
    door.directory.answer(0)
    assert (link.grants is None) == (why != "")
    door.access.close()
