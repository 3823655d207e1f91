"""Clients come in at any worker and are served at home: real sockets between workers on one loop."""

from __future__ import annotations

import asyncio
import os
import socket
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from headrace.core.ports.link import Link
from headrace.core.ports.witness import Witness
from headrace.frames.bodies import hello_body
from headrace.frames.frame import HELLO, PING, RESPONSE, encode_frame
from headrace.mqtt import codec
from headrace.mqtt import reason_codes as rc
from headrace.mqtt.packets import Connect
from headrace.peers.peers import Peers
from headrace.services.node_table import key_of
from machine import SETTINGS, Machine, OneWorker, connect_packet, open_descriptors, run, settled, until

CONNACK = bytes([0x20, 2, 0, 0])
PUBACK_1 = bytes([0x40, 2, 0, 1])
PINGRESP = bytes([0xD0, 0])
PUBLISH_1 = codec.encode_publish(4, b"t", b"early", 1, False, False, 1, b"", -1)


class Heard(Witness):
    """Who was let in and who was refused, and from where."""

    def __init__(self) -> None:
        super().__init__()
        self.connects: list[tuple[str, str, str]] = []
        self.refusals: list[tuple[str, int]] = []

    def connected(self, link: Link, packet: Connect, present: bool) -> None:
        self.connects.append((link.client_id, link.peer(), link.listener()))

    def refused(self, link: Link, client_id: str, reason_code: int, detail: str) -> None:
        self.refusals.append((client_id, reason_code))


@pytest.mark.parametrize("cut", [1, 7, 10_000])
def test_a_client_is_served_at_home_with_what_it_sent_behind_connect(tmp_path: Path, cut: int) -> None:
    async def body() -> None:
        machine = Machine(tmp_path, ["tcp://127.0.0.1:0"])
        await machine.open()
        first, second = machine.workers
        heard = second.worker.testimony.witness = Heard()
        name = machine.name_at(1)
        reader, writer = await asyncio.open_connection("127.0.0.1", int(first.ports[0]))
        data = connect_packet(name) + PUBLISH_1 + codec.PINGREQ
        for start in range(0, len(data), cut):
            writer.write(data[start : start + cut])
            await writer.drain()
            await asyncio.sleep(0)
        assert await reader.readexactly(10) in (CONNACK + PUBACK_1 + PINGRESP, CONNACK + PINGRESP + PUBACK_1)
        host, port = writer.get_extra_info("sockname")
        assert heard.connects == [(name, f"{host}:{port}", first.doors.urls[0])]
        await until(lambda: (first.clients, second.clients) == (0, 1))
        assert (first.accepted, second.accepted) == (1, 0)  # once, where it came in
        assert first.worker.bytes_received + second.worker.bytes_received == len(data)
        assert (first.handover.passing[1].sent, second.handover.arrivals.taken) == (1, 1)
        for one in machine.workers:
            assert sum(one.doors.listeners[0].connections.turned_away.values()) == 0
            assert one.worker.arrivals.counters.connects_refused == 0
        assert first.broker.fold.tenant("default").counters.publishes_received == 0
        writer.write(codec.PINGREQ)
        assert await reader.readexactly(2) == PINGRESP
        writer.close()
        await until(lambda: second.clients == 0)
        await machine.close()

    run(body)


def test_the_descriptor_is_closed_where_it_was_passed_from(tmp_path: Path) -> None:
    async def body() -> None:
        machine = Machine(tmp_path, ["tcp://127.0.0.1:0"])
        await machine.open()
        first, second = machine.workers
        warm = await asyncio.open_connection("127.0.0.1", int(first.ports[0]))
        warm[1].write(connect_packet(machine.name_at(1, "warm")))  # the socket between the workers stays
        await warm[0].readexactly(4)
        warm[1].close()
        await until(lambda: second.clients == 0)
        await asyncio.sleep(0)
        before = open_descriptors()
        streams = [await asyncio.open_connection("127.0.0.1", int(first.ports[0])) for _ in range(50)]
        for number, (_, writer) in enumerate(streams):
            writer.write(connect_packet(machine.name_at(1, f"c{number}-")))
        for reader, _ in streams:
            assert await reader.readexactly(4) == CONNACK
        await until(lambda: first.clients == 0)
        assert len(open_descriptors() - before) <= 100  # both ends of each, and no third
        for _, writer in streams:
            writer.close()
        await settled(before)
        await machine.close()

    run(body)


def test_many_reconnects_at_once_lose_nobody_and_no_descriptor(tmp_path: Path) -> None:
    """Far more than the socket between the workers holds, while another client goes on."""

    async def body() -> None:
        machine = Machine(tmp_path, ["tcp://127.0.0.1:0"], count=3)
        await machine.open()
        before = open_descriptors()
        steady = await asyncio.open_connection("127.0.0.1", int(machine.workers[0].ports[0]))
        steady[1].write(connect_packet(machine.name_at(0, "steady")))
        assert await steady[0].readexactly(4) == CONNACK

        async def one(number: int) -> None:
            port = int(machine.workers[number % 3].ports[0])
            for _ in range(2):
                reader, writer = await asyncio.open_connection("127.0.0.1", port)
                writer.write(connect_packet(f"client-{number}") + PUBLISH_1)
                assert set(await reader.readexactly(8)) == set(CONNACK + PUBACK_1)
                writer.close()

        await asyncio.gather(*(one(number) for number in range(300)))
        steady[1].write(codec.PINGREQ)
        assert await steady[0].readexactly(2) == PINGRESP
        sent = sum(road.sent for each in machine.workers for road in each.handover.passing.values())
        taken = sum(each.handover.arrivals.taken for each in machine.workers)
        assert sent == taken > 300
        assert sum(each.accepted for each in machine.workers) == 601
        steady[1].close()
        await until(lambda: all(each.clients == 0 for each in machine.workers))
        await machine.close()
        await settled(before)

    run(body)


def test_a_takeover_by_one_that_came_in_elsewhere(tmp_path: Path) -> None:
    async def body() -> None:
        machine = Machine(tmp_path, ["tcp://127.0.0.1:0"])
        await machine.open()
        name = machine.name_at(1)
        ports = [int(each.ports[0]) for each in machine.workers]
        held = await asyncio.open_connection("127.0.0.1", ports[0])
        held[1].write(connect_packet(name))
        assert await held[0].readexactly(4) == CONNACK
        for port in (ports[1], ports[0], ports[0], ports[1]):
            following = await asyncio.open_connection("127.0.0.1", port)
            following[1].write(connect_packet(name))
            assert await following[0].readexactly(4) == CONNACK
            assert await held[0].read() == b""  # [MQTT-3.1.4-3]
            held[1].close()
            held = following
        await until(lambda: (machine.workers[0].clients, machine.workers[1].clients) == (0, 1))
        held[1].close()
        await machine.close()

    run(body)


@pytest.mark.parametrize("version", [4, 5])
def test_who_waits_for_a_worker_that_does_not_come_is_told_to_come_later(
    tmp_path: Path, version: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headrace.peers.departures.WAIT_S", 0.2)

    async def body() -> None:
        machine = Machine(tmp_path, ["tcp://127.0.0.1:0"])
        first = machine.workers[0]
        heard = first.worker.testimony.witness = Heard()
        first.handover.open()  # the second does not
        name = machine.name_at(1)
        reader, writer = await asyncio.open_connection("127.0.0.1", int(first.ports[0]))
        writer.write(connect_packet(name, version) + PUBLISH_1)
        answer = await reader.read()
        assert answer[0] == CONNACK[0]
        assert answer[3] == (rc.SERVER_UNAVAILABLE if version == 5 else rc.CONNACK_SERVER_UNAVAILABLE)
        assert heard.refusals == [(name, rc.SERVER_UNAVAILABLE)]
        assert first.handover.passing[1].refused == 1
        writer.close()
        await until(lambda: first.clients == 0)
        await machine.close()

    run(body)


def test_who_waits_is_served_when_the_worker_is_back(tmp_path: Path) -> None:
    async def body() -> None:
        machine = Machine(tmp_path, ["tcp://127.0.0.1:0"])
        first, second = machine.workers
        first.handover.open()
        reader, writer = await asyncio.open_connection("127.0.0.1", int(first.ports[0]))
        writer.write(connect_packet(machine.name_at(1)) + PUBLISH_1)
        await until(lambda: len(first.handover.passing[1]) == 1)
        second.handover.open()
        assert await reader.readexactly(8) == CONNACK + PUBACK_1
        second.handover.arrivals.close()  # it ends, and starts again
        gone = await asyncio.open_connection("127.0.0.1", int(first.ports[0]))
        gone[1].write(connect_packet(machine.name_at(1, "d")))
        await until(lambda: len(first.handover.passing[1]) == 1)
        second.handover.open()
        assert await gone[0].readexactly(4) == CONNACK
        gone[1].close()
        writer.close()
        await machine.close()

    run(body)


def test_no_descriptor_goes_to_a_worker_that_stands_still(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its socket takes some hundred, whose clients would hear nothing until it goes on, or is ended."""
    silent, asked = {1}, []

    def is_silent(_: Peers, worker: int) -> bool:
        asked.append(worker)
        return worker in silent

    monkeypatch.setattr(Peers, "is_silent", is_silent)

    async def body() -> None:
        machine = Machine(tmp_path, ["tcp://127.0.0.1:0"])
        await machine.open()
        first, second = machine.workers
        reader, writer = await asyncio.open_connection("127.0.0.1", int(first.ports[0]))
        writer.write(connect_packet(machine.name_at(1)))
        await until(lambda: len(asked) > 2)
        assert (first.handover.passing[1].sent, second.handover.arrivals.taken) == (0, 0)
        assert len(first.handover.passing[1]) == 1
        silent.clear()
        assert await reader.readexactly(4) == CONNACK
        writer.close()
        await machine.close()

    run(body)


def test_a_node_that_stops_refuses_those_who_wait(tmp_path: Path) -> None:
    async def body() -> None:
        before = open_descriptors()
        machine = Machine(tmp_path, ["tcp://127.0.0.1:0"])
        first = machine.workers[0]
        first.handover.open()
        reader, writer = await asyncio.open_connection("127.0.0.1", int(first.ports[0]))
        writer.write(connect_packet(machine.name_at(1)))
        await until(lambda: len(first.handover.passing[1]) == 1)
        first.handover.close()
        assert (await reader.read())[3] == rc.CONNACK_SERVER_UNAVAILABLE
        writer.close()
        await machine.close()
        await settled(before)

    run(body)


def test_a_large_connect_goes_in_parts(tmp_path: Path) -> None:
    async def body() -> None:
        machine = Machine(tmp_path, ["tcp://127.0.0.1:0"])
        await machine.open()
        first = machine.workers[0]
        reader, writer = await asyncio.open_connection("127.0.0.1", int(first.ports[0]))
        packet = Connect(5, machine.name_at(1), True)
        packet.properties.user_properties = [("k", "v" * 60_000)] * 7
        data = codec.encode_connect(packet) + codec.PINGREQ
        assert len(data) > 400_000
        writer.write(data)
        assert (await reader.readexactly(4))[3] == 0
        assert first.handover.passing[1].sent == 1
        writer.close()
        await machine.close()

    run(body)


def test_a_client_behind_a_balancer_keeps_its_address(tmp_path: Path) -> None:
    async def body() -> None:
        machine = Machine(tmp_path, ["tcp://127.0.0.1:0?proxy=required"])
        await machine.open()
        heard = machine.workers[1].worker.testimony.witness = Heard()
        reader, writer = await asyncio.open_connection("127.0.0.1", int(machine.workers[0].ports[0]))
        name = machine.name_at(1)
        writer.write(b"PROXY TCP4 198.51.100.7 127.0.0.1 5555 1883\r\n" + connect_packet(name))
        assert await reader.readexactly(4) == CONNACK
        assert [peer for _, peer, _ in heard.connects] == ["198.51.100.7:5555"]
        writer.close()
        await machine.close()

    run(body)


def test_clients_of_a_unix_socket_and_devices_of_frames_are_passed_too(tmp_path: Path) -> None:
    async def body() -> None:
        urls = [f"unix://{tmp_path}/mqtt-INDEX.sock", "frame://127.0.0.1:0"]
        machine = Machine(tmp_path, urls)
        await machine.open()
        first, second = machine.workers
        reader, writer = await asyncio.open_unix_connection(f"{tmp_path}/mqtt-0.sock")
        writer.write(connect_packet(machine.name_at(1)))
        assert await reader.readexactly(4) == CONNACK
        device = await asyncio.open_connection("127.0.0.1", int(first.ports[1]))
        sn = machine.name_at(1, "d").encode()
        hello = encode_frame(2, HELLO, sn, hello_body("", b""))
        device[1].write(hello[:5])
        await device[1].drain()
        device[1].write(hello[5:] + encode_frame(2, PING, sn, b""))
        pong = encode_frame(2, PING | RESPONSE, sn, b"")
        answers = b""
        while not answers.endswith(pong):
            answers += await device[0].read(1000)
        await until(lambda: (first.clients, second.clients) == (0, 2))
        assert [client.link.client_id for client in second.broker.devices.clients] == [sn.decode()]
        for one in (writer, device[1]):
            one.close()
        await machine.close()

    run(body)


def _wait(worker: OneWorker, count: int) -> bool:
    """Whether so many wait for the second worker."""
    return len(worker.handover.passing[1]) == count


def test_who_hangs_up_while_it_waits_costs_nothing(tmp_path: Path) -> None:
    async def body() -> None:
        machine = Machine(tmp_path, ["tcp://127.0.0.1:0"])
        first, second = machine.workers
        first.handover.open()
        before = open_descriptors()
        for number in range(5):
            sock = socket.create_connection(("127.0.0.1", int(first.ports[0])))
            sock.sendall(connect_packet(machine.name_at(1, f"{number}-")))
            await until(partial(_wait, first, number + 1))
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, bytes([1, 0, 0, 0, 0, 0, 0, 0]))
            sock.close()
        second.handover.open()
        await until(lambda: len(first.handover.passing[1]) == 0)
        await until(lambda: (first.clients, second.clients) == (0, 0))
        await machine.close()
        await settled(before)
        assert sorted(os.listdir(tmp_path)) == ["counts", "times"]

    run(body)


@pytest.mark.parametrize("of", ["listener", "node"])
def test_a_limit_of_connections_counts_those_of_all_workers(tmp_path: Path, of: str) -> None:
    async def body() -> None:
        limit = "?connections_max=4" if of == "listener" else ""
        settings = SETTINGS if of == "listener" else replace(SETTINGS, connections_max=4)
        machine = Machine(tmp_path, [f"tcp://127.0.0.1:0{limit}"], settings=settings)
        await machine.open()
        ports = [int(each.ports[0]) for each in machine.workers]
        held = []
        for number in range(4):
            reader, writer = await asyncio.open_connection("127.0.0.1", ports[number % 2])
            writer.write(connect_packet(machine.name_at(number // 2, f"{number}-")))
            assert await reader.readexactly(4) == CONNACK
            held.append(writer)
        await until(lambda: [each.clients for each in machine.workers] == [2, 2])
        for number in range(4):
            reader, writer = await asyncio.open_connection("127.0.0.1", ports[number % 2])
            assert await reader.read() == b""
            writer.close()
        turned = [
            each.doors.listeners[0].connections.turned_away["connections_max"] for each in machine.workers
        ]
        assert turned == [2, 2]
        held.pop().close()
        await until(lambda: sum(each.clients for each in machine.workers) == 3)
        reader, writer = await asyncio.open_connection("127.0.0.1", ports[0])
        writer.write(connect_packet(machine.name_at(1, "late")))
        assert await reader.readexactly(4) == CONNACK
        for one in (*held, writer):
            one.close()
        await machine.close()

    run(body)


def test_a_worker_does_not_turn_in_circles_while_others_have_let_in_far_too_many(tmp_path: Path) -> None:
    async def body() -> None:
        machine = Machine(tmp_path, ["tcp://127.0.0.1:0"], settings=replace(SETTINGS, connections_max=2))
        await machine.open()
        first, second = machine.workers
        looks = 0
        connections = first.doors.listeners[0].connections
        count = connections.others
        assert count is not None

        def counted() -> int:
            nonlocal looks
            looks += 1
            return count()

        connections.others = counted
        key = key_of("listener", connections.url)
        second.counts.set(key, 100)
        reader, writer = await asyncio.open_connection("127.0.0.1", int(first.ports[0]))
        writer.write(connect_packet(machine.name_at(0)))
        await until(lambda: looks)
        passes = 10_000
        for _ in range(passes):
            await asyncio.sleep(0)
        found = looks
        second.counts.set(key, 0)
        assert await reader.readexactly(4) == CONNACK
        writer.close()
        await machine.close()
        assert found < passes / 2

    run(body)


def test_a_rate_counts_what_all_workers_accept(tmp_path: Path) -> None:
    async def body() -> None:
        machine = Machine(tmp_path, ["tcp://127.0.0.1:0"], settings=replace(SETTINGS, accepts_per_s=0.001))
        let_in = []
        for each in machine.workers:
            accepts = each.doors.listeners[0].connections.accepts
            assert accepts is not None
            let_in.append(accepts.take(""))
        assert let_in == [True, False]
        await machine.close()

    run(body)
