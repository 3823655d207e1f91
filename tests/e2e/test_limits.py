"""What a session may keep, and the count of what it may not (T5, T6): nothing disappears without its reason."""

from __future__ import annotations

import json
import time
from collections.abc import Callable

import pytest

from broker_process import BrokerProcess, headrace, wait_until
from e2e.consumer import arrival
from e2e.metrics import dropped, newly_dropped
from e2e.producer import Producer
from e2e.raw import ClosedError, RawClient
from e2e.wire import (
    MAXIMUM_PACKET_SIZE,
    PUBACK,
    PUBLISH,
    RECEIVE_MAXIMUM,
    SERVER_KEEP_ALIVE,
    SESSION_EXPIRY,
    USER_PROPERTY,
    Properties,
)

Clients = Callable[..., RawClient]
Brokers = Callable[..., BrokerProcess]
LIMIT = 10


@pytest.fixture(scope="module")
def broker_settings() -> dict[str, object]:
    return {
        "session.backlog_messages_max": LIMIT,
        "session.application_backlog_bytes_max": 100_000,
        "session.application_client_ids": '["app-*", "stream?"]',
        "session.application_user_names": '["analytics"]',
        "session.session_expiry_max_s": 1_000,
        "session.inflight_max": 8,
        "limits.keep_alive_max_s": 100,
    }


def keep(more: Properties | None = None) -> dict[str, object]:
    return {"clean": False, "properties": {SESSION_EXPIRY: 600, **(more or {})}}


def away(
    broker: BrokerProcess, clients: Clients, client_id: str, topic: str, version: int = 4, **fields: object
) -> None:
    client = clients(broker, client_id, version, **({"clean": False} | fields))
    client.subscribe(topic, qos=1)
    client.disconnect()


def drain(client: RawClient, marker: str) -> list[int]:
    """All that waits, up to a marker published now."""
    client.subscribe(marker, qos=1)
    client.deliver(marker, b"")
    found = []
    while (packet := client.receive()).topic != marker:
        found.append(int(packet.payload.partition(b":")[0]))
    return found


def test_the_oldest_go_and_are_counted(broker: BrokerProcess, clients: Clients, name: str) -> None:
    before = dropped(broker)
    away(broker, clients, name, name)
    clients(broker).deliver_many(name, range(25))
    wait_until(lambda: sum(newly_dropped(broker, before).values()) == 25 - LIMIT, "the drops are counted")
    assert len(newly_dropped(broker, before)) == 1, "one reason for them all"
    assert drain(clients(broker, name, clean=False), f"{name}-end") == list(range(25 - LIMIT, 25))


def test_session_show_tells_the_owner(broker: BrokerProcess, clients: Clients, name: str) -> None:
    away(broker, clients, name, name)
    before = dropped(broker)
    clients(broker).deliver_many(name, range(17))
    wait_until(lambda: sum(newly_dropped(broker, before).values()) == 7, "the drops are counted")
    reason = next(iter(newly_dropped(broker, before)))
    clients(broker).deliver("flush", b"")
    shown = headrace("session", "show", name, "--data-dir", str(broker.data_dir))
    assert shown.returncode == 0, shown.stderr
    session = json.loads(shown.stdout)
    assert session["dropped_by_reason"] == {reason: 7}
    assert session["backlog"] == LIMIT
    assert session["type"] == "DEVICE"


def test_an_application_has_no_count_limit(broker: BrokerProcess, clients: Clients) -> None:
    """By client id, by user name and by the property: one rule each."""
    before = dropped(broker)
    away(broker, clients, "app-7", "a")
    away(broker, clients, "named", "a", user_name="analytics")
    application = {USER_PROPERTY: [("session-type", "application")]}
    away(broker, clients, "asked", "a", 5, **keep(application))
    away(broker, clients, "apple", "a")  # matches no pattern
    clients(broker).deliver_many("a", range(200))
    wait_until(lambda: newly_dropped(broker, before) != {}, "the DEVICE loses the oldest")
    for client_id in ("app-7", "named", "asked"):
        assert drain(clients(broker, client_id, clean=False), f"end-{client_id}") == list(range(200))
    assert drain(clients(broker, "apple", clean=False), "end-apple") == list(range(200 - LIMIT, 200))
    assert sum(newly_dropped(broker, before).values()) == 200 - LIMIT


def test_the_type_is_fixed_for_the_life_of_the_session(
    broker: BrokerProcess, clients: Clients, name: str
) -> None:
    away(broker, clients, name, name, 5, **keep({USER_PROPERTY: [("session-type", "application")]}))
    clients(broker, name, 4, clean=False).disconnect()  # says nothing about its type
    clients(broker).deliver_many(name, range(100))
    assert drain(clients(broker, name, clean=False), f"{name}-end") == list(range(100))


def test_an_application_has_a_byte_limit(broker: BrokerProcess, clients: Clients, name: str) -> None:
    """100 000 bytes: about 19 messages of 5 000; the oldest go, counted under a reason of their own."""
    before = dropped(broker)
    away(broker, clients, "app-bytes", name)
    publisher = clients(broker)
    for number in range(60):
        publisher.deliver(name, b"%d:" % number + b"x" * 5_000)
    found = drain(clients(broker, "app-bytes", clean=False), f"{name}-end")
    assert found == list(range(60 - len(found), 60))
    assert 15 <= len(found) <= 20
    assert list(newly_dropped(broker, before).values()) == [60 - len(found)]


def test_what_is_in_flight_is_never_trimmed(broker: BrokerProcess, clients: Clients, name: str) -> None:
    client = clients(broker, name, 5, **keep({RECEIVE_MAXIMUM: 5}))
    client.subscribe(name, qos=1)
    clients(broker).deliver_many(name, range(100))
    in_flight = [client.expect(PUBLISH) for _ in range(5)]
    assert client.ping() == []
    client.leave()
    client = clients(broker, name, 5, **keep({RECEIVE_MAXIMUM: 5}))
    again = [client.receive() for _ in range(5)]
    assert [(one.packet_id, one.dup) for one in again] == [(one.packet_id, True) for one in in_flight]
    assert [int(one.payload) for one in again] == [0, 1, 2, 3, 4]
    assert drain(client, f"{name}-end") == list(range(100 - LIMIT, 100))


def test_trimming_and_a_kill(brokers: Brokers, clients: Clients) -> None:
    """A slow subscriber loses the oldest while it reads.  After kill -9 none of them may come back out of order."""
    broker = brokers({"session.backlog_messages_max": 20, "journal.snapshot_interval_bytes": 8192}).start()
    slow = clients(broker, "slow", 5, **keep({RECEIVE_MAXIMUM: 4}))
    slow.subscribe("t", qos=1)
    highest = -1
    for life in range(3):
        producer = Producer(broker, f"p{life}", "t", window=100, rate=5_000)
        producer.start()
        read = 0
        killer_at = 60
        try:
            while True:
                packet = slow.expect(PUBLISH)
                one = arrival(packet)
                number = int(one.source[1:]) * 1_000_000 + one.number
                assert number > highest or one.dup or one.number in producer.resent, (
                    f"{packet} after {highest}"
                )
                assert one.dup or number > highest
                highest = max(highest, number)
                slow.ack(PUBACK, packet.packet_id)
                read += 1
                if read == killer_at:
                    producer.finish()
                    producer.join_finished()
                    broker.kill()
        except ClosedError:
            pass
        broker.start()
        slow = clients(broker, "slow", 5, **keep({RECEIVE_MAXIMUM: 4}))
        assert slow.connack.session_present
    came: list[int] = []
    slow.subscribe("end", qos=1)
    slow.deliver("end", b"")
    while (packet := slow.receive()).topic != "end":
        came.append(int(arrival(packet).source[1:]) * 1_000_000 + arrival(packet).number)
        assert packet.dup or came[-1] > highest  # again: in flight, or acknowledged too late to be durable
    assert came == sorted(set(came))  # each once, what was in flight before what waited


def test_too_large_for_the_subscriber(broker: BrokerProcess, clients: Clients, name: str) -> None:
    """Maximum Packet Size of a client: what is larger is dropped for it and counted [MQTT-3.1.2-25]."""
    before = dropped(broker)
    limits = keep({MAXIMUM_PACKET_SIZE: 200, RECEIVE_MAXIMUM: 2})
    small = clients(broker, name, 5, **limits)
    small.subscribe(name, qos=1)
    publisher = clients(broker)
    for number in range(6):
        publisher.deliver(name, b"%d:" % number + b"x" * (300 if number % 2 else 10))
    found = [small.receive() for _ in range(3)]
    assert [one.payload[:1] for one in found] == [b"0", b"2", b"4"]
    small.disconnect()
    for number in range(6, 9):
        publisher.deliver(name, b"%d:" % number + b"x" * (300 if number % 2 else 10))
    small = clients(broker, name, 5, **limits)
    found = [small.receive() for _ in range(2)]
    assert [one.payload[:1] for one in found] == [b"6", b"8"]
    assert small.ping() == []
    assert list(newly_dropped(broker, before).values()) == [4]


def test_refused_by_the_subscriber_is_counted(broker: BrokerProcess, clients: Clients, name: str) -> None:
    before = dropped(broker)
    client = clients(broker, name, 5, **keep({RECEIVE_MAXIMUM: 1}))
    client.subscribe(name, qos=1)
    client.deliver(name, b"no")
    client.ack(PUBACK, client.expect(PUBLISH).packet_id, 0x97)
    client.deliver(name, b"yes")
    assert client.receive().payload == b"yes"
    assert list(newly_dropped(broker, before).values()) == [1]


def test_an_ended_session_counts_what_it_held(broker: BrokerProcess, clients: Clients, name: str) -> None:
    before = dropped(broker)
    away(broker, clients, name, name)
    clients(broker).deliver_many(name, range(5))
    clients(broker, name, 4, clean=True)
    wait_until(lambda: list(newly_dropped(broker, before).values()) == [5], "the ended session is counted")


def test_session_expiry_has_a_maximum(broker: BrokerProcess, clients: Clients, name: str) -> None:
    client = clients(broker, name, 5, clean=False, properties={SESSION_EXPIRY: 1_000_000})
    assert client.connack.properties[SESSION_EXPIRY] == 1_000
    client = clients(broker, f"{name}-2", 5, clean=False, properties={SESSION_EXPIRY: 10})
    assert client.connack.properties.get(SESSION_EXPIRY, 10) == 10


def test_keep_alive_has_a_maximum(broker: BrokerProcess, clients: Clients, name: str) -> None:
    for asked in (0, 101, 65_535):
        client = clients(broker, f"{name}-{asked}", 5, keep_alive_s=asked)
        assert client.connack.properties[SERVER_KEEP_ALIVE] == 100  # [MQTT-3.2.2-21]
    client = clients(broker, f"{name}-99", 5, keep_alive_s=99)
    assert client.connack.properties.get(SERVER_KEEP_ALIVE, 99) == 99


def test_the_window_has_a_maximum_where_the_client_names_none(
    broker: BrokerProcess, clients: Clients, name: str
) -> None:
    client = clients(broker, name, 4)
    client.subscribe(name, qos=1)
    clients(broker).deliver_many(name, range(8 + LIMIT))
    found = [client.expect(PUBLISH) for _ in range(8)]
    assert client.ping() == []
    client.ack(PUBACK, found[3].packet_id)
    assert int(client.expect(PUBLISH).payload) == 8


@pytest.mark.parametrize("end", ["SIGTERM", "SIGKILL"])
def test_limits_and_counts_survive(brokers: Brokers, clients: Clients, end: str) -> None:
    """What was dropped stays dropped and counted; the room that is left is what it was."""
    settings = {"session.backlog_messages_max": LIMIT, "session.application_backlog_bytes_max": 100_000}
    broker = brokers(settings).start()
    away(broker, clients, "device", "t")
    away(broker, clients, "application", "t", 5, **keep({USER_PROPERTY: [("session-type", "application")]}))
    publisher = clients(broker)
    for number in range(25):
        publisher.deliver("t", b"%d:" % number + b"x" * 3_000)
    if end == "SIGTERM":
        broker.restart()
    else:
        broker.crash()
    publisher = clients(broker)
    for number in range(25, 45):
        publisher.deliver("t", b"%d:" % number + b"x" * 3_000)
    shown = headrace("session", "show", "device", "--data-dir", str(broker.data_dir))
    assert json.loads(shown.stdout)["dropped_by_reason"] == {"backlog_limit": 45 - LIMIT}
    assert drain(clients(broker, "device", clean=False), "end-d") == list(range(45 - LIMIT, 45))
    found = drain(clients(broker, "application", clean=False), "end-a")
    assert found == list(range(45 - len(found), 45))
    assert 28 <= len(found) <= 33
    shown = headrace("session", "show", "application", "--data-dir", str(broker.data_dir))
    assert json.loads(shown.stdout)["dropped_by_reason"] == {"backlog_bytes_limit": 45 - len(found)}


@pytest.mark.slow
def test_counts_are_exact_over_snapshots_and_kills(brokers: Brokers, clients: Clients) -> None:
    """A snapshot in the middle of the trimming must count no drop twice: all - limit, to the message."""
    settings = {"session.backlog_messages_max": LIMIT, "journal.snapshot_interval_bytes": 4_096}
    broker = brokers(settings | {"journal.segment_bytes_max": 65_536}).start()
    away(broker, clients, "s", "t")
    sent = 0
    for _ in range(2):
        publisher = clients(broker)
        until = time.monotonic() + 1.3  # the housekeeper looks once a second
        while time.monotonic() < until:
            publisher.deliver_many("t", range(sent, sent + 200), window=50)
            sent += 200
        publisher.deliver("flush", b"")
        broker.crash()
        shown = headrace("session", "show", "s", "--data-dir", str(broker.data_dir))
        assert json.loads(shown.stdout)["dropped_by_reason"] == {"backlog_limit": sent - LIMIT}
        assert dropped(broker) == {"backlog_limit": sent - LIMIT}
