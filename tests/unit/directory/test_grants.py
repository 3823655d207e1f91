"""What access control asks about one client, in the words of rules."""

from __future__ import annotations

from headrace.directory.entries import Rule
from headrace.directory.grants import NOTHING, ClientGrants
from headrace.directory.policy import Permissions, Policy
from headrace.services.acl import READ, WRITE


def of(*rules: tuple[str, tuple[str, ...], str]) -> ClientGrants:
    policy = Policy(Rule("acme", number, *rule) for number, rule in enumerate(rules))
    return ClientGrants(Permissions(policy.trees(None, (), "c1"), "gw", "c1"))


def test_each_action_is_asked_by_its_own_name() -> None:
    found = of(
        ("allow", ("publish",), "up/%u"),
        ("allow", ("subscribe",), "down/%c/#"),
        ("allow", ("retain",), "%t/r"),
    )
    asked = [
        (found.allows(WRITE, topic), found.allows(READ, topic), found.may_retain(topic))
        for topic in (b"up/gw", b"down/c1/x", b"acme/r", b"up/c1")
    ]
    assert asked == [(True, False, False), (False, True, False), (False, False, True), (False, False, False)]
    assert found.allows_filter("down/c1/+")
    assert not found.allows_filter("up/gw")
    assert not found.allows_filter("$share/g/down/#")


def test_what_one_rule_denies_no_other_allows() -> None:
    found = of(("allow", ("publish", "subscribe"), "#"), ("deny", ("subscribe",), "secret/ä"))
    assert not found.allows(READ, "secret/ä".encode())
    assert found.allows(WRITE, "secret/ä".encode())


def test_a_tenant_that_may_publish_nothing_may_receive() -> None:
    policy = Policy([Rule("acme", 1, "allow", ("publish", "subscribe"), "#")])
    found = ClientGrants(Permissions(policy.trees(None, (), "c1"), "gw", "c1"), publishes=False)
    assert (found.allows(WRITE, b"a"), found.allows(READ, b"a")) == (False, True)


def test_nothing_is_nothing() -> None:
    assert not any((NOTHING.allows(WRITE, b"a"), NOTHING.allows(READ, b"a"), NOTHING.may_retain(b"a")))
    assert not NOTHING.allows_filter("#")
