"""Passwords by the directory: right ones, as soon as they are changed, and in the same time whoever it is."""

from __future__ import annotations

from collections import Counter

import bcrypt
import pytest

from directory_clock import ME, Clock
from headrace.directory import passwords
from headrace.directory.errors import DirectoryUnavailable
from headrace.directory.hashes import OURS, cost_of
from headrace.directory.known import Memory
from headrace.directory.passwords import Hashing, TenantSecrets, UserSecrets
from headrace.directory.reader import LookUp, Reader, UserView
from headrace.directory.store import Store
from headrace.directory.tenancy import ByPrefix

NAMES = ("gw", "old", "nobody", "GW", "gw ")


class Desk:
    """A directory with acme/gw and acme/old in it, whose users are asked for one by one."""

    def __init__(self, store: Store, clock: Clock) -> None:
        store.tenants.create(ME, "acme")
        store.users.create(ME, "acme", "gw", b"secret")
        old = bcrypt.hashpw(b"older", bcrypt.gensalt(4)).decode()
        store.users.import_hashes(ME, "acme", {"old": old})
        self.reader = Reader(lambda: store, clock.monotonic)
        self.reader.poll()
        self.memory = Memory(100, ByPrefix("/", ""))
        self.hashing = Hashing(lambda: self.reader.costs, 3600, clock.monotonic)

    def secrets(self, name: str, known: bool = True) -> UserSecrets:
        """The password of a user, who was known already or is looked up now."""
        user = self.memory.user("acme", name)
        if user is None or not known:
            for found in self.reader.look((LookUp("acme", name),)):
                self.memory.learn(found)
            return UserSecrets(self.hashing, self.memory.user("acme", name))

        def again() -> UserView | None:
            return self.reader.look((LookUp("acme", name, with_tenant=False),))[0].user

        return UserSecrets(self.hashing, user, again)


@pytest.fixture
def desk(lite: Store, clock: Clock) -> Desk:
    return Desk(lite, clock)


def test_the_right_password_is_right_and_no_other(desk: Desk) -> None:
    for name, password in (("gw", b"secret"), ("old", b"older")):
        for _ in range(2):
            secrets = desk.secrets(name)
            assert secrets.knows(name)
            assert secrets.verify(name, password)
            for wrong in (b"wrong", b"", password + b"\0", password.title()):
                assert not secrets.verify(name, wrong)
    for name in ("nobody", "GW", "gw "):
        secrets = desk.secrets(name)
        assert (secrets.knows(name), secrets.line(name)) == (False, None)
        assert not secrets.verify(name, b"secret")


class Costs:
    """Counts hashes by their cost instead of making them: work is what time is made of, and can be counted."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.made: Counter[str] = Counter()
        monkeypatch.setattr(passwords, "matches", self.matches)

    def matches(self, hashed: str, password: bytes) -> bool:
        self.made[cost_of(hashed)] += 1
        return False


def test_every_refusal_costs_the_same_hashes_and_one_question(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    costs, found = Costs(monkeypatch), {}
    for turn in range(2):
        for name in NAMES:
            costs.made.clear()
            queries = desk.reader.queries
            assert not desk.secrets(name).verify(name, b"wrong")
            found[name, turn] = (dict(costs.made), desk.reader.queries - queries)
    assert set(map(repr, found.values())) == {repr(({OURS: 1, "$2b$04$": 1}, 1))}


def test_a_password_counts_from_the_moment_on_in_which_it_was_changed(desk: Desk, lite: Store) -> None:
    before = desk.secrets("gw").line("gw")
    lite.users.set_password(ME, "acme", "gw", b"fresh")
    secrets = desk.secrets("gw")  # nobody has polled
    assert secrets.verify("gw", b"fresh")
    assert secrets.line("gw") not in (before, None)
    assert not desk.secrets("gw").verify("gw", b"wrong")
    lite.users.delete(ME, "acme", "gw")
    assert not desk.secrets("gw").verify("gw", b"fresh")


def test_what_does_not_fit_is_a_guess_while_nobody_can_say_more(desk: Desk) -> None:
    desk.secrets("gw")
    desk.reader._outage = DirectoryUnavailable("away")
    secrets = desk.secrets("gw")
    assert secrets.verify("gw", b"secret")
    assert not secrets.was_guess("gw")
    with pytest.raises(DirectoryUnavailable):
        secrets.verify("gw", b"wrong")
    assert secrets.was_guess("gw")
    desk.reader._outage = None
    secrets = desk.secrets("gw")
    assert not secrets.verify("gw", b"wrong")
    assert not secrets.was_guess("gw")  # a wrong password: that is another answer


def test_who_is_disabled_has_no_line_whatever_the_password(desk: Desk, lite: Store) -> None:
    lite.users.disable(ME, "acme", "gw")
    secrets = desk.secrets("gw")
    assert secrets.knows("gw")
    assert secrets.line("gw") is None
    assert secrets.verify("gw", b"secret")


def test_what_was_looked_up_stays_as_it_was(desk: Desk, lite: Store) -> None:
    """A verification that is under way must not take the hash of another password for the one that it has verified."""
    secrets = desk.secrets("gw")
    line = secrets.line("gw")
    lite.users.set_password(ME, "acme", "gw", b"fresh")
    desk.secrets("gw", known=False)
    assert secrets.line("gw") == line
    assert desk.secrets("gw").line("gw") != line


def test_a_password_is_remembered_for_a_time_and_as_long_as_it_is_the_same(
    desk: Desk, lite: Store, clock: Clock
) -> None:
    secrets = desk.secrets("gw")
    assert not secrets.remembered("gw", b"secret")
    secrets.remember("gw", b"secret")
    assert secrets.remembered("gw", b"secret")
    assert not secrets.remembered("gw", b"wrong")
    assert not desk.secrets("nobody").remembered("nobody", b"secret")
    clock.seconds += 3601
    assert not secrets.remembered("gw", b"secret")
    secrets.remember("gw", b"secret")
    lite.users.set_password(ME, "acme", "gw", b"fresh")
    assert not desk.secrets("gw", known=False).remembered("gw", b"secret")


def test_a_password_is_never_remembered_with_the_hash_of_another_one(desk: Desk, lite: Store) -> None:
    """It was changed after this one was verified, and that is known by the time at which it is remembered."""
    secrets = desk.secrets("gw")
    assert secrets.verify("gw", b"secret")
    lite.users.set_password(ME, "acme", "gw", b"fresh")
    desk.secrets("gw", known=False)
    secrets.remember("gw", b"secret")
    assert not desk.secrets("gw").remembered("gw", b"secret")
    assert not desk.secrets("gw").remembered("gw", b"fresh")


def test_where_remembering_is_off_every_password_is_hashed(desk: Desk) -> None:
    desk.hashing = Hashing(lambda: (), 0)
    secrets = desk.secrets("gw")
    secrets.remember("gw", b"secret")
    assert not secrets.remembered("gw", b"secret")


def test_without_the_database_the_right_password_is_right_and_no_other_is_said_to_be_wrong(
    desk: Desk,
) -> None:
    desk.secrets("gw")
    secrets = desk.secrets("gw")
    desk.reader._outage = DirectoryUnavailable("away")
    assert secrets.verify("gw", b"secret")
    with pytest.raises(DirectoryUnavailable):
        secrets.verify("gw", b"wrong")


def test_the_secrets_of_a_tenant_are_those_of_its_users(desk: Desk) -> None:
    found = TenantSecrets(desk.secrets)
    assert (found.knows("gw"), found.knows("x")) == (True, False)
    assert found.line("gw") == desk.secrets("gw").line("gw")
    assert found.verify("old", b"older")
    assert not found.remembered("old", b"older")
    found.remember("old", b"older")
    assert found.remembered("old", b"older")
