"""The directory behind access control: answers at once or later, changes that count, and the database away."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable, Iterator
from queue import Empty, Queue
from typing import Any

import pytest

from broker_process import wait_until
from directory_clock import ME, Clock
from headrace.core.ports.directory import Account, Inquiry
from headrace.core.ports.limits import Limits
from headrace.directory.entries import Rule
from headrace.directory.errors import DirectoryUnavailable
from headrace.directory.reader import Reader
from headrace.directory.sql_directory import REFRESHED_AT_ONCE, SqlDirectory, SqlSettings
from headrace.directory.store import Store
from headrace.directory.tenancy import ByPrefix
from headrace.services.acl import READ, WRITE

NEVER_S = 3600.0
SECONDS = 60.0


class Loop:
    """Calls what threads hand over when the test says so."""

    def __init__(self) -> None:
        self._calls: Queue[tuple[Callable[..., object], tuple[Any, ...]]] = Queue()

    def call_soon_threadsafe(self, callback: Callable[..., object], *args: Any) -> None:
        self._calls.put((callback, args))

    call_soon = call_soon_threadsafe

    def call_later(self, delay: float, callback: Callable[..., object], *args: Any) -> None:
        """Do nothing: the directory has no timers."""

    def run(self, timeout_s: float = SECONDS) -> bool:
        """Wait for one call, make it, and return whether there was one."""
        try:
            callback, args = self._calls.get(timeout=timeout_s)
        except Empty:
            return False
        callback(*args)
        return True


class Asking(Inquiry):
    """A question, and what was answered."""

    def __init__(self, tenant: str, user: str | None) -> None:
        super().__init__(tenant, user, 100)
        self.answers: list[Account | None] = []

    def abandoned(self) -> bool:
        return False

    def answer(self, account: Account | None) -> None:
        self.answers.append(account)


class Rig:
    """A directory with acme/gw in it, which may publish on up/gw/#, and a loop that turns by hand."""

    def __init__(self, store: Store, clock: Clock) -> None:
        store.tenants.create(ME, "acme")
        store.users.create(ME, "acme", "gw", b"secret")
        store.rules.add(ME, Rule("acme", 0, "allow", ("publish",), "up/%u/#"))
        self.loop, self.told, self.changes = Loop(), list[Exception | None](), list[set[str]]()
        self.reader = Reader(lambda: store, clock.monotonic)
        settings = SqlSettings(poll_s=NEVER_S, outage_s=60)
        names = ByPrefix("/", "acme")
        self.directory = SqlDirectory(
            self.reader, settings, names, self.loop, self.told.append, clock.monotonic, clock.now_us
        )
        self.directory.changed = self.changes.append
        self.directory.open()
        self.loop.run()  # the poller's first poll

    def ask(self, user: str | None = "acme/gw", tenant: str = "acme") -> Account | None:
        """Ask, and turn the loop until there is an answer."""
        asking = Asking(tenant, user)
        self.directory.find(asking)
        while not asking.answers:
            assert self.loop.run(), "no answer"
        return asking.answers[0]

    def found(self, user: str | None = "acme/gw", tenant: str = "acme") -> Account:
        account = self.ask(user, tenant)
        assert account is not None
        return account

    def poll(self) -> None:
        """Poll, and turn the loop until what has changed was read."""
        self.directory._poll()
        self.loop.run()
        while self.directory._refreshing:
            assert self.loop.run(), "nothing was read"

    def may_publish(self, topic: bytes, user: str | None = "acme/gw", tenant: str = "acme") -> bool:
        rules = self.directory.rules(tenant)
        assert rules is not None
        return rules.grants(user, "c").allows(WRITE, topic)


@pytest.fixture
def rig(lite: Store, clock: Clock) -> Iterator[Rig]:
    made = Rig(lite, clock)
    yield made
    made.directory.close()


def test_who_is_not_known_is_looked_up_and_then_known(rig: Rig) -> None:
    queries = rig.reader.queries
    first = rig.found()
    assert first.is_open
    assert first.secrets is not None
    assert first.secrets.verify("acme/gw", b"secret")
    assert rig.reader.queries == queries + 1
    asking = Asking("acme", "acme/gw")
    rig.directory.find(asking)
    assert len(asking.answers) == 1  # at once
    assert rig.reader.queries == queries + 1
    assert rig.found("gw").revision == first.revision  # of the default tenant, by its short name
    assert rig.reader.queries == queries + 1


def test_one_question_is_asked_for_all_who_ask_it_at_once(rig: Rig) -> None:
    askings, queries = [Asking("acme", "acme/gw") for _ in range(5)], rig.reader.queries
    for asking in askings:
        rig.directory.find(asking)
    rig.loop.run()
    assert [len(asking.answers) for asking in askings] == [1] * 5
    assert rig.reader.queries == queries + 1


@pytest.mark.parametrize(
    ("tenant", "user"),
    [("acme", "acme/x"), ("none", "none/gw"), ("acme", "acme/gw\0"), ("acme", "acme/" + "x" * 300)],
)
def test_who_is_not_there_is_asked_for_a_password_all_the_same(rig: Rig, tenant: str, user: str) -> None:
    queries = rig.reader.queries
    account = rig.found(user, tenant)
    assert rig.reader.queries == queries + 1
    assert not account.is_open
    assert account.secrets is not None
    assert not account.secrets.knows(user)
    assert not account.secrets.verify(user, b"secret")
    assert account.revision >= rig.directory.revision(tenant)
    assert not rig.may_publish(b"up/gw/x", user, tenant)
    assert rig.directory.revision("none") == 0  # nothing was made


def test_rules_are_those_of_the_user(rig: Rig, lite: Store) -> None:
    rig.found()
    assert rig.may_publish(b"up/gw/x")
    assert not rig.may_publish(b"up/x/x")
    assert not rig.may_publish(b"up/gw/x", "acme/x")  # who is not known
    assert not rig.may_publish(b"up/gw/x", None)
    lite.rules.add(ME, Rule("acme", 0, "allow", ("publish", "retain"), "all"))
    lite.rules.add(ME, Rule("acme", 0, "deny", ("publish",), "up/gw/secret"))
    before = rig.directory.rules("acme")
    rig.poll()
    rules = rig.directory.rules("acme")
    assert rules is not before
    assert rules is not None
    grants = rules.grants("acme/gw", "c")
    assert (grants.may_retain(b"all"), grants.may_retain(b"up/gw/x")) == (True, False)
    assert (grants.allows(READ, b"all"), grants.allows_filter("all")) == (False, False)
    assert not rig.may_publish(b"up/gw/secret")
    assert rig.may_publish(b"all", None)
    assert rig.changes == [{"acme"}]


def test_an_account_is_older_from_the_moment_on_in_which_a_change_is_known(rig: Rig, lite: Store) -> None:
    before = rig.found()
    lite.users.set_password(ME, "acme", "gw", b"fresh")
    rig.directory._poll()
    rig.loop.run()  # the change is known, what it has made of the user is not
    assert before.revision < rig.directory.revision("acme")
    asking = Asking("acme", "acme/gw")
    rig.directory.find(asking)
    assert asking.answers == []
    while not asking.answers:
        rig.loop.run()
    (account,) = asking.answers
    assert account is not None
    assert account.secrets is not None
    assert account.secrets.verify("acme/gw", b"fresh")
    assert account.revision >= rig.directory.revision("acme")


def test_what_changes_of_others_changes_nothing_here(rig: Rig, lite: Store) -> None:
    revision, rules = rig.found().revision, rig.directory.rules("acme")
    lite.tenants.create(ME, "blue")
    lite.users.create(ME, "acme", "other", b"x")
    queries = rig.reader.queries
    rig.poll()
    assert rig.reader.queries == queries
    assert rig.changes == []
    assert rig.directory.rules("acme") is rules
    assert rig.directory.revision("acme") > revision  # of the same tenant


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda store: store.users.disable(ME, "acme", "gw"), "user_disabled"),
        (lambda store: store.users.delete(ME, "acme", "gw"), "user_deleted"),
        (lambda store: store.tenants.disable(ME, "acme"), "tenant_disabled"),
        (lambda store: store.tenants.delete(ME, "acme"), "tenant_deleted"),
    ],
)
def test_who_is_connected_may_not_stay(
    rig: Rig, lite: Store, change: Callable[[Store], None], why: str
) -> None:
    rig.found()
    assert rig.directory.closed("acme", "acme/gw") == ""
    change(lite)
    rig.poll()
    assert rig.directory.closed("acme", "acme/gw") == why
    assert not rig.found().is_open
    assert not rig.may_publish(b"up/gw/x")


def test_a_name_that_is_there_again_is_another_tenant(rig: Rig, lite: Store) -> None:
    rig.found()
    lite.tenants.delete(ME, "acme")
    lite.tenants.release(ME, "acme")
    lite.tenants.create(ME, "acme")
    rig.poll()
    assert rig.directory.closed("acme", "acme/gw") == "user_deleted"
    assert not rig.found().is_open


def test_limits_are_the_quotas_and_follow_the_usual_ones(rig: Rig, lite: Store) -> None:
    assert rig.found().limits is None
    lite.tenants.set_quotas(ME, "acme", {"retained_messages": "7"})
    rig.poll()
    limits = rig.found().limits
    assert limits is not None
    assert limits.retained_messages_max == 7
    usual = Limits()
    usual.user_messages_per_s = 5
    rig.directory.usual = usual
    rig.directory.reload()
    limits = rig.found().limits
    assert limits is not None
    assert (limits.user_messages_per_s, limits.retained_messages_max) == (5, 7)
    assert rig.changes == [{"acme"}, {"acme"}]
    lite.tenants.set_quotas(ME, "acme", {"retained_messages": "none"})
    rig.poll()
    assert rig.directory.limits("acme") is None


def test_without_the_database_those_who_are_known_go_on_for_a_time(rig: Rig, clock: Clock) -> None:
    rig.found()
    rig.reader._outage = DirectoryUnavailable("away")
    assert rig.found().is_open
    for user, tenant in (("acme/x", "acme"), ("none/gw", "none")):
        assert rig.ask(user, tenant) is None
    clock.seconds += 61
    assert rig.ask() is None
    assert rig.may_publish(b"up/gw/x")  # who is connected stays
    assert rig.directory.closed("acme", "acme/gw") == ""


def test_what_has_changed_before_an_outage_is_read_after_it(rig: Rig, lite: Store) -> None:
    rig.found()
    lite.users.disable(ME, "acme", "gw")
    rig.directory._poll()
    rig.reader._outage = DirectoryUnavailable("away")
    rig.loop.run()
    while rig.directory._refreshing:
        rig.loop.run()
    assert rig.ask() is None  # something has changed, and nobody can say what
    rig.poll()
    assert rig.directory.closed("acme", "acme/gw") == "user_disabled"


def test_a_directory_that_is_away_at_the_start_is_opened_later(lite: Store, clock: Clock) -> None:
    opened = threading.Event()

    def opening() -> Store:
        if not opened.is_set():
            raise DirectoryUnavailable("away")
        return lite

    loop, told = Loop(), list[Exception | None]()
    reader = Reader(opening, clock.monotonic)
    directory = SqlDirectory(reader, SqlSettings(poll_s=0.05), ByPrefix("/", ""), loop, told.append)
    directory.open()
    assert [str(one) for one in told] == ["away"]
    asking = Asking("acme", "acme/gw")
    directory.find(asking)
    while not asking.answers:
        loop.run()
    assert asking.answers == [None]
    opened.set()
    wait_until(lambda: len(told) == 2, "it is there", SECONDS)
    assert told[1] is None
    directory.close()


def test_what_could_not_be_read_is_read_once_the_database_answers(rig: Rig, lite: Store) -> None:
    """Else nobody would know what a user may do who left a will before a start in an outage."""
    lite.tenants.set_quotas(ME, "acme", {"connections": "3"})
    many = [("acme", f"acme/gw{n}") for n in range(REFRESHED_AT_ONCE)]
    rig.reader._outage = DirectoryUnavailable("away")
    asked = [("acme", None), ("acme", "acme/gw"), *many, ("blue", "blue/x"), ("acme", "a\nb")]
    assert rig.directory.read(asked) == []
    rig.directory.read_later(asked)
    rig.directory._refresh()
    while rig.directory._refreshing:
        rig.loop.run()
    assert not rig.may_publish(b"up/gw/t")
    rig.changes.clear()
    rig.poll()
    assert rig.may_publish(b"up/gw/t")
    assert not rig.may_publish(b"up/gw/t", "acme/gw7")
    assert "acme" in set().union(*rig.changes)
    limits = rig.directory.limits("acme")
    assert limits is not None
    assert limits.tenant_connections_max == 3
    queries = rig.reader.queries
    rig.poll()
    assert rig.reader.queries == queries  # once


def test_who_is_connected_is_known_however_many_come(lite: Store, clock: Clock) -> None:
    rig = Rig(lite, clock)
    rig.directory._memory._recent_max = 3
    lite.users.import_hashes(ME, "acme", {f"u{number}": "$7$1$c2FsdA==$c2FsdA==" for number in range(10)})
    kept = rig.found().held
    for number in range(10):
        rig.found(f"acme/u{number}")
    gc.collect()
    memory = rig.directory._memory
    tenant = memory.tenant("acme")
    assert tenant is not None
    assert sorted(tenant.users) == ["gw", "u7", "u8", "u9"]
    assert rig.may_publish(b"up/gw/x")
    assert kept is memory.user("acme", "gw")
    rig.directory.close()


def test_secrets_of_a_tenant_are_those_that_are_known_now(rig: Rig, lite: Store) -> None:
    rig.found()
    secrets = rig.directory.secrets("acme")
    assert secrets is not None
    line = secrets.line("acme/gw")
    assert line is not None
    lite.users.set_password(ME, "acme", "gw", b"fresh")
    rig.poll()
    assert secrets.line("acme/gw") not in (line, None)
    lite.users.delete(ME, "acme", "gw")
    rig.poll()
    assert secrets.line("acme/gw") is None


def test_a_new_password_is_taken_before_any_poll(rig: Rig, lite: Store) -> None:
    rig.found()
    account = rig.found()
    lite.users.set_password(ME, "acme", "gw", b"fresh")
    assert account.secrets is not None
    assert account.secrets.verify("acme/gw", b"fresh")
    rig.loop.run()  # the loop learns of it before it hears that the password was right
    assert account.revision < rig.directory.revision("acme")
    again = rig.found()
    assert again.secrets is not None
    assert again.secrets.line("acme/gw") == account.secrets.line("acme/gw")


def test_bans_hold_from_the_next_poll_on_until_they_end(rig: Rig, lite: Store, clock: Clock) -> None:
    told: list[tuple[str, ...]] = []
    rig.directory.banned = told.append
    assert not rig.directory.bans("acme", "acme/gw", "c1")
    lite.bans.add(ME, "user", "acme", "gw", 60)
    lite.bans.add(ME, "client", "acme", "c2")
    lite.bans.add(ME, "address", "", "192.0.2.0/24", 120)
    rig.poll()
    asked = (("acme/gw", "c1"), ("gw", "c1"), ("acme/x", "c2"), (None, "c2"), ("acme/GW", "C2"), (None, "c1"))
    assert [rig.directory.bans("acme", *one) for one in asked] == [True, True, True, True, False, False]
    assert not rig.directory.bans("blue", "blue/gw", "c2")
    assert told == [("192.0.2.0/24",)]
    clock.seconds += 61
    rig.poll()
    assert not rig.directory.bans("acme", "acme/gw", "c1")
    assert told == [("192.0.2.0/24",)]
    clock.seconds += 60
    rig.poll()
    assert told == [("192.0.2.0/24",), ()]
    lite.bans.remove(ME, "client", "acme", "c2")
    rig.poll()
    assert told == [("192.0.2.0/24",), (), ()]  # another client is banned, or none
    assert not rig.directory.bans("acme", None, "c2")


def test_a_ban_of_an_address_ends_without_the_database(
    rig: Rig, lite: Store, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[tuple[str, ...]] = []
    rig.directory.banned = told.append
    lite.bans.add(ME, "address", "", "192.0.2.1", 60)
    rig.poll()

    def away() -> None:
        raise DirectoryUnavailable("away")

    monkeypatch.setattr(rig.reader, "poll", away)
    clock.seconds += 61
    with pytest.raises(DirectoryUnavailable):
        rig.directory._poll()
    rig.loop.run()
    assert told == [("192.0.2.1/32",), ()]
