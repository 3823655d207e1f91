"""Workers whose clients publish for each other: kill -9 and SIGSTOP of a worker lose nothing and double nothing."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from broker_process import wait_until
from e2e.consumer import Consumer
from e2e.producer import Producer
from e2e.raw import RawClient
from e2e.wire import MESSAGE_EXPIRY, PUBACK, PUBLISH
from e2e.workers import Crew, Worker

Clients = Callable[..., RawClient]
pytestmark = [pytest.mark.slow, pytest.mark.skipif("__import__('broker_process').UNDER_AUDIT != 'headrace'")]
KILLS = 2


def lived(consumer: Consumer, lives: int) -> bool:
    return consumer.lives >= lives


def joined(consumer: Consumer, producers: list[Producer]) -> None:
    """All that was acknowledged is there; nothing that was not sent again came twice."""
    for producer in producers:
        producer.finish()
    for producer in producers:
        producer.join_finished()
    consumer.finish(producers, 60)
    assert consumer.sessions_lost == 0
    assert consumer.ledger.missing(producers) == {}
    assert consumer.ledger.faults(producers) == []


def test_messages_pass_between_workers_at_every_qos(crew: Crew, clients: Clients) -> None:
    first, second = crew.workers
    reader = clients(second, crew.name_in(1, "r"))
    reader.subscribe("plant/+", qos=2)
    writer = clients(first, crew.name_in(0, "w"))
    for qos in (0, 1, 2):
        for number in range(20):
            writer.deliver(f"plant/{qos}", b"%d" % number, qos)
        found = [reader.receive() for _ in range(20)]
        assert [int(packet.payload) for packet in found] == list(range(20))
        assert {packet.qos for packet in found} == {qos}
    assert first.metrics()['headrace_stream_copies_sent_total{shard="0"}'] == 40
    assert second.metrics()['headrace_stream_copies_taken_total{shard="1"}'] == 40


def test_who_is_away_finds_what_was_published_at_another_worker(crew: Crew, clients: Clients) -> None:
    first, second = crew.workers
    name = crew.name_in(1, "away")
    reader = clients(second, name, clean=False)
    reader.subscribe("load", qos=1)
    reader.leave()
    writer = clients(first, crew.name_in(0, "w"))
    writer.deliver_many("load", range(500))
    second.crash()
    writer.deliver_many("load", range(500, 1000))
    first.crash()
    crew.wait_linked()
    reader = clients(second, name, clean=False)
    found = []
    for _ in range(1000):
        packet = reader.expect(PUBLISH)
        found.append((int(packet.payload), packet.dup))
        reader.ack(PUBACK, packet.packet_id)
    assert found == [(number, False) for number in range(1000)]


@pytest.mark.parametrize("qos", [pytest.param(1, marks=pytest.mark.deep), 2])
def test_kill_a_worker_under_load(crew: Crew, qos: int) -> None:
    """Publishers of both workers, a subscriber at one of them; each worker is killed in turn."""
    first, second = crew.workers
    consumer = Consumer(second, crew.name_in(1, "c"), "load/#", qos)
    consumer.start()
    producers = [
        Producer(first, crew.name_in(0, "p"), "load/0", qos=qos, window=16, rate=400, padding=64),
        Producer(second, crew.name_in(1, "q"), "load/1", qos=qos, window=4, rate=200),
    ]
    for producer in producers:
        producer.start()
    for life in range(1, KILLS + 1):
        for worker in (first, second):
            for producer in producers:
                producer.wait_acked(len(producer.acked) + 50)
            wait_until(partial(lived, consumer, life), "the subscriber is there", 60)
            worker.crash()
    for producer in producers:
        producer.wait_acked(len(producer.acked) + 50)
    joined(consumer, producers)
    assert [producer.reconnects for producer in producers] == [KILLS, KILLS]
    if qos == 2:
        assert [consumer.ledger.repeated(producer.name) for producer in producers] == [set(), set()]


# Journals that roll, snapshots all the time, and nothing kept that nobody needs.
RESTLESS: dict[str, object] = {
    "journal.segment_bytes_max": 65_536,
    "journal.snapshot_interval_bytes": 4_096,
    "journal.retention_bytes": 131_072,
    "session.page_messages": 10,
    "session.backlog_messages_max": 65_535,
}


@pytest.mark.slow
def test_kills_while_journals_roll_and_shards_of_a_worker_follow_each_other(tmp_path: Path) -> None:
    """Four shards of two workers: a subscriber is away in one of them, another is there."""
    crew = Crew(tmp_path, 2, 4, RESTLESS)
    try:
        crew.start()
        first, second = crew.workers
        away, name = crew.name_in(3, "away"), crew.name_in(2, "c")
        Consumer(second, away, "load/#", 1).close()
        consumer = Consumer(first, name, "load/#", 1)
        consumer.start()
        producers = [
            Producer(crew.workers[shard % 2], crew.name_in(shard, "p"), f"load/{shard}", rate=100, padding=64)
            for shard in range(4)
        ]
        for producer in producers:
            producer.start()
        for worker in (first, second, first):
            for producer in producers:
                producer.wait_acked(len(producer.acked) + 100)
            worker.crash()
        for producer in producers:
            producer.wait_acked(len(producer.acked) + 100)
        joined(consumer, producers)
        late = Consumer(second, away, "load/#", 1, resume=True)
        late.start()
        joined(late, producers)
        assert not any(one.dup for one in late.ledger.arrivals), "never sent before, so no DUP"
    finally:
        crew.end()
    crew.check()


def test_a_worker_that_stands_still_keeps_no_suback_of_another_and_loses_nothing(
    crew: Crew, clients: Clients
) -> None:
    first, second = crew.workers
    consumer = Consumer(second, crew.name_in(1, "c"), "load/#", 1)
    consumer.start()
    producer = Producer(first, crew.name_in(0, "p"), "load/0", window=16, rate=300)
    producer.start()
    producer.wait_acked(100)
    first.pause()
    reader = clients(second, crew.name_in(1, "r"), clean=False)
    reader.subscribe("more/+", qos=1)
    assert second.metrics()['headrace_stream_cuts_total{shard="1"}'] == 1
    reader.subscribe("yet/more", qos=1)
    here = clients(second, crew.name_in(1, "w"))
    here.deliver("more/1", b"of this worker", 1)
    assert reader.receive().payload == b"of this worker"
    first.resume()
    producer.wait_acked(len(producer.acked) + 100)
    there = clients(first, crew.name_in(0, "w"))
    there.deliver("more/2", b"of the other", 1)
    there.deliver("yet/more", b"and once more", 1)
    assert [reader.receive().payload for _ in range(2)] == [b"of the other", b"and once more"]
    joined(consumer, [producer])
    assert consumer.lives == 1, "clients of the worker that went on did not notice"
    assert producer.reconnects == 0


def test_workers_stop_in_good_order_and_start_again_with_another_number_of_workers(
    tmp_path: Path, crew: Crew, clients: Clients
) -> None:
    name = crew.name_in(1, "r")
    reader = clients(crew.workers[1], name, clean=False)
    reader.subscribe("load", qos=1)
    reader.leave()
    clients(crew.workers[0], crew.name_in(0, "w")).deliver_many("load", range(100))
    for worker in crew.workers:
        worker.stop()
    alone = Worker(tmp_path / "alone", crew.layout, 0, 1, crew.runtime).start()
    try:
        reader = clients(alone, name, clean=False)
        found = [int(reader.receive().payload) for _ in range(100)]
        clients(alone, crew.name_in(0, "w")).deliver("load", b"100", 1)
        found.append(int(reader.receive().payload))
        assert found == list(range(101))
        alone.stop()
    finally:
        alone.end()


def test_what_expires_while_a_worker_stands_still_is_not_delivered_by_it(
    crew: Crew, clients: Clients
) -> None:
    """It has come over the link, or waits there, and is read when the worker goes on."""
    first, second = crew.workers
    reader = clients(second, crew.name_in(1, "r"), 5, clean=False)
    reader.subscribe("a/#", qos=1)
    writer = clients(first, crew.name_in(0, "w"), 5)
    second.pause()
    for qos in (0, 1):
        for expiry_s, payload in ((1, b"old"), (60, b"new")):
            writer.publish(f"a/{qos}", payload, qos, properties={MESSAGE_EXPIRY: expiry_s})
    writer.ping()
    time.sleep(2)
    second.resume()
    packets = [reader.receive() for _ in range(2)]
    assert [packet.payload for packet in packets] == [b"new", b"new"]
    assert all(packet.properties[MESSAGE_EXPIRY] <= 58 for packet in packets)
    dropped = 'headrace_dropped_messages_total{reason="expired",tenant="default"}'
    wait_until(lambda: second.metrics().get(dropped) == 2, "both are counted")
