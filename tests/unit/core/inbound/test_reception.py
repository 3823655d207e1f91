"""Connections before CONNECT: they belong to no shard, and what goes wrong with them is the worker's to answer."""

from __future__ import annotations

import pytest

from harness import Client, Harness
from headrace.core.homes import Homes
from headrace.core.inbound.devices import DeviceLink
from headrace.core.ports.elsewhere import Departing, Elsewhere
from headrace.core.ports.link import Link
from headrace.core.ports.voice import Voice
from headrace.core.ports.witness import Witness
from headrace.core.worker import Worker
from headrace.errors import ProtocolError
from headrace.frames.bodies import hello_body
from headrace.frames.frame import HELLO, PING, encode_frame
from headrace.frames.serials import client_id_of
from headrace.frames.server import ServerFrames
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


class Others(Elsewhere):
    """The other workers: they note whom they are to take."""

    def __init__(self) -> None:
        self.asked: list[Departing] = []

    def take(self, departing: Departing) -> None:
        self.asked.append(departing)


def worker_among_others() -> tuple[Harness, Worker, Others]:
    """The worker of shard 0 of 2; another one owns shard 1."""
    harness = Harness()
    worker = harness.worker = Worker(ManualScheduler(), harness.clock, harness.settings, Homes(2))
    harness.journal = MemoryJournal()
    harness.broker = worker.own(0, harness.journal)
    others = worker.arrivals.elsewhere = Others()
    return harness, worker, others


def name_at(worker: Worker, shard: int) -> str:
    names = (f"c{number}" for number in range(100))
    return next(name for name in names if worker.homes.of_client("default", name) == shard)


BEHIND = codec.encode_publish(4, b"t", b"early", 1, False, False, 1, b"", -1) + codec.PINGREQ


@pytest.mark.parametrize("cut", [1, 5, 20, 10_000])
def test_who_is_at_home_elsewhere_leaves_with_all_that_it_has_sent_however_it_was_cut(cut: int) -> None:
    """MQTT lets packets follow CONNECT at once [MQTT-3.1.4-6]."""
    _, worker, others = worker_among_others()
    link, protocol = stranger(worker)
    data = codec.encode_connect(Connect(4, name_at(worker, 1), True)) + BEHIND
    for start in range(0, len(data), cut):
        protocol.receive_data(data[start : start + cut])
    (departing,) = others.asked
    assert (departing.link, departing.shard, departing.client_id) == (link, 1, name_at(worker, 1))
    assert link.unparsed() == data
    assert not link.reading
    assert (link.closed, link.out, link.sent) == (False, None, b"")


def test_who_leaves_is_counted_nowhere_here() -> None:
    harness, worker, _ = worker_among_others()
    heard = worker.testimony.witness = Heard()
    _, protocol = stranger(worker)
    protocol.receive_data(codec.encode_connect(Connect(5, name_at(worker, 1), True)) + b"\xff\xff")
    counters = harness.broker.fold.tenant("default").counters
    assert (counters.connects, counters.connects_refused, counters.publishes_received) == (0, 0, 0)
    assert (worker.arrivals.counters.connects_refused, worker.arrivals.counters.protocol_errors) == (0, 0)
    assert harness.broker.fold.by_incarnation == {}
    assert heard.refusals == []


@pytest.mark.parametrize("version", [3, 4, 5])
def test_whom_nobody_could_take_is_told_to_come_later(version: int) -> None:
    _, worker, others = worker_among_others()
    heard = worker.testimony.witness = Heard()
    link, protocol = stranger(worker)
    protocol.receive_data(codec.encode_connect(Connect(version, name_at(worker, 1), True)) + BEHIND)
    others.asked[0].refuse(ProtocolError(rc.SERVER_UNAVAILABLE, "its worker starts again"))
    assert link.closed
    assert link.sent[0] == CONNACK
    assert link.sent[3] == (rc.SERVER_UNAVAILABLE if version == 5 else rc.CONNACK_SERVER_UNAVAILABLE)
    assert heard.refusals == [(name_at(worker, 1), rc.SERVER_UNAVAILABLE)]
    assert worker.arrivals.counters.connects_refused == 1
    others.asked[0].refuse(ProtocolError(rc.SERVER_UNAVAILABLE, "once is enough"))
    assert worker.arrivals.counters.connects_refused == 1


def test_whom_another_worker_has_brought_goes_nowhere_from_here() -> None:
    """Else two workers that do not agree about homes would send a client to and fro."""
    _, worker, others = worker_among_others()
    link, protocol = stranger(worker)
    link.arrived = True
    protocol.receive_data(codec.encode_connect(Connect(5, name_at(worker, 1), True)))
    assert others.asked == []
    assert link.closed
    assert link.sent[3] == rc.SERVER_UNAVAILABLE


def test_who_is_at_home_here_or_brings_no_name_stays() -> None:
    harness, worker, others = worker_among_others()
    for name in (name_at(worker, 0), "", "", ""):
        client = Client(harness, name, version=5, clean=True)
        assert client.link.broker is harness.broker
    assert others.asked == []
    homes = {
        worker.homes.of_client("default", name) for name in harness.broker.fold.tenant("default").sessions
    }
    assert homes == {0}


@pytest.mark.parametrize("opcode", [HELLO, PING])
def test_a_device_leaves_with_its_first_frame(opcode: int) -> None:
    _, worker, others = worker_among_others()
    link, _ = stranger(worker)
    client = DeviceLink(link, Voice(), worker.bind_device)
    frames = link.parser = ServerFrames(client, 1 << 16)
    client.take(frames)
    body = hello_body("u", b"p") if opcode == HELLO else b""
    sns = (bytes([number]) for number in range(1, 64))
    sn = next(one for one in sns if worker.homes.of_client("default", client_id_of(2, one)) == 1)
    data = encode_frame(2, opcode, sn, body) + encode_frame(2, PING, sn, b"")
    frames.receive_data(data[:7])
    frames.receive_data(data[7:])
    assert [(one.shard, one.client_id) for one in others.asked] == [(1, client_id_of(2, sn))]
    assert link.unparsed() == data
    others.asked[0].refuse(ProtocolError(rc.SERVER_UNAVAILABLE, "later"))
    assert link.closed
    assert worker.arrivals.counters.connects_refused == 1
