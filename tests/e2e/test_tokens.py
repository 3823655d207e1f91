"""Clients that sign in with JSON Web Tokens, in a chain with passwords: by what a token says, until it ends."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from broker_process import BrokerProcess, free_port, headrace, make_broker, wait_until
from directory_clock import ME
from e2e.conftest import finish
from e2e.raw import ClosedError, RawClient
from e2e.wire import DISCONNECT, PUBACK
from headrace.directory.entries import Rule
from headrace.directory.store import Store, open_store
from token_keys import DAY_S, ED25519, OTHER, RSA, jwks, pem_of, public, token

pytestmark = pytest.mark.skipif("__import__('broker_process').UNDER_AUDIT != 'headrace'")
STARTED_S = 180.0
WITHIN_S = 60.0
NOT_AUTHORIZED, SERVER_UNAVAILABLE, ADMINISTRATIVE = 0x87, 0x88, 0x98
Clients = Callable[..., RawClient]
UP = [{"allow": "publish,retain", "filter": "up/%u/#"}]


class Hub:
    """A broker with tenants acme and blue, whose users have passwords; of acme the user gw."""

    def __init__(self, folder: Path, workers: int) -> None:
        url = f"sqlite:///{folder}/directory.sqlite"
        self.keys = folder / "keys.json"
        self.keys.write_bytes(jwks())
        self.store: Store = open_store(url, make=True)
        for tenant in ("acme", "blue"):
            self.store.tenants.create(ME, tenant)
            self.store.users.create(ME, tenant, "app", f"app of {tenant}".encode())
            self.store.rules.add(ME, Rule(tenant, 0, "allow", ("subscribe",), "up/#", "user", "app"))
        self.settings = {
            "tenants.enabled": "true",
            "directory.url": url,
            "access.chain": '["jwt", "password"]',
            "jwt.jwks": str(self.keys),
            "limits.connect_timeout_s": 60,
        }
        self.broker: BrokerProcess = make_broker(
            folder / "broker", self.settings, ["--workers", str(workers)] if workers > 1 else []
        )


@pytest.fixture(scope="module", params=[1, 2], ids=["one process", "two workers"])
def hub(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hub]:
    made = Hub(tmp_path_factory.mktemp("tokens"), request.param)
    made.broker.start(STARTED_S)
    try:
        yield made
    finally:
        made.store.close()
        finish(made.broker)


def comes(
    hub: Hub,
    clients: Clients,
    user: str,
    password: bytes,
    client_id: str = "c",
    expect: int = 0,
    **fields: Any,
) -> RawClient:
    client = clients(hub.broker, client_id, 5, connect=False)
    client.connect(user_name=user, password=password, expect=expect, **fields)
    return client


def code(client: RawClient, topic: str) -> int:
    client.publish(topic, "x", 1)
    reason = client.expect(PUBACK).reason
    return 0 if reason < 0x80 else reason


def test_a_token_lets_in_whom_it_names_with_what_it_brings(hub: Hub, clients: Clients) -> None:
    reader = comes(hub, clients, "acme/app", b"app of acme", "reader")
    reader.subscribe("up/#", qos=1)
    gateway = comes(hub, clients, "acme/gw", token(acl=UP))
    assert code(gateway, "up/gw/a") == 0
    assert reader.receive().topic == "up/gw/a"
    assert code(gateway, "up/app/a") == NOT_AUTHORIZED
    gateway.subscribe("up/#", granted=[NOT_AUTHORIZED])
    nothing = comes(hub, clients, "acme/gw", token(), "nothing")
    assert code(nothing, "up/gw/a") == NOT_AUTHORIZED, (
        "it brings nothing, and no rule of acme allows anything"
    )
    known = comes(hub, clients, "acme/app", token(sub="app"), "known")
    known.subscribe("up/#", qos=1)  # by its rules in the directory


@pytest.mark.parametrize("user", ["blue/gw", "acme/other", "gw", "acme/app", "none/gw", "acme/gw/", "acme/"])
def test_it_lets_nobody_else_in(hub: Hub, clients: Clients, user: str) -> None:
    comes(hub, clients, user, token(acl=[{"allow": "all", "filter": "#"}]), expect=NOT_AUTHORIZED)


@pytest.mark.parametrize(
    "password",
    [
        token(exp=1),
        token(key=OTHER),
        token("HS256", key=pem_of(RSA)[:64], header={"kid": "rs"}),
        token("HS256"),
        token(nbf=int(time.time()) + DAY_S),
        b"eyJhbGciOiJub25lIn0.eyJ0ZW5hbnQiOiJhY21lIiwic3ViIjoiZ3ciLCJleHAiOjk5OTk5OTk5OTl9.",
        b"app of acme",
        b"",
        token(more="x" * 20_000),
    ],
)
def test_what_is_wrong_is_refused_in_one_way(hub: Hub, clients: Clients, password: bytes) -> None:
    comes(hub, clients, "acme/gw", password, expect=NOT_AUTHORIZED)


def test_a_token_that_ends_ends_its_connection(hub: Hub, clients: Clients) -> None:
    stays = comes(hub, clients, "acme/app", b"app of acme", "stays")
    short = comes(hub, clients, "acme/gw", token(exp=int(time.time()) + 2), "short")
    assert short.expect(DISCONNECT, WITHIN_S).reason == NOT_AUTHORIZED
    stays.ping()


def test_a_tenant_or_user_that_is_disabled_is_out_whatever_a_token_says(hub: Hub, clients: Clients) -> None:
    gateway = comes(hub, clients, "blue/gw", token(tenant="blue"), "out")
    known = comes(hub, clients, "acme/app", token(sub="app"), "known-out")
    hub.store.tenants.disable(ME, "blue")
    hub.store.users.disable(ME, "acme", "app")
    assert gateway.expect(DISCONNECT, WITHIN_S).reason == ADMINISTRATIVE
    assert known.expect(DISCONNECT, WITHIN_S).reason == ADMINISTRATIVE
    comes(hub, clients, "blue/gw", token(tenant="blue"), "out", expect=NOT_AUTHORIZED)
    comes(hub, clients, "acme/app", token(sub="app"), "known-out", expect=NOT_AUTHORIZED)
    hub.store.tenants.enable(ME, "blue")
    hub.store.users.enable(ME, "acme", "app")
    end = time.monotonic() + WITHIN_S
    while True:
        client = clients(hub.broker, "out", 5, connect=False)
        if client.connect(user_name="blue/gw", password=token(tenant="blue"), expect=None).reason == 0:
            break
        assert time.monotonic() < end


def test_a_user_that_is_made_and_disabled_later_is_put_out(hub: Hub, clients: Clients) -> None:
    """Its client came when the directory did not know it: by what its token says alone."""
    gateway = comes(hub, clients, "acme/later", token(sub="later"), "later")
    hub.store.users.create(ME, "acme", "later", b"secret")
    hub.store.users.disable(ME, "acme", "later")
    assert gateway.expect(DISCONNECT, WITHIN_S).reason == ADMINISTRATIVE
    comes(hub, clients, "acme/later", token(sub="later"), "later", expect=NOT_AUTHORIZED)


def test_a_user_that_is_deleted_is_put_out_once_and_comes_again_by_its_token(
    hub: Hub, clients: Clients
) -> None:
    hub.store.users.create(ME, "acme", "leaver", b"secret")
    brought = token(sub="leaver", acl=UP)
    before = comes(hub, clients, "acme/leaver", brought, "leaver")
    hub.store.users.delete(ME, "acme", "leaver")
    assert before.expect(DISCONNECT, WITHIN_S).reason == NOT_AUTHORIZED
    after = comes(hub, clients, "acme/leaver", brought, "leaver")
    assert code(after, "up/leaver/x") == 0
    hub.store.users.create(ME, "acme", "somebody", b"secret")  # all are judged anew
    comes(hub, clients, "acme/somebody", b"secret", "somebody")
    assert code(after, "up/leaver/x") == 0


def test_what_a_token_has_brought_counts_for_a_will_when_its_client_has_gone(
    hub: Hub, clients: Clients
) -> None:
    end = time.monotonic() + WITHIN_S
    while True:
        reader = clients(hub.broker, "watcher", 5, connect=False)
        if reader.connect(user_name="acme/app", password=b"app of acme", expect=None).reason == 0:
            break
        assert time.monotonic() < end
    reader.subscribe("up/gw/will", qos=1)
    for client_id in ("left", ""):
        said = (client_id or "assigned").encode()
        gateway = comes(
            hub, clients, "acme/gw", token(acl=UP), client_id, will=("up/gw/will", said), will_qos=1
        )
        gateway.close()
        assert reader.receive(WITHIN_S).payload == said


class Issuer(ThreadingHTTPServer):
    """Answers with its keys, among them one that nobody can use."""

    text = jwks({"kty": "oct", "kid": "odd"}, public(ED25519, kid="ed"))


class Answer(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        server = self.server
        assert isinstance(server, Issuer)
        self.send_response(200)
        self.send_header("Content-Length", str(len(server.text)))
        self.end_headers()
        self.wfile.write(server.text)

    def log_message(self, *_: object) -> None: ...


def test_who_brings_a_token_before_its_keys_could_be_read_is_no_guesser(
    tmp_path: Path, clients: Clients
) -> None:
    """It is told to come later, 0x88, and its address is not banned for that; whose password is wrong is."""
    port = free_port()
    url = f"sqlite:///{tmp_path}/directory.sqlite"
    with closing(open_store(url, make=True)) as store:
        store.tenants.create(ME, "acme")
        store.users.create(ME, "acme", "app", b"secret")
    settings = {
        "tenants.enabled": "true",
        "directory.url": url,
        "access.chain": '["jwt", "password"]',
        "jwt.jwks": f"http://127.0.0.1:{port}/keys",
        "access.ban_after_failures": 2,
        "limits.connect_timeout_s": 60,
    }
    broker = make_broker(tmp_path / "broker", settings, [])
    broker.start(STARTED_S)

    def tries(password: bytes, user: str = "acme/gw") -> int:
        client = clients(broker, "c", 5, connect=False)
        return client.connect(user_name=user, password=password, expect=None, deadline_s=WITHIN_S).reason

    issuer = None
    try:
        for _ in range(4):
            assert tries(token()) == SERVER_UNAVAILABLE
        assert tries(b"secret", "acme/app") == 0
        issuer = Issuer(("127.0.0.1", port), Answer)
        threading.Thread(target=issuer.serve_forever).start()
        wait_until(lambda: tries(token()) == 0, "the keys are read", WITHIN_S)
        assert tries(token(key=OTHER)) == NOT_AUTHORIZED
        with pytest.raises((ClosedError, ConnectionError)):  # at the second, or from then on
            wait_until(lambda: tries(token(key=OTHER)) == 0, "the address is banned", WITHIN_S)
    finally:
        if issuer is not None:
            issuer.shutdown()
            issuer.server_close()
        finish(broker)


def test_keys_that_cannot_be_used_are_named_at_the_start(tmp_path: Path) -> None:
    file = tmp_path / "keys.json"
    file.write_bytes(b"{}")
    words = ["--set", "tenants.enabled=true", "--set", f"data_dir={tmp_path}/data"]
    for value, key in (
        (['access.chain=["jwt"]'], "jwt.jwks"),
        (['access.chain=["jwt"]', f"jwt.jwks={file}"], "jwt.jwks"),
        ([f"jwt.jwks={file}"], "jwt.jwks"),
        (['access.chain=["jwt", "jwt"]', f"jwt.jwks={file}"], "access.chain"),
        (['access.chain=["jwt"]', "jwt.jwks=http://keys.example/jwks"], "jwt.jwks"),
    ):
        done = headrace("config", "check", *words, *(word for one in value for word in ("--set", one)))
        assert done.returncode == 2, done.stdout
        assert key in done.stderr
