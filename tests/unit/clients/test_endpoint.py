"""The way to a broker over TLS and WebSocket, with Debian's mosquitto at the other end."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Iterator
from pathlib import Path

import pytest

from broker_process import free_port
from certificates import Authority
from headrace.address import Location
from headrace.clients.endpoint import Endpoint, UnusableFile, client_context, parse
from headrace.clients.errors import ConnectionLost
from headrace.clients.mqtt import MqttClient
from headrace.mqtt.packets import Connect, SubscriptionRequest
from unit.clients.foreign_broker import mosquitto

pytestmark = pytest.mark.mosquitto


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("ca"))


@pytest.fixture(scope="module")
def ports(tmp_path_factory: pytest.TempPathFactory, authority: Authority) -> Iterator[dict[str, int]]:
    folder = tmp_path_factory.mktemp("mosquitto")
    certificate, key = authority.issue("server")
    files = [f"certfile {certificate}", f"keyfile {key}"]
    ports = {name: free_port() for name in ("ws", "wss", "tls", "mutual")}
    lines = ["user root"]  # to read pytest's folder, where root runs the tests
    for name, port in ports.items():
        lines.append(f"listener {port} 127.0.0.1")
        lines += ["protocol websockets"] if name in ("ws", "wss") else []
        lines += files if name != "ws" else []
        lines += [f"cafile {authority.ca}", "require_certificate true"] if name == "mutual" else []
    with mosquitto(folder, *lines):
        yield ports


def context(authority: Authority, over: str) -> ssl.SSLContext | None:
    if over == "ws":
        return None
    certificate, key = authority.issue("client") if over == "mutual" else ("", "")
    return client_context(str(authority.ca), str(certificate), str(key), False)


@pytest.mark.parametrize("over", ["ws", "wss", "tls", "mutual"])
@pytest.mark.parametrize("version", [4, 5])
@pytest.mark.asyncio
async def test_messages_of_any_size(
    ports: dict[str, int], authority: Authority, over: str, version: int
) -> None:
    """Lengths of one, two and eight bytes in a frame, in both directions, at each QoS."""
    connect = Connect(version, f"c-{over}-{version}", keep_alive_s=5)
    path = "/mqtt" if over in ("ws", "wss") else ""
    tls = context(authority, over)
    async with MqttClient("localhost", ports[over], connect, tls=tls, websocket_path=path) as client:
        await client.subscribe([SubscriptionRequest("t", 2)])
        for qos, size in ((0, 3), (1, 300), (2, 66_000)):
            await client.publish(b"t", b"x" * size, qos)
            message = await asyncio.wait_for(client.receive(), 20)
            client.ack(message)
            assert (message.qos, message.payload) == (qos, b"x" * size)


@pytest.mark.asyncio
async def test_who_cannot_be_trusted_is_not_spoken_to(ports: dict[str, int], authority: Authority) -> None:
    stranger = Authority(authority.folder / "stranger", "stranger")
    wrong = client_context(str(stranger.ca), "", "", False)
    with pytest.raises(ssl.SSLCertVerificationError):
        await MqttClient("localhost", ports["tls"], Connect(5, "c"), tls=wrong).open()
    async with MqttClient("localhost", ports["tls"], Connect(5, "c"), tls=client_context("", "", "", True)):
        pass


@pytest.mark.asyncio
async def test_what_is_no_websocket() -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(answers.pop(0))
        writer.close()

    answers = [b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n", b"\x20\x02\x00\x00", b""]
    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    async with server:
        for why in ("HTTP 404", "connection lost", "connection lost"):
            with pytest.raises(ConnectionLost, match=why):
                await MqttClient("127.0.0.1", port, Connect(5, "c"), websocket_path="/mqtt").open()


def test_files_that_are_none(tmp_path: Path, authority: Authority) -> None:
    nonsense = tmp_path / "nonsense.pem"
    nonsense.write_text("nonsense")
    for ca, certificate, key in ((nonsense, "", ""), ("/none.pem", "", ""), ("", authority.ca, "/none.key")):
        with pytest.raises(UnusableFile, match=r"none|nonsense"):
            client_context(str(ca), str(certificate), str(key), False)


def test_parse() -> None:
    assert parse("mqtts://h") == Location("tls", "h", 8883, "")
    assert parse("wss://h:1/a/b") == Location("wss", "h", 1, "/a/b")
    for wrong in ("h:1", "tcp://", "tcp://u@h", "tls://h/x", "ws://h?x=1", "tcp://h:x", "unix:///a"):
        with pytest.raises(ValueError, match=r"no address|[Pp]ort"):
            parse(wrong)


@pytest.mark.asyncio
async def test_a_socket_goes_to_the_first_address_that_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        nobody, somebody = (
            (socket.AF_INET, socket.SOCK_STREAM, 0, "", ("127.0.0.1", port))
            for port in (free_port(), listening.getsockname()[1])
        )
        found = [nobody, somebody]

        async def resolve(*_: object, **__: object) -> list[object]:
            return list(found)

        monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", resolve)
        with await Endpoint("broker", 1883).connect() as connected:
            assert connected.getpeername() == listening.getsockname()
            assert not connected.getblocking()
        found = [nobody, nobody]
        with pytest.raises(ConnectionRefusedError):
            await Endpoint("broker", 1883).connect()


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("host", "path", "why"),
    [
        ("127.0.0.1", "", "127.0.0.1:1: Connection refused"),
        ("127.0.0.1", "/mqtt", "127.0.0.1:1: Connection refused"),
        ("::1", "", r"\[::1\]:1: "),
        ("localhost", "", "localhost:1: Connection refused"),
        ("no.such.host.invalid", "", "no.such.host.invalid:1: [A-Z]"),
    ],
)
async def test_where_nobody_answers_is_said_in_words(host: str, path: str, why: str) -> None:
    with pytest.raises(OSError, match=f"^no broker answers at {why}") as dialled:
        await MqttClient(host, 1, Connect(5, "c"), websocket_path=path).open()
    with pytest.raises(OSError) as connected:
        await Endpoint(host, 1).connect()
    for raised in (dialled, connected):
        assert "Errno" not in str(raised.value)
        assert raised.value.errno


@pytest.mark.asyncio
async def test_who_does_not_answer_in_time_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        with pytest.raises(TimeoutError, match=rf"^no broker answers at 127.0.0.1:{port} within 0.1 s$"):
            await MqttClient("127.0.0.1", port, Connect(5, "c"), open_timeout_s=0.1).open()
