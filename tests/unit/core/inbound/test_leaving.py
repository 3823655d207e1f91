"""A shard is given up while its worker serves others, and taken again from what its journal holds: nothing of it stays,
and nobody beside it notices."""

from __future__ import annotations

import gc
from collections import Counter

import pytest

from harness import Client, recover
from headrace.core.ports.access import PENDING, Access, SignIn
from headrace.core.ports.identity import Identity
from headrace.core.state.letting_go import let_go
from headrace.core.worker import LEAVE_AT_ONCE
from headrace.mqtt import reason_codes as rc
from headrace.mqtt.packets import Will
from headrace.storage.memory import MemoryJournal
from shards import Shards

pytestmark = pytest.mark.usefixtures("others_left_nothing")
CONNACK, DISCONNECT = 0x20, 0xE0
GOODBYE = (DISCONNECT, bytes((rc.SERVER_SHUTTING_DOWN,)))
STEP = 2


class Moving(Shards):
    """Shards that are given up and taken."""

    def sync(self) -> None:
        self.worker.end_tick()
        while not all(broker.idle for broker in self.worker.brokers if broker.commit.failed is None):
            for broker in self.worker.brokers:
                journal = self.journals[broker.shard]
                journal.durable = len(journal.records)
                broker.commit.on_high_watermark(journal.durable)
            self.worker.end_tick()

    def give_up(self, shard: int) -> None:
        """As the node does it: in slices, and what was noted becomes durable."""
        self.worker.shut(shard)
        (broker,) = [one for one in self.worker.brokers if one.shard == shard]
        while broker.leave(STEP):
            self.sync()
        self.sync()
        assert self.worker.disown(shard) is broker
        while let_go(broker.fold, STEP):
            self.sync()
        self.brokers[shard] = self.brokers[0]
        self.journals[shard] = MemoryJournal(self.journals[shard].bodies)  # the file, as it were
        self.journals[shard].records.clear()

    def take(self, shard: int) -> None:
        """As the node does it, from what is durable."""
        self.journals[shard] = journal = MemoryJournal(self.journals[shard].bodies)
        broker = self.worker.prepare(shard, journal)
        recover(broker.fold, journal.bodies, None)
        self.worker.tend(broker)
        broker.sessions.absences.start()
        self.sync()
        broker.sessions.absences.serve()
        self.worker.open(broker)
        self.brokers[shard] = broker


def census() -> Counter[str]:
    """How many objects there are of each class of ours."""
    gc.collect()
    kinds = (type(one) for one in gc.get_objects())
    return Counter(kind.__qualname__ for kind in kinds if str(kind.__module__).startswith("headrace."))


def payloads(client: Client) -> list[bytes]:
    return [payload for _, payload, _, _ in client.publishes()]


def traffic(shards: Moving, shard: int) -> list[Client]:
    """Sessions with all that they may have: backlogs, in flight, groups, wills, timers, what is retained, and limits."""
    will = Will("w", b"gone", 1, False, b"", 5, -1)
    away = shards.client_in(shard, "away", version=5, will=will)
    away.subscribe("t/#", 1)
    away.lose()
    reader = shards.client_in(shard, "reader", version=5, keep_alive_s=30, receive_maximum=2)
    reader.subscribe("t/#", 2)
    reader.subscribe("$share/g/t/#", 1)
    transient = shards.client_in(shard, "transient", clean=True)
    transient.subscribe("t/+")
    writer = shards.client_in(shard, "writer", version=5)
    for number in range(8):
        writer.publish("t/1", b"%d" % number, number % 3)
        writer.publish(f"kept/{number}", b"x", retain=True)
    return [reader, transient, writer]


@pytest.mark.interpreted  # the collector knows all objects there
def test_nothing_of_a_shard_is_left_when_it_was_given_up() -> None:
    shards = Moving()
    traffic(shards, 0)
    for _ in range(2):  # what is made once, and stays, is there by the second time
        shards.give_up(1)
        before = census()
        shards.take(1)
        clients = traffic(shards, 1)
        assert census() != before
        shards.give_up(1)
        del clients
        assert census() == before
        shards.take(1)


def test_clients_of_a_shard_that_is_given_up_are_told_so_and_the_others_are_served_on() -> None:
    shards = Moving()
    staying = [shards.client_in(shard, "s", version=5) for shard in (0, 2)]
    for one in staying:
        one.subscribe("t")
    five, four = shards.client_in(1, "five", version=5), shards.client_in(1, "four")
    five.take(), four.take()
    shards.give_up(1)
    assert five.take() == [GOODBYE]
    assert four.take() == []
    assert five.link.closed
    assert four.link.closed
    for one in staying:
        one.publish("t", b"on")
        assert payloads(one) == [b"on"]
    assert [broker.shard for broker in shards.worker.brokers] == [0, 2]


def test_who_is_at_home_in_no_shard_is_told_to_come_later_and_one_without_a_name_goes_elsewhere() -> None:
    shards = Moving()
    shards.give_up(1)
    refused = shards.client_in(1, version=5)
    assert refused.take()[0][1][1] == rc.SERVER_UNAVAILABLE
    for _ in range(6):
        nameless = shards.client("", clean=True, version=5)
        assert nameless.take()[0][1][1] == rc.SUCCESS
        assert nameless.link.broker is not shards.worker.reception


def test_a_shard_is_taken_again_with_all_that_it_had() -> None:
    shards = Moving()
    reader = shards.client_in(1, "r", version=5, receive_maximum=2)
    reader.subscribe("t", 1)
    writer = shards.client_in(1, "w")
    for number in range(5):
        writer.publish("t", b"%d" % number)
    sent = reader.publishes()
    assert [payload for _, payload, _, _ in sent] == [b"0", b"1"]
    shards.give_up(1)
    shards.take(1)
    again = shards.client_in(1, "r", version=5, receive_maximum=2)
    assert again.drain()[0][1][0] == 1  # session present
    found = again.publishes()
    assert found == [(packet_id, payload, True, qos) for packet_id, payload, _, qos in sent]
    for packet_id, _, _, _ in found:
        again.ack(packet_id)
    assert payloads(again) == [b"2", b"3"]


def test_the_will_of_a_client_that_does_not_come_back_is_published_by_the_next_owner_and_not_before() -> None:
    shards = Moving()
    will = Will("w", b"gone", 1, False, b"", 3, -1)
    shards.client_in(1, "dying", version=5, will=will)
    shards.give_up(1)
    shards.advance(60)
    shards.take(1)
    heard = shards.client_in(1, "heard")
    heard.subscribe("w")
    shards.advance(2)
    assert payloads(heard) == []
    shards.advance(5)
    assert payloads(heard) == [b"gone"]


def test_no_timer_of_a_shard_fires_once_it_is_given_up() -> None:
    shards = Moving()
    shards.client_in(1, "quiet", version=5, keep_alive_s=2)
    shards.client_in(1, "short", version=5, expiry_s=1).lose()
    broker, journal = shards.brokers[1], shards.journals[1]
    shards.give_up(1)
    records = len(journal.records)
    shards.advance(600)
    assert len(journal.records) == records
    assert broker.sessions.absences.expired == 0


def test_counters_do_not_go_down_when_a_shard_is_given_up() -> None:
    shards = Moving()
    traffic(shards, 1)
    counters = shards.brokers[1].fold.tenant("default").counters
    connects, received = counters.connects, counters.publishes_received
    for _ in range(2):
        shards.give_up(1)
        before = shards.worker.counters_before["default"]
        assert (before.connects, before.publishes_received) == (connects, received)
        shards.take(1)


def test_a_journal_that_has_failed_is_written_no_more_when_its_shard_is_given_up() -> None:
    shards = Moving()
    reader = shards.client_in(1, "r", version=5)
    reader.subscribe("t")
    shards.client_in(1, "w").publish("t", b"x")
    reader.take()
    broker, journal = shards.brokers[1], shards.journals[1]
    broker.commit.on_failure(OSError(5, "gone"))
    records = len(journal.records)
    assert shards.worker.disown(1) is broker
    shards.worker.end_tick()
    assert reader.take() == [GOODBYE]
    assert len(journal.records) == records
    shards.take(1)
    assert payloads(shards.client_in(1, "r", version=5)) == [b"x"]


def test_connections_end_a_bounded_number_at_a_time() -> None:
    shards = Moving()
    names = (f"c{number}" for number in range(10_000))
    homes = shards.worker.homes
    at_home = [name for name in names if homes.of_client("default", name) == 1][:20]
    clients = [shards.client(name, sync=False) for name in at_home]
    shards.sync()
    broker = shards.brokers[1]
    shards.worker.shut(1)
    assert broker.leave(5)
    assert sum(client.link.closed for client in clients) == 5
    while broker.leave(5):
        pass
    assert all(client.link.closed for client in clients)
    assert broker.sessions.connected == 0
    assert LEAVE_AT_ONCE < 1000


class Slow(Access):
    """Answers when it is told to."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[SignIn] = []

    def authenticate(self, sign_in: SignIn) -> Identity | int:
        self.asked.append(sign_in)
        return PENDING


@pytest.mark.interpreted
def test_who_signs_in_while_its_shard_is_given_up_is_let_in_nowhere() -> None:
    shards = Moving()
    slow = Slow()
    shards.worker.guard(slow)
    client = shards.client_in(1, version=5)
    records = len(shards.journals[1].records)
    shards.worker.disown(1, [client.link])
    slow.asked[0].answer(slow.asked[0].identity_of("ada"))
    shards.sync()
    assert client.link.closed
    assert client.link.broker is shards.worker.reception
    assert len(shards.journals[1].records) == records


def test_to_disown_what_is_not_owned_does_nothing() -> None:
    shards = Moving()
    assert shards.worker.disown(7) is None
    assert [broker.shard for broker in shards.worker.brokers] == [0, 1, 2]
