"""Clients behind TLS and WebSockets, who are at home in another worker: real sockets, real links between workers."""

from __future__ import annotations

import asyncio
import gc
import os
import ssl
import time
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest
from websockets.client import ClientProtocol
from websockets.typing import Subprotocol
from websockets.uri import parse_uri

from certificates import Authority
from headrace.core.ports.link import Link
from headrace.core.ports.witness import Witness
from headrace.mqtt import codec
from headrace.mqtt.packets import Connect, SubscriptionRequest
from headrace.net.tls import TlsFiles
from headrace.peers.channel import WINDOW_BYTES, _not_leaving
from headrace.peers.relay import ChannelTransport, Relay
from machine import SETTINGS, Machine, Streams, connect_packet, open_descriptors, run, settled, until

CONNACK = bytes([0x20, 2, 0, 0])
PINGRESP = bytes([0xD0, 0])
PUBACK_1 = bytes([0x40, 2, 0, 1])
PUBLISH_1 = codec.encode_publish(4, b"t", b"early", 1, False, False, 1, b"", -1)


class Heard(Witness):
    def __init__(self) -> None:
        super().__init__()
        self.connects: list[tuple[str, str, str, str | None]] = []
        self.ends: list[tuple[str, str]] = []

    def connected(self, link: Link, packet: Connect, present: bool) -> None:
        self.connects.append((link.client_id, link.peer(), link.listener(), link.certificate_name))

    def disconnected(self, link: Link, client_id: str, kept: bool, reason: str, reason_code: int) -> None:
        self.ends.append((client_id, reason))


def _below(writer: asyncio.StreamWriter) -> asyncio.Transport:
    return cast("asyncio.Transport", writer.transport)


class Tls:
    """A machine with a TLS listener that takes the name in the certificate, and a client of it."""

    def __init__(self, folder: Path) -> None:
        self.authority = Authority(folder / "ca")
        certificate, key = self.authority.issue("server")
        files = TlsFiles(str(certificate), str(key), "", "none")
        self.client = self.authority.issue("plant-7")
        url = f"tls://127.0.0.1:0?client_cert=require&ca={self.authority.ca}&identity=cn"
        runtime = folder / "run"
        runtime.mkdir()
        self.machine = Machine(runtime, [url, "tcp://127.0.0.1:0"], settings=replace(SETTINGS, tls=files))

    async def connect(self, index: int = 0) -> Streams:
        context = ssl.create_default_context(cafile=str(self.authority.ca))
        context.load_cert_chain(*self.client)
        port = int(self.machine.workers[index].ports[0])
        return await asyncio.open_connection("localhost", port, ssl=context)

    async def connected(self, name: str, behind: bytes = b"") -> Streams:
        """A client at home in the second worker that came in at the first."""
        reader, writer = await self.connect()
        writer.write(connect_packet(name) + behind)
        assert await reader.readexactly(4) == CONNACK
        return reader, writer


def test_a_client_behind_tls_is_served_at_home(tmp_path: Path) -> None:
    async def body() -> None:
        tls = Tls(tmp_path)
        machine = tls.machine
        await machine.open()
        first, second = machine.workers
        heard = second.worker.testimony.witness = Heard()
        name = machine.name_at(1)
        reader, writer = await tls.connected(name, PUBLISH_1)
        assert await reader.readexactly(4) == PUBACK_1
        host, port = writer.get_extra_info("sockname")[:2]
        assert heard.connects == [(name, f"{host}:{port}", first.doors.urls[0], "plant-7")]
        assert (first.clients, first.relayed, second.clients, second.relayed) == (0, 1, 1, 0)
        assert (first.accepted, second.accepted) == (1, 0)
        assert (first.handover.relaying[1].sent, second.handover.relayed_here) == (1, 1)
        writer.write(codec.PINGREQ)
        assert await reader.readexactly(2) == PINGRESP
        assert (second.worker.bytes_received, second.worker.bytes_sent) == (0, 0)  # counted at the socket
        assert first.worker.bytes_received == len(connect_packet(name) + PUBLISH_1 + codec.PINGREQ)
        assert first.worker.bytes_sent == len(CONNACK + PUBACK_1 + PINGRESP)
        writer.write(codec.encode_disconnect(4))
        assert await reader.read() == b""
        writer.close()
        await until(lambda: (first.relayed, second.clients) == (0, 0))
        assert [end for _, end in heard.ends] == ["disconnected"]
        await machine.close()

    run(body)


@pytest.mark.parametrize("who", ["client", "home", "link", "takeover", "leaving"])
def test_a_relay_ends_as_a_whole_whoever_ends_it(tmp_path: Path, who: str) -> None:
    async def body() -> None:
        tls = Tls(tmp_path)
        machine = tls.machine
        await machine.open()
        before = open_descriptors()
        first, second = machine.workers
        name = machine.name_at(1)
        reader, writer = await tls.connected(name)
        if who == "client":
            writer.transport.abort()
        elif who == "home":
            (connection,) = second.doors.listeners[0].connections.open
            connection.broker.put_out(connection, 0x98, "administrative action")
        elif who == "link":
            await second.peers.stop()
        elif who == "leaving":
            first.peers.say_leaving()
        else:
            plain = await asyncio.open_connection("127.0.0.1", int(first.ports[1]))
            plain[1].write(connect_packet(name))
            assert await plain[0].readexactly(4) == CONNACK
            plain[1].close()
        if who != "client":
            assert await reader.read() == b""
            writer.close()
        await until(lambda: (first.relayed, first.clients, second.clients) == (0, 0, 0))
        if who != "link":
            await settled(before | open_descriptors() if who == "takeover" else before)
        await machine.close()

    run(body)


@pytest.mark.parametrize("code", [0x8B, 0x9C])
def test_who_is_asked_away_where_its_socket_is_hears_it_from_its_home(tmp_path: Path, code: int) -> None:
    async def body() -> None:
        tls = Tls(tmp_path)
        machine = tls.machine
        await machine.open()
        first, second = machine.workers
        heard = second.worker.testimony.witness = Heard()
        reader, writer = await tls.connect()
        writer.write(connect_packet(machine.name_at(1), version=5))
        first_byte, size = await reader.readexactly(2)
        assert first_byte == 0x20
        await reader.readexactly(size)
        (relayed,) = first.doors.listeners[0].connections.relayed
        for _ in range(2):
            relayed.broker.put_out(relayed, code, "drained")
        assert await reader.read() == codec.encode_disconnect(5, code)
        writer.close()
        await until(lambda: (first.relayed, second.clients) == (0, 0))
        assert [end for _, end in heard.ends] == ["drained where its socket is"]
        await machine.close()

    run(body)


def test_all_whose_sockets_were_at_a_node_that_leaves_hear_it_however_soon_its_link_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are told some in each pass of the loop, and the node waits for them a moment."""
    monkeypatch.setattr("headrace.peers.peers.LEAVE_AT_ONCE", 1)

    async def body() -> None:
        tls = Tls(tmp_path)
        machine = tls.machine
        await machine.open()
        first, second = machine.workers
        heard = second.worker.testimony.witness = Heard()
        writers = [(await tls.connected(machine.name_at(1, prefix)))[1] for prefix in "abcd"]
        first.peers.say_leaving()
        await first.peers.stop()
        await until(lambda: (first.relayed, second.clients) == (0, 0))
        assert [end for _, end in heard.ends] == ["the node of its socket stops"] * 4
        for writer in writers:
            writer.close()
        await machine.close()

    run(body)


@pytest.mark.parametrize(("code", "waits"), [(0x9C, True), (0x98, False)])
def test_who_may_not_stay_or_whose_home_says_nothing_goes_all_the_same(
    tmp_path: Path, code: int, waits: bool
) -> None:
    async def body() -> None:
        tls = Tls(tmp_path)
        machine = tls.machine
        await machine.open()
        first, second = machine.workers
        reader, writer = await tls.connected(machine.name_at(1))
        for channel in second.peers._links[0]._channels.values():
            channel.on_leaving = _not_leaving
        (relayed,) = first.doors.listeners[0].connections.relayed
        began_s = time.monotonic()
        relayed.broker.put_out(relayed, code, "away")
        assert await reader.read() == b""
        assert (time.monotonic() - began_s > 1.5) is waits
        writer.close()
        await until(lambda: (first.relayed, second.clients) == (0, 0))
        await machine.close()

    run(body)


def test_what_a_client_sends_waits_while_its_home_does_not_read(tmp_path: Path) -> None:
    """Nothing is buffered but the windows on the way; it all comes when the home reads again."""

    async def body() -> None:
        tls = Tls(tmp_path)
        machine = tls.machine
        await machine.open()
        first, second = machine.workers
        _, writer = await tls.connected(machine.name_at(1))
        (home,) = second.doors.listeners[0].connections.open
        (relayed,) = first.doors.listeners[0].connections.relayed
        home.pause_reading()
        flood = codec.encode_publish(4, b"t", bytes(60_000), 0, False, False, 0, b"", -1)
        count = 200

        async def send() -> None:
            for _ in range(count):
                writer.write(flood)
                await writer.drain()

        sending = asyncio.ensure_future(send())
        await until(relayed.deaf)
        held = first.worker.bytes_received
        for _ in range(100):
            await asyncio.sleep(0.001)
        assert not sending.done()
        assert first.worker.bytes_received - held <= 2 * WINDOW_BYTES
        assert first.worker.bytes_received < 6 * WINDOW_BYTES < count * len(flood)
        home.resume_reading()
        await sending
        counters = second.broker.fold.tenant("default").counters
        await until(lambda: counters.publishes_received == count)
        writer.close()
        await machine.close()

    run(body)


def test_what_a_home_sends_waits_while_the_client_does_not_read(tmp_path: Path) -> None:
    async def body() -> None:
        tls = Tls(tmp_path)
        machine = tls.machine
        await machine.open()
        first, second = machine.workers
        reader, writer = await tls.connected(machine.name_at(1))
        (home,) = second.doors.listeners[0].connections.open
        (relayed,) = first.doors.listeners[0].connections.relayed
        _below(writer).pause_reading()
        piece = bytes(range(250)) * 400
        sent = 0
        async with asyncio.timeout(60):
            while not (home.paused and relayed.paused):
                if not home.paused:
                    home.send(piece)
                    sent += len(piece)
                await asyncio.sleep(0)
        assert sent < 64 << 20
        _below(writer).resume_reading()
        received = await reader.readexactly(sent)
        assert received == piece * (sent // len(piece))
        await until(lambda: not home.paused)
        writer.close()
        await machine.close()

    run(body)


def test_a_client_that_does_not_read_keeps_no_socket_once_its_home_has_ended_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headrace.peers.relay._LOOK_MS", 100)
    monkeypatch.setattr("headrace.links.stream_link._LINGER_MS", 100)
    if os.environ.get("HEADRACE_BUILD") == "compiled":
        pytest.skip("the times of compiled modules are constants")

    async def body() -> None:
        tls = Tls(tmp_path)
        machine = tls.machine
        await machine.open()
        first, second = machine.workers
        _, writer = await tls.connected(machine.name_at(1))
        (home,) = second.doors.listeners[0].connections.open
        _below(writer).pause_reading()
        (relayed,) = first.doors.listeners[0].connections.relayed
        async with asyncio.timeout(60):
            while not (home.paused and relayed.paused):
                if not home.paused:
                    home.send(bytes(100_000))
                await asyncio.sleep(0)
        home.close()
        await until(lambda: (first.relayed, second.clients) == (0, 0))
        writer.close()
        await machine.close()

    run(body)


@pytest.mark.parametrize("asked", [False, True])
def test_a_relay_that_was_looked_after_is_gone_with_its_client(tmp_path: Path, asked: bool) -> None:
    """Without the collector, which looks at nothing that is old."""

    def relays() -> int:
        return sum(isinstance(one, Relay) for one in gc.get_objects())

    async def body() -> None:
        tls = Tls(tmp_path)
        machine = tls.machine
        await machine.open()
        first, second = machine.workers
        before = relays()
        _, writer = await tls.connected(machine.name_at(1))
        (home,) = second.doors.listeners[0].connections.open
        (relayed,) = first.doors.listeners[0].connections.relayed
        _below(writer).pause_reading()
        async with asyncio.timeout(60):
            while not (home.paused and relayed.paused):
                if not home.paused:
                    home.send(bytes(100_000))
                await asyncio.sleep(0)
        if asked:
            relayed.broker.put_out(relayed, 0x9C, "drained")
        del home, relayed
        writer.transport.abort()
        await until(lambda: (first.relayed, second.clients) == (0, 0))
        for _ in range(50):  # what the loop itself has still to let go of
            if relays() > before:
                await asyncio.sleep(0.01)
        left = relays() - before
        await machine.close()
        assert left == 0

    gc.collect()
    gc.disable()
    try:
        run(body)
    finally:
        gc.enable()


def test_keep_alive_is_the_homes_to_watch(tmp_path: Path) -> None:
    async def body() -> None:
        tls = Tls(tmp_path)
        machine = tls.machine
        await machine.open()
        heard = machine.workers[1].worker.testimony.witness = Heard()
        reader, writer = await tls.connect()
        writer.write(connect_packet(machine.name_at(1), keep_alive_s=1))
        assert await reader.readexactly(4) == CONNACK
        assert await reader.read() == b""
        assert [end for _, end in heard.ends] == ["keep alive timeout"]
        writer.close()
        await machine.close()

    run(body)


def test_without_a_link_the_client_is_told_to_come_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headrace.peers.departures.WAIT_S", 0.2)

    async def body() -> None:
        tls = Tls(tmp_path)
        machine = tls.machine
        await machine.workers[0].open()  # the second worker does not start
        reader, writer = await tls.connect()
        writer.write(connect_packet(machine.name_at(1)))
        assert await reader.read() == bytes([0x20, 2, 0, 3])
        writer.close()
        await machine.close()

    run(body)


def test_a_relay_that_could_not_begin_leaves_nothing_at_home(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A connection that stayed counted would be missing from what the whole node may have, for ever."""
    wanting = [MemoryError()]

    def transport(*arguments: Any) -> ChannelTransport:
        if wanting:
            raise wanting.pop()
        return ChannelTransport(*arguments)

    monkeypatch.setattr("headrace.peers.handover.ChannelTransport", transport)

    async def body() -> None:
        tls = Tls(tmp_path)
        machine = tls.machine
        await machine.open()
        second = machine.workers[1]
        reader, writer = await tls.connect()
        writer.write(connect_packet(machine.name_at(1)))
        assert await reader.read() == b""
        writer.close()
        connections = second.doors.listeners[0].connections
        left = connections.pending, len(connections.open), len(connections.strangers)
        _, writer = await tls.connected(machine.name_at(1))
        then = connections.pending, len(connections.open)
        writer.close()
        await machine.close()
        assert (left, then, second.handover.refused_here) == ((0, 0, 0), (0, 1), 1)

    run(body)


@pytest.mark.parametrize("opening", [b"", b"HRHAND", b"\xff" * 100], ids=["nothing", "cut off", "garbage"])
def test_a_channel_that_opens_with_something_else_is_closed(tmp_path: Path, opening: bytes) -> None:
    async def body() -> None:
        machine = Machine(tmp_path, ["tcp://127.0.0.1:0"])
        await machine.open()
        channel = machine.workers[0].peers.open_channel(1, opening)
        assert channel is not None
        await until(lambda: channel.closed)
        assert machine.workers[1].handover.refused_here == 1
        await machine.close()

    run(body)


def test_a_revoked_client_is_put_out_where_its_socket_is(tmp_path: Path) -> None:
    async def body() -> None:
        tls = Tls(tmp_path)
        machine = tls.machine
        await machine.open()
        first, second = machine.workers
        reader, writer = await tls.connected(machine.name_at(1))

        class Revoked:
            def names(self, certificate: bytes) -> bool:
                return bool(certificate)

        first.doors.listeners[0].connections.revocations = Revoked()  # type: ignore[assignment]
        (relayed,) = first.doors.listeners[0].connections.relayed
        assert relayed.is_revoked()
        first.doors._evicting.begin([relayed])
        assert await reader.read() == b""
        await until(lambda: second.clients == 0)
        writer.close()
        await machine.close()

    run(body)


class WebSocket:
    """A client over a WebSocket."""

    def __init__(self, streams: Streams, port: int) -> None:
        self._reader, self._writer = streams
        self._frames = ClientProtocol(
            parse_uri(f"ws://127.0.0.1:{port}/mqtt"), subprotocols=[Subprotocol("mqtt")]
        )
        self._frames.send_request(self._frames.connect())
        self.received = b""

    def send(self, *messages: bytes) -> None:
        for message in messages:
            self._frames.send_binary(message)
        self._flush()

    def _flush(self) -> None:
        self._writer.write(b"".join(self._frames.data_to_send()))

    async def receive(self) -> bool:
        self._flush()
        data = await self._reader.read(65536)
        if data:
            self._frames.receive_data(data)
            for event in self._frames.events_received():
                self.received += bytes(getattr(event, "data", b""))
        return bool(data)

    async def until(self, size: int) -> bytes:
        while len(self.received) < size:
            assert await self.receive()
        return self.received

    def close(self) -> None:
        self._writer.close()


def test_a_client_of_a_websocket_is_served_at_home(tmp_path: Path) -> None:
    """Frames that lie behind CONNECT in the same read, one packet in two of them among them."""

    async def body() -> None:
        machine = Machine(tmp_path, ["ws://127.0.0.1:0"])
        await machine.open()
        first, second = machine.workers
        port = int(first.ports[0])
        client = WebSocket(await asyncio.open_connection("127.0.0.1", port), port)
        assert await client.receive()
        asked = codec.encode_subscribe(4, 7, [SubscriptionRequest("t", 1)])
        client.send(connect_packet(machine.name_at(1)), asked[:3], asked[3:] + PUBLISH_1, codec.PINGREQ)
        suback = bytes([0x90, 3, 0, 7, 1])
        received = await client.until(len(CONNACK + suback + PUBACK_1 + PINGRESP) + 12)
        for part in (CONNACK, suback, PUBACK_1, PINGRESP, b"early"):
            assert part in received
        assert (first.clients, first.relayed, second.clients) == (0, 1, 1)
        client.close()
        await until(lambda: (first.relayed, second.clients) == (0, 0))
        await machine.close()

    run(body)
