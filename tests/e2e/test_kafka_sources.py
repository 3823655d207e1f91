"""Sources with a real Kafka: what its topic gets is published, once, whoever is killed."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from pathlib import Path

import pytest
from confluent_kafka import Producer

from broker_process import BrokerProcess, make_broker, wait_until
from e2e.raw import RawClient
from kafka_server import WITHIN_S, KafkaServer

pytestmark = [pytest.mark.kafka, pytest.mark.slow]
_topics = count()


@pytest.fixture
def topic(kafka: KafkaServer) -> str:
    """A topic of two partitions."""
    name = f"spring-{next(_topics)}"
    kafka.make_topic(name, 2)
    return name


@pytest.fixture
def broker(kafka: KafkaServer, topic: str, tmp_path: Path) -> Iterator[BrokerProcess]:
    """A broker of two workers with a source that publishes to itself, and a session that wants it."""
    found = make_broker(tmp_path / "broker", {"workers": 2, "shards": 2})
    file = tmp_path / "headrace.toml"
    file.write_text(
        f'[[sources]]\nname = "{topic}"\nservers = ["{kafka.address}"]\nkafka_topic = "{topic}"\n'
        f'topic = "commands/{{key}}"\nurl = "tcp://127.0.0.1:{found.port}"\n'
    )
    found.extra = ["--config", str(file)]
    found.start(WITHIN_S)
    with RawClient(found.address, "device") as device:
        device.connect(clean=False)
        device.subscribe("commands/#", qos=1)
    yield found
    found.end()
    assert "Traceback" not in found.stderr, found.stderr


def produced(kafka: KafkaServer, topic: str, numbers: range, key: bytes = b"") -> None:
    """Have Kafka keep a record each."""
    producer = Producer({"bootstrap.servers": kafka.address, "log_level": 0})
    for number in numbers:
        producer.produce(topic, b"%d" % number, key or b"d%d" % (number % 5))
    assert producer.flush(WITHIN_S) == 0


def figure(broker: BrokerProcess, name: str) -> float:
    """A figure of the source since its process began, as /metrics has it."""
    return sum(v for n, v in broker.metrics().items() if n.startswith(f"headrace_source_{name}_total"))


def received(broker: BrokerProcess, number: int) -> list[tuple[str, int]]:
    """What the session gets, and that it gets no more."""
    with RawClient(broker.address, "device") as device:
        device.connect(clean=False)
        found = []
        for _ in range(number):
            packet = device.receive(WITHIN_S)
            found.append((packet.topic, int(packet.payload)))
        device.expect_nothing(1.0)
    return found


def test_what_kafka_has_is_published_once_whoever_is_killed(
    kafka: KafkaServer, topic: str, broker: BrokerProcess
) -> None:
    produced(kafka, topic, range(50))
    wait_until(lambda: figure(broker, "records") >= 50, "published", WITHIN_S)
    produced(kafka, topic, range(50, 1000))
    broker.crash()
    produced(kafka, topic, range(5000, 5001), b"#")  # no topic: passed over
    produced(kafka, topic, range(1000, 1050))
    wait_until(lambda: figure(broker, "refused") == 1, "said", WITHIN_S)
    found = received(broker, 1050)
    assert sorted(number for _, number in found) == list(range(1050))
    for device in range(5):
        in_order = [number for name, number in found if name == f"commands/d{device}"]
        assert in_order == list(range(device, 1050, 5))
    assert broker.get("/readyz").body == "ready\n"


def test_a_position_that_is_lost_costs_no_repeat(
    kafka: KafkaServer, topic: str, broker: BrokerProcess
) -> None:
    produced(kafka, topic, range(20))
    wait_until(lambda: figure(broker, "records") >= 20, "published", WITHIN_S)
    broker.stop()
    kafka.forget_group(f"headrace.source.{topic}")
    broker.start(WITHIN_S)
    wait_until(lambda: figure(broker, "records") >= 20, "published again", WITHIN_S)
    assert sorted(number for _, number in received(broker, 20)) == list(range(20))
