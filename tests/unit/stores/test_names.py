"""Names of streams: no client can choose one that is another's, or that breaks a store's own rules."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.core.ports.queue_store import QueueName
from headrace.stores.names import TAG_MAX, HBaseNames, KafkaNames, RedisNames, escaped, shortened, unescaped

JOURNAL = "5f" * 16
texts = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=40)


def name(tenant: str = "t", client: str = "c", generation: int = 1, incarnation: int = 7) -> QueueName:
    return QueueName(tenant, client, JOURNAL, generation, incarnation)


def test_keys_of_a_client_share_a_hash_tag_and_look_as_documented() -> None:
    names = RedisNames("headrace")
    key = names.stream(name("default", "sensor/{1}.a", 3, 9))
    assert key == f"headrace:{{default/sensor_2F_7B1_7D_2Ea}}:{JOURNAL}:3:9".encode()
    assert names.context(name("default", "x")) == f"headrace:{{default/x}}:{JOURNAL}".encode()


@given(texts)
def test_an_escaped_text_has_plain_characters_alone_and_comes_back(text: str) -> None:
    assert re.fullmatch("[A-Za-z0-9_-]*", escaped(text))
    assert unescaped(escaped(text)) == text
    assert "__" not in escaped(text)


@given(st.tuples(texts, texts), st.tuples(texts, texts))
def test_other_clients_have_other_keys(one: tuple[str, str], other: tuple[str, str]) -> None:
    names = RedisNames("p")
    keys = [names.stream(name(*who)) for who in (one, other)]
    assert (keys[0] == keys[1]) == (one == other)


@given(texts, texts, st.integers(0, 1 << 62), st.integers(0, 1 << 62))
def test_a_scan_knows_whose_a_key_is(tenant: str, client: str, generation: int, incarnation: int) -> None:
    names = RedisNames("p")
    whose = name(tenant, client, generation, incarnation)
    found = names.name_of(names.stream(whose))
    assert found is not None
    assert names.stream(found) == names.stream(whose)
    if max(len(escaped(tenant)), len(escaped(client))) <= TAG_MAX:
        assert found == whose
    assert (found.generation, found.incarnation) == (generation, incarnation)
    beside = names.name_of(names.context(whose))
    assert beside is not None
    assert (beside.generation, beside.incarnation) == (0, 0)
    assert names.context(beside) == names.context(whose)


@pytest.mark.parametrize(
    "key",
    [
        b"p:x",
        b"q:{t/c}:5f:1:2",
        b"p:{t/c}:5f:1",
        b"p:{headrace}:primary",
        b"p:{t/c}:5f:1:2:3",
        b"p:{t}/c}:5f:1:2",
        b"p:{t/_FF}:5f:1:2",
    ],
)
def test_keys_of_others_are_nobodys(key: bytes) -> None:
    assert RedisNames("p").name_of(key) is None


def test_a_very_long_client_id_has_a_short_name_of_its_own_that_names_the_same_key() -> None:
    names = RedisNames("p")
    long = [name("t", "é" * 30_000 + end) for end in ("a", "b")]
    keys = [names.stream(one) for one in long]
    assert keys[0] != keys[1]
    assert len(keys[0]) < 2 * TAG_MAX
    found = names.name_of(keys[0])
    assert found is not None
    assert found.incarnation == 7
    assert names.stream(found) == keys[0]


def test_shortening_cuts_no_escape_in_two() -> None:
    text = escaped("é" * 100)
    for most in range(60, 66):
        kept = shortened(text, most)
        assert len(kept) <= most
        assert re.fullmatch("(_[0-9A-F]{2})*__[0-9a-f]{32}", kept)


def test_a_pattern_takes_the_prefix_literally() -> None:
    assert RedisNames("a*[b]?").pattern() == rb"a\*\[b\]\?:{*}:*"


@pytest.mark.parametrize("client", ["c", "sensor/{1}.é}", "a_b", "x" * 300, "UPPER-1"])
def test_a_topic_of_kafka_is_of_one_client(client: str) -> None:
    alone, shared = KafkaNames("p.q", tenants=False), KafkaNames("p.q", tenants=True)
    for names, tenant in ((alone, ""), (shared, "acme.x")):
        topic = names.topic(tenant, client)
        assert len(topic) <= 249
        assert re.fullmatch(r"[A-Za-z0-9._-]+", topic)
        found = names.client_of(topic)
        assert found is not None
        assert names.topic(*found) == topic
        if len(client) < 100:
            assert found == (tenant, client)


def test_topics_of_others_are_of_nobody() -> None:
    assert KafkaNames("p", tenants=False).topic("default", "a.b/c") == "p.a_2Eb_2Fc"
    assert KafkaNames("p", tenants=True).topic("acme", "c") == "p.acme.c"
    for topic in ("p", "q.c", "p.", "p.a.b", "p.a_2fb", "p._E9"):
        assert KafkaNames("p", tenants=False).client_of(topic) is None, topic
    assert KafkaNames("p", tenants=True).client_of("p.c") is None


@pytest.mark.parametrize("client", ["c", "sensor/{1}.é}", "a_b", "x" * 300, "UPPER-1"])
def test_rows_of_hbase_are_of_one_stream(client: str) -> None:
    one = name("acme.x", client)
    start = HBaseNames.stream(one)
    assert start.startswith(HBaseNames.client("acme.x", client).encode())
    found = HBaseNames.name_of(start + b"%014x" % 77)
    assert found is not None
    assert found[0] == start
    assert HBaseNames.stream(found[1]) == start
    if len(client) < 100:
        assert found[1] == one


def test_rows_of_others_are_of_nobody() -> None:
    start = HBaseNames.stream(name("acme", "c"))
    for row in (b"", b"~", start, start + b"1", start + b"%013xg" % 1, b"x" + start + b"%014x" % 1):
        assert HBaseNames.name_of(row) is None, row


def test_clients_are_spread_over_all_regions() -> None:
    salts = {HBaseNames.client("default", f"meter-{number}")[:2] for number in range(5000)}
    assert salts == {f"{salt:02x}" for salt in range(256)}
