"""P9: bad input is answered with the specification's reason code and costs only the connection it came over."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable, Iterator

import psutil
import pytest

from broker_process import BrokerProcess, wait_until
from e2e.raw import ClosedError, RawClient, SilenceError
from e2e.wire import (
    CONNACK,
    CONNECT,
    DISCONNECT,
    PINGREQ,
    PUBACK,
    PUBLISH,
    PUBREL,
    SUBSCRIBE,
    UNSUBSCRIBE,
    connect_packet,
    packet,
    text,
    varint,
)

Clients = Callable[..., RawClient]
MAXIMUM = 70_000


@pytest.fixture(scope="module")
def broker_settings() -> dict[str, object]:
    return {"limits.packet_bytes_max": MAXIMUM, "limits.connect_timeout_s": 2, "limits.connections_max": 600}


@pytest.fixture(autouse=True)
def _others_go_on(broker: BrokerProcess, clients: Clients, name: str) -> Iterator[None]:
    """A pair of well-behaved clients works before and after, on the same connections."""
    subscriber, publisher = clients(broker, f"{name}-good-s", clean=False), clients(broker)
    subscriber.subscribe(f"{name}/good", qos=1)
    yield
    began = time.monotonic()
    publisher.deliver(f"{name}/good", b"still here")
    assert subscriber.receive().payload == b"still here"
    assert time.monotonic() - began < 2
    assert broker.running


def malformed(version: int) -> dict[str, bytes]:
    """Packets after a good CONNECT that end the connection."""
    none = b"\0" if version == 5 else b""
    found = {
        "packet type 0": b"\x00\x00",
        "CONNACK from a client": b"\x20\x02\x00\x00",
        "SUBACK from a client": b"\x90\x03\x00\x01\x00",
        "PINGRESP from a client": b"\xd0\x00",
        "remaining length of five bytes": b"\x30\xff\xff\xff\xff\x01",
        "PINGREQ with flags": packet(PINGREQ << 4 | 1, b""),
        "PINGREQ with a body": packet(PINGREQ << 4, b"x"),
        "PUBLISH without a topic": packet(PUBLISH << 4, b""),
        "PUBLISH with a topic cut off": packet(PUBLISH << 4, b"\0\x09abc"),
        "PUBLISH QoS 1 without an id": packet(PUBLISH << 4 | 2, text("t")),
        "PUBLISH QoS 1 with id 0": packet(PUBLISH << 4 | 2, text("t") + b"\0\0" + none),
        "PUBLISH QoS 0 with DUP": packet(PUBLISH << 4 | 8, text("t") + none),
        "PUBLISH to a topic with NUL": packet(PUBLISH << 4, text("a\0b") + none),
        "PUBLISH to a topic that is no UTF-8": packet(PUBLISH << 4, text(b"a\xff\xfeb") + none),
        "PUBLISH to a surrogate": packet(PUBLISH << 4, text(b"a\xed\xa0\x80b") + none),
        "PUBREL without its flag": packet(PUBREL << 4, b"\0\1"),
        "PUBACK of one byte": packet(PUBACK << 4, b"\1"),
        "SUBSCRIBE without its flag": packet(SUBSCRIBE << 4, b"\0\1" + none + text("t") + b"\0"),
        "SUBSCRIBE with id 0": packet(SUBSCRIBE << 4 | 2, b"\0\0" + none + text("t") + b"\0"),
        "SUBSCRIBE to nothing": packet(SUBSCRIBE << 4 | 2, b"\0\1" + none),
        "SUBSCRIBE with QoS 3": packet(SUBSCRIBE << 4 | 2, b"\0\1" + none + text("t") + b"\3"),
        "SUBSCRIBE with reserved bits": packet(SUBSCRIBE << 4 | 2, b"\0\1" + none + text("t") + b"\xc0"),
        "SUBSCRIBE without options": packet(SUBSCRIBE << 4 | 2, b"\0\1" + none + text("t")),
        "SUBSCRIBE to an empty filter": packet(SUBSCRIBE << 4 | 2, b"\0\1" + none + text("") + b"\0"),
        "UNSUBSCRIBE from nothing": packet(UNSUBSCRIBE << 4 | 2, b"\0\1" + none),
        "DISCONNECT with flags": packet(DISCONNECT << 4 | 1, b""),
        "a second CONNECT": connect_packet("again", version=version),
        "AUTH out of the blue": b"\xf0\x00",
    }
    if version == 5:
        found |= {
            "a property twice": packet(PUBLISH << 4, text("t") + b"\x04\x01\x00\x01\x00"),
            "a property of another packet": packet(PUBLISH << 4, text("t") + b"\x05\x11\0\0\0\1"),
            "an unknown property": packet(PUBLISH << 4, text("t") + b"\x02\x7f\x00"),
            "properties beyond the packet": packet(PUBLISH << 4, text("t") + b"\x7f\x01\x00"),
            "payload format 2": packet(PUBLISH << 4, text("t") + b"\x02\x01\x02"),
            "topic alias 0": packet(PUBLISH << 4, text("t") + b"\x03\x23\x00\x00"),
            "topic alias too high": packet(PUBLISH << 4, text("t") + b"\x03\x23\xff\xff"),
            "no topic and no alias": packet(PUBLISH << 4, text("") + b"\0"),
            "response topic with a wildcard": packet(PUBLISH << 4, text("t") + b"\x06\x08\0\3a/#"),
            "subscription id from a client": packet(PUBLISH << 4, text("t") + b"\x02\x0b\x01"),
            "no local in a shared subscription": packet(
                SUBSCRIBE << 4 | 2, b"\0\1\0" + text("$share/g/t") + b"\x04"
            ),
            "retain handling 3": packet(SUBSCRIBE << 4 | 2, b"\0\1\0" + text("t") + b"\x30"),
        }
    return found


# Where other brokers close without a word, and their recorded sequences ask for that, it is as good an answer.
SILENT = (b"\x30\xff\xff\xff\xff\x01", packet(PINGREQ << 4, b"x"))
CASES = [
    pytest.param(version, sent, id=f"v{version} {case}")
    for version in (4, 5)
    for case, sent in malformed(version).items()
]


@pytest.mark.parametrize(("version", "sent"), CASES)
def test_malformed_packets_end_their_connection(
    broker: BrokerProcess, clients: Clients, version: int, sent: bytes
) -> None:
    client = clients(broker, "", version)
    client.send(sent)
    last = client.read_to_end(5)
    if version == 4:
        assert last == []
        return
    if sent in SILENT and not last:
        return
    assert [one.kind for one in last] == [DISCONNECT]
    assert last[0].reason in (0x81, 0x82, 0x90, 0x94, 0x9E), hex(last[0].reason)


@pytest.mark.parametrize("version", [4, 5])
def test_byte_by_byte_and_all_at_once(
    broker: BrokerProcess, clients: Clients, name: str, version: int
) -> None:
    """TCP has no packets: the same stream in one piece and in single bytes gives the same answers."""
    none = b"\0" if version == 5 else b""
    stream = connect_packet(f"{name}-1", version=version)
    stream += packet(SUBSCRIBE << 4 | 2, b"\0\1" + none + text(name) + b"\1")
    stream += packet(PUBLISH << 4 | 2, text(name) + b"\0\2" + none + b"x" * 300)
    stream += packet(PINGREQ << 4, b"")
    answers = []
    for size in (1, len(stream)):
        client = clients(broker, f"{name}-1", version, connect=False)
        for start in range(0, len(stream), size):
            client.send(stream[start : start + size])
        found = [client.read() for _ in range(5)]
        answers.append(sorted((one.kind, one.payload) for one in found))
        assert found[0].kind == CONNACK  # data before CONNACK is welcome, answers before it are not
    assert answers[0] == answers[1]


@pytest.mark.parametrize("version", [4, 5])
def test_too_large_a_packet(broker: BrokerProcess, clients: Clients, name: str, version: int) -> None:
    """Refused at its header, before its body: 0x95."""
    client = clients(broker, "", version)
    client.send(bytes([PUBLISH << 4]) + varint(MAXIMUM + 1) + text(name))
    last = client.read_to_end(5)
    assert [(one.kind, one.reason) for one in last] == ([(DISCONNECT, 0x95)] if version == 5 else [])


def test_the_largest_packet_is_welcome(broker: BrokerProcess, clients: Clients, name: str) -> None:
    client = clients(broker)
    client.subscribe(name, qos=1)
    head = 1 + len(varint(MAXIMUM)) + 2 + len(name) + 2
    payload = os.urandom(MAXIMUM - head)
    client.deliver(name, payload)
    assert client.receive().payload == payload


def test_garbage_in_every_size(broker: BrokerProcess, clients: Clients) -> None:
    chance = random.Random(11)
    for size in (1, 2, 3, 10, 100, 1_000, 10_000, 100_000):
        client = clients(broker, connect=False)
        try:
            client.send(chance.randbytes(size))
            client.socket.shutdown(1)
        except (ClosedError, OSError):
            continue
        assert all(one.kind == CONNACK and one.reason for one in client.read_to_end(5))


@pytest.mark.slow
def test_mutations_of_a_good_conversation(broker: BrokerProcess, clients: Clients, name: str) -> None:
    """500 conversations with flipped, cut, doubled and inserted bytes; the broker outlives them all."""
    chance = random.Random(12)
    good = connect_packet(f"{name}-m", version=5, clean=False, will=("w", b"gone"))
    good += packet(SUBSCRIBE << 4 | 2, b"\0\1\0" + text(f"{name}/#") + b"\1")
    good += packet(PUBLISH << 4 | 4, text(f"{name}/x") + b"\0\2\0" + b"payload")
    good += packet(PUBREL << 4 | 2, b"\0\2") + packet(UNSUBSCRIBE << 4 | 2, b"\0\3\0" + text(f"{name}/#"))
    good += packet(PINGREQ << 4, b"") + packet(DISCONNECT << 4, b"")
    for _ in range(500):
        data = bytearray(good)
        for _ in range(chance.choice((1, 1, 1, 2, 5))):
            at = chance.randrange(len(data))
            match chance.randrange(4):
                case 0:
                    data[at] ^= 1 << chance.randrange(8)
                case 1:
                    del data[at : at + chance.randrange(1, 4)]
                case 2:
                    data[at:at] = data[at : at + chance.randrange(1, 20)]
                case _:
                    data[at:at] = chance.randbytes(chance.randrange(1, 4))
        client = clients(broker, "", 5, connect=False)
        try:
            client.send(bytes(data))
        except ClosedError:
            continue
        client.abort()


def test_more_connections_than_allowed(broker: BrokerProcess, clients: Clients) -> None:
    """Beyond `limits.connections_max` the newest are turned away, not the ones that are there."""
    there = [clients(broker) for _ in range(500)]
    more, refused = [], 0
    for _ in range(200):
        try:
            more.append(clients(broker))
        except (ClosedError, AssertionError):
            refused += 1
    assert refused >= 95
    assert len(more) <= 100
    for client in (there[0], there[-1]):
        assert client.ping() == []


@pytest.mark.slow
def test_a_client_that_never_reads_keeps_memory_flat(
    broker: BrokerProcess, clients: Clients, name: str
) -> None:
    """P7: it asks for 400 MB of PINGRESPs and messages and reads none; the broker must not hold them for it."""
    process = psutil.Process(broker.pid)
    deaf = clients(broker)
    deaf.subscribe(name, qos=0)
    publisher = clients(broker)
    publisher.deliver(name, b"x")
    before = process.memory_info().rss
    payload = b"x" * 60_000
    for _ in range(2_000):
        publisher.publish(name, payload, 0)
    publisher.ping()
    deaf.socket.settimeout(1.0)
    try:
        for _ in range(400):
            deaf.send(packet(PINGREQ << 4, b"") * 10_000)
    except (ClosedError, SilenceError):
        pass  # reading from it may be paused, or it may be cut off
    assert publisher.ping() == []
    grown = process.memory_info().rss - before
    assert grown < 60 << 20, f"{grown >> 20} MiB more"


def test_connections_leave_no_descriptors(broker: BrokerProcess, clients: Clients) -> None:
    process = psutil.Process(broker.pid)
    for client in [clients(broker) for _ in range(50)]:
        client.abort()
    wait_until(lambda: process.num_fds() < 60, "the descriptors are closed")
    for _ in range(50):
        client = clients(broker, connect=False)
        client.send(packet(CONNECT << 4, b"garbage"))
        client.abort()
    wait_until(lambda: process.num_fds() < 60, "the descriptors are closed")
