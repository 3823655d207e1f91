"""The description for programs says of each resource what serves it: paths, parameters, answers."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import msgspec

from conformance.peer import Peer
from harness import Harness
from headrace.api.openapi import document
from headrace.api.operations import CLIENTS, RESOURCES, SESSION, SESSIONS, of_sessions
from headrace.core.homes import Homes
from headrace.services.paging import Place, ShardRows
from headrace.services.session_rows import SessionRows, SessionsByHome

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
    shards = {0: SessionRows(harness.broker.fold, 0, 0, 7)}
    answers = of_sessions(ShardRows(shards), SessionsByHome(shards, Homes()))
    asked = {"tenant": "default", "client": "c", "pattern": "", "limit": 9, "from": Place()}
    for resource in (CLIENTS, SESSIONS, SESSION):
        values = asked | ({"state": ""} if resource is SESSIONS else {})
        found: Any = answers[resource](values)
        content = asyncio.run(found) if asyncio.iscoroutine(found) else found
        told = msgspec.to_builtins(msgspec.convert(content, resource.answer, strict=True))
        assert told == content
