"""Tenants by a directory, as their users meet them: two of them over the wire, changes by the command line beside a
broker that runs, and the database away; with one process and with several."""

from __future__ import annotations

import os
import signal
import socket
import ssl
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from broker_process import BrokerProcess, free_port, headrace, make_broker
from certificates import Authority
from databases import PostgresServer, postgresql_server
from directory_clock import ME
from e2e.conftest import finish
from e2e.raw import RawClient
from e2e.wire import DISCONNECT, PUBACK, connect_packet, packet, text
from headrace.directory.entries import Rule
from headrace.directory.store import open_store

pytestmark = pytest.mark.skipif("__import__('broker_process').UNDER_AUDIT != 'headrace'")
WITHIN_S = 60.0
STARTED_S = 180.0  # of several processes on a busy machine
REFUSED = 0x80
NOT_AUTHORIZED, UNAVAILABLE, ADMINISTRATIVE = 0x87, 0x88, 0x98


class Hub:
    """A broker with tenants acme and blue, each with users gw and app. gw publishes on up/gw, app reads up/#."""

    def __init__(self, folder: Path, workers: int, url: str = "") -> None:
        self.url = url or f"sqlite:///{folder}/directory.sqlite"
        self.store = store = open_store(self.url, make=True)
        for tenant in ("acme", "blue"):
            store.tenants.create(ME, tenant)
            for user in ("gw", "app"):
                store.users.create(ME, tenant, user, f"{user} of {tenant}".encode())
            store.rules.add(ME, Rule(tenant, 0, "allow", ("publish", "retain"), "up/%u/#"))
            store.rules.add(ME, Rule(tenant, 0, "allow", ("subscribe",), "up/#", "user", "app"))
        settings = {
            "tenants.enabled": "true",
            "directory.url": self.url,
            "limits.connect_timeout_s": 60,  # hashes on a busy machine
        }
        more = ["--workers", str(workers)] if workers > 1 else []
        self.broker: BrokerProcess = make_broker(folder / "broker", settings, more)

    def run(self, *words: str) -> str:
        done = headrace(*words, "--directory", self.url, deadline_s=STARTED_S)
        assert done.returncode == 0, done.stderr
        return done.stdout


@pytest.fixture(scope="module", params=[1, 2], ids=["one process", "two workers"])
def hub(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hub]:
    made = Hub(tmp_path_factory.mktemp("hub"), request.param)
    made.broker.start(STARTED_S)
    try:
        yield made
    finally:
        made.store.close()
        finish(made.broker)


@pytest.fixture
def far(tmp_path: Path) -> Iterator[tuple[Hub, PostgresServer]]:
    """A broker whose directory is on a database server, with that server."""
    with postgresql_server() as server:
        made = Hub(tmp_path, 1, server.url.replace("+psycopg", ""))
        made.store.close()
        made.broker.start(STARTED_S)
        try:
            yield made, server
        finally:
            finish(made.broker)


Clients = Callable[..., RawClient]


def comes(
    hub: Hub, clients: Clients, tenant: str, user: str, client_id: str, expect: int | None = 0
) -> RawClient:
    client = clients(hub.broker, client_id, 5, connect=False)
    client.connect(user_name=f"{tenant}/{user}", password=f"{user} of {tenant}".encode(), expect=expect)
    return client


def publishes(client: RawClient, topic: str, payload: str, *, retain: bool = False) -> int:
    """Publish at QoS 1, and return the reason code of the answer."""
    client.publish(topic, payload, 1, retain=retain)
    reason = client.expect(PUBACK).reason
    return 0 if reason < REFUSED else reason  # it may say that nobody has subscribed


def until(condition: Callable[[], bool], what: str) -> None:
    """Wait for something."""
    end = time.monotonic() + WITHIN_S
    while not condition():
        assert time.monotonic() < end, f"{what}: not within {WITHIN_S} s"
        time.sleep(0.05)


def test_two_tenants_with_the_same_client_ids_and_topics_do_not_meet(hub: Hub, clients: Clients) -> None:
    readers = {tenant: comes(hub, clients, tenant, "app", "reader") for tenant in ("acme", "blue")}
    writers = {tenant: comes(hub, clients, tenant, "gw", "writer") for tenant in ("acme", "blue")}
    for tenant in readers:
        readers[tenant].subscribe("up/#", qos=1)
    for tenant in writers:
        assert publishes(writers[tenant], "up/gw/same", f"of {tenant}", retain=True) == 0
    for tenant, reader in readers.items():
        assert reader.receive().payload == f"of {tenant}".encode()
    late = comes(hub, clients, "blue", "app", "late")
    late.subscribe("up/#", qos=0)
    assert late.receive().payload == b"of blue"
    for client in (*readers.values(), *writers.values(), late):
        assert client.ping() == []  # nothing of the other tenant, and nobody has taken over anybody


@pytest.mark.parametrize(
    ("user", "password"),
    [
        ("acme/gw", b"gw of blue"),
        ("acme/none", b"gw of acme"),
        ("none/gw", b"gw of acme"),
        ("Acme/gw", b"gw of acme"),
        ("acme/gw' OR '1'='1", b"gw of acme"),
        ("acme/", b""),
        ("/gw", b"gw of acme"),
        ("gw", b"gw of acme"),
        ("acme/gw", b""),
    ],
)
def test_who_is_nobody_is_refused_in_one_way(hub: Hub, clients: Clients, user: str, password: bytes) -> None:
    client = clients(hub.broker, "nobody", 5, connect=False)
    client.connect(user_name=user, password=password, expect=NOT_AUTHORIZED)


def test_a_rule_counts_soon_after_it_was_changed_for_who_is_there(hub: Hub, clients: Clients) -> None:
    gateway, reader = (
        comes(hub, clients, "acme", "gw", "gateway"),
        comes(hub, clients, "acme", "app", "rules"),
    )
    reader.subscribe("up/gw/rules/#", qos=0)
    assert publishes(gateway, "up/app/rules/t", "2") == NOT_AUTHORIZED

    def heard() -> list[str]:
        for topic in ("t", "u"):
            assert publishes(gateway, f"up/gw/rules/{topic}", "x") == 0
        return [reader.receive().topic[-1]] + [found.topic[-1] for found in reader.ping()]

    until(lambda: heard() == ["t", "u"], "the reader gets both")
    number = hub.run("acl", "add", "acme", "--deny", "subscribe", "up/gw/rules/t").split()[-1]
    until(lambda: heard() == ["u"], "the reader gets nothing of the topic")
    hub.store.rules.remove(ME, "acme", int(number))
    until(lambda: heard() == ["t", "u"], "the reader gets both again")
    hub.store.rules.add(ME, Rule("acme", 0, "deny", ("publish",), "up/+/closed"))
    until(lambda: publishes(gateway, "up/gw/closed", "x") == NOT_AUTHORIZED, "it is closed")
    assert publishes(comes(hub, clients, "blue", "gw", "other"), "up/gw/closed", "x") == 0


def test_retaining_is_a_right_of_its_own(hub: Hub, clients: Clients) -> None:
    gateway = comes(hub, clients, "blue", "gw", "retaining")
    assert publishes(gateway, "up/gw/kept", "1", retain=True) == 0
    hub.store.rules.add(ME, Rule("blue", 0, "deny", ("retain",), "up/gw/fleeting"))
    until(lambda: publishes(gateway, "up/gw/fleeting", "2", retain=True) == NOT_AUTHORIZED, "it is denied")
    assert publishes(gateway, "up/gw/fleeting", "2") == 0


def test_a_tenant_that_is_disabled_is_out_and_another_stays(hub: Hub, clients: Clients) -> None:
    out, stays = comes(hub, clients, "acme", "gw", "out"), comes(hub, clients, "blue", "gw", "stays")
    hub.run("tenant", "disable", "acme")
    assert out.expect(DISCONNECT, WITHIN_S).reason == ADMINISTRATIVE
    stays.ping()
    comes(hub, clients, "acme", "gw", "out", expect=NOT_AUTHORIZED)
    hub.store.tenants.enable(ME, "acme")
    until(lambda: answer(hub, clients, "acme", "gw", "gw of acme") == 0, "it is let in again")


def answer(hub: Hub, clients: Clients, tenant: str, user: str, password: str) -> int:
    """Return with which reason code somebody comes in, or does not."""
    client = clients(hub.broker, "somebody", 5, connect=False)
    name = f"{tenant}/{user}"
    return client.connect(expect=None, user_name=name, password=password.encode()).reason


def test_a_new_password_counts_at_once_and_ends_connections_of_the_old_one(
    hub: Hub, clients: Clients
) -> None:
    hub.store.users.create(ME, "blue", "changing", b"first")
    old = clients(hub.broker, "changing", 5, connect=False)
    old.connect(user_name="blue/changing", password=b"first")
    hub.store.users.set_password(ME, "blue", "changing", b"second")
    new = clients(hub.broker, "changed", 5, connect=False)
    new.connect(user_name="blue/changing", password=b"second")
    assert old.expect(DISCONNECT, WITHIN_S).reason == NOT_AUTHORIZED
    new.ping()
    again = clients(hub.broker, "again", 5, connect=False)
    again.connect(user_name="blue/changing", password=b"first", expect=NOT_AUTHORIZED)


def test_a_reload_keeps_everybody(hub: Hub, clients: Clients) -> None:
    there, lines = comes(hub, clients, "blue", "gw", "reload"), len(hub.broker.lines)
    os.kill(hub.broker.pid, signal.SIGHUP)
    hub.broker.wait_for_line("reloaded", after=lines)
    assert publishes(there, "up/gw/reload", "1") == 0


def test_without_the_database_nobody_goes_and_who_is_known_comes(
    far: tuple[Hub, PostgresServer], clients: Clients
) -> None:
    hub, server = far
    there, lines = comes(hub, clients, "blue", "gw", "there"), len(hub.broker.lines)
    server.stop()
    hub.broker.wait_for_line("the directory is away", WITHIN_S, after=lines)
    assert publishes(there, "up/gw/away", "1") == 0
    comes(hub, clients, "blue", "gw", "there too").ping()
    assert answer(hub, clients, "blue", "app", "app of blue") == UNAVAILABLE  # who has not come before
    assert answer(hub, clients, "blue", "nobody", "x") == UNAVAILABLE
    assert answer(hub, clients, "blue", "gw", "wrong") == UNAVAILABLE  # it may be another one by now
    server.start()
    hub.broker.wait_for_line("the directory is there again", WITHIN_S, after=lines)
    assert answer(hub, clients, "blue", "nobody", "x") == NOT_AUTHORIZED
    comes(hub, clients, "blue", "app", "app").ping()
    assert publishes(there, "up/gw/away", "2") == 0


def test_quotas_are_of_a_tenant_over_all_workers(hub: Hub, clients: Clients) -> None:
    """Of sessions, subscriptions and the size of packets; another tenant has others."""
    hub.store.tenants.create(ME, "small")
    hub.store.users.create(ME, "small", "app", b"app of small")
    hub.store.rules.add(ME, Rule("small", 0, "allow", ("subscribe",), "q/#"))
    hub.run("quota", "set", "small", "sessions=1000", "subscriptions=3", "packet_bytes=1000")

    def announced(tenant: str) -> int:
        client = clients(hub.broker, f"size-{tenant}", 5, connect=False)
        name = f"{tenant}/app"
        found = client.connect(user_name=name, password=f"app of {tenant}".encode(), expect=None)
        client.disconnect()
        return int(found.properties.get(0x27, 0))

    until(lambda: announced("small") == 1000, "it says so")
    assert announced("acme") > 1000
    readers = [comes(hub, clients, "small", "app", f"quota-{number}") for number in range(6)]
    for number, reader in enumerate(readers):
        reader.subscribe(f"q/{number}", qos=1, granted=[1 if number < 3 else 0x97])
    hub.run("quota", "set", "small", "sessions=0", "subscriptions=none", "packet_bytes=none")
    until(lambda: answer(hub, clients, "small", "app", "app of small") == 0x97, "no session more")
    comes(hub, clients, "acme", "gw", "another")
    hub.run("quota", "set", "small", "sessions=none")
    until(lambda: answer(hub, clients, "small", "app", "app of small") == 0, "one more")
    readers[3].subscribe("q/3", qos=1)


def test_a_certificate_names_tenant_and_user_by_a_template(tmp_path: Path) -> None:
    authority = Authority(tmp_path / "ca")
    certificate, key = authority.issue("server")
    port = free_port()
    url = f"tls://127.0.0.1:{port}?client_cert=require&ca={authority.ca}&identity={{o}}/{{cn}}"
    store = open_store(f"sqlite:///{tmp_path}/directory.sqlite", make=True)
    store.tenants.create(ME, "acme")
    store.users.create(ME, "acme", "gw", b"never asked for")
    store.rules.add(ME, Rule("acme", 0, "allow", ("publish",), "up/%u/#"))
    store.close()
    settings = {
        "tenants.enabled": "true",
        "directory.url": f"sqlite:///{tmp_path}/directory.sqlite",
        "tls.certificate": certificate,
        "tls.key": key,
    }
    broker = make_broker(tmp_path / "broker", settings, ["--listen", url])
    broker.start(STARTED_S)
    try:
        for subject, expect in (("/O=acme/CN=gw", 0), ("/O=blue/CN=gw", 0x87), ("/CN=gw", 0x87)):
            context = ssl.create_default_context(cafile=authority.ca)
            stem = subject.replace("/", "_")
            context.load_cert_chain(*authority.issue("client", stem, subject))
            plain = socket.create_connection(("127.0.0.1", port), timeout=WITHIN_S)
            with context.wrap_socket(plain, server_hostname="localhost") as there:
                there.sendall(connect_packet("c", version=5, user_name="blue/root"))
                assert there.recv(4)[3] == expect
                if not expect:
                    there.recv(1000)
                    there.sendall(packet(0x32, text("up/gw/x") + b"\0\1\0x"))
                    assert there.recv(5)[:4] in (b"\x40\x03\x00\x01", b"\x40\x02\x00\x01")
    finally:
        finish(broker)
