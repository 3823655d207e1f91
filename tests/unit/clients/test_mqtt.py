"""The client against a foreign broker: mosquitto."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from headrace.clients.errors import ConnectionLost, ConnectRefused, NotSupported
from headrace.clients.mqtt import MqttClient
from headrace.mqtt.packets import Connect, Publish, SubscriptionRequest, Will
from headrace.mqtt.properties import Properties
from unit.clients.foreign_broker import mosquitto

pytestmark = [pytest.mark.mosquitto, pytest.mark.asyncio]
VERSIONS = pytest.mark.parametrize("version", [3, 4, 5])
HOST = "127.0.0.1"


def keeping(client_id: str, **values: object) -> Connect:
    packet = Connect(5, client_id, False)
    packet.properties.session_expiry_interval = 60
    for name, value in values.items():
        setattr(packet.properties, name, value)
    return packet


async def take(client: MqttClient, count: int) -> list[Publish]:
    found = []
    for _ in range(count):
        message = await client.receive()
        client.ack(message)
        found.append(message)
    return found


@VERSIONS
@pytest.mark.parametrize("qos", [0, 1, 2])
async def test_there_and_back(port: int, version: int, qos: int) -> None:
    topic = f"there/{version}/{qos}"
    async with MqttClient(HOST, port, Connect(version, f"t-{version}-{qos}")) as client:
        suback = await client.subscribe([SubscriptionRequest(topic, qos)])
        assert suback.reason_codes == bytes((qos,))
        assert await client.publish(topic.encode(), b"hello", qos) == 0
        (message,) = await take(client, 1)
    assert (message.topic, message.payload, message.qos, message.dup) == (
        topic.encode(),
        b"hello",
        qos,
        False,
    )


async def test_version_5_properties_come_back(port: int) -> None:
    properties = Properties()
    properties.content_type = "text/plain"
    properties.correlation_data = b"\0\xff"
    properties.response_topic = "answers"
    properties.user_properties = [("k", "v"), ("k", "w"), ("", "")]
    wanted = Properties()
    wanted.subscription_identifiers = [7]
    async with MqttClient(HOST, port, Connect(5, "props")) as client:
        await client.subscribe([SubscriptionRequest("props", 1)], wanted)
        await client.publish(b"props", b"x", 1, False, properties.encode(), 100)
        (message,) = await take(client, 1)
    found = Properties.decode(message.properties, 0, len(message.properties), 3)
    assert found.subscription_identifiers == [7]
    found.subscription_identifiers = []
    assert found == properties
    assert 98 <= message.message_expiry_s <= 100


async def test_retained_and_unsubscribe(port: int) -> None:
    async with MqttClient(HOST, port, Connect(5, "retained")) as client:
        await client.publish(b"kept/1", b"x", 1, True)
        await client.subscribe([SubscriptionRequest("kept/+", 1)])
        (message,) = await take(client, 1)
        assert message.retain
        unsuback = await client.unsubscribe(["kept/+", "never"])
        assert unsuback.reason_codes == b"\x00\x11"
        await client.publish(b"kept/1", b"", 1, True)


@pytest.mark.parametrize("qos", [1, 2])
async def test_many_overlapping_publishes_keep_their_order_and_the_servers_window(
    tmp_path: Path, qos: int
) -> None:
    with mosquitto(tmp_path, "max_inflight_messages 5") as small:
        async with MqttClient(HOST, small, Connect(5, "many")) as client:
            assert client.properties.receive_maximum == 5
            await client.subscribe([SubscriptionRequest("many", qos)])
            flows = [client.publish(b"many", b"%d" % number, qos) for number in range(300)]
            received, codes = await asyncio.gather(take(client, 300), asyncio.gather(*flows))
            assert codes == [0] * 300
            assert [int(message.payload) for message in received] == list(range(300))
            assert client._window.in_flight == 0


async def test_what_is_not_acknowledged_comes_again(port: int) -> None:
    first = MqttClient(HOST, port, keeping("again"))
    await first.open()
    await first.subscribe([SubscriptionRequest("again", 2)])
    await first.publish(b"again", b"1", 1)
    await first.publish(b"again", b"2", 2)
    seen = [await first.receive(), await first.receive()]
    first.abort()
    second = MqttClient(HOST, port, keeping("again"))
    connack = await second.open()
    assert connack.session_present
    repeats = await take(second, 2)
    assert [(m.packet_id, m.payload, m.dup) for m in repeats] == [
        (m.packet_id, m.payload, True) for m in seen
    ]
    await second.close()


async def test_our_receive_maximum_holds_the_server_back(port: int) -> None:
    async with MqttClient(HOST, port, keeping("slow", receive_maximum=3)) as client:
        await client.subscribe([SubscriptionRequest("slow", 1)])
        for number in range(6):
            await client.publish(b"slow", b"%d" % number, 1)
        first = [await client.receive() for _ in range(3)]
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.2):
                await client.receive()
        client.ack(first[0])
        assert (await client.receive()).payload == b"3"


async def test_a_will_is_sent_for_an_aborted_client(port: int) -> None:
    async with MqttClient(HOST, port, Connect(5, "mourner")) as watcher:
        await watcher.subscribe([SubscriptionRequest("wills/#", 1)])
        mortal = MqttClient(HOST, port, Connect(5, "mortal", will=Will("wills/a", b"gone", 1)))
        await mortal.open()
        mortal.abort()
        assert (await take(watcher, 1))[0].payload == b"gone"
        polite = MqttClient(HOST, port, Connect(5, "polite", will=Will("wills/b", b"asked for", 1)))
        await polite.open()
        await polite.close(4)
        assert (await take(watcher, 1))[0].payload == b"asked for"


async def test_taken_over(port: int) -> None:
    first = MqttClient(HOST, port, Connect(5, "twice"))
    await first.open()
    async with MqttClient(HOST, port, Connect(5, "twice")):
        with pytest.raises(ConnectionLost) as caught:
            await first.receive()
    assert caught.value.retry_helps
    with pytest.raises(ConnectionLost):
        await first.publish(b"a", b"")
    await first.close()


@VERSIONS
async def test_refused(tmp_path: Path, version: int) -> None:
    with mosquitto(tmp_path, anonymous=False) as closed:
        client = MqttClient(HOST, closed, Connect(version, "nobody"))
        with pytest.raises(ConnectRefused, match=r"(?i)not authorized"):
            await client.open()
        await client.close()


async def test_a_topic_alias(port: int) -> None:
    async with MqttClient(HOST, port, Connect(5, "alias")) as client:
        await client.subscribe([SubscriptionRequest("a/long/topic", 0)])
        await client.publish(b"a/long/topic", b"1", topic_alias=1)
        await client.publish(b"", b"2", topic_alias=1)
        assert [message.payload for message in await take(client, 2)] == [b"1", b"2"]


async def test_keep_alive_pings(port: int) -> None:
    connect = Connect(5, "pinging", keep_alive_s=1)
    async with MqttClient(HOST, port, connect) as client:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(2.5):  # the broker would have closed after 1.5
                await client.receive()
        assert client.lost is None


async def test_what_the_server_does_not_take(port: int) -> None:
    async with MqttClient(HOST, port, Connect(5, "limits")) as client:
        client.properties.maximum_qos = 1
        client.properties.retain_available = 0
        client.properties.maximum_packet_size = 20
        with pytest.raises(NotSupported, match="QoS 2"):
            await client.publish(b"a", b"", 2)
        with pytest.raises(NotSupported, match="retained"):
            await client.publish(b"a", b"", 0, True)
        with pytest.raises(NotSupported, match="the server takes 20"):
            await client.publish(b"a", b"x" * 100, 1)
        assert client._window.in_flight == 0


async def test_reading_pauses_while_the_application_is_behind(port: int) -> None:
    async with (
        MqttClient(HOST, port, Connect(5, "behind")) as client,
        MqttClient(HOST, port, Connect(5, "fast")) as fast,
    ):
        await client.subscribe([SubscriptionRequest("behind", 0)])
        for number in range(3_000):
            await fast.publish(b"behind", b"%d" % number)
        assert [int(message.payload) for message in await take(client, 3_000)] == list(range(3_000))


async def test_an_answer_behind_a_large_backlog_is_read(tmp_path: Path) -> None:
    with mosquitto(tmp_path, "max_inflight_messages 0", "max_queued_messages 0") as wide:
        first = MqttClient(HOST, wide, keeping("large"))
        await first.open()
        await first.subscribe([SubscriptionRequest("large", 1)])
        await first.close()
        async with MqttClient(HOST, wide, Connect(5, "feeder")) as feeder:
            await asyncio.gather(*(feeder.publish(b"large", b"%d" % number, 1) for number in range(2_500)))
        async with MqttClient(HOST, wide, keeping("large")) as client:
            await client.subscribe([SubscriptionRequest("large", 1)])
            assert [int(message.payload) for message in await take(client, 2_500)] == list(range(2_500))
