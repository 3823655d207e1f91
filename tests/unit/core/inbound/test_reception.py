"""Connections before CONNECT: they belong to no shard, and what goes wrong with them is the worker's to answer."""

from __future__ import annotations

import pytest

from harness import Client, Harness
from headrace.core.homes import Homes
from headrace.core.ports.link import Link
from headrace.core.ports.witness import Witness
from headrace.core.worker import Worker
from headrace.errors import ProtocolError
from headrace.mqtt import codec
from headrace.mqtt import reason_codes as rc
from headrace.mqtt.packets import Connect
from headrace.mqtt.protocol import ServerProtocol
from headrace.storage.memory import ManualScheduler, MemoryJournal, MemoryLink

CONNACK = 0x20


class Heard(Witness):
    """What a witness is told of those who were refused."""

    def __init__(self) -> None:
        super().__init__()
        self.refusals: list[tuple[str, int]] = []

    def refused(self, link: Link, client_id: str, reason_code: int, detail: str) -> None:
        self.refusals.append((client_id, reason_code))


def stranger(worker: Worker) -> tuple[MemoryLink, ServerProtocol]:
    """A connection of which nothing has come yet."""
    link = MemoryLink(worker)
    protocol = ServerProtocol(link, 1 << 20, 16)
    link.protocol = link.parser = protocol
    return link, protocol


@pytest.mark.parametrize(
    "data",
    [codec.PINGREQ, b"\xff\xff\xff", b"GET / HTTP/1.1\r\n", b"\x10\x02\x00\x04", b"\x10\xff\xff\xff\xff\x01"],
    ids=["before CONNECT", "garbage", "HTTP", "a short CONNECT", "a length of five bytes"],
)
def test_what_is_no_connect_ends_the_connection_and_is_counted_by_the_worker(data: bytes) -> None:
    harness, heard = Harness(), Heard()
    harness.worker.testimony.witness = heard
    link, protocol = stranger(harness.worker)
    protocol.receive_data(data)
    assert link.closed
    assert link.sent == b""
    assert link.broker is harness.worker.arrivals
    assert harness.worker.arrivals.counters.protocol_errors == 1
    assert harness.broker.fold.tenant("default").counters.protocol_errors == 0
    assert len(heard.refusals) == 1


def test_a_connection_lost_within_its_connect_leaves_nothing() -> None:
    harness = Harness()
    link, protocol = stranger(harness.worker)
    protocol.receive_data(codec.encode_connect(Connect(4, "half"))[:-2])
    link.closed = True
    link.broker.on_connection_lost(link)
    harness.sync()
    assert harness.broker.fold.by_incarnation == {}
    assert harness.worker.failures.counts["close"] == 0


def test_connect_binds_the_link_to_its_broker_and_what_comes_then_is_the_brokers() -> None:
    harness = Harness()
    link, protocol = stranger(harness.worker)
    protocol.receive_data(codec.encode_connect(Connect(4, "c", True)))
    assert link.broker is harness.broker
    protocol.receive_data(codec.encode_connect(Connect(4, "c", True)))  # [MQTT-3.1.0-2]
    assert link.closed
    assert harness.broker.fold.tenant("default").counters.protocol_errors == 1
    assert harness.worker.arrivals.counters.protocol_errors == 0


def test_something_that_fails_before_connect_closes_the_connection_without_a_word() -> None:
    harness = Harness()
    link, _ = stranger(harness.worker)
    harness.worker.contain("read", link, RuntimeError("a defect"))
    harness.sync()
    assert link.closed
    assert link.sent == b""


def test_who_may_not_stay_is_put_out_before_connect_as_well() -> None:
    harness = Harness()
    link, _ = stranger(harness.worker)
    link.broker.put_out(link, rc.NOT_AUTHORIZED, "banned")
    assert link.closed
    assert link.sent == b""


def test_a_stranger_whose_socket_drains_is_hungry_no_more() -> None:
    harness = Harness()
    link, _ = stranger(harness.worker)
    link.hungry = True
    link.broker.on_writable(link)
    assert not link.hungry


@pytest.mark.parametrize("version", [3, 4, 5])
def test_a_client_whose_shard_is_not_here_is_told_to_come_later(version: int) -> None:
    harness, heard = Harness(), Heard()
    homes = Homes(2)
    worker = harness.worker = Worker(ManualScheduler(), harness.clock, harness.settings, homes)
    worker.testimony.witness = heard
    name = next(f"c{number}" for number in range(100) if homes.of_client("default", f"c{number}") == 1)
    harness.broker = worker.own(0, MemoryJournal())
    client = Client(harness, name, version=version)
    first, body = client.packets[0]
    assert first == CONNACK
    assert body[1] == (rc.SERVER_UNAVAILABLE if version == 5 else rc.CONNACK_SERVER_UNAVAILABLE)
    assert client.link.closed
    assert heard.refusals == [(name, rc.SERVER_UNAVAILABLE)]
    assert worker.arrivals.counters.connects_refused == 1


def test_a_device_whose_shard_is_not_here_is_refused() -> None:
    harness = Harness()
    worker = Worker(ManualScheduler(), harness.clock, harness.settings, Homes(2))
    worker.own(0, MemoryJournal())
    link, _ = stranger(worker)
    homes = [worker.homes.of_client("default", f"{number:02x}") for number in range(64)]
    here, elsewhere = homes.index(0), homes.index(1)
    assert worker.bind_device(link, f"{here:02x}") is worker.brokers[0].devices
    assert link.broker is worker.brokers[0]
    with pytest.raises(ProtocolError) as refused:
        worker.bind_device(link, f"{elsewhere:02x}")
    assert refused.value.reason_code == rc.SERVER_UNAVAILABLE
