"""Where the backlog of a session lies."""

from __future__ import annotations

import pytest

from headrace.stores.placing import APPLICATION, DEVICE, JOURNAL, Placing, Rule, digest_of, mistake_in

MEMORY = "redis://memory"


def test_without_rules_everything_is_in_the_journal() -> None:
    placing = Placing()
    assert placing.store_of("t", DEVICE, "c") == placing.store_of("t", APPLICATION, "c") == JOURNAL
    assert placing.stores() == []
    assert list(placing.mistakes()) == []


def test_the_first_rule_that_fits_decides() -> None:
    rules = (
        Rule("redis://one", tenant="acme", client_ids="meter-*"),
        Rule(JOURNAL, tenant="acme"),
        Rule(MEMORY, session_type=APPLICATION),
    )
    placing = Placing("redis://two", "redis://three", rules)
    assert placing.store_of("acme", DEVICE, "meter-1") == "redis://one"
    assert placing.store_of("acme", APPLICATION, "meters") == JOURNAL
    assert placing.store_of("other", APPLICATION, "meter-1") == MEMORY
    assert placing.store_of("other", DEVICE, "meter-1") == "redis://two"
    assert placing.stores() == ["redis://two", "redis://three", "redis://one", MEMORY]


def test_patterns_know_upper_and_lower_case() -> None:
    assert Rule(MEMORY, client_ids="a[0-9]").fits("t", DEVICE, "a5")
    assert not Rule(MEMORY, client_ids="a[0-9]").fits("t", DEVICE, "A5")


def test_mistakes_name_their_key() -> None:
    rules = (Rule("redis:/one", client_ids="x"), Rule(MEMORY), Rule(MEMORY, session_type="DEVICE"))
    found = dict(Placing("disk", JOURNAL, rules).mistakes())
    assert set(found) == {"device", "rules[0].store", "rules[1]", "rules[2].type"}


@pytest.mark.parametrize(
    "store",
    [
        "kafka",
        "memory",
        "kafka://h:9092",
        "hbase://h",
        "hbase://h:1",
        "redis://",
        "redis://h?prefx=a",
        "http://h",
        "",
    ],
)
def test_what_is_no_store_is_said(store: str) -> None:
    assert mistake_in(store)


def test_a_password_is_not_repeated() -> None:
    assert "s3cret" not in mistake_in("redis://u:s3cret@h:port")
    assert "s3cret" not in mistake_in("reddis://u:s3cret@h")


def test_types_that_may_have_a_store_are_named() -> None:
    assert Placing().types() == []
    assert Placing("redis://a").types() == [DEVICE]
    assert Placing(application="redis://a").types() == [APPLICATION]
    assert set(Placing(rules=(Rule("redis://a", client_ids="x"),)).types()) == {DEVICE, APPLICATION}
    assert Placing(
        rules=(Rule("redis://a", session_type=APPLICATION), Rule(JOURNAL, tenant="t"))
    ).types() == [APPLICATION]


def test_two_addresses_of_one_name_are_a_mistake() -> None:
    """Else the journal could not tell which of them has what."""
    assert list(Placing("redis://a", "redis://a").mistakes()) == []
    assert list(Placing("redis://a", "redis://a?prefix=b").mistakes()) == []
    assert list(Placing("redis://a", "redis://b").mistakes()) == []
    assert [key for key, _ in Placing("redis://a", "redis://user:pass@a").mistakes()] == ["application"]
    assert [key for key, _ in Placing("redis://a?name=x", "redis://b?name=x").mistakes()] == ["application"]


def test_a_digest_is_a_number_of_the_journal_that_stays() -> None:
    assert digest_of("a:6379/0?prefix=headrace") == digest_of("a:6379/0?prefix=headrace")
    assert digest_of("a") != digest_of("b")
    assert all(0 < digest_of(str(number)) < 1 << 62 for number in range(1000))
