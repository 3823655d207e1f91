"""Where the backlog of a session lies."""

from __future__ import annotations

import pytest

from headrace.stores.placing import APPLICATION, DEVICE, JOURNAL, Placing, Rule, mistake_in

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
    assert set(found) == {"device", "rules[0].store", "rules[1]", "rules[2].session_type"}


@pytest.mark.parametrize(
    "store",
    ["kafka", "memory", "kafka://h:9092", "hbase://h", "redis://", "redis://h?prefx=a", "http://h", ""],
)
def test_what_is_no_store_is_said(store: str) -> None:
    assert mistake_in(store)


def test_a_password_is_not_repeated() -> None:
    assert "s3cret" not in mistake_in("redis://u:s3cret@h:port")
    assert "s3cret" not in mistake_in("reddis://u:s3cret@h")
