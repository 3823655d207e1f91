"""Tenants, users and rules over the admin HTTP, as what answers for them is called."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from inspect import isawaitable
from pathlib import Path
from typing import Any, TypeVar

import pytest
from starlette.requests import Request
from starlette.responses import Response

from headrace.api.openapi import document
from headrace.api.operations import RESOURCES
from headrace.api.resource import Resource, routes
from headrace.api.tenants import (
    ADD_RULE,
    CHANGE_TENANT,
    CHANGE_USER,
    CREATE_TENANT,
    CREATE_USER,
    DELETE_TENANT,
    DELETE_USER,
    OF_DIRECTORY,
    QUOTAS,
    REMOVE_RULE,
    REPLACE_QUOTAS,
    RULES,
    TENANT,
    TENANTS,
    USERS,
    NewQuotas,
    NewRule,
    NewTenant,
    NewUser,
    NoMatch,
    TenantChange,
    UserChange,
    of_tenants,
)
from headrace.api.tokens import ADMINISTER, OPERATE, READ, Grant
from headrace.directory.errors import AlreadyThere, ChangedMeanwhile, InvalidField, NotInThatState
from headrace.directory.hashes import matches
from headrace.directory.store import Store, open_store
from headrace.errors import NotThere

Found = TypeVar("Found")


class Office:
    """A directory, and what answers for it."""

    def __init__(self, folder: Path) -> None:
        self.store = open_store(f"sqlite:///{folder}/directory", make=True)
        self.answers = of_tenants(self)

    def administer(self, change: Callable[[Store], Found]) -> Found:
        return change(self.store)

    def ask(self, resource: Resource, **values: object) -> Any:
        who = {"who": "token 77", "came_from": "192.0.2.1:5"}

        async def asked() -> object:
            found = self.answers[resource](who | values)
            return await found if isawaitable(found) else found

        return asyncio.run(asked())


@pytest.fixture
def office(tmp_path: Path) -> Iterator[Office]:
    made = Office(tmp_path)
    yield made
    made.store.close()


def test_a_tenant_from_its_beginning_to_its_end(office: Office) -> None:
    made = office.ask(CREATE_TENANT, body=NewTenant("acme"))
    assert (made["name"], made["state"]) == ("acme", "active")
    with pytest.raises(AlreadyThere):
        office.ask(CREATE_TENANT, body=NewTenant("acme"))
    with pytest.raises(InvalidField):
        office.ask(CREATE_TENANT, body=NewTenant("Acme"))
    change = TenantChange("disabled", {"connections": 5, "sessions": 9}, {"over_rate": "disconnect"})
    found = office.ask(CHANGE_TENANT, tenant="acme", body=change)
    assert (found["state"], found["quotas"], found["settings"], found["users"]) == (
        "disabled",
        {"connections": 5, "sessions": 9},
        {"over_rate": "disconnect"},
        0,
    )
    found = office.ask(
        CHANGE_TENANT, tenant="acme", body=TenantChange("active", {"sessions": None}, {"over_rate": None})
    )
    assert (found["state"], found["quotas"], found["settings"]) == ("active", {"connections": 5}, {})
    assert office.ask(TENANT, tenant="acme") == found
    assert [row["name"] for row in office.ask(TENANTS)["rows"]] == ["acme"]
    with pytest.raises(ChangedMeanwhile):
        office.ask(CHANGE_TENANT, tenant="acme", body=TenantChange("disabled", if_revision=1))
    with pytest.raises(NotInThatState):
        office.ask(DELETE_TENANT, tenant="acme", release=True, force=True, if_revision=None)
    office.ask(DELETE_TENANT, tenant="acme", release=False, force=False, if_revision=None)
    with pytest.raises(InvalidField, match="force"):
        office.ask(DELETE_TENANT, tenant="acme", release=True, force=False, if_revision=None)
    assert office.ask(TENANT, tenant="acme")["state"] == "deleting"
    office.ask(DELETE_TENANT, tenant="acme", release=True, force=True, if_revision=None)
    with pytest.raises(NotThere):
        office.ask(TENANT, tenant="acme")
    changes = office.store.changes.since(0)
    assert {(one.who, one.came_from) for one in changes} == {("token 77", "192.0.2.1:5")}


def test_users_and_rules_of_a_tenant(office: Office) -> None:
    office.ask(CREATE_TENANT, body=NewTenant("acme"))
    made = office.ask(CREATE_USER, tenant="acme", body=NewUser("gw", "s\u00e9cret", ["g"]))
    assert (made["name"], made["state"], made["groups"]) == ("gw", "active", ["g"])
    assert "hash" not in made
    found = office.ask(CHANGE_USER, tenant="acme", user="gw", body=UserChange("disabled", "other"))
    assert found["state"] == "disabled"
    (user,) = office.store.users.all("acme")
    assert matches(user.hashed, b"other")
    assert office.ask(USERS, tenant="acme")["rows"] == [found]
    rule = office.ask(ADD_RULE, tenant="acme", body=NewRule("allow", ["publish"], "up/%u", "user", "gw"))
    assert office.ask(RULES, tenant="acme")["rows"] == [rule]
    for wrong in (
        NewRule("perhaps", ["publish"], "a"),
        NewRule("allow", ["fly"], "a"),
        NewRule("allow", [], "a"),
    ):
        with pytest.raises(InvalidField):
            office.ask(ADD_RULE, tenant="acme", body=wrong)
    office.ask(REMOVE_RULE, tenant="acme", number=rule["number"])
    office.ask(DELETE_USER, tenant="acme", user="gw", if_revision=None)
    assert office.ask(USERS, tenant="acme") == office.ask(RULES, tenant="acme") == {"rows": []}
    for resource in (USERS, RULES):
        with pytest.raises(NotThere):
            office.ask(resource, tenant="none")


def test_one_of_two_operators_changes_what_both_have_seen(office: Office) -> None:
    office.ask(CREATE_TENANT, body=NewTenant("acme"))
    office.ask(CREATE_USER, tenant="acme", body=NewUser("gw", "secret"))
    quotas = office.ask(REPLACE_QUOTAS, tenant="acme", body=NewQuotas({"connections": 1, "sessions": 2}))
    assert quotas["quotas"] == {"connections": 1, "sessions": 2}
    tag = str(quotas["revision"])
    found = office.ask(REPLACE_QUOTAS, tenant="acme", body=NewQuotas({"sessions": 3}), if_match=tag)
    assert (found["quotas"], found) == ({"sessions": 3}, office.ask(QUOTAS, tenant="acme"))
    same = office.ask(REPLACE_QUOTAS, tenant="acme", body=NewQuotas({"sessions": 3}))
    assert same == found, "what is so already changes nothing"
    user = office.ask(USERS, tenant="acme")["rows"][0]
    office.ask(
        CHANGE_USER, tenant="acme", user="gw", body=UserChange("disabled"), if_match=str(user["revision"])
    )
    for stale in (tag, "none", "", str(2**70)):
        with pytest.raises(NoMatch):
            office.ask(REPLACE_QUOTAS, tenant="acme", body=NewQuotas({}), if_match=stale)
        with pytest.raises(NoMatch):
            office.ask(CHANGE_TENANT, tenant="acme", body=TenantChange("disabled"), if_match=stale)
        with pytest.raises(NoMatch):
            office.ask(
                DELETE_TENANT, tenant="acme", release=False, force=False, if_revision=None, if_match=stale
            )
        with pytest.raises(NoMatch):
            office.ask(DELETE_USER, tenant="acme", user="gw", if_revision=None, if_match=stale)
        with pytest.raises(NoMatch):
            office.ask(REMOVE_RULE, tenant="acme", number=1, if_match=stale)
    assert office.ask(TENANT, tenant="acme")["state"] == "active"
    assert [row["state"] for row in office.ask(USERS, tenant="acme")["rows"]] == ["disabled"]
    with pytest.raises(ValueError, match="give one of them"):
        office.ask(CHANGE_TENANT, tenant="acme", body=TenantChange("disabled", if_revision=1), if_match="1")
    for wrong in ({"flights": 1}, {"sessions": -1}, {"sessions": 2**63}):
        with pytest.raises(InvalidField):
            office.ask(REPLACE_QUOTAS, tenant="acme", body=NewQuotas(wrong))


async def never(_: Request) -> Response:
    raise AssertionError("nobody asks")


def test_what_is_declared_is_answered_described_and_has_its_own_path(office: Office) -> None:
    assert set(office.answers) == set(OF_DIRECTORY)
    content = document([*RESOURCES, *OF_DIRECTORY])
    for each in OF_DIRECTORY:
        assert each.method.lower() in content["paths"][each.path]
    served = routes(RESOURCES, lambda _: never)
    both = {(route.path, method) for route in served for method in route.methods or ()}
    assert not both & {(each.path, each.method) for each in OF_DIRECTORY}


def test_who_may_administer() -> None:
    grants = {
        "file": Grant(OPERATE, line=1),
        "reader": Grant(READ, line=2),
        "operator": Grant(OPERATE, number="1", administers=False),
        "owner": Grant(OPERATE, number="2"),
    }
    assert [name for name, grant in grants.items() if grant.allows(ADMINISTER)] == ["file", "owner"]
    assert [name for name, grant in grants.items() if grant.allows(OPERATE)] == ["file", "operator", "owner"]
    assert all(grant.allows(READ) for grant in grants.values())
    assert not CHANGE_TENANT.is_of_tenants  # nobody raises quotas of its own
    assert not DELETE_TENANT.is_of_tenants
    assert all(each.is_of_tenants for each in (TENANT, USERS, CREATE_USER, ADD_RULE, REMOVE_RULE))
