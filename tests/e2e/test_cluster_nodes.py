"""Nodes that share the shards of a cluster in a real Kafka: clients dial any of them, and they come and go."""

from __future__ import annotations

import json
import signal
import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from threading import Event, Thread

import pytest

from broker_process import BrokerProcess, free_port, headrace, make_broker, wait_until
from e2e.raw import RawClient
from e2e.wire import DISCONNECT
from headrace.core.homes import Homes
from kafka_server import WITHIN_S, KafkaServer

pytestmark = [pytest.mark.kafka, pytest.mark.slow, pytest.mark.time_limit(300)]
SHARDS = 4
SERVER_MOVED = 0x8B
Nodes = Callable[..., BrokerProcess]


@pytest.fixture
def cluster(kafka: KafkaServer) -> str:
    return kafka.make_cluster(SHARDS)


@pytest.fixture
def token(tmp_path: Path) -> Path:
    """A file with a token that may look, which all nodes know."""
    file = tmp_path / "token"
    file.touch(0o600)
    file.write_text("read looks\n")
    return file


@pytest.fixture
def nodes(cluster: str, token: Path, tmp_path: Path) -> Iterator[Nodes]:
    """Makes nodes of the cluster: `nodes("n0")`."""
    made: list[BrokerProcess] = []

    def make(
        node: str, *extra: str, folder: str = "", settings: dict[str, object] | None = None
    ) -> BrokerProcess:
        settings = {"journal.token_file": token} | (settings or {})
        peer = ["--peer-listen", f"tcp://127.0.0.1:{free_port()}"]
        arguments = ["--cluster", cluster, "--node", node, *(extra or peer)]
        made.append(make_broker(tmp_path / (folder or node), settings, arguments))
        return made[-1]

    yield make
    for broker in made:
        if broker.running:
            broker.process.send_signal(signal.SIGCONT)  # type: ignore[union-attr]
        broker.end()
        assert not broker.trouble, broker.trouble


class Presences:
    """Who owns what, as `cluster status` tells it."""

    def __init__(self, cluster: str) -> None:
        from headrace.storage.kafka.cluster_url import ClusterUrl
        from headrace.storage.kafka.topics import Topics

        self._url = ClusterUrl.parse(cluster)
        self._topic_id = Topics(self._url).state().topic_id

    def shards_of(self, node: str) -> list[int]:
        from headrace.storage.kafka.registry import presence_now

        found = presence_now(self._url, self._topic_id, SHARDS)
        return next((one.shards for one in found.nodes if one.node == node), [])

    def wait_for(self, **wanted: int) -> None:
        """Wait until each node owns so many shards."""

        def are_so() -> bool:
            return all(len(self.shards_of(node)) == number for node, number in wanted.items())

        wait_until(are_so, f"shards are dealt out as {wanted}", WITHIN_S)


@pytest.fixture
def presences(cluster: str) -> Presences:
    return Presences(cluster)


def client_of(shard: int, prefix: str = "c") -> str:
    """A client id that is at home in a shard."""
    names = (f"{prefix}{number}" for number in range(1000))
    return next(name for name in names if Homes(SHARDS).of_client("default", name) == shard)


CLIENTS = [client_of(shard) for shard in range(SHARDS)]


def subscribed(broker: BrokerProcess) -> None:
    """A persistent session in every shard, which is away then."""
    for client in CLIENTS:
        with RawClient(broker.address, client) as one:
            one.connect(clean=False)
            one.subscribe("t/#", qos=2)
            one.disconnect()


def published(broker: BrokerProcess, first: int, count: int, qos: int = 1) -> None:
    """Messages of a publisher of each shard in turn, each acknowledged."""
    for shard in range(SHARDS):
        with RawClient(broker.address, client_of(shard, "p")) as publisher:
            publisher.connect()
            for number in range(first + shard, first + count, SHARDS):
                publisher.deliver("t/x", b"%d" % number, qos)


def drained(broker: BrokerProcess, client: str, count: int) -> list[int]:
    """What a session gets, in order of the numbers, and that nothing comes behind it."""
    with RawClient(broker.address, client) as one:
        one.connect(clean=False, deadline_s=WITHIN_S)
        found = [int(one.receive(WITHIN_S).payload) for _ in range(count)]
        assert one.ping() == [], "more than was published"
        one.disconnect()
    return sorted(found)


@pytest.fixture
def pair(nodes: Nodes, presences: Presences) -> tuple[BrokerProcess, BrokerProcess]:
    """Two nodes, each with half of the shards."""
    first, second = nodes("n0").start(WITHIN_S), nodes("n1").start(WITHIN_S)
    presences.wait_for(n0=2, n1=2)
    return first, second


Pair = tuple[BrokerProcess, BrokerProcess]


def test_whoever_dials_any_node_finds_everybody(cluster: str, pair: Pair, token: Path) -> None:
    first, second = pair
    subscribed(first)
    published(second, 0, 20)
    published(first, 20, 20, qos=2)
    for client in CLIENTS:
        assert drained(second, client, 40) == list(range(40))
    status = headrace("cluster", "status", "--cluster", cluster, deadline_s=WITHIN_S)
    assert (status.returncode, status.stdout.count("2 shards, peer 127.0.0.1:")) == (0, 2), status.stdout
    for broker in pair:
        assert broker.get("/readyz").status == 200
        at = "--admin", f"http://127.0.0.1:{broker.admin_port}", "--token-file", str(token)
        asked = headrace("cluster", "status", *at, deadline_s=WITHIN_S)
        assert (asked.returncode, asked.stdout.count(": heard")) == (0, 1), asked.stdout
        assert asked.stdout.startswith(status.stdout.splitlines()[0])


def test_a_takeover_and_a_retained_message_pass_between_nodes(pair: Pair) -> None:
    first, second = pair
    for client in CLIENTS:
        with RawClient(first.address, client, version=5) as old, RawClient(second.address, client) as new:
            old.connect()
            new.connect()
            assert old.read().reason == 0x8E
            new.publish(f"r/{client}", b"kept", 1, retain=True)
            new.read()
    for broker in pair:
        with RawClient(broker.address, "reader") as reader:
            reader.connect()
            reader.subscribe("r/#", qos=1)
            assert {reader.receive().topic for _ in CLIENTS} == {f"r/{client}" for client in CLIENTS}


def test_kill_9_of_a_node_loses_nothing_that_was_acknowledged(pair: Pair, presences: Presences) -> None:
    first, second = pair
    subscribed(first)
    published(first, 0, 40)
    with RawClient(second.address, client_of(presences.shards_of("n1")[0], "ops")) as watcher:
        watcher.connect()
        watcher.subscribe("$events/cluster/#")
        first.kill()
        told = {"MemberUp"}
        while "MemberDown" not in told:
            found = watcher.receive(WITHIN_S)
            assert found.topic == "$events/cluster/members/n0"
            told.add(json.loads(found.payload)["event"])
        assert told == {"MemberUp", "MemberUnreachable", "MemberDown"}
    presences.wait_for(n1=4)
    published(second, 40, 20)
    for client in CLIENTS:
        assert drained(second, client, 60) == list(range(60))


def test_a_node_that_was_stopped_and_wakes_tells_nobody_what_is_no_longer_so(
    pair: Pair, presences: Presences
) -> None:
    first, second = pair
    subscribed(second)
    published(second, 0, 20)
    held = client_of(presences.shards_of("n0")[0], "q")
    with RawClient(first.address, held, version=5) as publisher:
        publisher.connect()
        publisher.deliver("t/x", b"20")
        first.process.send_signal(signal.SIGSTOP)  # type: ignore[union-attr]
        presences.wait_for(n1=4)
        published(second, 21, 20)
        publisher.publish("t/x", b"lost", 1)
        first.process.send_signal(signal.SIGCONT)  # type: ignore[union-attr]
        assert all(found.kind == DISCONNECT for found in publisher.read_to_end(WITHIN_S))
    presences.wait_for(n0=2, n1=2)
    for client, broker in zip(CLIENTS, (first, second) * 2, strict=True):
        assert drained(broker, client, 41) == list(range(41))


def test_a_node_that_leaves_hands_over_and_says_so_to_its_clients(pair: Pair, presences: Presences) -> None:
    first, second = pair
    subscribed(first)
    published(second, 0, 20)
    of_first, of_second = (client_of(presences.shards_of(node)[0], "z") for node in ("n0", "n1"))
    with (
        RawClient(second.address, of_first, version=5) as relayed,
        RawClient(second.address, of_second, version=5) as staying,
    ):
        relayed.connect()
        staying.connect()
        first.stop()
        assert relayed.read().reason == SERVER_MOVED
        assert staying.ping() == []
    presences.wait_for(n1=4)
    for client in CLIENTS:
        assert drained(second, client, 20) == list(range(20))


def test_a_client_whose_socket_was_at_a_node_that_leaves_loses_its_connection_alone(
    nodes: Nodes, presences: Presences
) -> None:
    """Its home is told; who is not back within the grace leaves a will."""
    patient: dict[str, object] = {"session.restart_grace_s": 15}
    first, second = (nodes(name, settings=patient).start(WITHIN_S) for name in ("n0", "n1"))
    presences.wait_for(n0=2, n1=2)
    home = presences.shards_of("n1")[0]
    with (
        RawClient(second.address, client_of(home, "w")) as watcher,
        RawClient(first.address, client_of(home, "back"), version=5) as back,
        RawClient(first.address, client_of(home, "gone"), version=5) as gone,
    ):
        watcher.connect()
        watcher.subscribe("will/#")
        back.connect(clean=False, will=("will/a", b"back"))
        gone.connect(clean=False, will=("will/b", b"gone"))
        first.stop()
        assert [one.read().reason for one in (back, gone)] == [SERVER_MOVED, SERVER_MOVED]
        with RawClient(second.address, back.client_id, version=5) as again:
            again.connect(clean=False)
            assert watcher.receive(WITHIN_S).payload == b"gone"
            assert watcher.ping() == []


def test_a_node_that_joins_takes_its_share_and_clients_come_back(nodes: Nodes, presences: Presences) -> None:
    first = nodes("n0").start(WITHIN_S)
    presences.wait_for(n0=4)
    subscribed(first)
    published(first, 0, 20)
    connected = [RawClient(first.address, client_of(shard, "y"), version=5) for shard in range(SHARDS)]
    for one in connected:
        one.connect()
    second = nodes("n1").start(WITHIN_S)
    presences.wait_for(n0=2, n1=2)
    moved = presences.shards_of("n1")
    for shard, one in enumerate(connected):
        with one:
            if shard in moved:
                assert one.read().reason == SERVER_MOVED
            else:
                assert one.ping() == []
    assert "another node owns it" not in first.stderr, "handed over in good order"
    published(second, 20, 20)
    for client in CLIENTS:
        assert drained(first, client, 40) == list(range(40))


def test_a_second_node_of_a_name_and_one_that_shares_nothing_are_refused(nodes: Nodes) -> None:
    nodes("n0").start(WITHIN_S)
    twin = nodes("n0", folder="twin")
    twin.spawn()
    assert twin.wait(WITHIN_S) == 2
    twin.end()
    assert "a node n0 that lives, at 127.0.0.1:" in twin.stderr
    alone = nodes("n2", "--set", "reason_strings=true")
    alone.spawn()
    assert alone.wait(WITHIN_S) == 2
    alone.end()
    assert "peer_listen" in alone.stderr


def test_a_name_whose_node_was_killed_is_free_again(nodes: Nodes, presences: Presences) -> None:
    first = nodes("n0").start(WITHIN_S)
    subscribed(first)
    published(first, 0, 8)
    first.kill()
    first.start(WITHIN_S)
    presences.wait_for(n0=4)
    first.crash()
    assert drained(first, CLIENTS[1], 8) == list(range(8))


def test_a_node_that_does_not_come_back_is_removed_and_one_that_lives_is_not(
    nodes: Nodes, cluster: str
) -> None:
    first = nodes("n0").start(WITHIN_S)
    remove = ("cluster", "remove", "n0", "--cluster", cluster)
    refused = headrace(*remove, deadline_s=WITHIN_S)
    assert (refused.returncode, "n0 lives" in refused.stderr) == (1, True)
    unknown = headrace("cluster", "remove", "n7", "--cluster", cluster, deadline_s=WITHIN_S)
    assert (unknown.returncode, "it has n0" in unknown.stderr) == (2, True)
    first.kill()
    wait_until(lambda: headrace(*remove, deadline_s=WITHIN_S).returncode == 0, "it counts as dead", WITHIN_S)
    status = headrace("cluster", "status", "--cluster", cluster, "--json", deadline_s=WITHIN_S)
    found = json.loads(status.stdout)
    assert (found["nodes"], found["problems"]) == ([], [])
    first.start(WITHIN_S)  # and is one again, when it does


def certificates(folder: Path, *names: str) -> Path:
    options = [word for name in names for word in ("--node", name)]
    made = headrace("cluster", "certs", str(folder), *options, deadline_s=WITHIN_S)
    assert made.returncode == 0, made.stderr
    return folder


def of(folder: Path, name: str) -> dict[str, object]:
    files = {"peer_ca": "ca.pem", "peer_certificate": f"{name}.pem", "peer_key": f"{name}.key"}
    return {key: folder / file for key, file in files.items()}


def test_nodes_with_certificates_are_linked_and_others_are_not(
    nodes: Nodes, presences: Presences, tmp_path: Path
) -> None:
    ours = certificates(tmp_path / "ours", "n0", "n1", "n2")
    foreign = certificates(tmp_path / "foreign", "n3")
    first = nodes("n0", settings=of(ours, "n0")).start(WITHIN_S)
    second = nodes("n1", settings=of(ours, "n1")).start(WITHIN_S)
    presences.wait_for(n0=2, n1=2)
    subscribed(first)
    published(second, 0, 20)
    for client in CLIENTS:
        assert drained(second, client, 20) == list(range(20))
    stranger = nodes("n3", settings=of(foreign, "n3"))
    stranger.spawn()
    stranger.wait_for_line("cannot be linked: .*certificate verify failed", WITHIN_S)
    imposter = nodes("n4", settings=of(ours, "n2"))
    imposter.spawn()
    first.wait_for_line("its certificate is of n2, not of n4", WITHIN_S)
    for broker in (first, second):
        assert "linked to node n3" not in broker.stderr
        assert "linked to node n4" not in broker.stderr


def come_and_go(port: int, over: Event) -> None:
    """A hundred connections that say nothing, and a hundred others half a second later."""
    while not over.is_set():
        with ExitStack() as held:
            for _ in range(100):
                held.enter_context(socket.create_connection(("127.0.0.1", port)))
            over.wait(0.5)


def test_strangers_at_the_port_of_nodes_keep_no_node_out(
    nodes: Nodes, presences: Presences, tmp_path: Path
) -> None:
    """They have shown no certificate; and what has said nothing is closed."""
    ours = certificates(tmp_path / "ours", "n0", "n1")
    port = free_port()
    nodes("n0", "--peer-listen", f"tcp://127.0.0.1:{port}", settings=of(ours, "n0")).start(WITHIN_S)
    over = Event()
    strangers = Thread(target=come_and_go, args=(port, over))
    strangers.start()
    try:
        second = nodes("n1", settings=of(ours, "n1")).start(WITHIN_S)
        presences.wait_for(n0=2, n1=2)
        second.wait_for_line("linked to node n0", WITHIN_S)
        subscribed(second)
    finally:
        over.set()
        strangers.join()
    with socket.create_connection(("127.0.0.1", port), timeout=WITHIN_S) as one:
        assert one.recv(1) == b""
