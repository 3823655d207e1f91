"""One directory on SQLite, PostgreSQL and MariaDB: the same answers, to the byte."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import text

from directory_clock import ME, Clock
from headrace.directory.entries import QUOTAS, Actor, Rule, Tenant
from headrace.directory.errors import (
    AlreadyThere,
    ChangedMeanwhile,
    DirectoryUnavailable,
    InvalidField,
    NotInThatState,
    WrongSchema,
)
from headrace.directory.hashes import hashed
from headrace.directory.store import Store, open_store
from headrace.errors import NotThere

HASH = "$7$1$c2FsdA==$c2FsdA=="
ODD = [
    "a'; DROP TABLE directory_users; --",
    "a\\'b",
    "%_",
    "a",
    "A",
    "a ",
    "a  ",
    "á",
    "a\u0301",
    "ß",
    "ss",
    "😀",
    "😁",
    "$SYS",
    "x/y",
]


def what(store: Store) -> list[str]:
    return [change.what for change in store.changes.since(0)]


def test_tenants(store: Store, clock: Clock) -> None:
    made = store.tenants.create(ME, "acme")
    assert made == Tenant("acme", "active", clock.now_us(), 1) == store.tenants.get("acme")
    with pytest.raises(AlreadyThere, match="there is a tenant acme already"):
        store.tenants.create(ME, "acme")
    store.tenants.create(ME, "a-cme")
    assert [tenant.name for tenant in store.tenants.all()] == ["a-cme", "acme"]
    store.tenants.disable(ME, "acme")
    assert store.tenants.get("acme").state == "disabled"
    store.tenants.enable(ME, "acme")
    assert store.tenants.get("acme").state == "active"
    with pytest.raises(NotThere, match="there is no tenant other"):
        store.tenants.disable(ME, "other")
    assert what(store) == ["tenant created", "tenant created", "tenant disabled", "tenant enabled"]
    first = store.changes.since(0)[0]
    assert (first.revision, first.tenant, first.who, first.came_from) == (1, "acme", "olga", "192.0.2.7")
    assert first.at_us == clock.now_us()


def test_a_deleted_tenant_s_name_is_not_free_until_it_is_released(store: Store) -> None:
    store.tenants.create(ME, "acme")
    store.tenants.create(ME, "other")
    store.users.import_hashes(ME, "acme", {"gw": HASH})
    store.users.import_hashes(ME, "other", {"gw": HASH})
    store.users.join(ME, "acme", "gw", "g")
    store.rules.add(ME, Rule("acme", 0, "allow", ("publish",), "#"))
    store.tenants.set_quotas(ME, "acme", {"connections": "5"})
    store.tokens.create(ME, "viewer", "acme")
    store.bans.add(ME, "user", "acme", "gw")
    with pytest.raises(NotInThatState, match="tenant delete acme"):
        store.tenants.release(ME, "acme")
    store.tenants.delete(ME, "acme")
    assert store.tenants.get("acme").state == "deleting"
    assert (store.users.all("acme"), store.rules.all("acme"), store.tokens.all(), store.bans.all()) == (
        [],
        [],
        [],
        [],
    )
    assert len(store.users.all("other")) == 1
    for attempt in (
        lambda: store.tenants.create(ME, "acme"),
        lambda: store.tenants.enable(ME, "acme"),
        lambda: store.tenants.delete(ME, "acme"),
        lambda: store.users.import_hashes(ME, "acme", {"gw": HASH}),
        lambda: store.rules.add(ME, Rule("acme", 0, "allow", ("publish",), "#")),
        lambda: store.tokens.create(ME, "viewer", "acme"),
        lambda: store.bans.add(ME, "user", "acme", "gw"),
    ):
        with pytest.raises(NotInThatState, match="is being deleted"):
            attempt()
    store.tenants.release(ME, "acme")
    assert store.tenants.create(ME, "acme").revision == store.changes.revision()
    assert store.tenants.quotas("acme") == {}


def test_odd_names_are_kept_byte_for_byte_and_told_apart(store: Store) -> None:
    store.tenants.create(ME, "acme")
    store.users.import_hashes(ME, "acme", dict.fromkeys(ODD, HASH))
    for name in ODD:
        store.users.join(ME, "acme", name, name)
    assert {user.name: user.groups for user in store.users.all("acme")} == {name: (name,) for name in ODD}
    for at, name in enumerate(ODD):
        kind = ("user", "group", "client")[at % 3]
        store.rules.add(ME, Rule("acme", 0, "allow", ("publish",), f"{name}/#", kind, name))
        store.bans.add(ME, "client", "acme", name)
    assert [rule.subject for rule in store.rules.all("acme")] == ODD
    assert [rule.filter for rule in store.rules.all("acme")] == [f"{name}/#" for name in ODD]
    assert {ban.subject for ban in store.bans.all()} == set(ODD)
    assert [user.name for user in store.users.all("acme")] == sorted(ODD, key=str.encode)
    store.users.delete(ME, "acme", "a")
    assert {user.name for user in store.users.all("acme")} == set(ODD) - {"a"}


def test_names_as_long_as_may_be(store: Store) -> None:
    store.tenants.create(ME, "a" * 63)
    user, client, topics = "😀" * 63 + "abc", "😀" * 256, "é" * 32_766 + "/#"
    store.users.import_hashes(ME, "a" * 63, {user: HASH})
    store.users.join(ME, "a" * 63, user, user)
    made = store.rules.add(ME, Rule("a" * 63, 0, "deny", ("retain",), topics, "client", client))
    assert store.rules.all("a" * 63) == [made]
    store.rules.remove(ME, "a" * 63, made.number)
    assert store.changes.since(made.number)[0].detail["filter"] == topics
    quoted = '"' * 65_535
    assert store.rules.add(ME, Rule("a" * 63, 0, "allow", ("publish",), quoted)).filter == quoted
    store.bans.add(ME, "client", "a" * 63, client, reason="😀" * 256)
    assert store.bans.all()[0].reason == "😀" * 256


@settings(max_examples=12, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(name=st.text(max_size=280), who=st.text(max_size=20))
def test_any_text_is_kept_or_refused_with_its_field(store: Store, name: str, who: str) -> None:
    for tenant in [tenant.name for tenant in store.tenants.all()]:
        store.tenants.delete(ME, tenant)
        store.tenants.release(ME, tenant)
    store.tenants.create(ME, "acme")
    before = store.changes.revision()
    try:
        store.bans.add(Actor(who, "x"), "client", "acme", name, reason=who)
    except InvalidField as error:
        assert error.field in ("client", "who", "reason")  # noqa: PT017
        assert store.changes.revision() == before
    else:
        change = store.changes.since(before)[0]
        assert (change.subject, change.who, change.detail["reason"]) == (name, who, who)
        assert [ban.subject for ban in store.bans.all()] == [name]


def test_a_name_that_cannot_be_is_refused_everywhere_with_its_field(store: Store) -> None:
    store.tenants.create(ME, "acme")
    attempts: list[tuple[str, Callable[[], object]]] = [
        ("tenant", lambda: store.tenants.create(ME, "Acme")),
        ("tenant", lambda: store.users.create(ME, "a\0", "gw", b"x")),
        ("user", lambda: store.users.create(ME, "acme", "a\0", b"x")),
        ("password", lambda: store.users.create(ME, "acme", "gw", b"")),
        ("group", lambda: store.users.create(ME, "acme", "gw", b"x", ["a\n"])),
        ("client", lambda: store.bans.add(ME, "client", "acme", "a\ud800")),
        ("filter", lambda: store.rules.add(ME, Rule("acme", 0, "allow", ("publish",), "a#"))),
        ("kind", lambda: store.rules.add(ME, Rule("acme", 0, "allow", ("publish",), "a", "x", "y"))),
        ("effect", lambda: store.rules.add(ME, Rule("acme", 0, "permit", ("publish",), "a"))),
        ("actions", lambda: store.rules.add(ME, Rule("acme", 0, "allow", (), "a"))),
        ("subject", lambda: store.rules.add(ME, Rule("acme", 0, "allow", ("publish",), "a", "tenant", "y"))),
        ("address", lambda: store.bans.add(ME, "address", "", "a")),
        ("tenant", lambda: store.bans.add(ME, "address", "acme", "1.2.3.4")),
        ("role", lambda: store.tokens.create(ME, "root")),
        ("tenant", lambda: store.tokens.create(ME, "tenant-admin")),
        ("tenant", lambda: store.tokens.create(ME, "owner", "acme")),
        ("note", lambda: store.tokens.create(ME, "owner", note="a\n")),
        ("quota", lambda: store.tenants.set_quotas(ME, "acme", {"cups": "1"})),
        ("connections", lambda: store.tenants.set_quotas(ME, "acme", {"connections": "-1"})),
        ("connections", lambda: store.tenants.set_quotas(ME, "acme", {"connections": "9" * 20})),
        ("setting", lambda: store.tenants.set_settings(ME, "acme", {"x": "1"})),
        ("over_rate", lambda: store.tenants.set_settings(ME, "acme", {"over_rate": "1"})),
        (
            "message_expiry_s",
            lambda: store.tenants.set_settings(ME, "acme", {"message_expiry_s": "4294967296"}),
        ),
        (
            "message_expiry_s",
            lambda: store.tenants.set_settings(ME, "acme", {"message_expiry_s": "0" * 12 + "4294967296"}),
        ),
        ("message_expiry_s", lambda: store.tenants.set_settings(ME, "acme", {"message_expiry_s": ""})),
        ("for", lambda: store.bans.add(ME, "address", "", "1.2.3.4", 2**63)),
        ("for", lambda: store.tokens.create(ME, "owner", for_s=-1)),
        ("number", lambda: store.rules.remove(ME, "acme", 2**63)),
        ("who", lambda: store.tenants.create(Actor("a\0", ""), "b")),
    ]
    for field, attempt in attempts:
        with pytest.raises(InvalidField) as caught:
            attempt()
        assert caught.value.field == field
    assert store.changes.revision() == 1


def test_users_and_groups(store: Store) -> None:
    store.tenants.create(ME, "acme")
    store.users.create(ME, "acme", "gw", b"secret", ["b", "a"])
    with pytest.raises(AlreadyThere):
        store.users.create(ME, "acme", "gw", b"other")
    [user] = store.users.all("acme")
    assert (user.name, user.groups, user.disabled, user.revision) == ("gw", ("a", "b"), False, 4)
    assert "argon2" not in repr(user)
    store.users.set_password(ME, "acme", "gw", b"another")
    store.users.disable(ME, "acme", "gw")
    assert store.users.all("acme")[0].disabled
    assert store.users.all("acme")[0].hashed != user.hashed
    store.users.enable(ME, "acme", "gw")
    store.users.leave(ME, "acme", "gw", "b")
    with pytest.raises(NotThere):
        store.users.leave(ME, "acme", "gw", "b")
    store.rules.add(ME, Rule("acme", 0, "allow", ("publish",), "#", "user", "gw"))
    store.rules.add(ME, Rule("acme", 0, "allow", ("publish",), "#", "group", "b"))
    with pytest.raises(NotThere, match="no group 'c'"):
        store.rules.add(ME, Rule("acme", 0, "allow", ("publish",), "#", "group", "c"))
    store.users.delete(ME, "acme", "gw")
    assert [rule.kind for rule in store.rules.all("acme")] == ["group"]
    with pytest.raises(NotThere, match="no user 'gw'"):
        store.users.delete(ME, "acme", "gw")
    assert not [
        change for change in store.changes.since(0) if "argon2" in repr(change) or "secret" in repr(change)
    ]


def test_an_import_is_all_or_nothing(store: Store) -> None:
    store.tenants.create(ME, "acme")
    assert store.users.import_hashes(ME, "acme", {"a": HASH, "b": HASH}) == 2
    with pytest.raises(AlreadyThere, match="nothing was imported"):
        store.users.import_hashes(ME, "acme", {"c": HASH, "a": HASH})
    with pytest.raises(InvalidField, match="hash of 'e'"):
        store.users.import_hashes(ME, "acme", {"d": HASH, "e": "plain"})
    assert [user.name for user in store.users.all("acme")] == ["a", "b"]
    other = hashed(b"x")
    store.users.disable(ME, "acme", "a")
    store.users.import_hashes(ME, "acme", {"a": other}, replace=True)
    users = store.users.all("acme")
    assert [user.hashed for user in users] == [other, HASH]
    assert [user.disabled for user in users] == [True, False]
    assert users[0].revision == store.changes.revision()


def test_rules_quotas_and_settings(store: Store) -> None:
    store.tenants.create(ME, "acme")
    rule = store.rules.add(ME, Rule("acme", 0, "allow", ("publish", "retain"), "up/%u/#"))
    with pytest.raises(AlreadyThere, match=f"number {rule.number}"):
        store.rules.add(ME, Rule("acme", 0, "allow", ("publish", "retain"), "up/%u/#"))
    store.rules.add(ME, Rule("acme", 0, "deny", ("publish", "retain"), "up/%u/#"))
    store.rules.remove(ME, "acme", rule.number)
    with pytest.raises(NotThere):
        store.rules.remove(ME, "acme", rule.number)
    assert [rule.effect for rule in store.rules.all("acme")] == ["deny"]
    numbers = {name: 2**63 - 1 - at for at, name in enumerate(QUOTAS)}
    assert (
        store.tenants.set_quotas(ME, "acme", {name: str(value) for name, value in numbers.items()}) == numbers
    )
    assert store.tenants.set_quotas(ME, "acme", {"connections": "none", "sessions": "0"})["sessions"] == 0
    assert "connections" not in store.tenants.quotas("acme")
    assert store.tenants.set_settings(
        ME, "acme", {"archive": "no", "message_expiry_s": "0" * 5000 + "7"}
    ) == {
        "archive": "no",
        "message_expiry_s": "7",
    }
    assert store.tenants.set_settings(ME, "acme", {"archive": "default"}) == {"message_expiry_s": "7"}


def test_bans_end_by_themselves(store: Store, clock: Clock) -> None:
    store.bans.add(ME, "address", "", "192.0.2.9/24", 600, "guesses")
    store.bans.add(ME, "address", "", "192.0.2.0/24", 60)
    assert [(ban.subject, ban.until_us - clock.now_us()) for ban in store.bans.all()] == [
        ("192.0.2.0/24", 60_000_000)
    ]
    clock.seconds += 61
    assert store.bans.all() == []
    store.bans.add(ME, "address", "", "2001:DB8::1")
    assert [(ban.subject, ban.until_us) for ban in store.bans.all()] == [("2001:db8::1/128", 0)]
    store.bans.remove(ME, "address", "", "2001:db8:0::1")
    with pytest.raises(NotThere):
        store.bans.remove(ME, "address", "", "2001:db8::1")


def test_of_a_token_its_hash_is_kept(store: Store, clock: Clock) -> None:
    store.tenants.create(ME, "acme")
    made, secret = store.tokens.create(ME, "tenant-admin", "acme", 60, "for the console")
    assert len(secret) == len("hrt_") + 43
    assert store.tokens.find(secret) == made == store.tokens.all()[0]
    assert store.tokens.find(secret + "x") is None
    assert store.tokens.find("\ud800") is None
    with store.database.reading() as connection:
        rows = [
            list(connection.execute(text(f"SELECT * FROM {name}")))
            for name in ("directory_tokens", "directory_changes")
        ]
    assert secret not in repr(rows)
    clock.seconds += 61
    assert store.tokens.find(secret) is None
    store.tokens.revoke(ME, made.number)
    with pytest.raises(NotThere):
        store.tokens.revoke(ME, made.number)


def test_two_who_change_one_thing_at_once(store: Store) -> None:
    seen = store.tenants.create(ME, "acme")
    store.tenants.set_quotas(ME, "acme", {"connections": "1"}, if_revision=seen.revision)
    with pytest.raises(ChangedMeanwhile, match="tenant acme is of revision 2 meanwhile, not 1"):
        store.tenants.delete(ME, "acme", if_revision=seen.revision)
    assert store.tenants.quotas("acme") == {"connections": 1}
    assert store.changes.revision() == 2


def test_revisions_ascend_in_the_order_of_commits_with_writers_at_once(store: Store, shared_url: str) -> None:
    """Whoever has read up to a revision never finds one below it later: that is what a poller relies on."""
    others = [open_store(shared_url, make=False) for _ in range(3)]
    for number in range(3):
        store.tenants.create(ME, f"t{number}")
    failed: list[BaseException] = []
    done = threading.Event()
    seen: list[int] = []

    def write(number: int) -> None:
        try:
            for value in range(10):
                others[number].tenants.set_quotas(ME, f"t{number}", {"connections": str(value)})
        except BaseException as error:
            failed.append(error)

    def read() -> None:
        try:
            while not done.is_set() or store.changes.since(seen[-1] if seen else 0):
                seen.extend(change.revision for change in store.changes.since(seen[-1] if seen else 0))
        except BaseException as error:
            failed.append(error)

    writers = [threading.Thread(target=write, args=(number,)) for number in range(3)]
    reader = threading.Thread(target=read)
    for thread in [*writers, reader]:
        thread.start()
    for thread in writers:
        thread.join(200)
    done.set()
    reader.join(60)
    for other in others:
        other.close()
    assert failed == []
    assert seen == list(range(1, 3 + 30 + 1))


def test_one_tenant_is_made_once_by_two_at_once(store: Store, shared_url: str) -> None:
    other = open_store(shared_url, make=False)
    found: list[str] = []
    start = threading.Barrier(2)

    def create(by: Store) -> None:
        start.wait(30)
        try:
            by.tenants.create(ME, "acme")
            found.append("made")
        except AlreadyThere:
            found.append("there")

    threads = [threading.Thread(target=create, args=(by,)) for by in (store, other)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    other.close()
    assert sorted(found) == ["made", "there"]
    assert store.changes.revision() == 1


def test_what_fails_leaves_nothing_behind(store: Store) -> None:
    store.tenants.create(ME, "acme")

    def fail() -> None:
        with store.database.writing(ME) as writing:
            writing.note("tenant created", "ghost")
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail()
    assert store.changes.revision() == 1
    assert what(store) == ["tenant created"]


def test_a_directory_that_somebody_has_damaged_says_so_without_values(url: str) -> None:
    store = open_store(url, make=True)
    with store.database.writing(ME) as writing:
        writing.connection.execute(text("DROP TABLE directory_users"))
    store.tenants.create(ME, "acme")
    with pytest.raises(DirectoryUnavailable) as caught:
        store.users.import_hashes(ME, "acme", {"gw": HASH})
    assert HASH not in str(caught.value)
    assert "directory_users" in str(caught.value)
    with store.database.writing(ME) as writing:
        writing.connection.execute(text("DELETE FROM directory_revision"))
    with pytest.raises(WrongSchema, match="lost its row"):
        store.tenants.create(ME, "other")
    with pytest.raises(WrongSchema, match="lost its row"):
        store.changes.revision()
    store.close()
