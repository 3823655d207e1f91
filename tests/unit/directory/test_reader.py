"""The directory as brokers read it: cached, kept up to date by polling, and for a time without its database."""

from __future__ import annotations

import shutil
import threading
from pathlib import Path

import pytest

from broker_process import wait_until
from directory_clock import ME, Clock
from headrace.directory.entries import Change, Rule
from headrace.directory.errors import DirectoryUnavailable
from headrace.directory.policy import PUBLISH
from headrace.directory.poller import Poller
from headrace.directory.reader import Reader, ReaderSettings, banned, key_of, permissions
from headrace.directory.store import Store, open_store

HASH = "$7$1$c2FsdA==$c2FsdA=="
BCRYPT = "$2b$04$" + "a" * 53


@pytest.fixture
def reader(lite: Store, clock: Clock) -> Reader:
    """A reader of a directory with acme/gw in it, which has polled."""
    lite.tenants.create(ME, "acme")
    lite.users.import_hashes(ME, "acme", {"gw": HASH})
    found = Reader(lite, ReaderSettings(outage_s=60), clock.monotonic)
    found.poll()
    return found


def test_every_change_is_seen_after_a_poll(reader: Reader, lite: Store) -> None:
    """Whatever is changed, the entry that has it is read again, and what has nothing to do with it is not."""
    changes = (
        lambda: lite.rules.add(ME, Rule("acme", 0, "allow", ("publish",), "all/#")),
        lambda: lite.rules.add(ME, Rule("acme", 0, "allow", ("publish",), "own/#", "user", "gw")),
        lambda: lite.users.join(ME, "acme", "gw", "g"),
        lambda: lite.rules.add(ME, Rule("acme", 0, "allow", ("publish",), "group/#", "group", "g")),
        lambda: lite.users.leave(ME, "acme", "gw", "g"),
        lambda: lite.users.set_password(ME, "acme", "gw", b"other"),
        lambda: lite.users.disable(ME, "acme", "gw"),
        lambda: lite.users.enable(ME, "acme", "gw"),
        lambda: lite.tenants.set_quotas(ME, "acme", {"connections": "5"}),
        lambda: lite.tenants.set_settings(ME, "acme", {"archive": "no"}),
        lambda: lite.tenants.disable(ME, "acme"),
        lambda: lite.tenants.enable(ME, "acme"),
        lambda: lite.users.delete(ME, "acme", "gw"),
        lambda: lite.tenants.delete(ME, "acme"),
    )
    for change in changes:
        before = (shape(reader, "tenant"), shape(reader, "user"))
        change()
        assert (shape(reader, "tenant"), shape(reader, "user")) == before  # as of the last poll
        assert reader.poll() == 1
        assert (shape(reader, "tenant"), shape(reader, "user")) != before
        queries = reader.queries
        assert reader.tenant("acme") is not None
        assert reader.queries == queries


def shape(reader: Reader, kind: str) -> tuple[object, ...]:
    """What of an entry can be told apart."""
    tenant, user = reader.tenant("acme"), reader.user("acme", "gw")
    assert tenant is not None
    if kind == "tenant":
        may = permissions(tenant, user, "c")
        return (
            tenant.tenant,
            tenant.quotas,
            tenant.settings,
            *(may.allows(PUBLISH, f"{at}/x") for at in ("all", "own", "group")),
        )
    return () if user is None else (user.user, user.user.hashed)


def test_who_is_not_there_drives_out_nobody(reader: Reader) -> None:
    assert reader.user("acme", "gw") is not None
    for number in range(50):
        assert reader.user("acme", f"x{number}") is None
        assert reader.tenant(f"x{number}") is None
    assert reader.queries == 101
    assert reader.cached_user("acme", "gw") is not None


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


def test_without_the_database_what_is_known_goes_on_for_a_time(
    reader: Reader, lite: Store, clock: Clock
) -> None:
    reader.tenant("acme")
    reader.user("acme", "gw")
    file = Path(str(lite.database.engine.url.database))
    lite.close()
    away = file.with_suffix(".away")
    file.rename(away)
    file.mkdir()  # which no SQLite opens
    with pytest.raises(DirectoryUnavailable):
        reader.poll()
    outage = reader.outage
    assert outage is not None
    clock.seconds += 59
    assert reader.user("acme", "gw") is not None
    for name in ("new", "gw"):
        with pytest.raises(DirectoryUnavailable):
            reader.user("acme", name, fresh=True)
    clock.seconds += 2
    with pytest.raises(DirectoryUnavailable):
        reader.user("acme", "gw")
    assert reader.cached_user("acme", "gw") is None
    file.rmdir()
    away.rename(file)
    reader.poll()
    assert reader.outage is None
    assert reader.user("acme", "gw") is not None


def test_a_directory_that_was_put_back_is_read_anew(reader: Reader, lite: Store) -> None:
    """Its revisions come again with other changes, and the cache must not believe them seen."""
    told: list[list[Change]] = []
    reader.listeners.append(told.append)
    file = Path(str(lite.database.engine.url.database))
    lite.database.engine.dispose()
    backup = file.with_suffix(".backup")
    shutil.copy(file, backup)
    lite.users.disable(ME, "acme", "gw")
    reader.poll()
    disabled = reader.user("acme", "gw")
    assert disabled is not None
    assert disabled.user.disabled
    lite.database.engine.dispose()
    for journal in (f"{file}-wal", f"{file}-shm"):
        Path(journal).unlink(missing_ok=True)
    shutil.copy(backup, file)
    lite.tenants.set_quotas(ME, "acme", {"connections": "1"})  # with the revision that disabling had
    assert reader.poll() == 0
    found = reader.user("acme", "gw")
    assert found is not None
    assert not found.user.disabled
    assert [[change.what for change in changes] for changes in told] == [["user disabled"], []]


def test_what_is_read_while_it_is_changed_is_not_kept(reader: Reader, lite: Store) -> None:
    """The reading begins, the change commits and is polled, and then the reading's answer is put."""
    cache, revision = reader._cache, lite.changes.revision()
    lite.users.disable(ME, "acme", "gw")
    reader.poll()
    assert not cache.put(("user", "acme", "gw"), "before the change", revision)


def test_more_changes_than_one_reading_has(reader: Reader, lite: Store) -> None:
    with lite.database.writing(ME) as writing:
        for _ in range(1200):
            writing.note("user disabled", "acme", "x")
    assert reader.poll() == 1200


def test_every_kind_of_change_has_an_entry_or_none() -> None:
    def key(what: str, **detail: object) -> object:
        return key_of(Change(1, "acme", what, "gw", detail, "", "", 0, 0))

    assert key("rule added", kind="user") == ("user", "acme", "gw")
    assert key("rule removed", kind="group") == ("tenant", "acme")
    assert key("ban added", kind="user") is None
    assert key("token created") is None


class Away(Reader):
    """A reader whose polls may fail."""

    error: Exception | None = None

    def poll(self) -> int:
        if self.error is not None:
            raise self.error
        return super().poll()


@pytest.mark.parametrize("error", [DirectoryUnavailable("away"), KeyError("a defect")])
def test_the_poller_sees_changes_and_says_once_that_a_poll_fails(lite: Store, error: Exception) -> None:
    lite.tenants.create(ME, "acme")
    reader, told = Away(lite, ReaderSettings()), list[Exception | None]()
    poller = Poller(reader, 0.02, told.append)
    seen = threading.Event()
    reader.listeners.append(lambda _: seen.set())
    poller.start()
    wait_until(lambda: reader.tenant("acme") == reader.cached_tenant("acme"), "it has polled", 60)
    lite.tenants.disable(ME, "acme")
    assert seen.wait(60)
    found = reader.tenant("acme")
    assert found is not None
    assert found.tenant.state == "disabled"
    reader.error = error
    wait_until(lambda: len(told) == 1, "the outage is told", 60)
    reader.error = None
    wait_until(lambda: len(told) == 2, "the end of the outage is told", 60)
    assert poller.stop(60)
    assert told == [error, None]


def test_on_every_engine_a_poll_sees_what_another_process_wrote(
    store: Store, shared_url: str, clock: Clock
) -> None:
    store.tenants.create(ME, "acme")
    reader = Reader(store, ReaderSettings(), clock.monotonic)
    reader.poll()
    other = open_store(shared_url, make=False)
    assert reader.user("acme", "gw") is None
    other.users.import_hashes(ME, "acme", {"gw": HASH})
    assert reader.poll() == 1
    assert reader.user("acme", "gw") is not None
    other.users.disable(ME, "acme", "gw")
    assert reader.poll() == 1
    found = reader.user("acme", "gw")
    assert found is not None
    assert found.user.disabled
    other.close()
