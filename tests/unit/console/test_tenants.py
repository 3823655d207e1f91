"""A directory behind the admin HTTP: what commands ask for is what the resources answer."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from inspect import isawaitable
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import parse_qsl, unquote, urlsplit

import msgspec
import pytest

from directory_clock import ME
from headrace.api.resource import Resource
from headrace.api.tenants import OF_DIRECTORY, of_tenants
from headrace.console.admin import AdminClient
from headrace.console.tenants import RemoteStore
from headrace.directory.entries import Rule
from headrace.directory.errors import InvalidField
from headrace.directory.hashes import matches
from headrace.directory.store import Store, open_store

Found = TypeVar("Found")


class Direct(AdminClient):
    """Asks the functions behind the resources, with the values that a request of that path has."""

    def __init__(self, store: Store) -> None:
        super().__init__("127.0.0.1", 1)
        self.store = store
        self.answers = of_tenants(self)

    def administer(self, change: Callable[[Store], Found]) -> Found:
        return change(self.store)

    def ask(self, method: str, path: str, content: object = None) -> Any:
        url = urlsplit(path)
        for resource in OF_DIRECTORY:
            given = dict(parse_qsl(url.query))
            if resource.method == method and _matches(resource, unquote(url.path), given):
                return self._answer(resource, given, content)
        raise AssertionError(f"there is no {method} {path}")

    def _answer(self, resource: Resource, given: dict[str, str], content: object) -> Any:
        names = {each.name for each in resource.parameters}
        assert given.keys() <= names
        values: dict[str, Any] = {each.name: each.value(given.get(each.name)) for each in resource.parameters}
        values |= {"who": "token 7", "came_from": "192.0.2.1:5"}
        if resource.body is not None:
            values["body"] = msgspec.json.decode(msgspec.json.encode(content), type=resource.body)

        async def asked() -> Any:
            found = self.answers[resource](values)
            return await found if isawaitable(found) else found

        found = asyncio.run(asked())
        return None if found is None else msgspec.json.decode(msgspec.json.encode(found))

    def get(self, path: str) -> Any:
        return self.ask("GET", path)


def _matches(resource: Resource, path: str, given: dict[str, str]) -> bool:
    """Whether the path is the resource's; what it names goes to the values."""
    fixed, named, _ = resource.path.partition("{")
    if not named:
        return path == fixed
    if path.startswith(fixed):
        given[resource.name] = path.removeprefix(fixed)
    return path.startswith(fixed)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    found = open_store(f"sqlite:///{tmp_path}/directory", make=True)
    yield found
    found.close()


def test_it_does_what_the_directory_itself_does(store: Store) -> None:
    remote = RemoteStore(Direct(store))
    made = remote.tenants.create(ME, "acme")
    assert made == store.tenants.get("acme")
    assert remote.tenants.all() == store.tenants.all()
    assert remote.tenants.set_quotas(
        ME, "acme", {"connections": "5", "sessions": "6"}
    ) == store.tenants.quotas("acme")
    assert remote.tenants.set_quotas(ME, "acme", {"sessions": "none"}) == {"connections": 5}
    assert remote.tenants.set_settings(ME, "acme", {"over_rate": "disconnect"}) == store.tenants.settings(
        "acme"
    )
    assert (remote.tenants.quotas("acme"), remote.tenants.settings("acme")) == (
        store.tenants.quotas("acme"),
        store.tenants.settings("acme"),
    )
    remote.users.create(ME, "acme", "a&b/=\u00e4", "s\u00e9cret".encode(), ["g"])
    (user,) = store.users.all("acme")
    assert user.name == "a&b/=\u00e4"
    assert matches(user.hashed, "s\u00e9cret".encode())
    assert remote.tenants.users("acme") == 1
    revision = remote.users.set_password(ME, "acme", user.name, b"other")
    assert remote.users.disable(ME, "acme", user.name, revision) > revision
    (shown,) = remote.users.all("acme")
    assert (shown.name, shown.disabled, shown.groups) == (user.name, True, ("g",))
    remote.users.enable(ME, "acme", user.name)
    rule = remote.rules.add(ME, Rule("acme", 0, "allow", ("publish",), "up/%u/#", "user", user.name))
    assert [rule] == remote.rules.all("acme") == store.rules.all("acme")
    remote.rules.remove(ME, "acme", rule.number)
    remote.users.delete(ME, "acme", user.name)
    remote.tenants.disable(ME, "acme")
    remote.tenants.enable(ME, "acme", remote.tenants.get("acme").revision)
    remote.tenants.delete(ME, "acme", remote.tenants.get("acme").revision)
    remote.tenants.release(ME, "acme")
    assert store.tenants.all() == []
    remote.close()


def test_what_is_wrong_is_said_before_anybody_is_asked() -> None:
    remote = RemoteStore(AdminClient("127.0.0.1", 1))
    for wrong in (
        lambda: remote.tenants.create(ME, "../x"),
        lambda: remote.tenants.get("A"),
        lambda: remote.tenants.set_quotas(ME, "acme", {"connections": "many"}),
        lambda: remote.users.create(ME, "acme", "gw", b"\xff"),
    ):
        with pytest.raises(InvalidField):
            wrong()
