"""Retained messages: set, replace, delete, and who gets them when."""

from __future__ import annotations

import itertools
import random
import threading
from collections.abc import Callable

import psutil
import pytest

from broker_process import BrokerProcess
from e2e.background import Background
from e2e.raw import RawClient
from e2e.wire import CONTENT_TYPE, PUBACK, PUBLISH, SESSION_EXPIRY, USER_PROPERTY, Packet

Clients = Callable[..., RawClient]
RETAIN_AS_PUBLISHED, ONLY_IF_NEW, NEVER_SEND = 8, 16, 32


def retained(
    broker: BrokerProcess, clients: Clients, topic_filter: str, version: int = 4
) -> dict[str, bytes]:
    """What a new subscriber finds.  Its own marker, after the retained ones, says that this was all."""
    client = clients(broker, "", version)
    client.subscribe(topic_filter, f"marker/{topic_filter.replace('#', '').replace('+', '')}", qos=1)
    client.deliver(f"marker/{topic_filter.replace('#', '').replace('+', '')}", b"", 1)
    found = {}
    while not (packet := client.receive()).topic.startswith("marker/"):
        assert packet.retain, f"{packet}: RETAIN must be set [MQTT-3.3.1-8]"
        assert packet.topic not in found
        found[packet.topic] = packet.payload
    client.close()
    return found


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_set_replace_delete(broker: BrokerProcess, clients: Clients, name: str, qos: int) -> None:
    publisher = clients(broker)
    assert retained(broker, clients, f"{name}/#") == {}
    publisher.deliver(f"{name}/a", b"first", qos, retain=True)
    publisher.deliver(f"{name}/b", b"other", qos, retain=True)
    publisher.deliver(f"{name}/a", b"second", qos, retain=True)
    assert retained(broker, clients, f"{name}/#") == {f"{name}/a": b"second", f"{name}/b": b"other"}
    publisher.deliver(f"{name}/a", b"", qos, retain=True)
    assert retained(broker, clients, f"{name}/#") == {f"{name}/b": b"other"}


def test_empty_payload_is_delivered_to_those_who_are_there(
    broker: BrokerProcess, clients: Clients, name: str
) -> None:
    client = clients(broker)
    client.subscribe(name, qos=1)
    client.deliver(name, b"x", retain=True)
    client.deliver(name, b"", retain=True)
    assert [(one.payload, one.retain) for one in (client.receive(), client.receive())] == [
        (b"x", False),
        (b"", False),
    ]
    assert retained(broker, clients, name) == {}


def test_not_retained_leaves_the_retained_alone(broker: BrokerProcess, clients: Clients, name: str) -> None:
    client = clients(broker)
    client.deliver(name, b"kept", retain=True)
    client.deliver(name, b"passing", retain=False)
    client.deliver(name, b"", retain=False)
    assert retained(broker, clients, name) == {name: b"kept"}


def test_wildcards_find_retained(broker: BrokerProcess, clients: Clients, name: str) -> None:
    client = clients(broker)
    for topic in ("a", "a/b", "a/b/c", "", "$x/b"):
        client.deliver(f"{name}/{topic}", b"x", retain=True)
    assert set(retained(broker, clients, f"{name}/+")) == {f"{name}/a", f"{name}/"}
    assert set(retained(broker, clients, f"{name}/a/#")) == {f"{name}/a", f"{name}/a/b", f"{name}/a/b/c"}
    assert set(retained(broker, clients, f"{name}/+/b")) == {f"{name}/a/b", f"{name}/$x/b"}


@pytest.mark.parametrize(("stored", "asked"), [(0, 2), (1, 0), (1, 1), (2, 1), (2, 2)])
def test_retained_comes_at_the_lower_qos(
    broker: BrokerProcess, clients: Clients, name: str, stored: int, asked: int
) -> None:
    client = clients(broker)
    client.deliver(name, b"x", stored, retain=True)
    client.subscribe(name, qos=asked)
    found = client.receive()
    assert (found.qos, found.retain, found.dup) == (min(stored, asked), True, False)


def test_every_subscribe_gets_it_again(broker: BrokerProcess, clients: Clients, name: str) -> None:
    client = clients(broker)
    client.deliver(name, b"x", retain=True)
    for _ in range(3):
        client.subscribe(name, qos=1)
        assert client.receive().retain


def test_retain_handling(broker: BrokerProcess, clients: Clients, name: str) -> None:
    client = clients(broker, "", 5)
    client.deliver(name, b"x", retain=True)
    client.subscribe((name, 1 | NEVER_SEND))
    client.deliver(name, b"live 1")
    assert client.receive().payload == b"live 1"  # [MQTT-3.3.1-11]
    client.subscribe((name, 1 | ONLY_IF_NEW))  # not new [MQTT-3.3.1-10]
    client.deliver(name, b"live 2")
    assert client.receive().payload == b"live 2"
    client.unsubscribe(name)
    client.subscribe((name, 1 | ONLY_IF_NEW))
    assert client.receive().payload == b"x"
    client.subscribe((name, 1))
    assert client.receive().payload == b"x"  # [MQTT-3.3.1-9]


def test_retain_handling_only_if_new_knows_a_resumed_session(
    broker: BrokerProcess, clients: Clients, name: str
) -> None:
    keep = {"clean": False, "properties": {SESSION_EXPIRY: 60}}
    client = clients(broker, name, 5, **keep)
    client.deliver(name, b"x", retain=True)
    client.subscribe((name, 1 | ONLY_IF_NEW))
    client.receive()
    client.disconnect()
    client = clients(broker, name, 5, **keep)
    client.subscribe((name, 1 | ONLY_IF_NEW))
    client.deliver(name, b"live")
    assert client.receive().payload == b"live"


def test_retain_as_published_for_stored_ones(broker: BrokerProcess, clients: Clients, name: str) -> None:
    client = clients(broker, "", 5)
    client.deliver(name, b"x", retain=True)
    client.subscribe((name, 1))
    assert client.receive().retain is True
    client.subscribe((name, 1 | RETAIN_AS_PUBLISHED))
    assert client.receive().retain is True


def test_retained_keeps_its_properties(broker: BrokerProcess, clients: Clients, name: str) -> None:
    sent = {CONTENT_TYPE: "text/plain", USER_PROPERTY: [("unit", "°C")]}
    clients(broker, "", 5).deliver(name, b"21.5", retain=True, properties=sent)
    client = clients(broker, "", 5)
    client.subscribe(name, qos=1)
    assert client.receive().properties == sent


def test_retained_does_not_come_to_a_session_that_resumes(
    broker: BrokerProcess, clients: Clients, name: str
) -> None:
    """Retained messages answer SUBSCRIBE, not CONNECT."""
    client = clients(broker, name, 4, clean=False)
    client.deliver(name, b"x", retain=True)
    client.subscribe(name, qos=1)
    client.receive()
    client.disconnect()
    client = clients(broker, name, 4, clean=False)
    client.deliver(name, b"live")
    assert client.receive().payload == b"live"


def retain_many(broker: BrokerProcess, clients: Clients, name: str, count: int, size: int = 0) -> None:
    publisher = clients(broker)
    for start in range(0, count, 100):
        for number in range(start, start + 100):
            publisher.publish(f"{name}/{number}", b"%d:" % number + b"x" * size, 1, retain=True)
        for _ in range(100):
            publisher.expect(PUBACK)


def number_of(packet: Packet) -> int:
    return int(packet.payload.partition(b":")[0])


@pytest.mark.parametrize("qos", [0, 1])
def test_thousands_of_retained_come_all(broker: BrokerProcess, clients: Clients, name: str, qos: int) -> None:
    retain_many(broker, clients, name, 2_000)
    client = clients(broker)
    client.subscribe(f"{name}/+", qos=qos)
    found = [client.receive() for _ in range(2_000)]
    assert sorted(number_of(one) for one in found) == list(range(2_000))
    assert all(one.retain for one in found)


@pytest.mark.parametrize("cut", ["disconnect", "reset"])
def test_retained_not_sent_yet_waits_for_a_session_that_leaves(
    broker: BrokerProcess, clients: Clients, name: str, cut: str
) -> None:
    """SUBACK is a promise: what the subscription found at QoS 1 is pending for the session (3.1.2.4)."""
    retain_many(broker, clients, name, 2_000)
    client = clients(broker, name, 4, clean=False)
    client.subscribe(f"{name}/+", qos=1)
    found = {number_of(client.receive()) for _ in range(10)}
    if cut == "reset":
        client.abort()
    else:
        found |= {number_of(one) for one in client.disconnect() if one.kind == PUBLISH}
    client = clients(broker, name, 4, clean=False)
    while len(found) < 2_000:
        found.add(number_of(client.receive()))
    assert found == set(range(2_000))


@pytest.mark.slow
@pytest.mark.parametrize("clean", [True, False], ids=["transient", "persistent"])
def test_the_newest_value_comes_last(broker: BrokerProcess, clients: Clients, name: str, clean: bool) -> None:
    """P6: values change while 2 000 retained ones are read; nobody ends with an older value than the broker's."""
    retain_many(broker, clients, name, 2_000)
    publisher = clients(broker)

    def update(enough: threading.Event) -> None:
        """Number 2000 + n is the newer value of topic n."""
        order = random.Random(4).sample(range(2_000), 2_000)
        for start in range(0, 2_000, 4):
            for number in order[start : start + 4]:
                publisher.publish(f"{name}/{number}", b"%d:" % (2_000 + number), 1, retain=True)
            for _ in range(4):
                publisher.expect(PUBACK)

    updater = Background(update)
    for rounds in itertools.count():
        if not updater.going_on:
            break
        client = clients(broker, f"{name}-{rounds}", 4, clean=clean)
        client.subscribe(f"{name}/+", qos=1)
        newest: dict[str, int] = {}
        while len(newest) < 2_000:
            packet = client.receive()
            value = number_of(packet)
            assert newest.get(packet.topic, -1) <= value, f"{packet}: {newest[packet.topic]} came before it"
            newest[packet.topic] = value
        client.abort()
    updater.finish()
    client = clients(broker)
    client.subscribe(f"{name}/+", qos=1)
    assert {number_of(client.receive()) for _ in range(2_000)} == set(range(2_000, 4_000))


@pytest.mark.slow
@pytest.mark.parametrize("qos", [0, 1])
def test_a_reader_asleep_costs_no_processor(
    own_broker: BrokerProcess, clients: Clients, name: str, qos: int
) -> None:
    """25 MB of retained messages wait for a client that does not read: nothing may spin meanwhile."""
    retain_many(own_broker, clients, name, 5_000, 5_000)
    asleep = clients(own_broker)
    asleep.subscribe(f"{name}/+", qos=qos)
    probe = clients(own_broker)
    probe.expect_nothing(0.5)  # until the socket is full
    process = psutil.Process(own_broker.pid)
    before = sum(process.cpu_times()[:2])
    probe.expect_nothing(1.5)
    assert sum(process.cpu_times()[:2]) - before < 0.4
    found = {number_of(asleep.receive()) for _ in range(5_000)}
    assert found == set(range(5_000))
