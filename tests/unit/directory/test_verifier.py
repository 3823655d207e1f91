"""Who signs in with a password: the right ones, as soon as it is changed, and in the same time whoever it is."""

from __future__ import annotations

from collections import Counter

import bcrypt
import pytest

from directory_clock import ME, Clock
from headrace.directory import verifier as verifying
from headrace.directory.errors import DirectoryUnavailable
from headrace.directory.hashes import OURS, cost_of
from headrace.directory.reader import Reader, ReaderSettings
from headrace.directory.store import Store
from headrace.directory.verifier import BANNED, TENANT_DISABLED, UNKNOWN, USER_DISABLED, WRONG, Verifier

NAMES = [
    "acme/gw",
    "acme/nobody",
    "acme/old",
    "none/gw",
    "gw",
    "",
    "Acme/gw",
    "acme/",
    "acme/gw\0",
    "acme/GW",
    "acme/gw ",
]


@pytest.fixture
def reader(lite: Store, clock: Clock) -> Reader:
    lite.tenants.create(ME, "acme")
    lite.users.create(ME, "acme", "gw", b"secret")
    old = bcrypt.hashpw(b"older", bcrypt.gensalt(4)).decode()
    lite.users.import_hashes(ME, "acme", {"old": old})
    found = Reader(lite, ReaderSettings(outage_s=60), clock.monotonic)
    found.poll()
    return found


@pytest.fixture
def verifier(reader: Reader, clock: Clock) -> Verifier:
    return Verifier(reader, 3600, clock.monotonic, clock.now_us)


def test_who_is_let_in(verifier: Verifier) -> None:
    answer = verifier.verify("acme/gw", b"secret")
    assert answer.refused == ""
    assert answer.user is not None
    assert answer.tenant is not None
    assert (answer.user.user.tenant, answer.user.user.name, answer.tenant.tenant.name) == (
        "acme",
        "gw",
        "acme",
    )
    assert verifier.verify("acme/old", b"older").refused == ""
    assert "argon2" not in repr(answer)


@pytest.mark.parametrize("name", NAMES)
def test_who_is_not(verifier: Verifier, name: str) -> None:
    wanted = WRONG if name in ("acme/gw", "acme/old") else UNKNOWN
    for password in (b"wrong", b"", b"secret\0", b"Secret"):
        answer = verifier.verify(name, password)
        assert (answer.refused, answer.user, answer.tenant) == (wanted, None, None)


class Costs:
    """Counts hashes by their cost instead of making them: work is what time is made of, and can be counted."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.made: Counter[str] = Counter()
        monkeypatch.setattr(verifying, "matches", self.matches)

    def matches(self, hashed: str, password: bytes) -> bool:
        self.made[cost_of(hashed)] += 1
        return False


def test_every_refusal_costs_the_same_hashes_and_one_question(
    verifier: Verifier, reader: Reader, monkeypatch: pytest.MonkeyPatch
) -> None:
    costs, found = Costs(monkeypatch), {}
    for cached in (False, True):
        for name in NAMES:
            costs.made.clear()
            queries = reader.queries
            verifier.verify(name, b"wrong")
            found[name, cached] = (dict(costs.made), reader.queries - queries)
    assert set(map(repr, found.values())) == {repr(({OURS: 1, "$2b$04$": 1}, 1))}


def test_a_password_counts_from_the_moment_on_in_which_it_was_changed(
    verifier: Verifier, lite: Store
) -> None:
    assert verifier.verify("acme/gw", b"secret").refused == ""
    lite.users.set_password(ME, "acme", "gw", b"fresh")
    assert verifier.verify("acme/gw", b"fresh").refused == ""  # before any poll
    assert verifier.verify("acme/gw", b"secret").refused == WRONG


def test_who_may_not_come_in_with_the_right_password(verifier: Verifier, reader: Reader, lite: Store) -> None:
    changes = (
        (lambda: lite.users.disable(ME, "acme", "gw"), USER_DISABLED),
        (lambda: lite.users.enable(ME, "acme", "gw"), ""),
        (lambda: lite.bans.add(ME, "user", "acme", "gw"), BANNED),
        (lambda: lite.bans.remove(ME, "user", "acme", "gw"), ""),
        (lambda: lite.tenants.disable(ME, "acme"), TENANT_DISABLED),
        (lambda: lite.tenants.enable(ME, "acme"), ""),
        (lambda: lite.tenants.delete(ME, "acme"), UNKNOWN),
    )
    assert verifier.verify("acme/gw", b"secret").refused == ""
    for change, refused in changes:
        change()
        reader.poll()
        assert verifier.verify("acme/gw", b"secret").refused == refused
        again = verifier.remembered("acme/gw", b"secret")
        assert (None if again is None else again.refused) == (None if refused == UNKNOWN else refused)


def test_a_password_is_remembered_for_a_time_and_as_long_as_it_is_the_same(
    verifier: Verifier, reader: Reader, lite: Store, clock: Clock
) -> None:
    assert verifier.remembered("acme/gw", b"secret") is None
    verifier.verify("acme/gw", b"secret")
    found = verifier.remembered("acme/gw", b"secret")
    assert found is not None
    assert found.user is not None
    assert verifier.remembered("acme/gw", b"wrong") is None
    assert "secret" not in repr(verifier._remembered)
    clock.seconds += 3601
    reader.poll()
    assert verifier.remembered("acme/gw", b"secret") is None
    verifier.verify("acme/gw", b"secret")
    lite.users.set_password(ME, "acme", "gw", b"fresh")
    reader.poll()
    assert verifier.remembered("acme/gw", b"secret") is None
    assert verifier.verify("acme/gw", b"secret").refused == WRONG


def test_without_the_database_those_who_are_known_are_let_in_and_nobody_is_refused(
    verifier: Verifier, reader: Reader, clock: Clock
) -> None:
    verifier.verify("acme/gw", b"secret")
    reader._outage = DirectoryUnavailable("away")
    assert verifier.verify("acme/gw", b"secret").refused == ""
    for name, password in (("acme/gw", b"wrong"), ("acme/new", b"x"), ("none/gw", b"x")):
        with pytest.raises(DirectoryUnavailable):
            verifier.verify(name, password)
    clock.seconds += 61
    assert verifier.remembered("acme/gw", b"secret") is None
    with pytest.raises(DirectoryUnavailable):
        verifier.verify("acme/gw", b"secret")
