"""The description for programs says of each resource what serves it: paths, parameters, answers."""

from __future__ import annotations

import asyncio
import json
from inspect import isawaitable
from typing import Any

import msgspec

from conformance.peer import Peer
from harness import Harness
from headrace.api.openapi import document
from headrace.api.operations import (
    CLIENTS,
    RESOURCES,
    RETAINED,
    RETAINED_MESSAGE,
    SESSION,
    SESSIONS,
    SUBSCRIPTIONS,
    of_retained,
    of_sessions,
)
from headrace.api.resource import Resource
from headrace.core.homes import Homes
from headrace.mqtt.properties import Properties
from headrace.services.paging import ByHome, Place, ShardRows
from headrace.services.retained_rows import RetainedRows, Walks
from headrace.services.session_rows import SessionRows
from headrace.services.subscription_rows import SubscriptionRows

CONTENT = document(RESOURCES)


def test_every_method_of_every_path_is_described() -> None:
    declared = {
        (path.replace(":path}", "}"), each.method.lower()) for each in RESOURCES for path in each.paths
    }
    described = {(path, method) for path, methods in CONTENT["paths"].items() for method in methods}
    assert described == declared
    for each in RESOURCES:
        operation = CONTENT["paths"][each.path.replace(":path}", "}")][each.method.lower()]
        parameters = {one["name"]: one for one in operation["parameters"]}
        assert {one.name for one in each.parameters} <= parameters.keys()
        assert str(int(each.status if each.answer is not None else 204)) in operation["responses"]
        assert each.role in operation["summary"]
        for one in each.parameters:
            named = parameters[one.name]
            assert (named["in"] == "path") == (one.name == each.name)
            assert named["required"] or not one.required


def test_a_list_says_that_the_query_may_name_one() -> None:
    operation = CONTENT["paths"]["/v1/clients"]["get"]
    [named] = [one for one in operation["parameters"] if one["name"] == "client"]
    assert (named["in"], named["required"]) == ("query", False)
    assert len(operation["responses"]["200"]["content"]["application/json"]["schema"]["oneOf"]) == 2
    [dropped] = [
        one for one in CONTENT["paths"]["/v1/sessions"]["delete"]["parameters"] if one["name"] == "client"
    ]
    assert (dropped["in"], dropped["required"]) == ("query", True)


def references(content: Any) -> set[str]:
    if isinstance(content, dict):
        found = {content["$ref"]} if isinstance(content.get("$ref"), str) else set()
        return found.union(*map(references, content.values()))
    return set().union(*map(references, content)) if isinstance(content, list) else set()


def test_what_it_refers_to_is_there_and_it_is_json() -> None:
    assert json.loads(json.dumps(CONTENT)) == CONTENT
    schemas = CONTENT["components"]["schemas"]
    assert {each.rpartition("/")[2] for each in references(CONTENT)} == set(schemas)


def test_what_is_answered_is_what_is_described() -> None:
    harness = Harness()
    Peer(harness, "c", clean=False, session_expiry_interval=99).subscribe("a/#")
    properties = Properties()
    properties.correlation_data, properties.user_properties = b"\x00\xff", [("n", "v")]
    Peer(harness, "p").publish("a/b", b"\xff", 1, True, 7, properties.encode(), 9)
    fold, homes = harness.broker.fold, Homes()
    shards = {0: SessionRows(fold, 0, 0, 7)}
    subscribed = ShardRows({0: SubscriptionRows(fold, 0, 0, 7)})
    retained = {0: RetainedRows(fold, harness.clock, Walks(7), 0, 0)}
    answers = of_sessions(ShardRows(shards), ByHome(shards, homes.of_client), subscribed)
    answers |= of_retained(ShardRows(retained), ByHome(retained, homes.of_topic))
    given = {"tenant": "default", "client": "c", "limit": 9, "from": Place()}

    async def content_of(resource: Resource) -> Any:
        values = {each.name: given.get(each.name, each.otherwise) for each in resource.parameters}
        values |= {"topic": "a/b"} if "topic" in values else {}
        found = answers[resource](values)
        return await found if isawaitable(found) else found

    for resource in (CLIENTS, SESSIONS, SESSION, SUBSCRIPTIONS, RETAINED, RETAINED_MESSAGE):
        content = asyncio.run(content_of(resource))
        told = msgspec.to_builtins(msgspec.convert(content, resource.answer, strict=True))
        assert told == content
        assert content.get("rows", True)
