"""A tenant that is written out and brought in is the same; the second time nothing is changed, and what is wrong with one
entry leaves all as it was."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from directory_clock import ME
from headrace.directory.documents import NotForThisToken, RuleDocument, TenantDocument, UserDocument
from headrace.directory.entries import Rule
from headrace.directory.errors import InvalidField, NotInThatState
from headrace.directory.hashes import hashed, matches
from headrace.directory.store import Store, open_store
from headrace.errors import NotThere

HASH = hashed(b"secret")


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    made = open_store(f"sqlite:///{tmp_path}/directory.sqlite", make=True)
    yield made
    made.close()


def full(store: Store) -> TenantDocument:
    """Make a tenant with something of everything, and return it."""
    store.tenants.create(ME, "acme")
    store.tenants.set_quotas(ME, "acme", {"sessions": "5", "connections": "0"})
    store.tenants.set_settings(ME, "acme", {"over_rate": "disconnect"})
    store.users.create(ME, "acme", "gw", b"pw", ["g", "h"])
    store.users.create(ME, "acme", "app", b"pw")
    store.users.disable(ME, "acme", "app")
    for rule in (("tenant", ""), ("group", "g"), ("user", "gw"), ("client", "c/1")):
        store.rules.add(ME, Rule("acme", 0, "allow", ("publish", "retain"), "up/#", *rule))
    store.users.leave(ME, "acme", "gw", "g")  # a rule is about a group without a member
    return store.documents.export("acme", hashes=True)


def test_what_is_written_out_makes_the_same_elsewhere_and_nothing_the_second_time(store: Store) -> None:
    document = full(store)
    for entry in document.users or ():
        assert entry.hash.startswith("$argon2")
    other = called(document, tenant="")
    done = store.documents.bring_in(ME, "blue", other)
    assert (done.tenant_changes, done.users_created, done.rules_added) == (
        ["created", "quotas set", "settings set"],
        ["app", "gw"],
        4,
    )
    assert store.documents.export("blue", hashes=True) == called(document, tenant="blue")
    assert done.revision == store.changes.revision()
    again = store.documents.bring_in(ME, "blue", other, prune=True)
    assert not again.tenant_changes + again.users_created + again.users_changed + again.users_deleted
    assert (again.rules_added, again.rules_removed) == (0, 0)
    assert store.changes.revision() == done.revision
    plain = store.documents.export("acme")
    assert [one.hash for one in plain.users or ()] == ["", ""]
    assert store.documents.bring_in(ME, "acme", plain, prune=True).revision == done.revision


def called(document: TenantDocument, tenant: str) -> TenantDocument:
    rest = document.state, document.quotas, document.settings, document.users, document.rules
    return TenantDocument(tenant, *rest)


def test_what_is_not_in_the_document_stays_but_for_prune(store: Store) -> None:
    full(store)
    users = [UserDocument("gw", groups=["x"]), UserDocument("new", "disabled", hash=HASH)]
    rules = [
        RuleDocument("deny", ["publish"], "a/#", "group", "x"),
        RuleDocument("allow", ["retain", "publish"], "up/#"),
    ]
    document = TenantDocument(users=users, rules=rules)
    planned = store.documents.bring_in(ME, "acme", document, prune=True, dry_run=True)
    assert (planned.is_dry_run, planned.users_deleted, planned.rules_removed) == (True, ["app"], 3)
    before = store.changes.revision()
    done = store.documents.bring_in(ME, "acme", document)
    assert (done.users_created, done.users_changed, done.users_deleted) == (["new"], ["gw"], [])
    assert (done.rules_added, done.rules_removed, done.tenant_changes) == (1, 0, [])
    assert store.changes.since(before)[0].revision == before + 1, "a dry run leaves nothing"
    assert {one.name: one.groups for one in store.users.all("acme")} == {"app": (), "gw": ("x",), "new": ()}
    assert store.tenants.quotas("acme") == {"connections": 0, "sessions": 5}
    done = store.documents.bring_in(ME, "acme", document, prune=True)
    assert (done.users_deleted, done.rules_removed) == (["app"], 3)
    assert [(one.name, one.disabled) for one in store.users.all("acme")] == [("gw", False), ("new", True)]
    assert len(store.rules.all("acme")) == 2


def test_a_password_is_set_where_it_is_another_one(store: Store) -> None:
    document = TenantDocument(users=[UserDocument("gw", password="first")])
    assert store.documents.bring_in(ME, "acme", document).users_created == ["gw"]
    assert store.documents.bring_in(ME, "acme", document).users_changed == []
    document = TenantDocument(users=[UserDocument("gw", password="second")])
    assert store.documents.bring_in(ME, "acme", document).users_changed == ["gw"]
    [user] = store.users.all("acme")
    assert matches(user.hashed, b"second")


@pytest.mark.parametrize(
    ("document", "field"),
    [
        (TenantDocument("blue"), "tenant"),
        (TenantDocument(quotas={"flights": 1}), "quota"),
        (TenantDocument(quotas={"sessions": -1}), "sessions"),
        (TenantDocument(settings={"over_rate": "maybe"}), "over_rate"),
        (TenantDocument(users=[UserDocument("a", hash=HASH), UserDocument("")]), "users[1].name"),
        (TenantDocument(users=[UserDocument("a")]), "users[0]"),
        (TenantDocument(users=[UserDocument("a", hash="x")]), "users[0].hash"),
        (TenantDocument(users=[UserDocument("a", hash=HASH, password="x")]), "users[0].password"),
        (TenantDocument(users=[UserDocument("a", hash=HASH), UserDocument("a", hash=HASH)]), "users"),
        (TenantDocument(rules=[RuleDocument("maybe", ["publish"], "a")]), "rules[0].effect"),
        (TenantDocument(rules=[RuleDocument("allow", ["fly"], "a")]), "rules[0].actions"),
        (TenantDocument(rules=[RuleDocument("allow", ["publish"], "a/#/b")]), "rules[0].filter"),
    ],
)
def test_what_is_wrong_is_named_and_changes_nothing(
    store: Store, document: TenantDocument, field: str
) -> None:
    with pytest.raises(InvalidField) as error:
        store.documents.bring_in(ME, "acme", document)
    assert error.value.field == field
    assert store.tenants.all() == []


def test_a_rule_about_nobody_leaves_all_as_it_was(store: Store) -> None:
    rules = [RuleDocument("allow", ["publish"], "a", "user", "nobody")]
    with pytest.raises(NotThere, match="nobody"):
        store.documents.bring_in(
            ME, "acme", TenantDocument(users=[UserDocument("a", hash=HASH)], rules=rules)
        )
    assert store.tenants.all() == []


def test_who_is_of_the_tenant_changes_its_users_and_rules_alone(store: Store) -> None:
    document = full(store)
    assert store.documents.bring_in(ME, "acme", document, whole=False).tenant_changes == []
    before = store.changes.revision()
    for changed in (TenantDocument(state="disabled"), TenantDocument(quotas={}), TenantDocument(settings={})):
        with pytest.raises(NotForThisToken):
            store.documents.bring_in(ME, "acme", changed, whole=False)
    with pytest.raises(NotThere):
        store.documents.bring_in(ME, "blue", TenantDocument(), whole=False)
    assert store.changes.revision() == before


def test_no_password_is_hashed_for_who_may_not_bring_it_in(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A hundred of them would keep a thread busy for seconds, and other tenants waiting."""
    full(store)

    def never(_: object) -> str:
        raise AssertionError("hashed")

    monkeypatch.setattr("headrace.directory.documents.hashed", never)
    users = [UserDocument(f"new-{number}", password="secret") for number in range(100)]
    before = store.changes.revision()
    with pytest.raises(NotForThisToken):
        store.documents.bring_in(ME, "acme", TenantDocument(quotas={}, users=users), whole=False)
    with pytest.raises(NotThere):
        store.documents.bring_in(ME, "blue", TenantDocument(users=users), whole=False)
    with pytest.raises(AssertionError, match="hashed"):
        store.documents.bring_in(ME, "acme", TenantDocument(users=users), whole=False)
    store.tenants.create(ME, "gone")
    store.tenants.delete(ME, "gone")
    with pytest.raises(NotInThatState):
        store.documents.bring_in(ME, "gone", TenantDocument(users=users))
    assert store.changes.revision() == before + 2


def test_one_that_is_being_deleted_is_neither_written_out_nor_brought_in(store: Store) -> None:
    full(store)
    store.tenants.delete(ME, "acme")
    with pytest.raises(NotInThatState):
        store.documents.bring_in(ME, "acme", TenantDocument())
    with pytest.raises(NotThere):
        store.documents.export("acme")
