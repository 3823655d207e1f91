"""Tenants over two nodes of a cluster, whose directory is in a PostgreSQL that both reach."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from broker_process import BrokerProcess, free_port, headrace, make_broker, wait_until
from databases import postgresql_server
from directory_clock import ME
from e2e.raw import RawClient
from e2e.wire import DISCONNECT
from headrace.core.homes import Homes
from headrace.directory.entries import Rule
from headrace.directory.store import open_store
from kafka_server import WITHIN_S, KafkaServer

pytestmark = [pytest.mark.kafka, pytest.mark.slow, pytest.mark.time_limit(300)]
SHARDS = 2
TENANTS = ("acme", "blue")
ADMINISTRATIVE = 0x98


def client_of(tenant: str, shard: int) -> str:
    """A client id of a tenant that is at home in a shard."""
    names = (f"c{number}" for number in range(1000))
    return next(name for name in names if Homes(SHARDS).of_client(tenant, name) == shard)


@pytest.fixture(scope="module")
def directory() -> Iterator[str]:
    """The URL of a directory with two tenants, each with a user who may do everything below t/."""
    with postgresql_server() as server:
        url = server.url.replace("+psycopg", "")
        store = open_store(url, make=True)
        for tenant in (*TENANTS, "gone"):
            store.tenants.create(ME, tenant)
            store.users.create(ME, tenant, "u", f"of {tenant}".encode())
            store.rules.add(ME, Rule(tenant, 0, "allow", ("publish", "subscribe", "retain"), "t/#"))
        store.close()
        yield url


class Pair:
    """Two nodes of a cluster."""

    def __init__(self, kafka: KafkaServer, directory: str, folder: Path) -> None:
        self.directory = directory
        self._kafka = kafka
        self._cluster = kafka.make_cluster(SHARDS)
        self.nodes = [self._node(name, folder) for name in ("n0", "n1")]

    def _node(self, name: str, folder: Path) -> BrokerProcess:
        settings = {
            "tenants.enabled": "true",
            "directory.url": self.directory,
            "limits.connect_timeout_s": 60,  # hashes on a busy machine
        }
        peer = f"tcp://127.0.0.1:{free_port()}"
        return make_broker(
            folder / name, settings, ["--cluster", self._cluster, "--node", name, "--peer-listen", peer]
        )

    def owns(self, **wanted: int) -> None:
        """Wait until each node owns so many shards."""

        def are_so() -> bool:
            found = self._kafka.shards_of_nodes(self._cluster)
            return all(found.get(name) == number for name, number in wanted.items())

        wait_until(are_so, f"shards are dealt out as {wanted}", WITHIN_S)

    def run(self, *words: str) -> None:
        done = headrace(*words, "--directory", self.directory, deadline_s=WITHIN_S)
        assert done.returncode == 0, done.stderr


@pytest.fixture
def pair(kafka: KafkaServer, directory: str, tmp_path: Path) -> Iterator[Pair]:
    made = Pair(kafka, directory, tmp_path)
    try:
        for node in made.nodes:
            node.start(WITHIN_S)
        made.owns(n0=1, n1=1)
        yield made
    finally:
        for node in made.nodes:
            node.end()
            assert "Traceback" not in node.stderr, node.stderr


def comes(node: BrokerProcess, tenant: str, client_id: str, expect: int = 0) -> RawClient:
    client = RawClient(node.address, client_id, 4)
    client.connect(
        user_name=f"{tenant}/u",
        password=f"of {tenant}".encode(),
        clean=False,
        expect=expect,
        deadline_s=WITHIN_S,
    )
    return client


def test_tenants_do_not_meet_over_two_nodes_and_outlive_one_of_them(pair: Pair) -> None:
    readers = [(tenant, client_of(tenant, shard)) for tenant in TENANTS for shard in range(SHARDS)]
    for at, (tenant, name) in enumerate(readers):
        with comes(pair.nodes[at % 2], tenant, name) as reader:
            reader.subscribe("t/#", qos=1)
            reader.disconnect()
    for at, tenant in enumerate(TENANTS):
        with comes(pair.nodes[at], tenant, "p") as publisher:
            publisher.deliver("t/kept", f"kept of {tenant}", retain=True)
            for number in range(10):
                publisher.deliver("t/x", f"{tenant} {number}")
    first, second = pair.nodes
    first.kill()
    pair.owns(n1=SHARDS)
    for tenant, name in readers:
        with comes(second, tenant, name) as reader:
            found = [reader.receive(WITHIN_S).payload.decode() for _ in range(11)]
            assert found == [f"kept of {tenant}", *(f"{tenant} {number}" for number in range(10))]
            assert reader.ping() == []
            reader.subscribe("t/kept", qos=1)
            assert reader.receive(WITHIN_S).payload.decode() == f"kept of {tenant}"


def test_a_tenant_that_is_disabled_is_out_at_every_node_and_one_that_is_deleted_leaves_nothing(
    pair: Pair,
) -> None:
    names = [client_of("gone", shard) for shard in range(SHARDS)]
    clients = [comes(node, "gone", name) for node, name in zip(pair.nodes, names, strict=True)]
    stays = comes(pair.nodes[0], "acme", "stays")
    pair.run("tenant", "disable", "gone")
    for client in clients:
        with client:
            assert not [one for one in client.read_to_end(WITHIN_S) if one.kind != DISCONNECT]
    assert stays.ping() == []
    stays.close()

    def is_gone() -> bool:
        return not sum(node.metrics().get('headrace_sessions{tenant="gone"}', 0) for node in pair.nodes)

    assert not is_gone()
    pair.run("tenant", "delete", "gone")
    wait_until(is_gone, "what there was of the tenant", WITHIN_S)
