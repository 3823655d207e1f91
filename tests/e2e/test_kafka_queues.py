"""A topic for each APPLICATION client in a real Kafka: nothing acknowledged is lost, whatever is killed, all of it comes
back in order, and any consumer of Kafka reads it."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, Message, TopicPartition
from confluent_kafka.admin import AdminClient

from broker_process import BrokerProcess, headrace, wait_until
from e2e.producer import Producer
from e2e.raw import RawClient
from e2e.test_stored_queues import TIGHT, deliver, figure, numbers_of, read_all, shrink, subscribe_and_leave
from kafka_server import WITHIN_S, KafkaServer

pytestmark = [
    pytest.mark.kafka,
    pytest.mark.skipif("__import__('broker_process').UNDER_AUDIT != 'headrace'"),
]
Brokers = Callable[..., BrokerProcess]


@pytest.fixture
def prefix(kafka: KafkaServer, name: str) -> str:
    kafka.warm_up()
    return f"q{name[-40:]}"


def stored_in(kafka: KafkaServer, prefix: str, **more: object) -> dict[str, object]:
    address = f"kafka://{kafka.address}/{prefix}"
    return TIGHT | {"queues.application": address, "session.application_client_ids": '["app*"]'} | more


def shown(broker: BrokerProcess, client_id: str, token: Path) -> dict[str, Any]:
    """What `session show` says of a client of a broker that runs."""
    where = ("--admin", f"http://127.0.0.1:{broker.admin_port}", "--token-file", str(token))
    ran = headrace("session", "show", client_id, *where)
    assert ran.returncode == 0, ran.stderr
    found: dict[str, Any] = json.loads(ran.stdout)
    return found


def topics(kafka: KafkaServer, prefix: str) -> list[str]:
    admin = AdminClient({"bootstrap.servers": kafka.address, "log_level": 0})
    return [topic for topic in admin.list_topics(timeout=WITHIN_S).topics if topic.startswith(f"{prefix}.")]


def consumed(kafka: KafkaServer, topic: str, count: int) -> list[Message]:
    """What a consumer of Kafka finds in a topic."""
    consumer = Consumer(
        {"bootstrap.servers": kafka.address, "group.id": "other", "enable.auto.commit": False}
    )
    consumer.assign([TopicPartition(topic, 0, 0)])
    try:
        found: list[Message] = []
        deadline = time.monotonic() + WITHIN_S
        while len(found) < count:
            assert time.monotonic() < deadline
            found += consumer.consume(count - len(found), 1.0)
        return found
    finally:
        consumer.close()


def test_what_waits_is_in_a_topic_that_anybody_reads_and_the_client_gets_in_order(
    brokers: Brokers, kafka: KafkaServer, prefix: str, tmp_path: Path
) -> None:
    token = tmp_path / "token"
    token.write_text("secret\n", encoding="utf-8")
    broker = brokers(stored_in(kafka, prefix, **{"journal.token_file": token})).start()
    subscribe_and_leave(broker, "app/1", "t/#")
    deliver(broker, "t/a", 0, 1_000)
    wait_until(lambda: figure(broker, "store_let_go_total") >= 1_000, "let go of by the journal", 30.0)
    topic = f"{prefix}.app_2F1"
    assert shown(broker, "app/1", token)["backlog_in"] == f"kafka://{kafka.address}/{topic}"
    found = consumed(kafka, topic, 1_000)
    assert [int((one.value() or b"").partition(b":")[2]) for one in found] == list(range(1_000))
    assert {one.key() for one in found} == {b"t/a"}
    headers = [dict(one.headers() or []) for one in found]
    assert [one["headrace.serial"] for one in headers] == [b"%d" % n for n in range(1, 1_001)]
    assert {one["mqtt.qos"] for one in headers} == {b"1"}
    shrink(broker)
    broker.restart()  # else the newest messages are in memory
    assert numbers_of(broker, "app/1", 1_000) == list(range(1_000))
    assert figure(broker, "store_read_total") >= 1_000
    assert figure(broker, "store_forgotten_total") == 0
    assert broker.get("/readyz").body.strip() == "ready"


def test_a_broker_that_is_killed_goes_on_with_what_only_the_topic_has(
    brokers: Brokers, kafka: KafkaServer, prefix: str
) -> None:
    broker = brokers(stored_in(kafka, prefix)).start()
    subscribe_and_leave(broker, "app", "t/#")
    deliver(broker, "t/a", 0, 500)
    wait_until(lambda: figure(broker, "store_let_go_total") >= 500, "let go of by the journal", 30.0)
    shrink(broker)
    broker.crash()
    deliver(broker, "t/a", 500, 100)
    broker.crash()
    assert numbers_of(broker, "app", 600) == list(range(600))
    assert figure(broker, "store_forgotten_total") == 0


def test_a_kafka_that_is_killed_under_load_loses_nothing_acknowledged(
    brokers: Brokers, kafka: KafkaServer, prefix: str
) -> None:
    broker = brokers(stored_in(kafka, prefix)).start()
    subscribe_and_leave(broker, "app", "load/#")
    producers = [Producer(broker, f"p{n}", f"load/{n}", rate=400, padding=64) for n in range(2)]
    for producer in producers:
        producer.start()
    for _ in range(2):
        for producer in producers:
            producer.wait_acked(len(producer.acked) + 1_000)
        kafka.kill()
        wait_until(lambda: figure(broker, "store_usable") == 0, "it is seen to be away", 30.0)
        assert "ready, degraded: kafka://" in broker.get("/readyz").body
        for producer in producers:
            producer.wait_acked(len(producer.acked) + 200)
        kafka.start()
        wait_until(lambda: figure(broker, "store_usable") == 1, "it is used again", 30.0)
    wait_until(lambda: figure(broker, "store_let_go_total") > 0, "let go of by the journal", 60.0)
    for producer in producers:
        producer.finish()
    for producer in producers:
        producer.join(30.0)
        assert producer.error is None
    ledger = read_all(broker, "app", producers)
    assert ledger.missing(producers) == {}
    assert ledger.faults(producers) == []
    assert figure(broker, "store_forgotten_total") == 0


def test_a_topic_that_was_deleted_by_hand_is_counted_and_named_and_what_comes_later_arrives(
    brokers: Brokers, kafka: KafkaServer, prefix: str
) -> None:
    broker = brokers(stored_in(kafka, prefix)).start()
    subscribe_and_leave(broker, "app", "t/#")
    deliver(broker, "t/a", 0, 300)
    wait_until(lambda: figure(broker, "store_let_go_total") >= 300, "let go of by the journal", 30.0)
    shrink(broker)
    broker.restart()  # else the newest messages are in memory
    admin = AdminClient({"bootstrap.servers": kafka.address, "log_level": 0})
    for future in admin.delete_topics([f"{prefix}.app"]).values():
        future.result(WITHIN_S)
    deliver(broker, "t/a", 300, 50)
    wait_until(lambda: f"{prefix}.app" in broker.get("/readyz").body, "it is named", 60.0)
    with RawClient(broker.address, "app") as client:
        client.connect(clean=False)
        seen: list[int] = []
        while not seen or seen[-1] < 349:
            seen.append(int(client.receive(40.0).payload.partition(b":")[2]))
    assert seen == sorted(seen)
    assert seen[-50:] == list(range(300, 350))
    lost = 350 - len(seen)
    assert lost >= 1
    dropped = {key: value for key, value in broker.metrics().items() if 'reason="store_forgot"' in key}
    assert sum(dropped.values()) == lost


def test_a_message_that_is_too_large_for_kafka_stays_in_the_journal(
    brokers: Brokers, kafka: KafkaServer, prefix: str
) -> None:
    broker = brokers(stored_in(kafka, prefix, **{"limits.packet_bytes_max": 8 << 20})).start()
    subscribe_and_leave(broker, "app", "t/#")
    large = bytes(2 << 20)
    with RawClient(broker.address, "p") as client:
        client.connect()
        for payload in (b"before", large, b"after"):
            client.deliver("t/a", payload)
    wait_until(lambda: figure(broker, "store_let_go_total") >= 1, "let go of by the journal", 30.0)
    assert [one.value() for one in consumed(kafka, f"{prefix}.app", 3)] == [b"before", None, b"after"]
    broker.crash()
    with RawClient(broker.address, "app") as client:
        client.connect(clean=False)
        assert [client.receive(20.0).payload for _ in range(3)] == [b"before", large, b"after"]
