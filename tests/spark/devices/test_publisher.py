"""One producer's connection: everything once, through kill -9 and takeover; refusals are said."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from broker_process import BrokerProcess, free_port, headrace
from headrace.mqtt import codec
from headrace.mqtt.properties import Properties
from headrace_spark.base.broker_address import BrokerAddress
from headrace_spark.base.errors import BrokerRefused, BrokerUnreachable, Superseded
from headrace_spark.devices.publisher import Outgoing, Publisher
from spark.device_clients import received, subscribe


def address(
    broker: BrokerProcess, username: str | None = None, password: bytes | None = None
) -> BrokerAddress:
    return BrokerAddress(f"tcp://127.0.0.1:{broker.port}", username, password)


def numbered(topic: str, count: int, qos: int = 1) -> Iterator[Outgoing]:
    return (Outgoing(number, topic, b"%d" % number, qos) for number in range(count))


def publish(broker: BrokerProcess, producer: str, messages: Iterator[Outgoing]) -> Publisher:
    with closing(Publisher(address(broker), producer, patience_s=30)) as publisher:
        publisher.publish(messages)
        return publisher


@pytest.mark.parametrize("qos", [1, 2])
def test_everything_arrives_once_however_often_it_is_published(broker: BrokerProcess, qos: int) -> None:
    subscribe(broker, f"device-{qos}", f"once/{qos}")
    for _ in range(2):
        assert publish(broker, f"once/{qos}", numbered(f"once/{qos}", 3000, qos)).acknowledged == 3000
    found = received(broker, f"device-{qos}")
    assert [int(packet.payload) for packet in found] == list(range(3000))
    assert {packet.qos for packet in found} == {qos}


def test_retain_properties_and_expiry_go_along(broker: BrokerProcess) -> None:
    subscribe(broker, "device-p", "properties")
    text = b"\x03\x00\x01t" + b"\x26\x00\x01a\x00\x01b"
    publish(broker, "properties", iter([Outgoing(7, "properties", b"x", 1, True, text, 3600)]))
    found = received(broker, "device-p")[0].properties
    assert found[0x03] == "t"
    assert 3590 <= found[0x02] <= 3600
    assert found[0x26] == [("a", "b"), ("producer-id", "properties"), ("producer-sequence", "7")]


def test_kill_9_of_the_broker_in_the_middle(tmp_path: Path) -> None:
    broker = BrokerProcess(tmp_path).start()
    try:
        subscribe(broker, "device", "kill")

        def messages() -> Iterator[Outgoing]:
            for message in numbered("kill", 6000):
                if message.sequence in (2000, 4000):
                    broker.crash()
                yield message

        publisher = publish(broker, "kill", messages())
        assert publisher.acknowledged == 6000
        assert publisher.sent > 6000
        assert [int(packet.payload) for packet in received(broker, "device")] == list(range(6000))
    finally:
        broker.end()


def test_the_next_attempt_takes_over(broker: BrokerProcess) -> None:
    def messages() -> Iterator[Outgoing]:
        for message in numbered("takeover", 50_000):
            if message.sequence == 2000:
                publish(broker, "takeover", numbered("takeover", 3000))
            yield message

    subscribe(broker, "device-t", "takeover")
    with pytest.raises(Superseded, match="another attempt"):
        publish(broker, "takeover", messages())
    assert [int(packet.payload) for packet in received(broker, "device-t")][:3000] == list(range(3000))


def test_a_refused_topic_is_named_and_nothing_overtakes_it(tmp_path: Path) -> None:
    broker = BrokerProcess(tmp_path)
    passwords, rules = tmp_path / "passwords", tmp_path / "acl"
    headrace("passwd", str(passwords), "commander", "-b", "secret")
    rules.write_text("user commander\ntopic write allowed\ntopic read allowed\n")
    broker.settings = {
        "access.password_file": f'"{passwords}"',
        "access.acl_file": f'"{rules}"',
        "allow_anonymous": "true",
    }
    broker.start()
    try:
        messages = [Outgoing(n, "forbidden" if n == 3 else "allowed", b"%d" % n) for n in range(10)]
        commander = address(broker, "commander", b"secret")
        refused = r"message 3 to topic 'forbidden': Not authorized \(0x87\)"
        with (
            closing(Publisher(commander, "commander", 10)) as first,
            pytest.raises(BrokerRefused, match=refused),
        ):
            first.publish(messages)
        rules.write_text("user commander\ntopic write #\n")
        broker.restart()
        with closing(Publisher(commander, "commander", 10)) as again:
            again.publish(messages)
        assert broker.metrics()['headrace_publishes_repeated_total{tenant="default"}'] == 3
        with pytest.raises(BrokerRefused, match="refused client stranger, user commander: Not authorized"):
            Publisher(address(broker, "commander", b"wrong"), "stranger", 10).publish(messages)
    finally:
        broker.end()


def test_what_is_refused_is_put_aside_and_the_others_go_on(tmp_path: Path) -> None:
    broker = BrokerProcess(tmp_path)
    (tmp_path / "acl").write_text(
        "topic write allowed\ntopic write large\ntopic read allowed\ntopic readwrite end\n"
    )
    broker.settings = {"access.acl_file": f'"{tmp_path / "acl"}"', "allow_anonymous": "true"}
    broker.start()
    aside: list[tuple[int, str]] = []
    try:
        subscribe(broker, "device", "allowed")
        messages = [
            Outgoing(n, "forbidden" if n % 50 == 7 else "allowed", b"%d" % n, 1 + n % 2) for n in range(3000)
        ]
        messages[1500] = Outgoing(1500, "large", bytes(2_000_000))
        publisher = Publisher(
            address(broker), "aside", 30, put_aside=lambda message, why: aside.append((message.sequence, why))
        )
        with closing(publisher):
            publisher.publish(messages)
        found = [int(packet.payload) for packet in received(broker, "device")]
        assert found == [n for n in range(3000) if n % 50 != 7 and n != 1500]
        assert [n for n, _ in aside] == sorted([1500, *range(7, 3000, 50)])
        assert {why.split()[-1] for _, why in aside} == {"(0x87)", "(0x95)"}
        assert publisher.acknowledged == len(found)
    finally:
        broker.end()


def test_a_message_that_the_broker_cannot_take_is_not_sent(broker: BrokerProcess) -> None:
    with pytest.raises(BrokerRefused, match=r"20000\d\d bytes, it takes \d+ \(0x95\)"):
        publish(broker, "large", iter([Outgoing(0, "large", bytes(2_000_000))]))


def test_nobody_there() -> None:
    publisher = Publisher(BrokerAddress(f"tcp://127.0.0.1:{free_port()}"), "lonely", patience_s=0.2)
    with pytest.raises(BrokerUnreachable, match=r"no acknowledgement from broker tcp://127.0.0.1:.*refused"):
        publisher.publish(numbered("t", 1))


def test_what_connack_says_that_there_is_not_is_put_aside_and_never_sent() -> None:
    """A broker answers that with the end of the connection, and with another one each time it comes again."""
    limited = Properties()
    limited.maximum_qos, limited.retain_available = 1, 0
    messages = [Outgoing(1, "t", b"x", 2), Outgoing(2, "t", b"x", 1, True), Outgoing(3, "t", b"x", 2, True)]
    aside: list[str] = []
    with socket.create_server(("127.0.0.1", 0)) as listening:
        where = BrokerAddress(f"tcp://127.0.0.1:{listening.getsockname()[1]}")

        def answer() -> None:
            for _ in range(2):
                accepted, _ = listening.accept()
                with accepted:
                    accepted.settimeout(10)
                    accepted.recv(1000)
                    accepted.sendall(codec.encode_connack(5, False, 0, limited))
                    sent.append(accepted.recv(1000))

        sent: list[bytes] = []
        thread = threading.Thread(target=answer)
        thread.start()
        with closing(Publisher(where, "p", 10, put_aside=lambda _, why: aside.append(why))) as patient:
            patient.publish(messages)
        with (
            closing(Publisher(where, "p", 10)) as strict,
            pytest.raises(BrokerRefused, match=r"message 1 to topic 't'.*\(0x9B\)"),
        ):
            strict.publish(messages)
        thread.join(10)
    assert [why.split()[-1] for why in aside] == ["(0x9B)", "(0x9A)", "(0x9B)"]
    assert [data[:1] for data in sent] == [b"\xe0", b"\xe0"], "DISCONNECT, and nothing before it"
