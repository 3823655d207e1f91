"""A new subscription gets the retained messages of all homes: each once, none missed, none behind a newer one."""

from __future__ import annotations

import pytest

from harness import Client
from headrace.core.ports.identity import DEFAULT_TENANT
from headrace.core.records.event import RetainedListing
from headrace.core.records.message import Given, Message
from headrace.core.shards import asking
from headrace.core.shards.stream_settings import StreamSettings
from headrace.mqtt import codec
from shard_wires import WiredShards, received

PUBLISH = 3
SUBACK = 9


def given(shards: WiredShards, number: int) -> list[bytes]:
    return [record.payload for record in shards[number].journal.records if isinstance(record, Given)]


def retain(shards: WiredShards, shard: int, topic: str, payload: bytes, qos: int = 1) -> None:
    shards[shard].client("w", version=5).publish(topic, payload, qos, retain=True)


def filled(**options: object) -> tuple[WiredShards, list[str]]:
    """Three shards, each with one retained message, published in another one; no reader has anything yet."""
    shards = WiredShards(**options)  # type: ignore[arg-type]
    topics = [shards.topic_in(home) for home in range(3)]
    for home, topic in enumerate(topics):
        retain(shards, (home + 1) % 3, topic, b"%d" % home)
    shards.carry()
    return shards, topics


def kinds(client: Client) -> list[int]:
    """The packets that came, by their kinds."""
    return [first >> 4 for first, _ in client.take()]


def has_suback(client: Client) -> bool:
    return SUBACK in kinds(client)


@pytest.mark.parametrize("clean", [False, True])
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_a_filter_with_a_wildcard_gets_what_all_homes_keep(clean: bool, qos: int) -> None:
    shards, _ = filled()
    reader = shards[0].client("r", version=5, clean=clean)
    reader.subscribe("#", qos)
    shards.carry()
    found = reader.publishes()
    assert sorted((payload, got) for _, payload, _, got in found) == [
        (b"%d" % n, min(qos, 1)) for n in range(3)
    ]
    assert shards[0].broker.fold.recent._asking == {}


def test_what_is_listed_of_other_homes_says_how_long_the_payloads_are() -> None:
    shards = WiredShards()
    topics = [shards.topic_in(home) for home in range(3)]
    for home, topic in enumerate(topics):
        retain(shards, (home + 1) % 3, topic, b"x" * (home + 5))
    shards.carry()
    shards[0].client("r", version=5, clean=False).subscribe("#", 1)
    shards.carry()
    records = shards[0].journal.records
    said: list[int] = []
    for event in records:
        if isinstance(event, RetainedListing):
            listed = [records[offset] for offset in event.retained[::3]]
            assert event.payloads == [
                len(message.payload) for message in listed if isinstance(message, Message)
            ]
            said += event.payloads
    assert sorted(said) == [5, 6, 7]


@pytest.mark.parametrize("clean", [False, True])
def test_a_filter_without_one_asks_its_home_alone(clean: bool) -> None:
    shards, topics = filled()
    reader = shards[0].client("r", version=5, clean=clean)
    reader.subscribe(topics[2], 1)
    shards[0].sync()
    said = [data[0] for data in shards.wires[0, 1][0].said if data[0] >= 32]
    shards.carry()
    assert (received(reader), said) == ([b"2"], [])


def test_the_flag_and_the_identifier_are_as_of_one_shard() -> None:
    shards, topics = filled()
    reader = shards[0].client("r", version=5)
    reader.subscribe(topics[1], 1, identifier=5)
    shards.carry()
    (packet,) = [(first, body) for first, body in reader.take() if first >> 4 == 3]
    assert packet[0] & 1 == 1
    assert b"\x0b\x05" in packet[1]


def test_retain_handling_says_who_gets_them() -> None:
    shards, topics = filled()
    reader = shards[0].client("r", version=5)
    reader.subscribe(topics[1], 1, retain_handling=2)
    shards.carry()
    assert received(reader) == []
    reader.subscribe(topics[1], 1, retain_handling=1)
    shards.carry()
    assert received(reader) == []
    reader.subscribe("#", 1, retain_handling=1)
    shards.carry()
    assert sorted(received(reader)) == [b"0", b"1", b"2"]


def test_no_local_takes_out_the_clients_own() -> None:
    shards = WiredShards()
    topic = shards.topic_in(1)
    reader = shards[0].client("r", version=5)
    reader.publish(topic, b"own", 1, retain=True)
    shards.carry()
    reader.take()
    reader.subscribe(topic, 1, no_local=1)
    shards.carry()
    assert received(reader) == []
    reader.subscribe(topic, 1)
    shards.carry()
    assert received(reader) == [b"own"]


def test_suback_waits_for_what_a_persistent_session_gets() -> None:
    shards, topics = filled()
    shards.held = {(0, 1)}
    reader = shards[0].client("r", version=5)
    reader.take()
    reader.subscribe(topics[1], 1)
    shards.carry()
    assert not has_suback(reader)
    shards.held = set()
    shards.carry()
    assert sorted(kinds(reader)) == [3, SUBACK]


def test_what_is_in_the_queue_survives_a_crash() -> None:
    shards, _ = filled()
    reader = shards[0].client("r", version=5, receive_maximum=1)
    reader.subscribe("#", 1)
    shards.carry()
    assert len(received(reader)) == 1
    for snapshot in (False, True):
        if snapshot:
            shards[0].take_snapshot()
        shards.crash(0)
        shards.connect_all()
        again = shards[0].client("r", version=5)
        assert sorted(received(again)) == [b"0", b"1", b"2"]
    assert sorted(given(shards, 0)) == [b"1", b"2"]


def test_a_home_that_is_away_holds_up_no_suback_and_answers_later() -> None:
    for clean in (False, True):
        shards, _ = filled()
        shards.isolate(1)
        reader = shards[0].client("r", version=5, clean=clean)
        reader.subscribe("#", 1)
        shards.carry()
        assert sorted(payload for _, payload, _, _ in reader.publishes()) == [b"0", b"2"]
        shards.crash(1)
        shards.join_again(1)
        for _ in range(2):
            shards.advance(1)
        assert received(reader) == [b"1"]


def test_a_home_that_does_not_answer_holds_up_suback_for_some_seconds() -> None:
    shards, topics = filled()
    reader = shards[0].client("r", version=5)
    reader.subscribe(topics[1], 1)
    shards.carry()
    reader.take()
    shards.held = {(0, 1)}
    reader.subscribe(topics[1], 1)
    shards.carry()
    assert not has_suback(reader)
    shards.advance(4)
    assert has_suback(reader)
    shards.held = set()
    shards.carry()
    assert received(reader) == [b"1"]


def full(shards: WiredShards, number: int) -> None:
    """From now on a shard makes nothing durable, and so answers nothing: its disk is full."""
    shards[number].sync = shards[number].worker.end_tick  # type: ignore[method-assign]


def waited(shards: WiredShards, reader: Client, topic_filter: str) -> float:
    """Seconds that a SUBSCRIBE is not answered for."""
    reader.subscribe(topic_filter, 1)
    shards.carry()
    for tenths in range(100):
        if has_suback(reader):
            return tenths / 10
        shards.advance(0.1)
    raise AssertionError("it was never answered")


def test_of_all_who_ask_a_home_that_does_not_answer_one_waits() -> None:
    shards, topics = filled()
    first = waited(shards, shards[0].client("first", version=5), "#")
    assert first < 1
    full(shards, 1)
    publisher = shards[2].client("w", version=5)
    publisher.publish(topics[1], b"newer", 1, retain=True)
    shards.carry()
    readers = [shards[0].client(f"r{n}", version=5, clean=False) for n in range(4)]
    times = [waited(shards, reader, topic_filter) for reader in readers for topic_filter in ("#", "t/#")]
    assert times[0] >= 2.5
    assert max(times[1:]) < 0.2
    assert shards[0].neighbours.asking.late == len(times)
    del shards[1].sync
    shards.carry()
    for reader in readers:  # what the home keeps comes as soon as it answers, to all who have asked
        assert {topics[1]} <= {topic for topic, _, _ in retained_of(shards, reader)}
    assert waited(shards, shards[0].client("last", version=5), "#") < 0.2
    assert shards[0].neighbours.asking.late == len(times)


def retained_of(shards: WiredShards, reader: Client) -> set[tuple[str, bytes, int]]:
    """What has come to a session: topic, payload and QoS."""
    found = set()
    for first, body in reader.take():
        if first >> 4 == PUBLISH:
            size = int.from_bytes(body[:2], "big")
            found.add((body[2 : 2 + size].decode(), body[-1:], first >> 1 & 3))
    return found


def test_who_is_not_waited_for_holds_up_no_answer_of_the_others() -> None:
    """SUBACK waits for the homes that answer, and what they keep at QoS 1 is in the queue before it."""
    shards, topics = filled()
    full(shards, 1)
    shards[2].client("w", version=5).publish(topics[1], b"newer", 1, retain=True)
    shards.carry()
    assert waited(shards, shards[0].client("first", version=5, clean=False), "#") >= 2.5
    shards.held = {(0, 2)}
    reader = shards[0].client("r", version=5, clean=False)
    reader.subscribe("#", 1)
    shards.carry()
    assert not has_suback(reader)
    shards.held = set()
    shards.carry()
    packets = [first >> 4 for first, _ in reader.take()]
    assert SUBACK in packets
    assert given(shards, 0).count(b"2") == 2


def test_what_comes_live_is_left_out_of_the_answer() -> None:
    """Published behind SUBSCRIBE while the home answers: it comes once, and nothing older behind it."""
    for clean in (False, True):
        shards = WiredShards()
        topic = shards.topic_in(1)
        retain(shards, 2, topic, b"old")
        shards.carry()
        other = shards[0].client("o", version=5, clean=True)
        other.subscribe(topic, 1, retain_handling=2)  # everybody looks for it
        shards.carry()
        reader = shards[0].client("r", version=5, clean=clean)
        reader.subscribe(topic, 1)
        shards.held = {(0, 1)}
        shards.carry()
        retain(shards, 2, topic, b"new")
        shards.carry()
        shards.held = set()
        shards.carry()
        assert received(reader) == [b"new"]


def test_what_was_published_before_is_not_missed() -> None:
    """It is on its way to its home when somebody subscribes: the home answers when it has it."""
    for clean in (False, True):
        shards = WiredShards()
        topic = shards.topic_in(1)
        retain(shards, 2, topic, b"old")
        shards.carry()
        shards.held = {(1, 2)}
        retain(shards, 2, topic, b"new")
        shards.carry()
        reader = shards[0].client("r", version=5, clean=clean)
        reader.subscribe(topic, 1)
        shards.carry()
        assert received(reader) == []
        shards.held = set()
        shards.carry()
        assert received(reader) == [b"new"]


def test_what_the_session_published_itself_is_not_missed() -> None:
    shards = WiredShards()
    topic = shards.topic_in(1)
    client = shards[0].client("r", version=5)
    client.publish(topic, b"x", 1, retain=True)
    client.subscribe(topic, 1)
    shards.carry()
    assert received(client) == [b"x"]


@pytest.mark.parametrize("clean", [False, True])
def test_pages_that_are_many_come_one_by_one(clean: bool) -> None:
    shards = WiredShards()
    writer = shards[1].client("w", version=5)
    names = [
        name for name in (f"t/{n}" for n in range(900)) if shards[0].worker.homes.of_topic("default", name)
    ]
    for name in names:
        writer.publish(name, name.encode(), 1, retain=True, sync=False)
    shards.carry()
    writer.take()
    reader = shards[0].client("r", version=5, clean=clean, receive_maximum=65_535)
    reader.subscribe("t/+", 1, retain_handling=0)
    most = 0
    while shards.step():
        answers = sum(data[0] == 36 for _, far in shards.wires.values() for data in far.said)
        most = max(most, answers)
    assert sorted(received(reader)) == sorted(name.encode() for name in names)
    assert most == 2  # one page of each home


def test_a_wire_that_breaks_between_pages_repeats_nothing() -> None:
    for clean in (False, True):
        shards = WiredShards()
        homes = shards[0].worker.homes
        names = [name for name in (f"t/{n}" for n in range(600)) if homes.of_topic("default", name) == 1]
        writer = shards[1].client("w", version=5)
        for name in names:
            writer.publish(name, name.encode(), 2, retain=True, sync=False)
            shards[1].sync()
        for packet_id in range(1, 1 + len(names)):
            writer.feed(codec.encode_pubrel(5, packet_id))
        shards.carry()
        reader = shards[0].client("r", version=5, clean=clean, receive_maximum=65_535)
        reader.subscribe("t/+", 2)
        found: list[bytes] = []
        for crash in (False, True):
            while not any(data[0] == 36 for data in shards.wires[0, 1][1].said):
                assert shards.step()
            shards.step()
            found += received(reader)
            if crash:
                shards.crash(1)
                shards.join_again(1)
            else:
                shards.disconnect(0, 1)
                shards.connect(0, 1)
        shards.carry()
        shards.advance(1)
        found += received(reader)
        assert sorted(found) == sorted(name.encode() for name in names)


def test_a_client_that_goes_leaves_nothing_behind() -> None:
    for clean in (False, True):
        shards, _ = filled()
        shards.held = {(0, 1)}
        reader = shards[0].client("r", version=5, clean=clean)
        reader.subscribe("#", 1)
        shards.carry()
        reader.link.closed = True
        reader.link.broker.on_connection_lost(reader.link)
        shards.carry()
        shards.held = set()
        shards.carry()
        shards.advance(1)
        assert shards[0].broker.fold.recent._asking == {}
        assert shards[0].neighbours.asking._inquiries == {}
        assert shards[1].neighbours._answering._walks == {}


def leave(client: Client) -> None:
    client.link.closed = True
    client.link.broker.on_connection_lost(client.link)


def test_clients_that_go_before_a_home_answers_leave_room_for_others(monkeypatch: pytest.MonkeyPatch) -> None:
    if asking.__file__.endswith(".so"):
        pytest.skip("a constant of compiled code")
    monkeypatch.setattr(asking, "ASKED_AT_ONCE", 4)
    shards, _ = filled()
    shards[0].client("keeps", version=5).subscribe("x/#", 1)
    shards.carry()
    shards.held = {(1, 2)}  # home 1 lacks what shard 0 has of shard 2, and waits for it
    shards[2].client("p", version=5).publish("x/1", b"z", 1)
    shards.carry()
    for number in range(6):
        client = shards[0].client(f"gone{number}-", version=5, clean=True)
        client.subscribe("#", 1)
        shards.carry()
        leave(client)
        shards.advance(0.2)
    home = shards[0].neighbours.asking._homes[1]
    assert (len(home.asked), len(home.waiting), home._rows) == (0, 0, {})
    shards.held = set()
    shards.carry()
    reader = shards[0].client("r", version=5, clean=True)
    reader.subscribe("#", 1)
    shards.carry()
    assert sorted(received(reader)) == [b"0", b"1", b"2"]


@pytest.mark.parametrize("clean", [False, True])
def test_who_asks_over_and_over_while_a_home_is_away_is_given_it_once(clean: bool) -> None:
    from headrace.mqtt.packets import SubscriptionRequest
    from headrace.mqtt.properties import Properties

    shards, _ = filled()
    shards.isolate(1)
    reader = shards[0].client("r", version=5, clean=clean)
    subacks = 0
    for number in range(24):
        names = [("#", "t/#"), ("t/#", "#"), ("t/#",), ("#",), ("#", "t/#"), ("#",)][number % 6]
        rows = [SubscriptionRequest(name, 1, False, False, 0) for name in names]
        reader.feed(codec.encode_subscribe(5, 9 + number, rows, Properties()))
        shards.carry()
        subacks += kinds(reader).count(SUBACK)
    assert subacks == 24
    asks = shards[0].neighbours.asking
    assert len(asks._inquiries) <= 8  # two filters, two parts, two homes
    assert len(asks._homes[1].waiting) <= 4
    assert asks.unanswered == {}
    shards.crash(1)
    shards.join_again(1)
    shards.advance(1)
    assert received(reader).count(b"1") == 2  # once for each of the filters
    assert asks._inquiries == {}
    assert asks._homes[1]._rows == {}


def test_who_waits_for_a_shard_that_is_away_leaves_the_other_homes_to_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if asking.__file__.endswith(".so"):
        pytest.skip("a constant of compiled code")
    monkeypatch.setattr(asking, "ASKED_AT_ONCE", 2)
    shards, _ = filled()
    shards[0].client("keeps", version=5).subscribe("x/#", 1)
    shards.carry()
    shards[1].client("p", version=5).publish(
        "x/1", b"z", 1
    )  # of which home 2 does not hear that it is not for it
    shards.carry()
    shards.isolate(1)
    readers = [shards[0].client(f"r{number}-", version=5) for number in range(5)]
    for reader in readers:
        reader.subscribe("#", 1)
        shards.carry()
        packets = reader.take()
        assert SUBACK in [first >> 4 for first, _ in packets]
        assert sum(first >> 4 == 3 for first, _ in packets) == 2
    assert len(shards[0].neighbours.asking._homes[2].parked) == 5
    shards.crash(1)
    shards.join_again(1)
    shards.advance(1)
    assert [received(reader) for reader in readers] == [[b"1"]] * 5
    for home in shards[0].neighbours.asking._homes.values():
        assert (len(home.asked), len(home.waiting), len(home.parked), home._rows) == (0, 0, 0, {})


def test_those_who_wait_for_a_home_cost_the_passes_of_the_loop_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if asking.__file__.endswith(".so"):
        pytest.skip("a method of compiled code")
    shards, _ = filled()
    shards.isolate(1)
    for number in range(10):
        shards[0].client(f"w{number}-", version=5).subscribe("#", 1)
    shards.carry()
    looked: list[object] = []
    monkeypatch.setattr(asking._Inquiry, "release", looked.append)
    for _ in range(20):
        shards[0].worker.request_tick()
        shards.carry()
        shards.advance(0.1)
    assert looked == []


def test_what_is_unsubscribed_meanwhile_is_not_given() -> None:
    shards, topics = filled()
    shards.held = {(0, 1)}
    reader = shards[0].client("r", version=5)
    reader.subscribe(topics[1], 1)
    shards.carry()
    reader.feed(codec.encode_unsubscribe(5, 77, [topics[1]]))
    shards.carry()
    shards.held = set()
    shards.carry()
    assert received(reader) == []
    assert shards[0].neighbours.asking._inquiries == {}


def test_a_client_that_does_not_read_holds_up_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    if asking.__file__.endswith(".so"):
        pytest.skip("a constant of compiled code")
    monkeypatch.setattr(asking, "ASKED_AT_ONCE", 1)
    shards, _ = filled()
    slow = shards[0].client("s", version=5, clean=True)
    slow.link.paused = True
    slow.subscribe("#", 1)
    shards.carry()
    reader = shards[0].client("r", version=5, clean=True)
    reader.subscribe("#", 1)
    shards.carry()
    assert sorted(received(reader)) == [b"0", b"1", b"2"]
    slow.link.paused = False
    slow.link.broker.on_writable(slow.link)
    shards.carry()
    assert sorted(received(slow)) == [b"0", b"1", b"2"]


def test_many_filters_of_one_subscribe_are_asked_together() -> None:
    from headrace.mqtt.packets import SubscriptionRequest
    from headrace.mqtt.properties import Properties

    shards = WiredShards()
    homes = shards[0].worker.homes
    names = [name for name in (f"t/{n}" for n in range(120)) if homes.of_topic(DEFAULT_TENANT, name) == 1]
    for name in names[::2]:
        retain(shards, 1, name, name.encode())
    shards.carry()
    reader = shards[0].client("r", version=5)
    rows = [SubscriptionRequest(name, 1, False, False, 0) for name in names]
    reader.feed(codec.encode_subscribe(5, 9, rows, Properties()))
    answers = 0
    while shards.step():
        answers += sum(data[0] == 36 for data in shards.wires[0, 1][1].said)
    assert sorted(received(reader)) == sorted(name.encode() for name in names[::2])
    assert answers <= 3


def test_an_expired_message_is_not_given() -> None:
    settings = StreamSettings()
    shards = WiredShards(streams=settings)
    topic = shards.topic_in(1)
    shards[1].client("w", version=5).publish(topic, b"x", 1, retain=True, expiry_s=5)
    shards.carry()
    shards.held = {(0, 1)}
    reader = shards[0].client("r", version=5)
    reader.subscribe(topic, 1)
    shards.carry()
    for shard in shards.shards:
        shard.now_us += 6_000_000
        shard._set_clock()
    shards.held = set()
    shards.carry()
    assert received(reader) == []
    assert given(shards, 0) == []


def test_what_is_stored_comes_also_when_the_connection_ends_before_the_home_answers() -> None:
    """SUBACK has not waited for it: the session gets it all the same."""
    shards, topics = filled()
    shards.held = {(0, 1)}
    reader = shards[0].client("r", version=5)
    reader.subscribe("#", 1)
    shards.carry()
    shards.advance(4)  # the route is not confirmed: the stream is cut
    reader.subscribe(topics[1], 1)
    shards.carry()
    shards.advance(4)
    assert kinds(reader).count(SUBACK) == 2
    reader.link.closed = True
    reader.link.broker.on_connection_lost(reader.link)
    shards.carry()
    shards.held = set()
    shards.connect(0, 1)
    shards.carry()
    again = shards[0].client("r", version=5)
    assert received(again).count(b"1") == 2  # one for each SUBSCRIBE


def test_what_is_older_than_the_subscription_does_not_come_again_after_a_crash() -> None:
    """The positions of the streams are journaled with the answer: nothing below them is looked at for the new filter."""
    shards = WiredShards()
    topic = shards.topic_in(1)
    for payload in (b"1", b"2", b"3"):
        retain(shards, 2, topic, payload)
    shards.carry()
    reader = shards[0].client("r", version=5)
    reader.subscribe(topic, 1)
    shards.carry()
    (packet,) = reader.publishes()
    assert packet[1] == b"3"
    reader.ack(packet[0])
    shards.carry()
    shards.crash(0)
    shards.join_again(0)
    shards.carry()
    assert received(shards[0].client("r", version=5)) == []
