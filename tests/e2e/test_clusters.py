"""Topic queues and consumer clusters over the wire: each message to one consumer of each cluster, whatever is killed."""

from __future__ import annotations

import struct
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from broker_process import BrokerProcess, free_port, make_broker
from e2e.conftest import finish
from e2e.device import JOIN, LEAVE, NOTIFY, PULL, RESPONSE, Device, Got, text
from e2e.raw import RawClient

pytestmark = pytest.mark.skipif("__import__('broker_process').UNDER_AUDIT != 'headrace'")
Clients = Callable[..., RawClient]
PATIENT = {"frames.visibility_s": 600}  # nothing is overdue, however slow the machine is


class Served:
    """A broker with a listener for frames."""

    def __init__(self, folder: Path, settings: dict[str, object] | None = None) -> None:
        self.port = free_port()
        more = ["--listen", f"frame://127.0.0.1:{self.port}"]
        self.broker: BrokerProcess = make_broker(folder, settings or {}, more)

    def device(self, sn: bytes = b"door-1") -> Device:
        return Device(self.port, sn)

    def consumer(self, topic: str, cluster: str, sn: bytes = b"service") -> Device:
        found = self.device(sn)
        assert found.join(topic, cluster) == 0
        return found

    def publish(self, topic: str, count: int, start: int = 0) -> list[bytes]:
        with self.device() as device:
            for seq in range(start, start + count):
                device.start_publish(seq, topic, b"%d" % seq)
            answers = [device.published() for _ in range(count)]
        assert {code for _, code, _ in answers} == {0}
        return [found for _, _, found in answers]


def numbers(messages: list[Got]) -> list[int]:
    return [int(message.payload) for message in messages]


def drain(consumer: Device, topic: str, cluster: str, count: int, most: int = 100) -> list[Got]:
    """Pull and acknowledge until `count` messages were there."""
    found: list[Got] = []
    while len(found) < count:
        got = consumer.pull(topic, cluster, most, 60_000)
        found += got
        assert consumer.ack(topic, cluster, *(message.message_id for message in got)) == 0
    return found


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    found = Served(tmp_path_factory.mktemp("clusters"), dict(PATIENT))
    found.broker.start()
    try:
        yield found
    finally:
        finish(found.broker)


def test_a_cluster_reads_a_topic_in_order_with_ids_sn_and_times(served: Served) -> None:
    ids = served.publish("order", 10)
    before = time.time()
    with served.consumer("order", "store") as consumer:
        got = consumer.pull("order", "store", 100)
        assert numbers(got) == list(range(10))
        assert [message.message_id for message in got] == ids
        assert {message.sn for message in got} == {"door-1"}
        assert not any(message.redelivered for message in got)
        assert all(abs(message.time_ms / 1000 - before) < 600 for message in got)
        assert consumer.ack("order", "store", *ids) == 0
        assert consumer.pull("order", "store", 100) == []


def test_every_cluster_gets_all_and_a_consumer_what_nobody_else_has(served: Served) -> None:
    topic = "share"
    with (
        served.consumer(topic, "one") as first,
        served.consumer(topic, "one") as second,
        served.consumer(topic, "two") as other,
    ):
        served.publish(topic, 30)
        a = first.pull(topic, "one", 10)
        b = second.pull(topic, "one", 10)
        c = first.pull(topic, "one", 100)
        assert numbers(a + b + c) == list(range(30))
        assert numbers(drain(other, topic, "two", 30)) == list(range(30))


def test_mqtt_and_frames_meet_in_one_queue_and_one_topic(served: Served, clients: Clients) -> None:
    with served.consumer("meet", "store") as consumer, RawClient(served.broker.address, "mqtt-pub") as client:
        client.connect()
        client.publish("meet", b"1", qos=1)
        served.publish("meet", 1, 2)
        client.publish("meet", b"3", qos=2)
        found: list[Got] = drain(consumer, "meet", "store", 3)
        assert [(message.sn, message.payload) for message in found] == [
            ("mqtt-pub", b"1"),
            ("door-1", b"2"),
            ("mqtt-pub", b"3"),
        ]


def test_a_pull_waits_for_the_next_message_and_delays_nothing_else(served: Served) -> None:
    with served.consumer("wait", "store") as consumer:
        consumer.start_pull("wait", "store", 5, 60_000)
        consumer.ping()
        assert consumer.join("wait", "other") == 0
        consumer.publish(1, "elsewhere", b"x")
        served.publish("wait", 1)
        assert numbers(consumer.pulled()) == [0]
        began = time.monotonic()
        assert consumer.pull("wait", "store", 5, 300) == []
        assert time.monotonic() - began > 0.2


def test_pulls_are_answered_in_their_order(served: Served) -> None:
    with served.consumer("pulls/a", "c") as consumer:
        assert consumer.join("pulls/b", "c") == 0
        served.publish("pulls/b", 1)
        consumer.start_pull("pulls/a", "c", 1, 60_000)
        consumer.start_pull("pulls/b", "c", 1, 0)
        consumer.start_pull("pulls/a", "c", 1, 0)
        consumer.ping()
        served.publish("pulls/a", 1, 7)
        assert [numbers(consumer.pulled()) for _ in range(3)] == [[7], [0], []]


def test_frames_behind_a_join_need_not_wait_for_its_answer(served: Served) -> None:
    served.publish("eager", 3)
    with served.device() as consumer:
        consumer.send(JOIN, text("eager") + text("c"))
        consumer.start_pull("eager", "c", 2)
        consumer.send(JOIN, text("eager") + text("d"))
        consumer.send(LEAVE, text("eager") + text("d"))
        consumer.start_pull("eager", "c", 3)
        assert [consumer.read(JOIN | RESPONSE).body for _ in range(2)] == [b"\0", b"\0"]
        assert consumer.read(LEAVE | RESPONSE).body == b"\0"
        assert [numbers(consumer.pulled()) for _ in range(2)] == [[0, 1], [2]]


def test_who_leaves_gets_nothing_more_and_its_pulls_are_answered(served: Served) -> None:
    with served.consumer("leave", "c") as consumer:
        consumer.start_pull("leave", "c", 5, 60_000)
        assert consumer.leave("leave", "c") == 0
        assert consumer.pulled() == []
        assert consumer.leave("leave", "c") == 0x11


def test_two_devices_of_one_connection_are_two_consumers(served: Served) -> None:
    topic = "gateway"
    with served.consumer(topic, "c", b"left") as gateway:
        gateway.send(JOIN, text(topic) + text("c"), b"right")
        assert gateway.read(JOIN | RESPONSE)[1:] == (b"right", b"\0")
        served.publish(topic, 2)
        gateway.send(PULL, text(topic) + text("c") + struct.pack(">HH", 1, 0), b"right")
        [held] = gateway.pulled()
        gateway.start_pull(topic, "c", 1)
        [other] = gateway.pulled()
        gateway.send(PULL, text(topic) + text("c") + struct.pack(">HH", 1, 60_000), b"right")
        assert gateway.leave(topic, "c") == 0
        assert gateway.pulled() == [other._replace(redelivered=True)], "what the one held, to the other"
        assert gateway.ack(topic, "c", held.message_id, other.message_id) == 0
        gateway.send(LEAVE, text(topic) + text("c"), b"right")
        assert gateway.read(LEAVE | RESPONSE)[1:] == (b"right", b"\0")


def test_clusters_are_notified_once_until_they_pull(served: Served) -> None:
    with served.consumer("news", "a") as first, served.consumer("news", "b") as second:
        served.publish("news", 5)
        assert first.notified() >= 1
        assert second.notified() >= 1
        served.publish("news", 5, 5)
        first.ping()
        assert not [frame for frame in first._kept if frame.opcode == NOTIFY]
        assert len(first.pull("news", "a", 3)) == 3
        served.publish("news", 1, 10)
        assert first.notified() == 8


def test_who_joins_where_messages_wait_is_notified(served: Served) -> None:
    served.publish("waiting", 4)
    with served.consumer("waiting", "c") as consumer:
        assert consumer.notified() == 4


def test_what_a_dead_consumer_held_goes_to_another_one_flagged(served: Served) -> None:
    served.publish("dead", 4)
    with served.consumer("dead", "c") as survivor:
        with served.consumer("dead", "c") as victim:
            held = victim.pull("dead", "c", 4)
            assert victim.ack("dead", "c", held[2].message_id) == 0  # out of order
        got: list[Got] = []
        while len(got) < 3:
            got += survivor.pull("dead", "c", 10, 60_000)
        served.publish("dead", 2, 4)
        got += survivor.pull("dead", "c", 10, 60_000)
        assert numbers(got)[:4] == [0, 1, 3, 4]
        assert [message.redelivered for message in got[:4]] == [True, True, True, False]
        assert [message.message_id for message in got[:2]] == [message.message_id for message in held[:2]]


def test_what_is_held_for_too_long_goes_to_another_one(tmp_path: Path) -> None:
    served = Served(tmp_path, {"frames.visibility_s": 1})
    served.broker.start()
    try:
        served.publish("slow", 2)
        with served.consumer("slow", "c") as slow, served.consumer("slow", "c") as quick:
            [held] = slow.pull("slow", "c", 1)
            assert held.payload == b"0"
            got: list[Got] = []
            while held.message_id not in [message.message_id for message in got]:
                got += quick.pull("slow", "c", 10, 60_000)
            assert all(message.redelivered for message in got if message.payload == b"0")
            assert slow.ack("slow", "c", held.message_id) == 0  # it was done with after all
            assert slow.ack("slow", "c", held.message_id) == 0x92
            assert quick.ack("slow", "c", held.message_id) == 0x92
            slow.ping()
            quick.ping()
    finally:
        finish(served.broker)


def test_unknown_ids_are_refused_and_the_known_ones_of_the_frame_count(served: Served) -> None:
    served.publish("unknown", 2)
    with served.consumer("unknown", "c") as consumer:
        got = consumer.pull("unknown", "c", 1)
        assert consumer.ack("unknown", "c", bytes(16), got[0].message_id) == 0x92
        assert consumer.ack("unknown", "c", got[0].message_id) == 0x92
        assert numbers(consumer.pull("unknown", "c", 5)) == [1]
        assert consumer.ack("unknown", "nobody", bytes(16)) == 0x92
        assert consumer.leave("unknown", "nobody") == 0x11
        consumer.ping()


def test_a_pull_without_a_join_ends_the_connection_alone(served: Served) -> None:
    with served.consumer("alone", "c") as neighbour, served.device() as device:
        device.start_pull("alone", "c", 1)
        assert device.error() == 0x82
        neighbour.ping()


@pytest.mark.parametrize(("topic", "cluster"), [("a/#", "c"), ("", "c"), ("t", ""), ("t", "x" * 256)])
def test_a_join_needs_an_exact_topic_and_a_name(served: Served, topic: str, cluster: str) -> None:
    with served.device() as device:
        assert device.join(topic, cluster) == 0x90
        device.ping()


@pytest.mark.slow
def test_after_a_kill_a_cluster_goes_on_where_it_was(tmp_path: Path) -> None:
    served = Served(tmp_path, dict(PATIENT))
    broker = served.broker.start()
    try:
        with served.consumer("kept", "c") as consumer:
            ids = served.publish("kept", 400)
            got = consumer.pull("kept", "c", 100)
            done = [message for at, message in enumerate(got) if at % 3]
            assert consumer.ack("kept", "c", *(message.message_id for message in done)) == 0
            broker.kill()
        left = [at for at in range(400) if at >= 100 or at % 3 == 0]
        for stop in (broker.kill, broker.stop, broker.stop):
            broker.start()
            with served.consumer("kept", "c") as consumer:
                got = consumer.pull("kept", "c", 40)
                assert numbers(got) == left[:40]
                assert [message.message_id for message in got] == [ids[at] for at in left[:40]]
                assert all(message.redelivered for message in got if int(message.payload) < 100)
                stop()
        broker.start()
        with served.consumer("kept", "c") as consumer:
            assert numbers(drain(consumer, "kept", "c", len(left))) == left
            assert consumer.pull("kept", "c", 10) == []
        with served.consumer("kept", "new") as consumer:
            assert numbers(drain(consumer, "kept", "new", 400)) == list(range(400))
    finally:
        finish(broker)


def test_consumers_that_come_and_go_under_load_get_everything_once(tmp_path: Path) -> None:
    served = Served(tmp_path, dict(PATIENT))
    served.broker.start()
    count, done, lock = 3000, Counter[int](), threading.Lock()
    over = threading.Event()

    def consume(lives: int) -> None:
        for life in range(lives):
            with served.consumer("load", "c") as consumer:
                while not over.is_set():
                    got = consumer.pull("load", "c", 20, 500)
                    if life < lives - 1 and len(got) > 10:
                        break  # with what it holds
                    consumer.ack("load", "c", *(message.message_id for message in got))
                    with lock:
                        done.update(numbers(got))
                        if len(done) == count:
                            over.set()

    threads = [threading.Thread(target=consume, args=(lives,)) for lives in (1, 2, 3, 4)]
    try:
        for thread in threads:
            thread.start()
        for start in range(0, count, 500):
            served.publish("load", 500, start)
        for thread in threads:
            thread.join(120)
        assert sorted(done) == list(range(count))
        assert max(done.values()) == 1
    finally:
        over.set()
        finish(served.broker)


def test_limits_drop_the_oldest_and_count_what_was_lost(tmp_path: Path) -> None:
    served = Served(tmp_path, {"frames.queue_messages_max": 50})
    broker = served.broker.start()
    try:
        with served.consumer("full", "c") as consumer:
            held = consumer.pull("full", "c", 1)
            assert held == []
            served.publish("full", 120)
        name = 'headrace_dropped_messages_total{reason="backlog_limit",tenant="default"}'
        assert broker.metrics()[name] == 70
        broker.kill()
        broker.start()
        with served.consumer("full", "c") as consumer:
            assert numbers(drain(consumer, "full", "c", 50)) == list(range(70, 120))
        assert broker.metrics()[name] == 70
    finally:
        finish(broker)


def test_what_is_too_old_goes(tmp_path: Path) -> None:
    served = Served(tmp_path, {"frames.queue_age_s": 1})
    broker = served.broker.start()
    try:
        with served.consumer("old", "c"):
            served.publish("old", 20)
        name = 'headrace_dropped_messages_total{reason="expired",tenant="default"}'
        until = time.monotonic() + 60
        while broker.metrics().get(name) != 20 and time.monotonic() < until:
            time.sleep(0.05)
        assert broker.metrics()[name] == 20
        with served.consumer("old", "c") as consumer:
            assert consumer.pull("old", "c", 10) == []
    finally:
        finish(broker)


@pytest.mark.slow
def test_a_cluster_far_behind_reads_pages_of_the_journal(tmp_path: Path) -> None:
    count = 12_000  # a page has 1024
    served = Served(tmp_path, dict(PATIENT))
    broker = served.broker.start()
    try:
        with served.consumer("far", "c") as consumer:
            served.publish("far", count)
            assert numbers(drain(consumer, "far", "c", 3000, 250)) == list(range(3000))
            broker.kill()
        broker.start()
        with served.consumer("far", "c") as consumer:
            assert numbers(drain(consumer, "far", "c", 2000, 250)) == list(range(3000, 5000))
            broker.stop()
        broker.start()
        with served.consumer("far", "late") as consumer:
            assert numbers(drain(consumer, "far", "late", count, 256)) == list(range(count))
    finally:
        finish(broker)


@pytest.mark.parametrize(("start", "expected"), [("beginning", [0, 1, 2]), ("end", [2])])
def test_where_a_new_cluster_begins_is_configured(tmp_path: Path, start: str, expected: list[int]) -> None:
    served = Served(tmp_path, {"frames.cluster_start": start})
    served.broker.start()
    try:
        served.publish("begin", 2)
        with served.consumer("begin", "c") as consumer:
            served.publish("begin", 1, 2)
            assert numbers(drain(consumer, "begin", "c", len(expected))) == expected
    finally:
        finish(served.broker)


def test_a_new_cluster_may_begin_at_a_time(tmp_path: Path) -> None:
    served = Served(tmp_path, {"frames.queue_topics": "t/#"})
    broker = served.broker.start()
    try:
        served.publish("t/1", 3)
        time.sleep(0.01)  # the times of the two lots differ
        with served.consumer("t/1", "probe") as probe:
            last = probe.pull("t/1", "probe", 3)[-1].time_ms + 1
        served.publish("t/1", 2, 3)
        broker.stop()
        moment = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(last // 1000)) + f".{last % 1000:03}+00:00"
        broker.settings["frames.cluster_start"] = moment
        broker.start()
        with served.consumer("t/1", "late") as consumer:
            assert numbers(drain(consumer, "t/1", "late", 2)) == [3, 4]
        with served.device() as device:
            assert device.join("elsewhere", "c") == 0x90
    finally:
        finish(broker)


def test_who_may_not_read_a_topic_neither_joins_nor_pulls(tmp_path: Path) -> None:
    acl = tmp_path / "acl"
    acl.write_text("topic write locks/#\ntopic readwrite open/#\n")
    served = Served(tmp_path / "broker", {"access.acl_file": acl})
    served.broker.start()
    try:
        served.publish("locks/1", 1)
        with served.device() as device, served.consumer("open/1", "c") as neighbour:
            assert device.join("locks/1", "c") == 0x87
            device.start_pull("locks/1", "c", 1)
            assert device.error() == 0x87
            neighbour.ping()
            assert neighbour.ack("locks/1", "c", bytes(16)) == 0x87
    finally:
        finish(served.broker)
