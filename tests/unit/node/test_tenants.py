"""A node with tenants inside a program: whom its directory lets in, with which limits, and what cannot be opened."""

from __future__ import annotations

import asyncio
import sqlite3
import sys
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import aiomqtt
import msgspec
import pytest

from directory_clock import ME
from headrace.config import Config, DirectoryConfig, InvalidKey, JournalConfig, TenantsConfig
from headrace.core.records.record import DROP_NOT_ACCEPTED
from headrace.directory.entries import Rule
from headrace.directory.store import Store, open_store
from headrace.node.node import Node
from headrace.node.tenants import Tenants, check
from headrace.services.clearing import AT_ONCE

SECONDS = 60.0


def config(data_dir: Path, url: str = "") -> Config:
    return Config(
        data_dir=str(data_dir / "data"),
        listeners=("tcp://127.0.0.1:0",),
        allow_anonymous=False,
        tenants=TenantsConfig(enabled=True),
        directory=DirectoryConfig(url=url, poll_s=0.05),
    )


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(SECONDS):
        while not condition():
            await asyncio.sleep(0.01)


def client(
    node: Node,
    user: str,
    password: str,
    will: aiomqtt.Will | None = None,
    *,
    clean_session: bool | None = None,
) -> aiomqtt.Client:
    port = int(node._doors.urls[0].rpartition(":")[2])
    return aiomqtt.Client(
        "127.0.0.1",
        port,
        username=user,
        password=password,
        identifier=user,
        will=will,
        clean_session=clean_session,
        timeout=SECONDS,
    )


async def serving(settings: Config, use: Callable[[Node, Store], Any]) -> None:
    """Run a node, and do something with it and its directory."""
    node = Node(settings, owns_process=False)
    running = asyncio.create_task(node.run())
    await node.ready.wait()
    url = settings.directory.url or f"sqlite:///{settings.data_dir}/directory.sqlite"
    store = open_store(url, make=False)
    try:
        store.tenants.create(ME, "acme")
        store.users.create(ME, "acme", "gw", b"secret")
        await use(node, store)
    finally:
        store.close()
        node.stop()
        assert await running == 0


def test_clients_are_of_the_tenants_of_a_directory_in_the_data_directory(tmp_path: Path) -> None:
    async def use(node: Node, store: Store) -> None:
        async with client(node, "acme/gw", "secret"):
            (broker,) = node.worker.brokers
            assert list(broker.fold.tenants["acme"].sessions) == ["acme/gw"]
        for user, password in (
            ("acme/gw", "wrong"),
            ("acme/x", "secret"),
            ("none/gw", "secret"),
            ("gw", "secret"),
        ):
            with pytest.raises(aiomqtt.MqttError):
                await client(node, user, password).__aenter__()
        assert "none" not in broker.fold.tenants

    asyncio.run(serving(config(tmp_path), use))


def test_quotas_are_limits_of_who_is_connected_and_end(tmp_path: Path) -> None:
    async def use(node: Node, store: Store) -> None:
        quotas, usual = node.worker.quotas, node.worker.quotas.usual.retained_messages_max
        store.tenants.set_quotas(ME, "acme", {"retained_messages": "3"})
        async with client(node, "acme/gw", "secret"):
            limits = quotas.look("acme")
            assert limits.retained_messages_max == 3
            store.tenants.set_quotas(ME, "acme", {"retained_messages": "4"})
            await until(lambda: limits.retained_messages_max == 4)
            store.tenants.set_quotas(ME, "acme", {"retained_messages": "none"})
            await until(lambda: limits.retained_messages_max == usual)
            assert quotas.look("default").retained_messages_max == usual

    asyncio.run(serving(config(tmp_path, f"sqlite:///{tmp_path}/directory"), use))


def test_the_default_tenant_has_users_and_quotas_like_any_other(tmp_path: Path) -> None:
    async def use(node: Node, store: Store) -> None:
        store.tenants.create(ME, "default")
        for name in ("gw", "app"):
            store.users.create(ME, "default", name, b"secret")
        store.tenants.set_quotas(ME, "default", {"connections": "2", "retained_messages": "3"})
        usual = node.worker.quotas.usual.retained_messages_max
        async with client(node, "gw", "secret"), client(node, "default/gw", "secret"):
            (broker,) = node.worker.brokers
            users = {one.client_id: one.owner for one in broker.fold.tenants["default"].sessions.values()}
            assert users == {"gw": "gw", "default/gw": "gw"}  # one user, by either name
            limits = broker.fold.tenants["default"].limits
            assert (limits.retained_messages_max, node.worker.anyone.limits) == (3, limits)
            with pytest.raises(aiomqtt.MqttError):
                await client(node, "app", "secret").__aenter__()
            store.tenants.set_quotas(ME, "default", {"connections": "none", "retained_messages": "none"})
            await until(lambda: limits.retained_messages_max == usual)
            async with client(node, "app", "secret"):
                pass

    asyncio.run(serving(config(tmp_path), use))


def test_what_a_deleted_tenant_had_is_removed_for_good(tmp_path: Path) -> None:
    settings = config(tmp_path)

    async def use(node: Node, store: Store) -> None:
        store.tenants.create(ME, "blue")
        store.users.create(ME, "blue", "gw", b"secret")
        for tenant in ("acme", "blue"):
            store.rules.add(ME, Rule(tenant, 0, "allow", ("publish", "subscribe", "retain"), "#"))
            will = aiomqtt.Will("gone", "x", 1, True)
            async with client(node, f"{tenant}/gw", "secret", will, clean_session=False) as one:
                await one.subscribe("t/#", 1)
                for number in range(2 * AT_ONCE + 1):
                    await one.publish(f"kept/{number}", "x", 1, retain=True)
        (broker,) = node.worker.brokers
        acme, blue = broker.fold.tenants["acme"], broker.fold.tenants["blue"]
        assert (len(acme.sessions), len(acme.retained)) == (1, 2 * AT_ONCE + 1)
        store.tenants.delete(ME, "acme")
        await until(lambda: not acme.sessions and not len(acme.retained))
        assert (len(blue.sessions), len(blue.retained)) == (1, 2 * AT_ONCE + 1)
        await until(lambda: node._tenants is not None and not node._tenants._clearings)

    async def again() -> None:
        node = Node(settings, owns_process=False)
        running = asyncio.create_task(node.run())
        await node.ready.wait()
        (broker,) = node.worker.brokers
        found = {name: (len(of.sessions), len(of.retained)) for name, of in broker.fold.tenants.items()}
        node.stop()
        assert await running == 0
        assert found.get("acme", (0, 0)) == (0, 0)
        assert found["blue"] == (1, 2 * AT_ONCE + 1)

    asyncio.run(serving(settings, use))
    asyncio.run(again())


def test_who_is_disabled_is_put_out(tmp_path: Path) -> None:
    async def use(node: Node, store: Store) -> None:
        with suppress(aiomqtt.MqttError):  # it is cut
            async with client(node, "acme/gw", "secret"):
                await disabled(node, store)

    async def disabled(node: Node, store: Store) -> None:
        sessions = node.worker.brokers[0].sessions
        assert sessions.connected == 1
        store.tenants.disable(ME, "acme")
        await until(lambda: sessions.connected == 0)

    asyncio.run(serving(config(tmp_path), use))


@pytest.mark.parametrize("may", [True, False])
def test_a_will_of_before_a_start_is_judged_by_the_rules_of_its_user(tmp_path: Path, may: bool) -> None:
    """Nobody of the tenant is here when it is due."""
    settings = config(tmp_path)

    async def leave(node: Node, store: Store) -> None:
        number = store.rules.add(
            ME, Rule("acme", 0, "allow", ("publish", "retain"), "gone", "user", "gw")
        ).number
        will = aiomqtt.Will("gone", b"gw", 1, retain=True)
        there = client(node, "acme/gw", "secret", will)
        await there.__aenter__()
        node.stop()
        if not may:
            store.rules.remove(ME, "acme", number)
        with suppress(aiomqtt.MqttError):
            await there.__aexit__(None, None, None)

    async def find() -> None:
        node = Node(settings, owns_process=False)
        running = asyncio.create_task(node.run())
        await node.ready.wait()
        (broker,) = node.worker.brokers
        (session,) = broker.fold.tenants["acme"].sessions.values()
        await until(lambda: session.will is None)
        dropped = broker.fold.tenants["acme"].counters.dropped
        assert dropped.get(DROP_NOT_ACCEPTED, 0) == (0 if may else 1)
        node.stop()
        await running

    asyncio.run(serving(settings, leave))
    asyncio.run(find())


def wrong(tmp_path: Path, url: str) -> str:
    async def start() -> None:
        Node(config(tmp_path, url), owns_process=False)

    with pytest.raises(InvalidKey) as raised:
        asyncio.run(start())
    return str(raised.value)


def test_what_cannot_be_opened_is_said_with_its_key_and_holds_nothing(tmp_path: Path) -> None:
    (tmp_path / "newer").touch()
    with sqlite3.connect(tmp_path / "newer") as database:
        database.execute("CREATE TABLE directory_schema (version_num TEXT)")
        database.execute("INSERT INTO directory_schema VALUES ('9999')")
    for url in (
        "sqlite:///",
        "mysql://host",
        f"sqlite:///{tmp_path}/no/folder",
        f"sqlite:///{tmp_path}/newer",
    ):
        assert wrong(tmp_path, url).startswith("directory.url: ")
    asyncio.run(serving(config(tmp_path), lambda *_: asyncio.sleep(0)))  # the data directory is free


def test_a_check_opens_what_a_start_would_and_makes_nothing(tmp_path: Path) -> None:
    check(config(tmp_path))
    assert list(tmp_path.iterdir()) == []
    url = f"sqlite:///{tmp_path}/directory"
    check(config(tmp_path, url))
    with pytest.raises(InvalidKey, match=r"^directory.url: .*/no/file: there is no directory .*/no$"):
        check(config(tmp_path, f"sqlite:///{tmp_path}/no/file"))
    open_store(url, make=True).close()
    check(config(tmp_path, url))
    with sqlite3.connect(tmp_path / "directory") as database:
        database.execute("UPDATE directory_schema SET version_num = '9999'")
    with pytest.raises(InvalidKey, match=r"^directory.url: .*9999"):
        check(config(tmp_path, url))


def test_without_its_packages_the_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.startswith("headrace.directory")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "sqlalchemy", None)
    assert "headrace[directory]" in wrong(tmp_path, "")


def test_where_no_broker_runs_wills_are_judged_by_the_database(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/directory"
    store = open_store(url, make=True)
    store.tenants.create(ME, "acme")
    store.users.create(ME, "acme", "gw", b"secret")
    number = store.rules.add(ME, Rule("acme", 0, "allow", ("publish",), "gone/%u")).number
    with closing(asyncio.new_event_loop()) as loop:
        asked = Tenants(config(tmp_path, url), loop).open_stopped()
        for user, topic in (("acme/gw", b"gone/gw"), ("acme/gw", b"x"), ("acme/x", b"gone/x")):
            assert asked.may_leave_will("acme", user, "c", topic) is (topic == b"gone/gw")
            assert not asked.may_retain_will("acme", user, "c", topic)
        retaining = store.rules.add(ME, Rule("acme", 0, "allow", ("retain",), "gone/%u")).number
        assert asked.may_retain_will("acme", "acme/gw", "c", b"gone/gw")
        store.rules.remove(ME, "acme", retaining)
        store.rules.remove(ME, "acme", number)
        assert not asked.may_leave_will("acme", "acme/gw", "c", b"gone/gw")
        asked.close()
    store.close()


def test_tenants_are_administered_over_http_and_count_at_once(tmp_path: Path) -> None:
    (tmp_path / "tokens").write_text("secret\n")
    (tmp_path / "tokens").chmod(0o600)
    settings = msgspec.structs.replace(
        config(tmp_path),
        admin="http://127.0.0.1:0",
        journal=JournalConfig(token_file=str(tmp_path / "tokens")),
        directory=DirectoryConfig(poll_s=60.0),
    )

    async def use(node: Node, store: Store) -> None:
        _, of_acme = store.tokens.create(ME, "tenant-admin", "acme")

        async def ask(
            method: str, path: str, content: object = None, token: str = "secret"
        ) -> tuple[int, Any]:
            body = None if content is None else msgspec.json.encode(content)
            headers = {"Authorization": f"Bearer {token}"}
            request = Request(node._admin.url + path, body, headers, method=method)

            def send() -> tuple[int, Any]:
                try:
                    with urlopen(request, timeout=SECONDS) as answer:
                        said = answer.read()
                        return answer.status, msgspec.json.decode(said) if said else None
                except HTTPError as error:
                    return error.code, msgspec.json.decode(error.read())

            return await asyncio.to_thread(send)

        assert (await ask("POST", "/v1/tenants", {"name": "blue"}))[0] == 201
        assert (await ask("POST", "/v1/tenants", {"name": "blue"}))[0] == 409
        assert (await ask("POST", "/v1/tenants", {"name": "B"}))[0] == 400
        assert (await ask("POST", "/v1/users?tenant=blue", {"name": "gw", "password": "x"}))[0] == 201
        async with client(node, "blue/gw", "x"):
            sessions = node.worker.brokers[0].sessions
            with suppress(aiomqtt.MqttError):
                assert (await ask("PATCH", "/v1/users?tenant=blue&user=gw", {"state": "disabled"}))[0] == 200
                await until(lambda: sessions.connected == 0)  # long before the next poll
        statuses = [
            (await ask(method, path, content, of_acme))[0]
            for method, path, content in (
                ("GET", "/v1/users?tenant=acme", None),
                ("GET", "/v1/users?tenant=blue", None),
                ("GET", "/v1/tenants", None),
                ("GET", "/v1/tenants/acme", None),
                ("PATCH", "/v1/tenants/acme", {"quotas": {"connections": 7}}),
                ("POST", "/v1/rules?tenant=acme", {"effect": "allow", "actions": ["publish"], "filter": "a"}),
                ("POST", "/v1/rules?tenant=blue", {"effect": "allow", "actions": ["publish"], "filter": "a"}),
                ("GET", "/v1/sessions?tenant=acme", None),
                ("GET", "/v1/sessions", None),
            )
        ]
        assert statuses == [200, 403, 403, 200, 403, 201, 403, 200, 403]

    asyncio.run(serving(settings, use))
