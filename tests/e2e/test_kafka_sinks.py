"""Sinks with a real Kafka: what was acknowledged is in its topic, once, whoever is killed."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, TopicPartition

from broker_process import BrokerProcess, headrace, make_broker, wait_until
from e2e.raw import RawClient
from e2e.wire import USER_PROPERTY
from headrace.journal.consumers import ConsumerPosition
from headrace.journal.reader import JournalReader
from headrace.testing.ports import free_port
from kafka_server import WITHIN_S, KafkaServer

pytestmark = [pytest.mark.kafka, pytest.mark.slow]
Brokers = Callable[..., BrokerProcess]
_topics = count()


@pytest.fixture
def topic(kafka: KafkaServer) -> str:
    """A topic of two partitions."""
    name = f"sunk-{next(_topics)}"
    kafka.make_topic(name, 2)
    return name


@pytest.fixture
def brokers(tmp_path: Path) -> Iterator[Brokers]:
    """Makes a broker with a sink of `d/#`: `brokers(server, topic)`, with settings if any."""
    made: list[BrokerProcess] = []

    def make(server: str, topic: str, settings: dict[str, object] | None = None) -> BrokerProcess:
        file = tmp_path / "headrace.toml"
        file.write_text(
            f'[[sinks]]\nname = "s"\nservers = ["{server}"]\ntopic_filter = "d/#"\nkafka_topic = "{topic}"\n'
        )
        made.append(make_broker(tmp_path / "broker", settings, ["--config", str(file)]))
        return made[-1]

    yield make
    for broker in made:
        broker.end()
        assert "Traceback" not in broker.stderr, broker.stderr


class Reader:
    """Reads what is committed in a topic, as anybody does."""

    def __init__(self, server: str, topic: str) -> None:
        common = {"bootstrap.servers": server, "group.id": "test", "isolation.level": "read_committed"}
        self._consumer = Consumer(common | {"enable.auto.commit": False, "log_level": 0})
        self._consumer.assign([TopicPartition(topic, each, OFFSET_BEGINNING) for each in range(2)])
        self.found: list[Any] = []

    def until(self, number: int) -> list[Any]:
        """Read until there are so many records, and what there is a moment later."""
        deadline = time.monotonic() + WITHIN_S
        while len(self.found) < number:
            assert time.monotonic() < deadline, (len(self.found), number)
            self._read(0.5)
        while self._read(2.0):
            pass
        return self.found

    def _read(self, within_s: float) -> bool:
        record = self._consumer.poll(within_s)
        if record is None:
            return False
        error = record.error()
        if error is not None:
            assert error.code() != KafkaError._UNKNOWN_PARTITION, error
            return True
        self.found.append(record)
        return True

    def close(self) -> None:
        self._consumer.close()


@pytest.fixture
def reader(kafka: KafkaServer, topic: str) -> Iterator[Reader]:
    found = Reader(kafka.address, topic)
    yield found
    found.close()


def published(broker: BrokerProcess, numbers: range, client_id: str = "p") -> None:
    """Publish a message each, acknowledged."""
    with RawClient(broker.address, client_id) as publisher:
        publisher.connect()
        for number in numbers:
            publisher.deliver(f"d/{number % 7}", b"%d" % number)


def numbers_of(records: list[Any]) -> list[int]:
    return sorted(int(record.value()) for record in records)


def sinks_of(broker: BrokerProcess) -> list[int]:
    """The processes of the sinks that a broker has started itself."""
    children = Path(f"/proc/{broker.pid}/task/{broker.pid}/children").read_text().split()
    found = []
    for child in children:
        with suppress(OSError):
            if b"\0sinks\0" in Path(f"/proc/{child}/cmdline").read_bytes():
                found.append(int(child))
    return found


def test_a_record_says_what_the_message_was(
    kafka: KafkaServer, topic: str, brokers: Brokers, reader: Reader
) -> None:
    broker = brokers(kafka.address, topic).start(WITHIN_S)
    with RawClient(broker.address, "meter", 5) as publisher:
        publisher.connect()
        publisher.deliver("e/not", b"wanted")
        publisher.deliver("d/1", b"21.5", retain=True, properties={USER_PROPERTY: [("unit", "C")]})
        publisher.deliver("d/2", b"", qos=2)
    one, other = sorted(reader.until(2), key=lambda record: record.key())
    headers = dict(one.headers())
    assert (one.key(), one.value(), other.key(), other.value()) == (b"d/1", b"21.5", b"d/2", b"")
    assert len(bytes.fromhex(headers.pop("headrace-message-id").decode())) == 16
    assert headers == {
        "mqtt.tenant": headers["mqtt.tenant"],
        "mqtt.client-id": b"meter",
        "mqtt.qos": b"1",
        "mqtt.retain": b"1",
        "mqtt.user.unit": b"C",
    }
    wait_until(
        lambda: broker.metrics().get('headrace_sink_records_total{shard="0",sink="s"}') == 2, "told", 10
    )
    assert broker.get("/readyz").body == "ready\n"


def test_broker_and_sink_that_are_killed_lose_and_repeat_nothing(
    kafka: KafkaServer, topic: str, brokers: Brokers, reader: Reader
) -> None:
    broker = brokers(kafka.address, topic).start(WITHIN_S)
    published(broker, range(100))
    broker.crash()
    published(broker, range(100, 200))
    (process,) = sinks_of(broker)
    os.kill(process, signal.SIGKILL)
    published(broker, range(200, 300))
    wait_until(lambda: sinks_of(broker) not in ([], [process]), "another one", WITHIN_S)
    published(broker, range(300, 400))
    broker.crash()
    assert numbers_of(reader.until(400)) == list(range(400))
    broker.stop()
    end = JournalReader(broker.data_dir).high_watermark()
    assert ConsumerPosition.read(broker.data_dir, "sink.s").offset == end, "it was sent to its end"


def test_kafka_that_is_killed_costs_nothing_but_time(
    kafka: KafkaServer, topic: str, brokers: Brokers, reader: Reader
) -> None:
    broker = brokers(kafka.address, topic).start(WITHIN_S)
    published(broker, range(100))
    kafka.kill()
    try:
        published(broker, range(100, 200))
        wait_until(lambda: "sink s: " in broker.get("/readyz").body, "said", WITHIN_S)
        assert broker.get("/readyz").status == 200
        broker.crash()
        published(broker, range(200, 300))
    finally:
        kafka.start()
    assert numbers_of(reader.until(300)) == list(range(300))
    wait_until(lambda: broker.get("/readyz").body == "ready\n", "said", WITHIN_S)


def test_each_shard_of_several_workers_writes_what_its_clients_publish(
    kafka: KafkaServer, topic: str, brokers: Brokers, reader: Reader
) -> None:
    broker = brokers(kafka.address, topic, {"workers": 2, "shards": 2}).start(WITHIN_S)
    for client in range(6):
        published(broker, range(client * 20, client * 20 + 20), f"p{client}")
    broker.stop()
    assert numbers_of(reader.until(120)) == list(range(120))


def test_a_sink_that_nobody_can_make_is_refused_by_its_key(tmp_path: Path) -> None:
    file = tmp_path / "headrace.toml"
    file.write_text(
        '[[sinks]]\nname = "s"\nservers = ["127.0.0.1:1"]\ntopic_filter = "d/#"\nkafka_topic = "t"\n'
        'client = { "no.such" = "x" }\n'
    )
    options = ["--data-dir", str(tmp_path / "data"), "--listen", f"tcp://127.0.0.1:{free_port()}"]
    found = headrace("serve", "--config", str(file), *options, deadline_s=WITHIN_S)
    assert (found.returncode, "sinks[0].client" in found.stderr) == (2, True), found.stderr
    file.write_text(file.read_text().replace("d/#", "d/#/e"))
    found = headrace("config", "check", "--config", str(file), deadline_s=WITHIN_S)
    assert (found.returncode, "sinks[0].topic_filter" in found.stderr) == (2, True), found.stderr
