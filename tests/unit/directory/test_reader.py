"""The directory as brokers read it: what there is to say, what has changed, and when it is away."""

from __future__ import annotations

import shutil
import threading
from pathlib import Path

import pytest

from broker_process import wait_until
from directory_clock import ME, Clock
from headrace.directory import reader as reading
from headrace.directory.entries import Change, Rule
from headrace.directory.errors import DirectoryUnavailable, WrongSchema
from headrace.directory.poller import Poller
from headrace.directory.reader import Found, LookUp, Reader, banned, key_of
from headrace.directory.store import Store, open_store

HASH = "$7$1$c2FsdA==$c2FsdA=="
BCRYPT = "$2b$04$" + "a" * 53


@pytest.fixture
def reader(lite: Store, clock: Clock) -> Reader:
    """A reader of a directory with acme/gw in it, which has polled."""
    lite.tenants.create(ME, "acme")
    lite.users.import_hashes(ME, "acme", {"gw": HASH})
    found = Reader(lambda: lite, clock.monotonic)
    found.poll()
    return found


def look(reader: Reader, user: str | None = "gw", tenant: str = "acme") -> Found:
    (found,) = reader.look((LookUp(tenant, user),))
    return found


def words(changes: list[Change] | None) -> list[str] | None:
    return None if changes is None else [change.what for change in changes]


def test_a_tenant_and_its_user_are_found_with_their_rules(reader: Reader, lite: Store) -> None:
    lite.rules.add(ME, Rule("acme", 0, "allow", ("publish",), "all/#"))
    lite.rules.add(ME, Rule("acme", 0, "allow", ("publish",), "own/#", "user", "gw"))
    lite.users.join(ME, "acme", "gw", "g")
    lite.tenants.set_quotas(ME, "acme", {"connections": "5"})
    lite.tenants.set_settings(ME, "acme", {"archive": "no"})
    found = look(reader)
    assert found.revision == lite.changes.revision()
    assert found.tenant is not None
    assert found.user is not None
    assert (found.tenant.quotas, found.tenant.settings) == ({"connections": 5}, {"archive": "no"})
    assert len(found.tenant.policy.trees(None, (), "c")) == 1
    assert len(found.user.policy.trees("gw", (), "c")) == 1
    assert found.user.user.groups == ("g",)


def test_what_is_not_there_or_not_wanted_is_none(reader: Reader) -> None:
    nobody, nowhere, alone = look(reader, "x"), look(reader, "gw", "none"), look(reader, None)
    assert nobody.tenant is not None
    assert (nobody.user, nowhere.tenant, nowhere.user, alone.user) == (None, None, None, None)
    (found,) = reader.look((LookUp("acme", "gw", with_tenant=False),))
    assert found.tenant is None
    assert found.user is not None


def test_every_change_comes_once_and_says_what_it_is_about(reader: Reader, lite: Store) -> None:
    tenant, user = ("acme", None), ("acme", "gw")
    changes = (
        (lambda: lite.rules.add(ME, Rule("acme", 0, "allow", ("publish",), "all/#")), tenant),
        (lambda: lite.rules.add(ME, Rule("acme", 0, "allow", ("publish",), "own/#", "user", "gw")), user),
        (lambda: lite.users.join(ME, "acme", "gw", "g"), user),
        (lambda: lite.rules.add(ME, Rule("acme", 0, "allow", ("publish",), "group/#", "group", "g")), tenant),
        (lambda: lite.users.leave(ME, "acme", "gw", "g"), user),
        (lambda: lite.users.set_password(ME, "acme", "gw", b"other"), user),
        (lambda: lite.users.disable(ME, "acme", "gw"), user),
        (lambda: lite.users.enable(ME, "acme", "gw"), user),
        (lambda: lite.tenants.set_quotas(ME, "acme", {"connections": "5"}), tenant),
        (lambda: lite.tenants.set_settings(ME, "acme", {"archive": "no"}), tenant),
        (lambda: lite.tenants.disable(ME, "acme"), tenant),
        (lambda: lite.tenants.enable(ME, "acme"), tenant),
        (lambda: lite.users.delete(ME, "acme", "gw"), user),
        (lambda: lite.tenants.delete(ME, "acme"), tenant),
    )
    for change, key in changes:
        change()
        found = reader.poll()
        assert found is not None
        assert [key_of(one) for one in found] == [key]
        assert reader.poll() == []


def test_the_first_change_of_an_empty_directory_comes_too(lite: Store, clock: Clock) -> None:
    reader = Reader(lambda: lite, clock.monotonic)
    assert reader.poll() is None
    assert reader.poll() == []
    lite.tenants.create(ME, "acme")
    assert reader.poll() is None  # anything
    lite.tenants.disable(ME, "acme")
    assert words(reader.poll()) == ["tenant disabled"]


def test_bans_are_known_by_a_poll_and_end_by_the_clock(reader: Reader, lite: Store, clock: Clock) -> None:
    lite.bans.add(ME, "user", "acme", "gw", 60)
    reader.poll()
    assert banned(reader.bans, "user", "acme", "gw", clock.now_us()) is not None
    assert banned(reader.bans, "client", "acme", "gw", clock.now_us()) is None
    assert banned(reader.bans, "user", "acme", "GW", clock.now_us()) is None
    clock.seconds += 61
    assert banned(reader.bans, "user", "acme", "gw", clock.now_us()) is None
    lite.bans.add(ME, "user", "acme", "gw")
    reader.poll()
    lite.tenants.delete(ME, "acme")
    reader.poll()
    assert not reader.bans


def test_costs_of_hashes_are_known(reader: Reader, lite: Store) -> None:
    assert list(reader.costs) == ["$7$1"]
    lite.users.import_hashes(ME, "acme", {"b": BCRYPT, "c": BCRYPT})
    reader.poll()
    assert list(reader.costs) == ["$2b$04$", "$7$1"]


def test_nothing_is_looked_up_while_the_database_is_away(reader: Reader, lite: Store, clock: Clock) -> None:
    file = Path(str(lite.database.engine.url.database))
    lite.close()
    away = file.with_suffix(".away")
    file.rename(away)
    file.mkdir()  # which no SQLite opens
    polled = reader.polled
    clock.seconds += 1
    with pytest.raises(DirectoryUnavailable):
        reader.poll()
    assert reader.polled == polled
    queries = reader.queries
    with pytest.raises(DirectoryUnavailable):
        look(reader)
    assert reader.queries == queries
    file.rmdir()
    away.rename(file)
    assert reader.poll() == []
    assert reader.polled != polled
    assert look(reader).user is not None


def test_one_that_cannot_be_opened_is_opened_later(lite: Store, clock: Clock) -> None:
    outcomes: list[Store | Exception] = [DirectoryUnavailable("away"), WrongSchema("newer"), lite]

    def opening() -> Store:
        found = outcomes.pop(0)
        if isinstance(found, Exception):
            raise found
        return found

    reader = Reader(opening, clock.monotonic)
    with pytest.raises(DirectoryUnavailable, match="not opened yet"):
        look(reader)
    with pytest.raises(DirectoryUnavailable, match="away"):
        reader.poll()
    with pytest.raises(DirectoryUnavailable, match="away"):
        look(reader)
    with pytest.raises(WrongSchema):
        reader.poll()
    reader.poll()
    assert look(reader).tenant is None


def test_of_a_directory_that_was_put_back_anything_may_have_changed(reader: Reader, lite: Store) -> None:
    """Its revisions come again with other changes, which must not be believed to be those that were seen."""
    file = Path(str(lite.database.engine.url.database))
    lite.database.engine.dispose()
    backup = file.with_suffix(".backup")
    shutil.copy(file, backup)
    lite.users.disable(ME, "acme", "gw")
    assert words(reader.poll()) == ["user disabled"]
    lite.database.engine.dispose()
    for journal in (f"{file}-wal", f"{file}-shm"):
        Path(journal).unlink(missing_ok=True)
    shutil.copy(backup, file)
    lite.tenants.set_quotas(ME, "acme", {"connections": "1"})  # with the revision that disabling had
    assert reader.poll() is None
    assert reader.poll() == []
    found = look(reader).user
    assert found is not None
    assert not found.user.disabled


def test_more_changes_than_one_reading_has_and_more_than_a_poll_has(
    reader: Reader, lite: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    def change(times: int) -> None:
        with lite.database.writing(ME) as writing:
            for _ in range(times):
                writing.note("user disabled", "acme", "x")

    change(1200)
    found = reader.poll()
    assert found is not None
    assert len(found) == 1200
    monkeypatch.setattr(reading, "CHANGES_MAX", 1100)
    change(1200)
    assert reader.poll() is None
    assert reader.poll() == []


def test_every_kind_of_change_has_an_entry_or_none() -> None:
    def key(what: str, **detail: object) -> object:
        return key_of(Change(1, "acme", what, "gw", detail, "", "", 0, 0))

    assert key("rule added", kind="user") == ("acme", "gw")
    assert key("rule removed", kind="group") == ("acme", None)
    assert key("ban added", kind="user") is None
    assert key("token created") is None


@pytest.mark.parametrize("error", [DirectoryUnavailable("away"), KeyError("a defect")])
def test_the_poller_goes_on_whatever_happens_and_says_once_that_a_poll_fails(error: Exception) -> None:
    failing: list[Exception] = []
    told, polled = list[Exception | None](), threading.Semaphore(0)

    def poll() -> None:
        polled.release()
        if failing:
            raise failing[0]

    poller = Poller(poll, 0.02, told.append)
    poller.start()
    assert polled.acquire(timeout=60)
    failing.append(error)
    wait_until(lambda: len(told) == 1, "the outage is told", 60)
    for _ in range(5):
        assert polled.acquire(timeout=60)
    failing.clear()
    wait_until(lambda: len(told) == 2, "the end of the outage is told", 60)
    assert poller.stop(60)
    assert told == [error, None]


def test_a_log_that_cannot_be_written_does_not_end_the_poller() -> None:
    polled = threading.Semaphore(0)

    def told(error: Exception | None) -> None:
        raise BrokenPipeError

    def poll() -> None:
        polled.release()
        raise DirectoryUnavailable("away")

    poller = Poller(poll, 0.02, told)
    poller.start()
    for _ in range(4):
        assert polled.acquire(timeout=60)
    assert poller.stop(60)


def test_an_outage_that_was_told_before_is_not_told_by_the_poller() -> None:
    told, polled = list[Exception | None](), threading.Event()
    poller = Poller(polled.set, 0.02, told.append, is_away=True)
    poller.start()
    wait_until(lambda: len(told) == 1, "the end of the outage is told", 60)
    assert poller.stop(60)
    assert told == [None]


def test_on_every_engine_a_poll_sees_what_another_process_wrote(
    store: Store, shared_url: str, clock: Clock
) -> None:
    store.tenants.create(ME, "acme")
    reader = Reader(lambda: store, clock.monotonic)
    reader.poll()
    other = open_store(shared_url, make=False)
    assert look(reader).user is None
    other.users.import_hashes(ME, "acme", {"gw": HASH})
    assert words(reader.poll()) == ["user imported"]
    assert look(reader).user is not None
    other.users.disable(ME, "acme", "gw")
    assert words(reader.poll()) == ["user disabled"]
    found = look(reader).user
    assert found is not None
    assert found.user.disabled
    other.close()
