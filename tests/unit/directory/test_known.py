"""What is in memory of a directory: what was read last counts, and nothing is kept of names that there are not."""

from __future__ import annotations

import gc

from headrace.directory.entries import ACTIVE, DISABLED, Rule, Tenant, User
from headrace.directory.known import Memory
from headrace.directory.policy import Policy
from headrace.directory.reader import Found, LookUp, TenantView, UserView
from headrace.directory.tenancy import ByPrefix
from headrace.services.acl import WRITE


def tenant(state: str = ACTIVE, topic: str = "a") -> TenantView:
    policy = Policy([Rule("acme", 1, "allow", ("publish",), topic)])
    return TenantView(Tenant("acme", state, 0, 1), {}, {}, policy)


def user(hashed: str = "h", *, disabled: bool = False) -> UserView:
    return UserView(User("acme", "gw", disabled, 0, 1, hashed), Policy(()))


def found(revision: int, of_tenant: TenantView | None, of_user: UserView | None) -> Found:
    return Found(LookUp("acme", "gw"), revision, of_tenant, of_user)


def memory(recent_max: int = 10) -> Memory:
    return Memory(recent_max, ByPrefix("/", ""))


def test_what_was_read_before_what_is_known_changes_nothing() -> None:
    known = memory()
    assert not known.learn(found(5, tenant(), user("new")))
    assert not known.learn(found(4, tenant(DISABLED), user("old")))
    one = known.user("acme", "gw")
    assert one is not None
    assert one.view is not None
    assert (one.view.user.hashed, one.closed(), one.tenant.revision) == ("new", "", 5)
    assert known.learn(found(5, tenant(DISABLED), user("newer")))  # a revision is what it is at least of
    assert one.closed() == "tenant_disabled"


def test_a_change_makes_what_is_known_stale_until_it_was_read_again() -> None:
    known = memory()
    known.learn(found(5, tenant(), user()))
    known.note(("acme", "gw"), 7)
    known.note(("acme", "nobody"), 8)  # of whom nothing is known
    known.note(("none", None), 9)
    assert list(known.stale) == [("acme", "gw")]
    at = known.tenant("acme")
    assert at is not None
    assert at.revision == 8
    known.learn(found(7, None, user()))  # read before the newest change of the tenant
    assert ("acme", "gw") in known.stale
    known.learn(found(8, tenant(), user()))
    assert not known.stale


def test_what_changed_while_it_was_looked_for_is_read_once_more() -> None:
    """The look-up has read an older state, and comes behind the change: of a user that nobody knew, or of a tenant."""
    known = memory()
    known.note(("acme", "gw"), 7)
    known.learn(found(6, tenant(), user()))
    assert set(known.stale) == {("acme", None), ("acme", "gw")}
    known.learn(found(7, tenant(), user(disabled=True)))
    one = known.user("acme", "gw")
    assert one is not None
    assert (one.closed(), dict(known.stale)) == ("user_disabled", {})
    known.note(("acme", "other"), 8)
    known.learn(
        Found(
            LookUp("acme", "other"),
            7,
            tenant(),
            UserView(User("acme", "other", False, 0, 1, "h"), Policy(())),
        )
    )
    assert ("acme", "other") in known.stale


def test_rules_are_another_object_after_every_change() -> None:
    known = memory()
    known.learn(found(1, tenant(), user()))
    at = known.tenant("acme")
    assert at is not None
    before = at.rules
    assert before.grants("acme/gw", "c").allows(WRITE, b"a")
    assert before.may_be("acme/gw", "anything")
    known.learn(found(2, tenant(topic="b"), user()))
    assert at.rules is not before
    assert not at.rules.grants("acme/gw", "c").allows(WRITE, b"a")
    for of_user in (user(disabled=True), None):
        known.learn(found(3, tenant(), of_user))
        assert not at.rules.grants("acme/gw", "c").allows(WRITE, b"a")


def test_who_came_by_a_token_alone_is_known_when_it_is_made_and_disabled() -> None:
    known = memory()
    known.learn(found(5, tenant(), None))
    assert known.bearer("none", "gw", 5) is None
    one = known.bearer("acme", "gw", 5)
    assert one is not None
    assert (one.closed(), known.bearer("acme", "gw", 5), dict(known.stale)) == ("", one, {})
    at = known.tenant("acme")
    assert at is not None
    rules = at.rules
    assert rules.grants("acme/gw", "c").allows(WRITE, b"a") is False, "without the token it is nobody"
    assert rules.grants_of_token("acme/gw", "c", None).allows(WRITE, b"a")
    known.note(("acme", "gw"), 6)
    assert list(known.stale) == [("acme", "gw")]
    assert not known.learn(Found(LookUp("acme", "gw", with_tenant=False), 6, None, None))  # another change
    assert (one.closed(), dict(known.stale)) == ("", {})
    known.note(("acme", "gw"), 7)
    assert known.learn(found(7, tenant(), user(disabled=True)))
    assert one.closed() == "user_disabled"
    assert not at.rules.grants_of_token("acme/gw", "c", None).allows(WRITE, b"a")
    assert known.learn(found(8, tenant(), None))
    assert one.closed() == "user_deleted"


def test_who_was_made_while_it_came_by_a_token_is_read_once_more() -> None:
    known = memory()
    known.learn(found(5, tenant(), None))
    known.note(("acme", "gw"), 6)
    assert not known.stale
    held = known.bearer("acme", "gw", 5)
    assert list(known.stale) == [("acme", "gw")]
    del held
    gc.collect()
    assert known.user("acme", "gw") is None


def test_who_was_deleted_and_comes_again_by_a_token_alone_is_as_one_that_was_never_there() -> None:
    """It is known a while longer than it is there; else it would come in, might do nothing, and be put out again."""
    known = memory()
    known.learn(found(5, tenant(), user()))
    known.learn(found(6, tenant(), None))
    at, there = known.tenant("acme"), known.user("acme", "gw")
    assert at is not None
    assert there is not None
    assert there.closed() == "user_deleted"
    assert not at.rules.grants_of_token("acme/gw", "c", None).allows(WRITE, b"a")
    assert known.bearer("acme", "gw", 5) is there
    assert there.closed() == "user_deleted", "it was there as of a later revision"
    assert known.bearer("acme", "gw", 6) is there
    assert there.closed() == ""
    assert at.rules.grants_of_token("acme/gw", "c", None).allows(WRITE, b"a")
    assert not at.rules.grants("acme/gw", "c").allows(WRITE, b"a"), "without the token it is nobody"
    known.learn(found(7, tenant(), user(disabled=True)))
    assert known.bearer("acme", "gw", 6) is there
    assert there.closed() == "user_disabled"


def test_what_is_not_there_is_not_kept() -> None:
    known = memory()
    assert not known.learn(found(1, None, None))
    assert known.tenant("acme") is None
    known.learn(found(1, tenant(), None))
    assert known.user("acme", "gw") is None
    known.learn(found(2, None, None))
    assert known.tenant("acme") is None


def test_who_is_held_is_known_and_a_tenant_stays() -> None:
    known = memory(recent_max=1)
    known.learn(found(1, tenant(), user()))
    held = known.user("acme", "gw")
    known.learn(Found(LookUp("blue", "x"), 1, tenant(), user()))
    gc.collect()
    assert known.user("acme", "gw") is held
    del held
    gc.collect()
    assert known.user("acme", "gw") is None
    assert known.tenant("acme") is not None  # its sessions and wills do
    assert known.user("blue", "x") is not None


def test_after_a_directory_was_put_back_older_revisions_count() -> None:
    known = memory()
    known.learn(found(100, tenant(), user("new")))
    known.note_all(known.tenants())
    assert set(known.stale) == {("acme", None), ("acme", "gw")}
    assert known.learn(found(50, tenant(), user("old")))
    one = known.user("acme", "gw")
    assert one is not None
    assert one.view is not None
    assert one.view.user.hashed == "old"
    assert not known.stale
