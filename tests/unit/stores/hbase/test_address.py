"""Addresses of an HBase, and what is wrong with others."""

from __future__ import annotations

import pytest

from headrace.stores.hbase.address import REGIONS, parse


def test_an_address_says_where_and_in_which_table() -> None:
    address = parse("hbase://one:9090,[::1]:9091/plant:q?regions=128&ttl_s=86400&durability=sync")
    assert address.places == (("one", 9090), ("::1", 9091))
    assert (address.table, address.regions, address.ttl_s) == ("plant:q.queues", 128, 86_400)
    assert not address.syncs
    assert address.url == "hbase://one:9090,[::1]:9091/plant:q"
    assert address.name == "hbase plant:q ::1:9091,one:9090"


def test_the_shortest_one_is_synced_and_nothing_goes_by_its_age() -> None:
    address = parse("hbase://localhost:9090/p")
    assert (address.table, address.regions, address.ttl_s, address.syncs) == ("p.queues", REGIONS, 0, True)


def test_a_store_keeps_its_name_wherever_it_is() -> None:
    assert parse("hbase://a:1/p?name=mine").name == parse("hbase://b:2/q?name=mine").name == "mine"


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("redis://host:1/p", "hbase://HOST:PORT/PREFIX"),
        ("hbase://host/p", "'host' is not HOST:PORT"),
        ("hbase://host:99999/p", "is not HOST:PORT"),
        ("hbase://host:9090", "the prefix ''"),
        ("hbase://host:9090/a/b", "the prefix 'a/b'"),
        ("hbase://host:9090/.a", "the prefix '.a'"),
        ("hbase://host:9090/a:b:c", "the prefix 'a:b:c'"),
        ("hbase://host:9090/" + "x" * 65, "1 to 64"),
        ("hbase://me:pw@host:9090/p", "no user"),
        ("hbase://host:9090/p?nope=1", "nope is not one of"),
        ("hbase://host:9090/p?regions=257", "option regions"),
        ("hbase://host:9090/p?regions=2&regions=2", "more than one"),
        ("hbase://host:9090/p?ttl_s=0", "option ttl_s"),
        ("hbase://host:9090/p?durability=none", "option durability"),
    ],
)
def test_a_mistake_is_named(url: str, words: str) -> None:
    with pytest.raises(ValueError) as raised:
        parse(url)
    assert words in str(raised.value)
    assert "pw" not in str(raised.value)
