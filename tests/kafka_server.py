"""Kafka 4.3.1 for tests: one node in KRaft mode, which is controller and broker, started once a run and stopped by its
pid.

What is missing is a failure: the jars are fetched by Maven the first time, and kept beside headrace's own.
"""

from __future__ import annotations

import contextlib
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Final

from broker_process import free_port
from headrace.storage.kafka.cluster_state import ClusterState, Replication
from headrace.storage.kafka.cluster_url import ClusterUrl
from headrace_spark.base.jars import jars_folder

ROOT: Final = Path(__file__).parents[1]
POM: Final = ROOT / "jars" / "kafka.xml"
VERSION: Final = "4.3.1"
FORMAT_S, READY_S, STOP_S = 120, 180, 30
WITHIN_S: Final = 60.0  # for one thing that Kafka is asked
# A small one: it starts in seconds, and compiles nothing that it does not run for long.
JAVA: Final = ("-Xms128m", "-Xmx192m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xshare:auto")
PROPERTIES: Final = """process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:{controller}
listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}
advertised.listeners=PLAINTEXT://127.0.0.1:{port}
controller.listener.names=CONTROLLER
listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT
log.dirs={logs}
offsets.topic.replication.factor=1
offsets.topic.num.partitions=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
transaction.state.log.num.partitions=1
group.initial.rebalance.delay.ms=0
auto.create.topics.enable=false
log.cleaner.dedupe.buffer.size=4194304
message.max.bytes=20971520
replica.fetch.max.bytes=20971520
num.network.threads=1
num.io.threads=2
background.threads=1
num.recovery.threads.per.data.dir=1
"""


def jars() -> Path:
    """The folder with Kafka's jars; fetched the first time."""
    folder = jars_folder().parent / f"kafka-{VERSION}"
    if not folder.exists():
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder.parent) as temporary:
            command = ["mvn", "-B", "-q", "-U", "-f", str(POM), "dependency:copy-dependencies"]
            subprocess.run(
                [*command, f"-DoutputDirectory={temporary}/jars", "-DincludeScope=runtime"],
                check=True,
                timeout=600,
                stdin=subprocess.DEVNULL,
            )
            with contextlib.suppress(OSError):  # somebody else was faster
                Path(temporary, "jars").rename(folder)
    return folder


class KafkaServer:
    """One node. `address` is HOST:PORT."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.port = free_port()
        self.address = f"127.0.0.1:{self.port}"
        self._properties = folder / "node.properties"
        values = {"port": self.port, "controller": free_port(), "logs": folder / "logs"}
        self._properties.write_text(PROPERTIES.format(**values), encoding="utf-8")
        self._process: subprocess.Popen[bytes] | None = None
        self._names = count()
        self._java("kafka.tools.StorageTool", "format", "-t", "AAAAAAAAAAAAAAAAAAAAAQ", "-c").wait(FORMAT_S)

    def _java(self, *command: str) -> subprocess.Popen[bytes]:
        with (self._folder / "log").open("ab") as log:
            return subprocess.Popen(
                ["nice", "-n", "5", "java", *JAVA, "-cp", f"{jars()}/*", *command, str(self._properties)],
                stdout=log,
                stderr=log,
                stdin=subprocess.DEVNULL,
            )

    def start(self) -> None:
        """Start it, and wait until it answers."""
        from confluent_kafka import KafkaException
        from confluent_kafka.admin import AdminClient

        self._process = self._java("kafka.Kafka")
        admin = AdminClient({"bootstrap.servers": self.address, "log_level": 0})
        deadline = time.monotonic() + READY_S
        while True:
            assert self._process.poll() is None, self.log()
            with contextlib.suppress(KafkaException):
                if admin.list_topics(timeout=1.0).brokers:
                    return
            assert time.monotonic() < deadline, self.log()

    def warm_up(self) -> None:
        """Wait until topics can be made and records be put: a node answers sooner than that."""
        from confluent_kafka import KafkaError, KafkaException, Producer
        from confluent_kafka.admin import AdminClient, NewTopic

        admin = AdminClient({"bootstrap.servers": self.address, "log_level": 0})
        deadline = time.monotonic() + WITHIN_S
        code = None
        while code != KafkaError.TOPIC_ALREADY_EXISTS:
            assert time.monotonic() < deadline, code
            try:
                admin.create_topics([NewTopic("warm", 1, 1)])["warm"].result(WITHIN_S)
            except KafkaException as error:
                code = error.args[0].code()
        producer = Producer({"bootstrap.servers": self.address, "enable.idempotence": True})
        producer.produce("warm", b"up")
        assert producer.flush(WITHIN_S) == 0

    def new_url(self) -> str:
        """The address of a cluster that is not made yet."""
        return f"kafka://{self.address}/c{next(self._names)}"

    def make_cluster(self, shards: int) -> str:
        """Make a cluster with a name of its own, as `headrace cluster create` does; its address."""
        from headrace.storage.kafka.topics import Topics

        url = self.new_url()
        Topics(ClusterUrl.parse(url)).create(shards, Replication(1, 1))
        return url

    def state_of(self, url: str) -> ClusterState:
        """What the topics of a cluster are like now."""
        from headrace.storage.kafka.topics import Topics

        return Topics(ClusterUrl.parse(url)).state()

    def make_topic(self, topic: str, partitions: int) -> None:
        """Make a topic as users do."""
        from confluent_kafka.admin import AdminClient, NewTopic

        admin = AdminClient({"bootstrap.servers": self.address, "log_level": 0})
        for future in admin.create_topics([NewTopic(topic, partitions)]).values():
            future.result(WITHIN_S)

    def forget_group(self, group: str) -> None:
        """Have Kafka forget how far a group of consumers is, once it has no members."""
        from confluent_kafka import KafkaException
        from confluent_kafka.admin import AdminClient

        admin = AdminClient({"bootstrap.servers": self.address, "log_level": 0})
        deadline = time.monotonic() + WITHIN_S
        while True:
            try:
                admin.delete_consumer_groups([group])[group].result(WITHIN_S)
                return
            except KafkaException:  # whoever was killed is a member for some more seconds
                assert time.monotonic() < deadline
                time.sleep(0.2)

    def add_partitions(self, topic: str, count: int) -> None:
        """Give a topic so many partitions, as anybody may."""
        from confluent_kafka.admin import AdminClient, NewPartitions

        admin = AdminClient({"bootstrap.servers": self.address, "log_level": 0})
        for future in admin.create_partitions([NewPartitions(topic, count)]).values():
            future.result(WITHIN_S)

    def set_on_topic(self, topic: str, name: str, value: str) -> None:
        """Change a setting of a topic, as anybody may."""
        from confluent_kafka.admin import (
            AdminClient,
            AlterConfigOpType,
            ConfigEntry,
            ConfigResource,
            ResourceType,
        )

        entry = ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET)
        resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[entry])
        admin = AdminClient({"bootstrap.servers": self.address, "log_level": 0})
        for future in admin.incremental_alter_configs([resource]).values():
            future.result(WITHIN_S)

    def log(self) -> str:
        return (self._folder / "log").read_text(errors="replace")[-4000:]

    def kill(self) -> None:
        """Kill it as kill -9 does; `start` has it back with what it had."""
        assert self._process is not None
        self._process.kill()
        self._process.wait(STOP_S)

    @contextlib.contextmanager
    def stopped(self) -> Iterator[None]:
        """Let it stand still until the block ends: it answers nobody, and its connections stay."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)
        try:
            yield
        finally:
            self._process.send_signal(signal.SIGCONT)

    def stop(self) -> None:
        """End it: nobody needs its data any more."""
        if self._process is not None and self._process.poll() is None:
            self._process.kill()
            self._process.wait(STOP_S)


@contextlib.contextmanager
def kafka_server() -> Iterator[KafkaServer]:
    """A node that is ready, until the block ends."""
    folder = Path(tempfile.mkdtemp(prefix="headrace-kafka-"))
    server = KafkaServer(folder)
    try:
        server.start()
        yield server
    finally:
        server.stop()
        shutil.rmtree(folder, ignore_errors=True)
