"""A real Kafka that lets in who signs in by TLS, for what its rights allow: journals, sinks and queues in it."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from broker_process import BrokerProcess, free_port, headrace, make_broker, wait_until
from e2e.raw import RawClient
from kafka_server import PASSWORD, USER, WITHIN_S, KafkaServer, kafka_server

pytestmark = [pytest.mark.kafka, pytest.mark.slow, pytest.mark.time_limit(300)]
# The rights that the documents name.
OF_TOPICS = ("READ", "WRITE", "DESCRIBE", "DESCRIBE_CONFIGS", "DELETE")
OF_GROUPS = ("READ", "DESCRIBE")
Nodes = Callable[..., BrokerProcess]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Certificates, and files of settings."""
    found = tmp_path_factory.mktemp("secure")
    made = headrace("cluster", "certs", str(found), "--node", "localhost", deadline_s=WITHIN_S)
    assert made.returncode == 0, made.stderr
    return found


@pytest.fixture(scope="module")
def kafka(folder: Path) -> Iterator[KafkaServer]:
    with kafka_server(folder) as server:
        yield server


def properties(
    folder: Path, mechanism: str = "SCRAM-SHA-512", password: str = PASSWORD, ca: str = "ca.pem"
) -> Path:
    """A file of settings for a user who signs in."""
    file = folder / f"{mechanism}-{len(password)}-{ca}.properties"
    file.write_text(
        f"# for librdkafka\nsecurity.protocol=SASL_SSL\nssl.ca.location={folder / ca}\nsasl.mechanism={mechanism}\n"
        f"sasl.username={USER}\nsasl.password={password}\n",
        encoding="utf-8",
    )
    return file


def url(kafka: KafkaServer, name: str, file: Path) -> str:
    return f"kafka://{kafka.secure_address}/{name}?properties_file={file}"


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[Nodes]:
    made: list[BrokerProcess] = []

    def make(name: str, *extra: str, settings: dict[str, object] | None = None) -> BrokerProcess:
        made.append(make_broker(tmp_path / name, settings, list(extra)))
        return made[-1]

    yield make
    for broker in made:
        broker.end()
        assert "Traceback" not in broker.stderr, broker.stderr
        assert PASSWORD not in broker.stderr


def subscribed(broker: BrokerProcess) -> None:
    with RawClient(broker.address, "away") as away:
        away.connect(clean=False)
        away.subscribe("t", qos=1)


def published(broker: BrokerProcess, numbers: range) -> None:
    with RawClient(broker.address, "p") as publisher:
        publisher.connect()
        for number in numbers:
            publisher.deliver("t", b"%d" % number)


def drained(broker: BrokerProcess, count: int) -> list[int]:
    with RawClient(broker.address, "away") as away:
        away.connect(clean=False)
        return [int(away.receive(WITHIN_S).payload) for _ in range(count)]


def test_a_cluster_is_made_and_served_by_a_user_with_the_rights_that_are_documented(
    kafka: KafkaServer, folder: Path, nodes: Nodes
) -> None:
    where = url(kafka, "mine", properties(folder))
    refused = headrace("cluster", "create", where, "--shards", "1", deadline_s=WITHIN_S)
    assert (refused.returncode, "authorization failed" in refused.stderr.lower()) == (1, True), refused.stderr
    kafka.allow("TOPIC", "mine.", "CREATE", *OF_TOPICS)
    made = headrace("cluster", "create", where, "--shards", "1", deadline_s=WITHIN_S)
    assert made.returncode == 0, made.stderr
    kafka.allow("GROUP", "mine.", *OF_GROUPS)
    for mechanism in ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"):
        own = url(kafka, "mine", properties(folder, mechanism))
        found = headrace("cluster", "status", "--cluster", own, deadline_s=WITHIN_S)
        assert found.returncode == 0, (mechanism, found.stdout, found.stderr)
    peer = ["--peer-listen", f"tcp://127.0.0.1:{free_port()}"]
    small = {"journal.snapshot_interval_bytes": 4096}
    broker = nodes("n0", "--cluster", where, "--node", "n0", *peer, settings=small).start(WITHIN_S)
    subscribed(broker)
    number = 0

    def is_deleted() -> bool:
        nonlocal number
        published(broker, range(number, number + 20))
        assert drained(broker, 20) == list(range(number, number + 20))
        number += 20
        return kafka.state_of(f"kafka://{kafka.address}/mine").shards[0].start > 0

    wait_until(is_deleted, "what nobody needs is deleted", 2 * WITHIN_S)
    published(broker, range(number, number + 5))
    broker.kill()
    shutil.rmtree(broker.data_dir)
    broker.start(WITHIN_S)
    assert drained(broker, 5) == list(range(number, number + 5))
    assert "not deleted" not in broker.stderr
    broker.stop()


def test_who_may_not_read_a_journal_is_told(kafka: KafkaServer, folder: Path, nodes: Nodes) -> None:
    kafka.make_cluster(1, "others")
    kafka.allow("TOPIC", "others.", "DESCRIBE", "DESCRIBE_CONFIGS")
    broker = nodes("n0", "--cluster", url(kafka, "others", properties(folder)))
    broker.spawn()
    assert broker.wait(2 * WITHIN_S) == 1
    assert "authorization failed" in broker.stderr.lower(), broker.stderr


def test_who_is_not_let_in_is_told_why(kafka: KafkaServer, folder: Path) -> None:
    wrong = headrace(
        "cluster",
        "status",
        "--cluster",
        url(kafka, "x", properties(folder, password="wrong")),
        deadline_s=WITHIN_S,
    )
    assert (wrong.returncode, "authentication" in wrong.stderr.lower()) == (1, True), wrong.stderr
    shutil.copy(folder / "localhost.pem", folder / "foreign.pem")
    foreign = headrace(
        "cluster",
        "status",
        "--cluster",
        url(kafka, "x", properties(folder, ca="foreign.pem")),
        deadline_s=WITHIN_S,
    )
    assert (foreign.returncode, "certificate verify failed" in foreign.stderr) == (1, True), foreign.stderr


def test_a_file_that_says_what_is_not_its_to_say_is_refused(kafka: KafkaServer, tmp_path: Path) -> None:
    file = tmp_path / "p"
    file.write_text("acks=0\n", encoding="utf-8")
    found = headrace(
        "serve", "--cluster", url(kafka, "x", file), "--data-dir", str(tmp_path / "d"), deadline_s=WITHIN_S
    )
    assert (found.returncode, "cluster: properties_file: acks" in found.stderr) == (2, True), found.stderr
    file.write_text("no.such.setting=1\n", encoding="utf-8")
    found = headrace("cluster", "status", "--cluster", url(kafka, "x", file), deadline_s=WITHIN_S)
    assert (found.returncode, "no.such.setting" in found.stderr) == (1, True), found.stderr


def test_sinks_and_sources_sign_in_with_what_a_file_says(
    kafka: KafkaServer, folder: Path, nodes: Nodes
) -> None:
    from confluent_kafka import OFFSET_BEGINNING, Consumer, TopicPartition

    kafka.make_topic("telemetry", 1)
    kafka.allow("TOPIC", "telemetry", "WRITE", "DESCRIBE", "READ")
    kafka.allow("TOPIC", "headrace.sinks", "CREATE", "READ", "WRITE", "DESCRIBE")
    kafka.allow("TRANSACTIONAL_ID", "headrace.", "WRITE", "DESCRIBE")
    kafka.allow("GROUP", "headrace.source.", "READ")
    broker = nodes("own")
    file = folder / "headrace.toml"
    servers = f'servers = ["{kafka.secure_address}"]\nproperties_file = "{properties(folder)}"\n'
    file.write_text(
        f'[[sinks]]\nname = "telemetry"\n{servers}topic_filter = "t"\nkafka_topic = "telemetry"\n'
        f'[[sources]]\nname = "back"\n{servers}kafka_topic = "telemetry"\ntopic = "back/{{key}}"\n'
        f'url = "tcp://127.0.0.1:{broker.port}"\n',
        encoding="utf-8",
    )
    broker.extra = ["--config", str(file)]
    broker.start(WITHIN_S)
    with RawClient(broker.address, "reader") as reader:
        reader.connect()
        reader.subscribe("back/#", qos=1)
        published(broker, range(3))
        assert [reader.receive(WITHIN_S).payload for _ in range(3)] == [b"0", b"1", b"2"]
    consumer = Consumer({"bootstrap.servers": kafka.address, "group.id": "test", "log_level": 0})
    with closing(consumer):
        consumer.assign([TopicPartition("telemetry", 0, OFFSET_BEGINNING)])
        record = consumer.poll(WITHIN_S)
        assert record is not None
        assert (record.key(), record.value()) == (b"t", b"0")
