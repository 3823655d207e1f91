"""A client's connection against a server that follows a script: what no well-behaved broker would show."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

import pytest

from broker_process import free_port
from headrace.clients.errors import ConnectionLost, ConnectRefused
from headrace.clients.mqtt import MqttClient
from headrace.mqtt import codec
from headrace.mqtt.packets import Connect, SubscriptionRequest
from headrace.mqtt.properties import Properties

pytestmark = pytest.mark.asyncio
ACCEPT = codec.encode_connack(5, False, 0)


class Script:
    """A server that writes each answer after the next piece of input, and keeps what it heard."""

    def __init__(self, *answers: bytes, hang_up: bool = False) -> None:
        self.answers = list(answers)
        self.hang_up = hang_up
        self.heard: list[bytes] = []
        self.gone = asyncio.Event()

    async def __call__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError):
            await self._follow(reader, writer)
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()
        self.gone.set()

    async def _follow(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(65_536):
            self.heard.append(data)
            if self.answers:
                writer.write(self.answers.pop(0))
            if self.hang_up and not self.answers:
                return


@contextlib.asynccontextmanager
async def served(script: Script) -> AsyncIterator[int]:
    server = await asyncio.start_server(script, "127.0.0.1", 0)
    async with server:
        yield server.sockets[0].getsockname()[1]
        await script.gone.wait()


def client_of(port: int, keep_alive_s: int = 60) -> MqttClient:
    return MqttClient("127.0.0.1", port, Connect(5, "it", keep_alive_s=keep_alive_s), 2)


async def test_a_server_disconnects_with_a_reason() -> None:
    properties = Properties()
    properties.reason_string = "maintenance"
    async with served(Script(ACCEPT + codec.encode_disconnect(5, 0x8B, properties))) as port:
        client = client_of(port)
        await client.open()
        with pytest.raises(ConnectionLost, match="maintenance") as caught:
            await client.receive()
        assert caught.value.reason_code == 0x8B
        await client.close()


async def test_a_server_breaks_the_protocol() -> None:
    script = Script(ACCEPT + b"\x30\x03\x00\x01a\xc0\x00")
    async with served(script) as port:
        client = client_of(port)
        await client.open()
        with pytest.raises(ConnectionLost, match="broke the protocol"):
            await client.receive()
        await script.gone.wait()
        assert script.heard[-1] == b"\xe0\x01\x81"
        await client.close()


async def test_a_refusal_carries_its_reason() -> None:
    async with served(Script(codec.encode_connack(5, False, 0x8A))) as port:
        client = client_of(port)
        with pytest.raises(ConnectRefused, match="Banned") as caught:
            await client.open()
        assert caught.value.reason_code == 0x8A
        await client.close()


async def test_a_server_hangs_up_on_connect() -> None:
    async with served(Script(hang_up=True)) as port:
        with pytest.raises(ConnectionLost, match="closed"):
            await client_of(port).open()


async def test_a_server_never_answers() -> None:
    async with served(Script()) as port:
        client = MqttClient("127.0.0.1", port, Connect(5, "it"), 0.1)
        with pytest.raises(TimeoutError):
            await client.open()
        client.abort()


async def test_nobody_listens() -> None:
    with pytest.raises(ConnectionRefusedError):
        await client_of(free_port()).open()


async def test_no_pingresp_ends_the_connection() -> None:
    async with served(Script(ACCEPT)) as port:
        client = client_of(port, 1)
        client.connect.keep_alive_s = 0
        await client.open()
        client._ping()
        client._ping()
        with pytest.raises(ConnectionLost, match="PINGRESP"):
            await client.receive()


async def test_the_server_may_set_the_keep_alive() -> None:
    properties = Properties()
    properties.server_keep_alive = 1
    script = Script(codec.encode_connack(5, False, 0, properties), b"\xd0\x00")
    async with served(script) as port:
        client = client_of(port, 600)
        await client.open()
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(1.3):
                await client.receive()
        assert script.heard[1:] == [b"\xc0\x00"]
        await client.close()


async def test_everybody_who_waits_hears_the_end() -> None:
    properties = Properties()
    properties.receive_maximum = 1
    async with served(Script(codec.encode_connack(5, False, 0, properties))) as port:
        client = client_of(port)
        await client.open()
        waiting = [
            asyncio.create_task(client.publish(b"a", b"", 1)),
            asyncio.create_task(client.publish(b"a", b"", 2)),
            asyncio.create_task(client.subscribe([SubscriptionRequest("a")])),
            asyncio.create_task(client.receive()),
        ]
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        client.abort()
        outcomes = await asyncio.gather(*waiting, return_exceptions=True)
        assert [type(outcome) for outcome in outcomes] == [ConnectionLost] * 4


async def test_pubrec_may_refuse_a_message() -> None:
    async with served(Script(ACCEPT, codec.encode_pubrec(5, 1, 0x97))) as port, client_of(port) as client:
        assert await client.publish(b"a", b"", 2) == 0x97
        assert client._window.in_flight == 0


async def test_a_qos_2_message_is_taken_once() -> None:
    publish = codec.encode_publish(5, b"a", b"x", 2, packet_id=9)
    again = codec.encode_publish(5, b"a", b"x", 2, dup=True, packet_id=9)
    script = Script(
        ACCEPT + publish + again, codec.encode_pubrel(5, 9) + codec.encode_pubrel(5, 9) + publish, b""
    )
    async with served(script) as port, client_of(port) as client:
        client.ack(await client.receive())
        client.ack(await client.receive(), 0x87)
        assert not client._messages
        assert client._incoming_qos2 == set()
    sent = b"".join(script.heard[1:])
    first, second = codec.encode_pubcomp(5, 9), codec.encode_pubcomp(5, 9, 0x92)
    assert sent.startswith(codec.encode_pubrec(5, 9) + first + second + codec.encode_pubrec(5, 9, 0x87))


async def test_a_pubrec_for_nothing_is_answered() -> None:
    script = Script(ACCEPT + codec.encode_pubrec(5, 77))
    async with served(script) as port:
        client = client_of(port)
        await client.open()
        await client.close()
        await script.gone.wait()
    assert b"".join(script.heard[1:]) == codec.encode_pubrel(5, 77, 0x92) + b"\xe0\x00"
