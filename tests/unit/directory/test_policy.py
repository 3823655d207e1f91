"""What a client may do by the rules of its tenant, its groups, its user and itself."""

from __future__ import annotations

from headrace.directory.entries import ACTIONS, Rule
from headrace.directory.policy import PUBLISH, RETAIN, SUBSCRIBE, Permissions, Policy


def rule(effect: str, actions: str, topic_filter: str, kind: str = "tenant", subject: str = "") -> Rule:
    wanted = ACTIONS if actions == "all" else tuple(actions.split(","))
    return Rule("acme", 1, effect, wanted, topic_filter, kind, subject)


def allowed(
    rules: list[Rule], user: str | None = "gw", groups: tuple[str, ...] = (), client: str = "c1"
) -> Permissions:
    return Permissions(Policy(rules).trees(user, groups, client), user, client)


def test_what_no_rule_allows_is_denied() -> None:
    nothing = allowed([])
    assert not nothing.allows(PUBLISH, "a")
    assert not nothing.allows_filter("#")


def test_each_action_is_allowed_by_itself() -> None:
    found = allowed(
        [rule("allow", "publish", "a/#"), rule("allow", "subscribe", "b"), rule("allow", "retain", "a/r")]
    )
    assert found.allows(PUBLISH, "a/x")
    assert not found.allows(RETAIN, "a/x")
    assert found.allows(RETAIN, "a/r")
    assert not found.allows(SUBSCRIBE, "a/x")
    assert found.allows_filter("b")
    assert found.allows_filter("+")  # some of it
    assert not found.allows_filter("a/#")


def test_deny_comes_first_whoever_it_is_about() -> None:
    for kind, subject in (("tenant", ""), ("group", "g"), ("user", "gw"), ("client", "c1")):
        found = allowed(
            [rule("allow", "all", "#"), rule("deny", "publish", "a/b", kind, subject)], groups=("g",)
        )
        assert not found.allows(PUBLISH, "a/b"), kind
        assert found.allows(SUBSCRIBE, "a/b")
        assert found.allows(PUBLISH, "a/c")


def test_rules_are_about_whom_they_name() -> None:
    rules = [
        rule("allow", "publish", "g", "group", "g"),
        rule("allow", "publish", "u", "user", "gw"),
        rule("allow", "publish", "c", "client", "c1"),
    ]
    everything = allowed(rules, groups=("g",))
    assert [everything.allows(PUBLISH, topic) for topic in "guc"] == [True, True, True]
    stranger = allowed(rules, user="GW", groups=("G",), client="C1")
    assert [stranger.allows(PUBLISH, topic) for topic in "guc"] == [False, False, False]
    nobody = allowed(rules, user=None)
    assert [nobody.allows(PUBLISH, topic) for topic in "guc"] == [False, False, True]


def test_marks_are_filled_in() -> None:
    found = allowed([rule("allow", "publish", "%t/%u/%c/#")])
    assert found.allows(PUBLISH, "acme/gw/c1/x")
    assert not found.allows(PUBLISH, "acme/other/c1/x")
    assert not found.allows(PUBLISH, "other/gw/c1/x")


def test_a_name_that_holds_wildcards_or_marks_fills_in_nothing_more() -> None:
    for odd in ("+", "#", "a/b", "", "%c"):
        found = allowed([rule("allow", "all", "up/%u/#")], user=odd, client="victim")
        assert not found.allows(PUBLISH, "up/victim/x"), odd
        assert not found.allows_filter("up/victim/#"), odd


def test_a_shared_subscription_needs_all_of_its_filter() -> None:
    rules = [rule("allow", "subscribe", "a/#"), rule("deny", "subscribe", "a/secret")]
    assert allowed(rules).allows_filter("a/#")
    assert not allowed(rules).allows_filter("$share/g/a/#")
    assert allowed(rules[:1]).allows_filter("$share/g/a/#")
    assert not allowed(rules[:1]).allows_filter("$share/g/#")


def test_wildcards_of_rules_do_not_reach_topics_of_the_broker() -> None:
    found = allowed([rule("allow", "all", "#")])
    assert not found.allows(SUBSCRIBE, "$SYS/broker/uptime")
    assert not found.allows_filter("$SYS/#")
