"""Kafka 4.3.1 for tests: one node in KRaft mode, which is controller and broker, started once a run and stopped by its
pid; or three of them that hold everything together, for what happens when some are gone.

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
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Final

from broker_process import free_port
from engine_jars import engine_jars
from headrace.storage.kafka.cluster_state import ClusterState, Replication
from headrace.storage.kafka.cluster_url import ClusterUrl

VERSION: Final = "4.3.1"
FORMAT_S, READY_S, STOP_S = 120, 180, 30
WITHIN_S: Final = 60.0  # for one thing that Kafka is asked
# A small one: it starts in seconds, and compiles nothing that it does not run for long.
JAVA: Final = ("-Xms128m", "-Xmx192m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xshare:auto")
PROPERTIES: Final = """process.roles=broker,controller
node.id={node}
controller.quorum.voters={voters}
listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}{secure_listener}
advertised.listeners=PLAINTEXT://127.0.0.1:{port}{secure_address}
controller.listener.names=CONTROLLER
listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,SECURE:SASL_SSL
log.dirs={logs}
default.replication.factor={replicas}
offsets.topic.replication.factor={replicas}
offsets.topic.num.partitions=1
transaction.state.log.replication.factor={replicas}
transaction.state.log.min.isr={in_sync}
transaction.state.log.num.partitions=1
broker.session.timeout.ms=6000
broker.heartbeat.interval.ms=1000
controller.quorum.election.timeout.ms=1000
controller.quorum.fetch.timeout.ms=2000
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

# A second listener, by which only who signs in does what it has rights for; by the first one everybody does everything.
SECURE: Final = """authorizer.class.name=org.apache.kafka.metadata.authorizer.StandardAuthorizer
super.users=User:ANONYMOUS
listener.name.secure.sasl.enabled.mechanisms=PLAIN,SCRAM-SHA-256,SCRAM-SHA-512
listener.name.secure.plain.sasl.jaas.config={package}.plain.PlainLoginModule required user_{user}="{password}";
listener.name.secure.scram-sha-256.sasl.jaas.config={package}.scram.ScramLoginModule required;
listener.name.secure.scram-sha-512.sasl.jaas.config={package}.scram.ScramLoginModule required;
ssl.keystore.type=PEM
ssl.keystore.location={certificates}/keystore.pem
"""
USER, PASSWORD = "headrace", "p=w d"


@dataclass(frozen=True, slots=True)
class Place:
    """The number of a node, and its ports for clients and controllers."""

    node: int = 1
    port: int = field(default_factory=free_port)
    controller: int = field(default_factory=free_port)

    @property
    def voter(self) -> str:
        return f"{self.node}@127.0.0.1:{self.controller}"


def jars() -> Path:
    """The folder with Kafka's jars; fetched the first time."""
    return engine_jars("kafka", VERSION)


class KafkaUsers:
    """What users and tests ask of a Kafka. `address` is HOST:PORT, or several with commas."""

    def __init__(self, address: str, replication: Replication) -> None:
        self.address = address
        self.replication = replication
        self._names = count()

    def new_url(self) -> str:
        """The address of a cluster that is not made yet."""
        return f"kafka://{self.address}/c{next(self._names)}"

    def make_cluster(self, shards: int, name: str = "") -> str:
        """Make a cluster, with a name of its own if none is given, as `headrace cluster create` does; its address."""
        from headrace.storage.kafka.topics import Topics

        url = f"kafka://{self.address}/{name}" if name else self.new_url()
        Topics(ClusterUrl.parse(url)).create(shards, self.replication)
        return url

    def state_of(self, url: str) -> ClusterState:
        """What the topics of a cluster are like now."""
        from headrace.storage.kafka.topics import Topics

        return Topics(ClusterUrl.parse(url)).state()

    def shards_of_nodes(self, url: str) -> dict[str, int]:
        """How many shards of a cluster each of its nodes owns, as `cluster status` tells it."""
        from headrace.storage.kafka.registry import presence_now

        state = self.state_of(url)
        found = presence_now(ClusterUrl.parse(url), state.topic_id, len(state.shards))
        return {one.node: len(one.shards) for one in found.nodes}

    def allow(self, kind: str, prefix: str, *operations: str) -> None:
        """Let USER do something with the topics, groups or transactional ids that begin so."""
        from confluent_kafka.admin import (
            AclBinding,
            AclOperation,
            AclPermissionType,
            AdminClient,
            ResourcePatternType,
            ResourceType,
        )

        bindings = [
            AclBinding(
                ResourceType[kind],
                prefix,
                ResourcePatternType.PREFIXED,
                f"User:{USER}",
                "*",
                AclOperation[operation],
                AclPermissionType.ALLOW,
            )
            for operation in operations
        ]
        admin = AdminClient({"bootstrap.servers": self.address, "log_level": 0})
        for future in admin.create_acls(bindings).values():
            future.result(WITHIN_S)

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


class KafkaServer(KafkaUsers):
    """One node, alone or at a place among several."""

    def __init__(
        self,
        folder: Path,
        place: Place | None = None,
        among: tuple[Place, ...] = (),
        certificates: Path | None = None,
    ) -> None:
        """Format its directory, which is `folder`. `certificates`: a folder of `headrace cluster certs --node localhost`,
        for a second listener, `secure_address`, where USER may do what it has rights for."""
        self.place = place or Place()
        places = among or (self.place,)
        super().__init__(f"127.0.0.1:{self.place.port}", Replication(len(places), len(places) // 2 + 1))
        self._folder = folder
        self._properties = folder / "node.properties"
        values = {
            "node": self.place.node,
            "voters": ",".join(one.voter for one in places),
            "port": self.place.port,
            "controller": self.place.controller,
            "logs": folder / "logs",
            "replicas": self.replication.factor,
            "in_sync": self.replication.in_sync_min,
            "secure_listener": "",
            "secure_address": "",
        }
        properties, words = PROPERTIES, ["format", "-t", "AAAAAAAAAAAAAAAAAAAAAQ"]
        if certificates is not None:
            pem = [(certificates / f"localhost.{end}").read_text() for end in ("key", "pem")]
            (certificates / "keystore.pem").write_text("".join(pem))
            properties += SECURE
            port = free_port()
            self.secure_address = f"localhost:{port}"
            secure = {"package": "org.apache.kafka.common.security", "certificates": certificates}
            values |= secure | {
                "user": USER,
                "password": PASSWORD,
                "secure_listener": f",SECURE://127.0.0.1:{port}",
            }
            values["secure_address"] = f",SECURE://{self.secure_address}"
            for number in (256, 512):
                words += ["--add-scram", f'SCRAM-SHA-{number}=[name={USER},password="{PASSWORD}"]']
        self._properties.write_text(properties.format(**values), encoding="utf-8")
        self._process: subprocess.Popen[bytes] | None = None
        formatting = self._java("kafka.tools.StorageTool", *words, "-c")
        assert formatting.wait(FORMAT_S) == 0, self.log()

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
        self.begin()
        self.wait_for(1)

    def begin(self) -> None:
        """Start it."""
        self._process = self._java("kafka.Kafka")

    def wait_for(self, brokers: int) -> None:
        """Wait until it answers, and knows of so many nodes."""
        from confluent_kafka import KafkaException
        from confluent_kafka.admin import AdminClient

        assert self._process is not None
        admin = AdminClient({"bootstrap.servers": self.address, "log_level": 0})
        deadline = time.monotonic() + READY_S
        while True:
            assert self._process.poll() is None, self.log()
            with contextlib.suppress(KafkaException):
                if len(admin.list_topics(timeout=1.0).brokers) >= brokers:
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


class KafkaServers(KafkaUsers):
    """Three nodes; two of them have a record before it is acknowledged. `address` has the addresses of all."""

    def __init__(self, folder: Path) -> None:
        """Format their directories below `folder`."""
        places = tuple(Place(number) for number in (1, 2, 3))
        self.nodes: list[KafkaServer] = []
        for place in places:
            own = folder / str(place.node)
            own.mkdir()
            self.nodes.append(KafkaServer(own, place, places))
        super().__init__(",".join(node.address for node in self.nodes), self.nodes[0].replication)

    def start(self) -> None:
        """Start all of them, and wait until each knows of all."""
        for node in self.nodes:
            node.begin()
        for node in self.nodes:
            node.wait_for(len(self.nodes))

    def leader_of(self, url: str, shard: int) -> KafkaServer:
        """The node that leads the journal of a shard now."""
        return self.nodes[self.state_of(url).shards[shard].leader - 1]

    def stop(self) -> None:
        for node in self.nodes:
            node.stop()


@contextlib.contextmanager
def kafka_server(certificates: Path | None = None) -> Iterator[KafkaServer]:
    """A node that is ready, until the block ends. `certificates`: those of its second listener."""
    folder = Path(tempfile.mkdtemp(prefix="headrace-kafka-"))
    server = KafkaServer(folder, certificates=certificates)
    try:
        server.start()
        yield server
    finally:
        server.stop()
        shutil.rmtree(folder, ignore_errors=True)


@contextlib.contextmanager
def kafka_servers() -> Iterator[KafkaServers]:
    """Three nodes that are ready, until the block ends."""
    folder = Path(tempfile.mkdtemp(prefix="headrace-kafka-"))
    servers = KafkaServers(folder)
    try:
        servers.start()
        yield servers
    finally:
        servers.stop()
        shutil.rmtree(folder, ignore_errors=True)
