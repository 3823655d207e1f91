"""Which subscription gets which message: wildcards, overlaps, options, changes."""

from __future__ import annotations

import contextlib
from collections.abc import Callable

import pytest

from broker_process import BrokerProcess
from e2e.raw import RawClient, SilenceError
from e2e.wire import (
    DISCONNECT,
    PUBLISH,
    SHARED_AVAILABLE,
    SUBSCRIBE,
    SUBSCRIPTION_ID,
    Packet,
    encode_properties,
    packet,
    text,
)

Clients = Callable[..., RawClient]
NO_LOCAL, RETAIN_AS_PUBLISHED = 4, 8


@pytest.mark.parametrize(
    ("topic_filter", "matching", "others"),
    [
        ("{}/a/b", ["{}/a/b"], ["{}/a", "{}/a/b/c", "{}/a/B", "/{}/a/b", "{}/a/b/"]),
        ("{}/+/b", ["{}/a/b", "{}//b", "{}/ü/b"], ["{}/b", "{}/a/a/b", "{}/a/b/"]),
        ("{}/a/#", ["{}/a", "{}/a/", "{}/a/b", "{}/a/b/c/d"], ["{}", "{}/b", "{}/ab"]),
        ("{}/+/+/#", ["{}/a/b", "{}/a/b/c", "{}//"], ["{}", "{}/a"]),
        ("+/{}", ["x/{}", "/{}"], ["{}", "x/y/{}", "$x/{}"]),
        ("/{}/+", ["/{}/", "/{}/x"], ["/{}", "{}/x"]),
        ("$x/{}/#", ["$x/{}", "$x/{}/a"], ["x/{}", "/$x/{}"]),
        ("{}/+", ["{}/", "{}/a b", "{}/$x"], ["{}", "{}/a/b"]),
    ],
)
def test_wildcards(
    broker: BrokerProcess,
    clients: Clients,
    request: pytest.FixtureRequest,
    topic_filter: str,
    matching: list[str],
    others: list[str],
) -> None:
    root = f"w{request.node.callspec.indices['topic_filter']}"
    publisher, subscriber = clients(broker), clients(broker)
    subscriber.subscribe(topic_filter.format(root), f"{root}-end", qos=1)
    for topic in [*others, *matching, f"{root}-end"]:
        publisher.deliver(topic.format(root), b"x")
    found = [subscriber.receive().topic for _ in range(len(matching) + 1)]
    assert found == [one.format(root) for one in [*matching, f"{root}-end"]]
    assert subscriber.ping() == []


def test_hash_alone_sees_everything_but_dollar(broker: BrokerProcess, clients: Clients) -> None:
    subscriber, publisher = clients(broker), clients(broker)
    subscriber.subscribe("#", qos=1)
    for topic in ("$hidden/x", "a", "/", "a/b/c"):
        publisher.deliver(topic, b"hash")
    found = [one for one in subscriber.ping() if one.payload == b"hash"]
    found += [subscriber.expect(PUBLISH) for _ in range(3 - len(found))]
    assert [one.topic for one in found if one.payload == b"hash"] == ["a", "/", "a/b/c"]


@pytest.mark.parametrize("version", [4, 5])
def test_overlapping_subscriptions(broker: BrokerProcess, clients: Clients, name: str, version: int) -> None:
    """One copy at the highest QoS granted, or one for each subscription [MQTT-3.3.5-1]: never too little."""
    client = clients(broker, "", version)
    client.subscribe((f"{name}/#", 0), (f"{name}/+", 2), (f"{name}/a", 1))
    client.deliver(f"{name}/a", b"x", 2)
    client.deliver(f"{name}/end", b"end", 2)
    found: list[Packet] = []
    while not found or found[-1].topic != f"{name}/end":
        found.append(client.receive())
    copies = [one.qos for one in found if one.topic == f"{name}/a"]
    assert copies == [2] or sorted(copies) == [0, 1, 2]


def test_subscription_identifiers(broker: BrokerProcess, clients: Clients, name: str) -> None:
    client = clients(broker, "", 5)
    client.subscribe(f"{name}/#", qos=1, properties={SUBSCRIPTION_ID: 1})
    client.subscribe(f"{name}/+", qos=1, properties={SUBSCRIPTION_ID: 268_435_455})
    client.deliver(f"{name}/a/b", b"deep")
    assert client.receive().properties[SUBSCRIPTION_ID] == [1]
    client.deliver(f"{name}/a", b"both")
    client.deliver(f"{name}/end/x", b"end")
    identifiers: list[int] = []
    while (found := client.receive()).payload != b"end":
        identifiers += found.properties[SUBSCRIPTION_ID]
    assert sorted(identifiers) == [1, 268_435_455]
    client.subscribe(f"{name}/+", qos=1)  # replaced: without an identifier now [MQTT-3.8.4-3]
    client.unsubscribe(f"{name}/#")
    client.deliver(f"{name}/a", b"none")
    assert SUBSCRIPTION_ID not in client.receive().properties


def test_subscription_identifier_zero_is_an_error(broker: BrokerProcess, clients: Clients, name: str) -> None:
    client = clients(broker, "", 5)
    body = b"\0\1" + encode_properties({SUBSCRIPTION_ID: 0}) + text(name) + b"\0"
    client.send(packet(SUBSCRIBE << 4 | 2, body))
    assert client.expect(DISCONNECT).reason in (0x81, 0x82)


def test_unsubscribe(broker: BrokerProcess, clients: Clients, name: str) -> None:
    client = clients(broker, "", 5)
    client.subscribe(f"{name}/a", f"{name}/b", qos=1)
    assert client.unsubscribe(f"{name}/a", f"{name}/unknown") == b"\x00\x11"
    client.deliver(f"{name}/a", b"no longer")
    client.deliver(f"{name}/b", b"still")
    assert client.receive().topic == f"{name}/b"
    assert client.ping() == []


def test_unsubscribe_is_about_the_very_filter(broker: BrokerProcess, clients: Clients, name: str) -> None:
    client = clients(broker, "", 4)
    client.subscribe(f"{name}/+", qos=1)
    client.unsubscribe(f"{name}/a")  # matches, but is another filter [MQTT-3.10.4-1]
    client.deliver(f"{name}/a", b"x")
    assert client.receive().payload == b"x"


def test_subscribing_again_replaces(broker: BrokerProcess, clients: Clients, name: str) -> None:
    client = clients(broker)
    client.subscribe(name, qos=2)
    client.subscribe(name, qos=0)
    client.deliver(name, b"x", 2)
    assert client.receive().qos == 0
    assert client.ping() == []


def test_many_filters_in_one_packet(broker: BrokerProcess, clients: Clients, name: str) -> None:
    client = clients(broker)
    client.subscribe(*[(f"{name}/{number}", number % 3) for number in range(500)])
    for number in (0, 250, 499):
        client.deliver(f"{name}/{number}", str(number), 2)
    assert sorted(int(client.receive().payload) for _ in range(3)) == [0, 250, 499]


@pytest.mark.parametrize("wrong", ["a/#/b", "a#", "#a", "a+/b", "+a", "a/b+", "a/##"])
@pytest.mark.parametrize("version", [4, 5])
def test_wrong_filters_are_refused(broker: BrokerProcess, clients: Clients, wrong: str, version: int) -> None:
    """A failure in SUBACK (0x80, 0x8F) or the end of the connection; never a subscription."""
    client = clients(broker, "", version)
    body = b"\0\1" + (b"\0" if version == 5 else b"") + text(wrong) + b"\1"
    client.send(packet(SUBSCRIBE << 4 | 2, body))
    for answer in [client.read()] if version == 5 else client.read_to_end(0.5):
        assert answer.kind in (9, DISCONNECT)
        assert all(code >= 0x80 for code in answer.codes)


@pytest.mark.parametrize("topic", ["a/#", "a/+/b", "+", "#", ""])
@pytest.mark.parametrize("version", [4, 5])
def test_publish_to_a_wrong_topic(broker: BrokerProcess, clients: Clients, topic: str, version: int) -> None:
    client = clients(broker, "", version)
    client.publish(topic, b"x", 1)
    last = client.read_to_end()  # [MQTT-3.3.2-2]
    assert [one.kind for one in last] == ([DISCONNECT] if version == 5 else [])


def test_no_local(broker: BrokerProcess, clients: Clients, name: str) -> None:
    client, other = clients(broker, "", 5), clients(broker, "", 5)
    client.subscribe((name, 1 | NO_LOCAL))
    client.deliver(name, b"own")
    other.deliver(name, b"other's")
    assert client.receive().payload == b"other's"
    assert client.ping() == []


def test_retain_as_published(broker: BrokerProcess, clients: Clients, name: str) -> None:
    plain, kept, publisher = clients(broker, "", 5), clients(broker, "", 5), clients(broker, "", 5)
    plain.subscribe((name, 1))
    kept.subscribe((name, 1 | RETAIN_AS_PUBLISHED))
    publisher.deliver(name, b"1", retain=True)
    publisher.deliver(name, b"2", retain=False)
    assert [plain.receive().retain for _ in range(2)] == [False, False]  # [MQTT-3.3.1-12]
    assert [kept.receive().retain for _ in range(2)] == [True, False]  # [MQTT-3.3.1-13]


def test_shared_subscription_splits(broker: BrokerProcess, clients: Clients, name: str) -> None:
    members = [clients(broker, "", 5) for _ in range(3)]
    if members[0].connack.properties.get(SHARED_AVAILABLE, 1) == 0:
        pytest.skip("the broker says that it has no shared subscriptions")
    for member in members:
        member.subscribe(f"$share/group/{name}", qos=1)
    publisher = clients(broker)
    for number in range(90):
        publisher.deliver(name, str(number))
    found: list[list[int]] = [[], [], []]
    while sum(map(len, found)) < 90:
        before = sum(map(len, found))
        for member, share in zip(members, found, strict=True):
            with contextlib.suppress(SilenceError):
                while True:
                    share.append(int(member.receive(0.2).payload))
        assert sum(map(len, found)) > before, "nothing comes any more"
    assert sorted(number for share in found for number in share) == list(range(90))
    assert all(share == sorted(share) for share in found)
    assert all(found), "somebody got nothing"


def test_longest_topic(broker: BrokerProcess, clients: Clients, name: str) -> None:
    topic = (name + "/" * 10 + "x" * 65_535)[:65_535]
    client = clients(broker)
    client.subscribe(topic, qos=1)
    client.deliver(topic, b"x")
    assert client.receive().topic == topic
