"""Clients that we did not write: mosquitto's commands, paho-mqtt and aiomqtt."""

from __future__ import annotations

import asyncio
import shutil
import subprocess
import threading
from collections.abc import Callable, Iterator
from typing import Any

import aiomqtt
import paho.mqtt.client as paho
import pytest
from paho.mqtt.enums import CallbackAPIVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties
from paho.mqtt.subscribeoptions import SubscribeOptions

from broker_process import BrokerProcess, wait_until
from e2e.raw import RawClient
from paho_end import end_loop

Clients = Callable[..., RawClient]
mosquitto = pytest.mark.skipif(
    shutil.which("mosquitto_pub") is None, reason="mosquitto-clients is not installed"
)


def run(
    broker: BrokerProcess, command: str, *arguments: str, stdin: str = ""
) -> subprocess.CompletedProcess[str]:
    where = [command, "-h", "127.0.0.1", "-p", str(broker.port)]
    return subprocess.run(
        [*where, *arguments], input=stdin, capture_output=True, text=True, timeout=20, check=False
    )


def sub(broker: BrokerProcess, *arguments: str) -> subprocess.Popen[str]:
    where = ["mosquitto_sub", "-h", "127.0.0.1", "-p", str(broker.port), "-W", "15"]
    return subprocess.Popen([*where, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


@pytest.mark.mosquitto
@mosquitto
@pytest.mark.parametrize("protocol", ["mqttv31", "mqttv311", "mqttv5"])
@pytest.mark.parametrize("qos", ["0", "1", "2"])
def test_mosquitto_pub_and_sub(broker: BrokerProcess, name: str, protocol: str, qos: str) -> None:
    """The subscriber tells by a retained message that it is there; then five lines from stdin."""
    assert run(broker, "mosquitto_pub", "-t", f"{name}/here", "-m", "here", "-r", "-q", "1").returncode == 0
    with sub(broker, "-V", protocol, "-t", f"{name}/#", "-q", qos, "-C", "6") as reader:
        assert reader.stdout is not None
        assert reader.stdout.readline() == "here\n"
        sent = run(
            broker,
            "mosquitto_pub",
            "-V",
            protocol,
            "-t",
            f"{name}/x",
            "-q",
            qos,
            "-l",
            stdin="1\n2\n3\n4\n5\n",
        )
        assert sent.returncode == 0, sent.stderr
        assert reader.stdout.read() == "1\n2\n3\n4\n5\n"
        assert reader.wait(15) == 0


@pytest.mark.mosquitto
@mosquitto
def test_mosquitto_persistent_session(broker: BrokerProcess, name: str) -> None:
    session = ["-i", name, "-c", "-t", name, "-q", "1"]
    assert run(broker, "mosquitto_sub", *session, "-E").returncode == 0
    for number in range(5):
        assert run(broker, "mosquitto_pub", "-t", name, "-m", str(number), "-q", "2").returncode == 0
    found = run(broker, "mosquitto_sub", *session, "-C", "5", "-W", "10")
    assert (found.returncode, found.stdout) == (0, "0\n1\n2\n3\n4\n")


@pytest.mark.mosquitto
@mosquitto
def test_mosquitto_v5_properties(broker: BrokerProcess, name: str) -> None:
    properties = (
        ["content-type", "text/plain"],
        ["user-property", "unit", "°C"],
        ["message-expiry-interval", "100"],
    )
    options = [word for one in properties for word in ("-D", "PUBLISH", *one)]
    sent = run(broker, "mosquitto_pub", "-V", "5", "-t", name, "-m", "21.5", "-r", "-q", "1", *options)
    assert sent.returncode == 0, sent.stderr
    found = run(broker, "mosquitto_sub", "-V", "5", "-t", name, "-C", "1", "-F", "%p|%C|%P|%r|%q", "-q", "1")
    assert found.stdout.strip() == "21.5|text/plain|unit:°C|1|1"


@pytest.mark.mosquitto
@mosquitto
def test_mosquitto_will(broker: BrokerProcess, clients: Clients, name: str) -> None:
    heir = clients(broker)
    heir.subscribe(f"{name}/#", qos=1)
    will = ["--will-topic", f"{name}/will", "--will-payload", "gone", "--will-qos", "1"]
    with sub(broker, "-t", f"{name}/none", *will) as dying:
        clients(broker).deliver(f"{name}/none", b"up", retain=True)
        assert dying.stdout is not None
        assert dying.stdout.readline() == "up\n"
        dying.kill()
    assert heir.receive().payload == b"up"
    assert heir.receive().payload == b"gone"


class Paho:
    """A paho client with what it received."""

    def __init__(self, broker: BrokerProcess, client_id: str, version: int, **fields: Any) -> None:
        protocol = paho.MQTTv5 if version == 5 else paho.MQTTv311
        clean = {} if version == 5 else {"clean_session": fields.pop("clean", True)}
        self.client = paho.Client(CallbackAPIVersion.VERSION2, client_id, protocol=protocol, **clean)
        self.messages: list[paho.MQTTMessage] = []
        self.connected, self.subscribed = threading.Event(), threading.Event()
        self.session_present = False
        self.client.on_connect = self._on_connect
        self.client.on_subscribe = lambda *_: self.subscribed.set()
        self.client.on_message = self._on_message
        self._changed = threading.Condition()
        self.client.connect("127.0.0.1", broker.port, **fields)
        self.client.loop_start()
        assert self.connected.wait(10)

    def _on_connect(self, _client: Any, _data: Any, flags: paho.ConnectFlags, reason: Any, _: Any) -> None:
        assert reason == 0
        self.session_present = flags.session_present
        self.connected.set()

    def _on_message(self, _client: Any, _data: Any, message: paho.MQTTMessage) -> None:
        with self._changed:
            self.messages.append(message)
            self._changed.notify_all()

    def wait_messages(self, count: int) -> list[paho.MQTTMessage]:
        with self._changed:
            self._changed.wait_for(lambda: len(self.messages) >= count, 15)
        assert len(self.messages) == count
        return self.messages

    def publish_all(self, topic: str, count: int, qos: int) -> None:
        infos = [self.client.publish(topic, str(number), qos) for number in range(count)]
        for info in infos:
            info.wait_for_publish(15)
            assert info.is_published()

    def close(self) -> None:
        self.client.disconnect()
        end_loop(self.client)


@pytest.fixture
def pahos() -> Iterator[Callable[..., Paho]]:
    opened: list[Paho] = []

    def make(*arguments: Any, **fields: Any) -> Paho:
        opened.append(Paho(*arguments, **fields))
        return opened[-1]

    yield make
    for one in opened:
        one.close()


@pytest.mark.parametrize("version", [4, 5])
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_paho_both_ways(
    broker: BrokerProcess, pahos: Callable[..., Paho], name: str, version: int, qos: int
) -> None:
    client = pahos(broker, name, version)
    client.client.subscribe(name, qos)
    assert client.subscribed.wait(10)
    client.publish_all(name, 300, qos)
    assert [int(one.payload) for one in client.wait_messages(300)] == list(range(300))
    assert {one.qos for one in client.messages} == {qos}


@pytest.mark.parametrize("version", [4, 5])
def test_paho_persistent_session(
    broker: BrokerProcess, pahos: Callable[..., Paho], name: str, version: int
) -> None:
    expiry = Properties(PacketTypes.CONNECT)  # type: ignore[no-untyped-call]
    expiry.SessionExpiryInterval = 600
    keep: dict[str, Any] = {"clean_start": False, "properties": expiry} if version == 5 else {"clean": False}
    first = pahos(broker, name, version, **keep)
    assert not first.session_present
    first.client.subscribe(name, 1)
    assert first.subscribed.wait(10)
    first.close()
    pahos(broker, f"{name}-p", version).publish_all(name, 500, 1)
    again = pahos(broker, name, version, **keep)
    assert again.session_present
    assert [int(one.payload) for one in again.wait_messages(500)] == list(range(500))
    assert not any(one.dup for one in again.messages)


def test_paho_v5_options_and_properties(broker: BrokerProcess, pahos: Callable[..., Paho], name: str) -> None:
    one, two = pahos(broker, f"{name}-1", 5), pahos(broker, f"{name}-2", 5)
    options = SubscribeOptions(qos=1, noLocal=True, retainAsPublished=True)
    one.client.subscribe(name, options=options)
    assert one.subscribed.wait(10)
    sent: Any = Properties(PacketTypes.PUBLISH)  # type: ignore[no-untyped-call]
    sent.UserProperty = [("a", "1"), ("a", "2")]
    sent.CorrelationData = b"\x00\x01"
    sent.ResponseTopic = "answers"
    one.client.publish(name, b"own", 1).wait_for_publish(10)
    two.client.publish(name, b"other", 1, retain=True, properties=sent).wait_for_publish(10)
    (found,) = one.wait_messages(1)
    assert (found.payload, found.retain) == (b"other", True)
    properties: Any = found.properties
    assert properties.UserProperty == [("a", "1"), ("a", "2")]
    assert properties.CorrelationData == b"\x00\x01"
    assert properties.ResponseTopic == "answers"


@pytest.mark.parametrize("version", [aiomqtt.ProtocolVersion.V311, aiomqtt.ProtocolVersion.V5])
def test_aiomqtt_streams(broker: BrokerProcess, name: str, version: aiomqtt.ProtocolVersion) -> None:
    """Two clients in one loop: one publishes at QoS 2 with a will, the other iterates over what comes."""

    async def talk() -> list[int]:
        will = aiomqtt.Will(f"{name}/will", b"-1", 1)
        where: dict[str, Any] = {"port": broker.port, "protocol": version}
        async with (
            aiomqtt.Client("127.0.0.1", identifier=f"{name}-s", **where) as subscriber,
            aiomqtt.Client("127.0.0.1", identifier=f"{name}-p", will=will, **where) as publisher,
        ):
            await subscriber.subscribe(f"{name}/#", qos=2)
            for number in range(100):
                await publisher.publish(f"{name}/{number % 3}", str(number), qos=number % 3)
            found: list[int] = []
            async for message in subscriber.messages:
                assert isinstance(message.payload, bytes)
                found.append(int(message.payload))
                if len(found) == 100:
                    return found
        raise AssertionError

    found = asyncio.run(asyncio.wait_for(talk(), 20))
    for qos in range(3):  # order is per topic and QoS
        assert [number for number in found if number % 3 == qos] == list(range(qos, 100, 3))


def test_paho_rides_over_a_kill(
    own_broker: BrokerProcess, pahos: Callable[..., Paho], clients: Clients
) -> None:
    """paho reconnects by itself and resends: what it was told is published is in the away session's backlog."""
    away = clients(own_broker, "away", clean=False)
    away.subscribe("t", qos=1)
    away.disconnect()
    device = pahos(own_broker, "device", 4, clean=False)
    device.client.reconnect_delay_set(1, 1)
    told: set[int] = set()
    device.client.on_publish = lambda *args: told.add(args[2])
    ids = {device.client.publish("t", str(number), 1).mid for number in range(200)}
    own_broker.crash()
    ids |= {device.client.publish("t", str(number), 1).mid for number in range(200, 300)}
    wait_until(lambda: ids <= told, "paho is told that all are published", 30)
    away = clients(own_broker, "away", clean=False)
    away.subscribe("end", qos=1)
    away.deliver("end", b"")
    found = []
    while (packet := away.receive()).topic != "end":
        found.append(int(packet.payload))
    assert sorted(set(found)) == list(range(300))
