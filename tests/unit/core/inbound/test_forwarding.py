"""QoS 0 as it came: which packets leave unchanged, and what makes the broker write one of its own."""

from __future__ import annotations

import pytest

from harness import Client, Harness
from headrace.core.ports.settings import BrokerSettings
from headrace.core.records.record import DROP_QOS0_SLOW, DROP_TOO_LARGE
from headrace.mqtt import codec


def pair(version: int, settings: BrokerSettings | None = None) -> tuple[Harness, Client, Client]:
    harness = Harness(settings)
    return harness, harness.client("pub", version=version), subscriber(harness, version)


def subscriber(harness: Harness, version: int, client_id: str = "sub") -> Client:
    client = harness.client(client_id, version=version)
    client.subscribe("t/#")
    client.link.sent = b""
    return client


def plain(version: int, payload: bytes = b"payload", topic: bytes = b"t/1") -> bytes:
    return codec.encode_publish(version, topic, payload, 0)


def counted(harness: Harness) -> tuple[int, int, int]:
    counters = harness.broker.fold.tenant("default").counters
    return counters.publishes_received, counters.bytes_received, counters.publishes_sent


@pytest.mark.parametrize("version", [3, 4, 5])
@pytest.mark.parametrize("size", [0, 1, 110, 127, 128, 20_000])
def test_a_plain_packet_leaves_as_it_came(version: int, size: int) -> None:
    harness, publisher, receiver = pair(version)
    packet = plain(version, b"x" * size)
    publisher.feed(packet * 3)
    assert receiver.link.sent == packet * 3
    assert counted(harness) == (3, 3 * size, 3)


@pytest.mark.parametrize(("sent", "wanted"), [(3, 4), (4, 3), (4, 5), (5, 4), (3, 5)])
def test_every_version_gets_its_own_form(sent: int, wanted: int) -> None:
    harness = Harness()
    publisher, receiver = harness.client("pub", version=sent), subscriber(harness, wanted)
    publisher.feed(plain(sent))
    assert receiver.link.sent == plain(wanted)


def test_one_packet_for_many_in_all_their_forms() -> None:
    harness, publisher, old = pair(4)
    new, other = subscriber(harness, 5, "new"), subscriber(harness, 4, "other")
    named = harness.client("named", version=5)
    named.subscribe("t/1", identifier=9)
    named.link.sent = b""
    publisher.feed(plain(4))
    assert [old.link.sent, other.link.sent, new.link.sent] == [plain(4), plain(4), plain(5)]
    assert named.link.sent == codec.encode_publish(5, b"t/1", b"payload", properties=b"\x0b\x09")
    assert counted(harness) == (1, 7, 4)


def test_a_length_longer_than_needed_is_written_anew() -> None:
    _, publisher, receiver = pair(4)
    packet = plain(4)
    publisher.feed(packet[:1] + bytes([packet[1] | 0x80, 0]) + packet[2:])
    assert receiver.link.sent == packet


def test_nobody_gets_what_is_not_meant_for_it() -> None:
    _, publisher, receiver = pair(5)
    publisher.feed(plain(5, topic=b"$SYS/x") + plain(5, topic=b"u"))
    publisher.subscribe("t/1", no_local=1)
    publisher.take()
    publisher.feed(plain(5))
    assert publisher.take() == []
    assert receiver.link.sent == plain(5)


def test_the_default_expiry_is_written_into_it() -> None:
    settings = BrokerSettings()
    settings.default_message_expiry_s = 60
    _, publisher, receiver = pair(5, settings)
    publisher.feed(plain(5))
    assert receiver.link.sent == codec.encode_publish(5, b"t/1", b"payload", message_expiry_s=60)


def test_a_retained_message_is_not_overtaken() -> None:
    _, publisher, receiver = pair(4)
    retained = codec.encode_publish(4, b"t/1", b"first", 0, True)
    publisher.feed(retained + plain(4, b"second"), sync=False)
    assert receiver.link.sent == b""
    publisher.feed(plain(4, b"third"))
    assert [payload for _, payload, _, _ in receiver.publishes()] == [b"first", b"second", b"third"]


def test_who_cannot_take_it_costs_one_drop() -> None:
    harness, publisher, slow = pair(4)
    small = subscriber(harness, 4, "small")
    slow.link.paused = True
    small.link.max_packet_size = 10
    publisher.feed(plain(4))
    dropped = harness.broker.fold.tenant("default").counters.dropped
    assert dropped == {DROP_QOS0_SLOW: 1, DROP_TOO_LARGE: 1}
    assert slow.link.sent + small.link.sent == b""


def test_a_shared_subscription_gets_its_one_copy() -> None:
    harness, publisher, receiver = pair(4)
    members = [harness.client(f"m{number}") for number in range(2)]
    for member in members:
        member.subscribe("$share/g/t/#")
    publisher.feed(plain(4))
    assert receiver.link.sent == plain(4)
    assert sum(len(member.publishes()) for member in members) == 1
