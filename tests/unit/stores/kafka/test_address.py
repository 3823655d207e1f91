"""Addresses of a Kafka, and what is wrong with others."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace.stores.kafka.address import TOPICS_MAX, parse


def test_an_address_says_where_and_under_which_prefix() -> None:
    address = parse("kafka://one:9092,[::1]:9093/plant.queues?replication=3&topics=20")
    assert address.bootstrap == "one:9092,[::1]:9093"
    assert (address.prefix, address.replication, address.topics_max) == ("plant.queues", 3, 20)
    assert address.url == "kafka://one:9092,[::1]:9093/plant.queues"
    assert address.name == "kafka plant.queues [::1]:9093,one:9092"


def test_the_shortest_one_leaves_the_rest_to_kafka() -> None:
    address = parse("kafka://localhost:9092/p")
    assert (address.replication, address.topics_max, address.properties) == (-1, TOPICS_MAX, ())


def test_a_store_keeps_its_name_wherever_it_is() -> None:
    assert (
        parse("kafka://there:9092/p?name=mine").name == parse("kafka://here:9092/q?name=mine").name == "mine"
    )


def test_whoever_signs_in_stands_in_a_file(tmp_path: Path) -> None:
    (tmp_path / "p").write_text("# who\nsasl.username = me\n\nsasl.password=a=b\n", encoding="utf-8")
    found = parse(f"kafka://host:9092/p?properties_file={tmp_path}/p").properties
    assert found == (("sasl.username", "me"), ("sasl.password", "a=b"))


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("redis://host:1/p", "kafka://HOST:PORT/PREFIX"),
        ("kafka://host/p", "'host' is not HOST:PORT"),
        ("kafka://host:99999/p", "is not HOST:PORT"),
        ("kafka://host:9092", "the prefix ''"),
        ("kafka://host:9092/a/b", "the prefix 'a/b'"),
        ("kafka://host:9092/" + "x" * 65, "1 to 64"),
        ("kafka://me:pw@host:9092/p", "properties_file"),
        ("kafka://host:9092/p?nope=1", "nope is not one of"),
        ("kafka://host:9092/p?topics=0", "option topics"),
        ("kafka://host:9092/p?topics=1&topics=2", "more than one"),
        ("kafka://host:9092/p?properties_file=/nowhere", "cannot be read"),
    ],
)
def test_what_is_wrong_is_said(url: str, words: str) -> None:
    with pytest.raises(ValueError, match=r".") as caught:
        parse(url)
    assert words in str(caught.value)
    assert "pw" not in str(caught.value)


@pytest.mark.parametrize(
    "line",
    [
        *("acks=0", "bootstrap.servers=elsewhere:1", "=x", "nonsense"),
        *("delivery.report.only.error=true", "enable.partition.eof=true"),
    ],
)
def test_properties_that_a_promise_rests_on_are_the_brokers_own(tmp_path: Path, line: str) -> None:
    (tmp_path / "p").write_text(line, encoding="utf-8")
    with pytest.raises(ValueError, match="properties_file"):
        parse(f"kafka://host:9092/p?properties_file={tmp_path}/p")
