"""A message that is posted is what a client's PUBLISH is: checked, durable before it is over, routed, replayed."""

from __future__ import annotations

import pytest

from harness import Harness, state
from headrace.core.inbound.posting import Post
from headrace.core.ports.identity import DEFAULT_TENANT
from headrace.core.ports.settings import BrokerSettings
from headrace.core.records.message import NO_EXPIRY
from headrace.errors import NotTaken
from headrace.mqtt import reason_codes as rc
from headrace.mqtt.packets import Publish
from headrace.mqtt.properties import Properties
from shard_wires import WiredShards


def packet(
    topic: bytes = b"a/b", qos: int = 1, retain: bool = False, payload: bytes = b"x", properties: bytes = b""
) -> Publish:
    return Publish(topic, qos, retain, False, 0, properties, NO_EXPIRY, payload)


def post(harness: Harness, **parts: object) -> Post:
    return harness.broker.posting().post(DEFAULT_TENANT, packet(**parts))  # type: ignore[arg-type]


def sequenced(sequence: int) -> bytes:
    properties = Properties()
    properties.user_properties = [("producer-id", "p"), ("producer-sequence", str(sequence))]
    return properties.encode()


@pytest.mark.parametrize("qos", [1, 2])
def test_it_is_over_when_it_is_durable_and_reaches_who_is_there_and_who_is_away(qos: int) -> None:
    harness = Harness()
    here, away = harness.client("here"), harness.client("away")
    for client in (here, away):
        client.subscribe("a/+", 1)
    away.lose()
    posted = post(harness, qos=qos)
    assert (posted.over, here.publishes()) == (False, [])
    harness.sync()
    assert (posted.over, posted.is_stored, posted.matching, posted.elsewhere) == (True, True, 2, False)
    assert [payload for _, payload, _, _ in here.publishes()] == [b"x"]
    harness.crash()
    assert [payload for _, payload, _, _ in harness.client("away").publishes()] == [b"x"]


def test_at_qos_0_it_goes_to_who_is_connected_at_once_and_into_no_journal() -> None:
    harness = Harness()
    here, away = harness.client("here"), harness.client("away")
    for client in (here, away):
        client.subscribe("a/+", 1)
    away.lose()
    before = harness.broker.commit.next_offset
    posted = post(harness, qos=0)
    assert (posted.over, posted.is_stored, posted.matching) == (True, False, 2)
    assert [payload for _, payload, _, _ in here.publishes()] == [b"x"]
    assert harness.broker.commit.next_offset == before


def test_shared_subscriptions_get_it_and_count() -> None:
    harness = Harness()
    members = [harness.client(name) for name in ("m1", "m2")]
    for member in members:
        member.subscribe("$share/g/a/b")
    for qos in (0, 1):
        posted = post(harness, qos=qos)
        harness.sync()
        assert posted.matching == 1
        assert len([one for member in members for one in member.publishes()]) == 1


@pytest.mark.parametrize("qos", [0, 1])
def test_what_is_retained_is_kept_also_over_a_crash_and_an_empty_one_deletes_it(qos: int) -> None:
    harness = Harness()
    post(harness, qos=qos, retain=True)
    harness.sync()
    for _ in range(2):
        found = harness.broker.fold.tenant(DEFAULT_TENANT).retained.get(b"a/b")
        assert found is not None
        assert (found.payload, found.client_id) == (b"x", "")
        harness.crash()
    assert post(harness, qos=qos, retain=True, payload=b"").over is False
    harness.sync()
    for _ in range(2):
        assert len(harness.broker.fold.tenant(DEFAULT_TENANT).retained) == 0
        harness.crash()


def test_what_its_producer_posts_again_is_over_and_not_stored_again_also_after_a_crash() -> None:
    harness = Harness()
    first = post(harness, properties=sequenced(7))
    meanwhile = post(harness, properties=sequenced(7))
    harness.sync()
    assert (first.is_repeated, meanwhile.is_repeated, meanwhile.over) == (False, True, True)
    harness.crash()
    before = harness.broker.commit.next_offset
    again = post(harness, properties=sequenced(7))
    harness.sync()
    assert (again.is_stored, again.is_repeated, again.over) == (True, True, True)
    assert harness.broker.commit.next_offset == before
    assert not post(harness, properties=sequenced(8)).is_repeated


def test_a_producer_whose_sequence_is_none_is_refused() -> None:
    harness = Harness()
    properties = Properties()
    properties.user_properties = [("producer-id", "p"), ("producer-sequence", "one")]
    with pytest.raises(NotTaken) as found:
        post(harness, properties=properties.encode())
    assert found.value.reason_code == rc.IMPLEMENTATION_SPECIFIC_ERROR


@pytest.mark.parametrize(
    ("parts", "code"),
    [
        ({"topic": b"$SYS/broker/uptime"}, rc.NOT_AUTHORIZED),
        ({"topic": b"$events/dropped/limit/c"}, rc.NOT_AUTHORIZED),
        ({"topic": b"a/b/c/d", "qos": 0}, rc.TOPIC_NAME_INVALID),
        ({"properties": b"\x01\x01", "payload": b"\xff"}, rc.PAYLOAD_FORMAT_INVALID),
        ({"topic": b"second", "retain": True}, rc.QUOTA_EXCEEDED),
        ({"topic": b"second", "retain": True, "qos": 0}, rc.QUOTA_EXCEEDED),
    ],
)
def test_what_no_client_may_publish_is_refused_with_its_code_and_leaves_nothing(
    parts: dict[str, object], code: int
) -> None:
    settings = BrokerSettings()
    settings.payload_format_check = True
    settings.retained_messages_max, settings.topic_levels_max = 1, 3
    harness = Harness(settings)
    post(harness, topic=b"first", retain=True)
    harness.sync()
    before = state(harness.broker.fold), harness.broker.commit.next_offset
    with pytest.raises(NotTaken) as found:
        post(harness, **parts)
    assert found.value.reason_code == code
    harness.sync()
    assert (state(harness.broker.fold), harness.broker.commit.next_offset) == before


def test_a_full_disk_takes_nothing_that_is_to_be_stored_and_lets_the_rest_through() -> None:
    harness = Harness()
    here = harness.client("here")
    here.subscribe("a/b", 0)
    harness.broker.set_storage_full(True)
    for parts in ({"qos": 1}, {"qos": 0, "retain": True}):
        with pytest.raises(NotTaken, match="disk is full") as found:
            post(harness, **parts)
        assert found.value.reason_code == rc.QUOTA_EXCEEDED
    assert post(harness, qos=0).over
    assert len(here.publishes()) == 1
    harness.broker.set_storage_full(False)
    assert post(harness).is_stored


def test_while_too_much_waits_for_the_disk_it_is_to_come_later() -> None:
    settings = BrokerSettings()
    settings.commit_bytes_max = 1000
    harness = Harness(settings)
    post(harness, payload=bytes(2000))
    with pytest.raises(NotTaken, match="too much waits") as found:
        post(harness)
    assert found.value.reason_code == rc.SERVER_BUSY
    harness.sync()
    assert post(harness).is_stored


def test_it_has_the_expiry_that_it_says_or_the_usual_one() -> None:
    settings = BrokerSettings()
    settings.default_message_expiry_s = 60
    harness = Harness(settings)
    post(harness, retain=True)
    harness.broker.posting().post(DEFAULT_TENANT, Publish(b"c", 1, True, False, 0, b"", 5, b"x"))
    harness.sync()
    retained = harness.broker.fold.tenant(DEFAULT_TENANT).retained
    assert [retained.get(topic).message_expiry_s for topic in (b"a/b", b"c")] == [60, 5]  # type: ignore[union-attr]


@pytest.mark.parametrize("qos", [0, 1])
def test_other_shards_get_it_and_are_said_to_want_it(qos: int) -> None:
    shards = WiredShards(2)
    reader = shards[1].client("reader")
    shards.carry()
    reader.subscribe("a/b", 1)
    shards.carry()
    posted = post(shards[0], qos=qos)
    shards.carry()
    assert (posted.over, posted.matching, posted.elsewhere) == (True, 0, True)
    assert [payload for _, payload, _, _ in reader.publishes()] == [b"x"]
    assert not post(shards[0], topic=b"nobody", qos=0).elsewhere


def test_one_at_qos_0_for_many_goes_on_without_anybody_who_reads() -> None:
    """Deliveries to more than one pass has are made in the next ones, which nobody else may ask for."""
    settings = BrokerSettings()
    settings.deliveries_at_once = 10
    harness = Harness(settings)
    readers = [harness.client(f"r{number}") for number in range(30)]
    for reader in readers:
        reader.subscribe("a/b", 0)

    def end_ticks_that_are_asked_for() -> None:
        while harness.worker._tick_requested:
            harness.worker.end_tick()

    end_ticks_that_are_asked_for()
    post(harness, qos=0)
    end_ticks_that_are_asked_for()
    assert [len(reader.publishes()) for reader in readers] == [1] * 30


@pytest.mark.parametrize(
    ("qos", "retain", "payload", "code"),
    [
        (2, False, b"x", 0x9B),
        (1, True, b"x", 0x9A),
        (0, True, b"x", 0x9A),
        (0, True, b"", 0),
        (1, False, b"x", 0),
    ],
)
def test_what_clients_of_its_tenant_cannot_have_is_refused_but_a_delete(
    qos: int, retain: bool, payload: bytes, code: int
) -> None:
    harness = Harness()
    limits = harness.broker.fold.tenant(DEFAULT_TENANT).limits
    limits.maximum_qos, limits.retain_available = 1, False
    if not code:
        post(harness, qos=qos, retain=retain, payload=payload)
        return
    with pytest.raises(NotTaken) as refused:
        post(harness, qos=qos, retain=retain, payload=payload)
    assert refused.value.reason_code == code
