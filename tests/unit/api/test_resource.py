"""A resource is declared once: what of a request it reads, and who serves it."""

from __future__ import annotations

import asyncio
import time
from contextlib import closing
from pathlib import Path
from typing import Any, cast
from urllib.parse import quote, unquote

import pytest
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from headrace.api import operations
from headrace.api.backlogs import of_backlogs
from headrace.api.configuration import of_configuration
from headrace.api.drain import of_drain
from headrace.api.events import of_events
from headrace.api.operations import (
    RESOURCES,
    of_laggards,
    of_queues,
    of_removals,
    of_retained,
    of_sessions,
    of_traces,
)
from headrace.api.posts import of_posts
from headrace.api.refusals import of_refusals
from headrace.api.resource import (
    Holder,
    Parameter,
    Resource,
    Values,
    flag,
    limit,
    named,
    paging,
    routes,
    served,
)
from headrace.api.tokens import READ, Grant, Tokens
from headrace.core.homes import Homes
from headrace.services.draining import Draining
from headrace.services.events import EventLog
from headrace.services.laggards import Laggards
from headrace.services.paging import ByHome, Place, ShardRows
from headrace.services.posts import Posts
from headrace.services.refusals import Refusals
from headrace.services.removals import Removals
from headrace.services.tracing import Tracing
from unit.api.test_configuration import Broker

THING = Resource(
    "GET",
    "/v1/things/{thing:path}",
    READ,
    Holder(),
    (named("tenant", "default"), Parameter("thing", str, required=True), flag("force"), *paging(10, 20)),
)

LIST = Resource("GET", "/v1/list", READ, Holder(), (named("tenant"),))


def request(target: str) -> Request:
    """A request as the server makes one of it."""
    raw, _, query = target.partition("?")
    scope = {"type": "http", "path": unquote(raw), "raw_path": raw.encode(), "query_string": query.encode()}
    return Request(scope | {"headers": [], "path_params": {"thing": unquote(raw), "id": unquote(raw)}})


def test_parameters_have_values_whether_or_not_they_are_given() -> None:
    usual = {"tenant": "default", "thing": "x", "force": False, "limit": 10, "from": Place()}
    assert THING.values(request("/v1/things/x")) == usual
    given = {"tenant": "t", "thing": "x", "force": True, "limit": 20, "from": Place(7, 3, 2)}
    assert THING.values(request("/v1/things?thing=x&tenant=t&force=true&limit=20&from=2.7.3")) == given


@pytest.mark.parametrize(
    "name", ["a/b", "a//b", "..", "a%2Fb", " ", "?thing=y", "#", "größe/日本", "behind", "a+b", "%"]
)
def test_a_name_is_decoded_once_in_the_path_and_in_the_query(name: str) -> None:
    encoded = quote(name, safe="")
    for target in (f"/v1/things/{encoded}", f"/v1/things?thing={encoded}"):
        assert THING.values(request(target))["thing"] == name


@pytest.mark.parametrize(
    ("query", "said"),
    [
        ("limit=0", "limit: 0 is not a number from 1 to 20"),
        ("limit=21", "limit: 21 is not a number from 1 to 20"),
        ("limit=", "limit:  is not a number from 1 to 20"),
        ("force=yes", "force: yes is neither true nor false"),
        ("from=7", "from: 7 is not the `next` of a page"),
        ("tenant=", "tenant: it is empty"),
        ("tenant=a&tenant=b", "tenant: it is given twice"),
        ("other=1", "other: there is no such parameter"),
        ("thing=y", "thing: there is no such parameter"),
        ("tenant=%FF", "the query is no UTF-8, percent-encoded"),
    ],
)
def test_what_is_wrong_is_said_with_its_name(query: str, said: str) -> None:
    with pytest.raises(ValueError) as found:
        THING.values(request(f"/v1/things/x?{query}"))
    assert str(found.value) == said


def test_a_resource_that_is_not_strict_reads_what_it_knows() -> None:
    lenient = Resource("GET", "/v1/x", READ, Holder(), (limit(1, 9),), is_strict=False)
    assert lenient.values(request("/v1/x?other=1&limit=2&limit=3")) == {"limit": 3}


async def never(_: Request) -> Response:
    raise AssertionError("nobody asks")


def served_by(found: list[Route]) -> set[tuple[str, str]]:
    return {(method, route.path) for route in found for method in (route.methods or ()) if method != "HEAD"}


def test_a_worker_answers_every_resource_that_is_declared(tmp_path: Path) -> None:
    """The supervisor serves RESOURCES; one that no worker answers would be 404 behind it, or without it."""
    with closing(asyncio.new_event_loop()) as loop:
        answers = {
            **of_traces(Tracing(list, loop)),
            **of_laggards(Laggards([])),
            **of_queues(ShardRows({})),
            **of_sessions(ShardRows({}), ByHome({}, Homes().of_client), ShardRows({})),
            **of_retained(ShardRows({}), ByHome({}, Homes().of_topic)),
            **of_removals(Removals([])),
            **of_posts(Posts([])),
            **of_refusals(Refusals(0)),
            **of_events(EventLog(tmp_path, 0)),
            **of_configuration(Broker()),
            **of_backlogs(ByHome({}, Homes().of_client)),
            **of_drain(Draining(cast(Any, None), time.monotonic)),
        }
    declared = {value for value in vars(operations).values() if isinstance(value, Resource)}
    assert set(RESOURCES) == declared == set(answers)
    by_supervisor = routes(RESOURCES, lambda _: never)
    assert served_by(served(Tokens(Path("none")), answers)) == served_by(by_supervisor)


@pytest.mark.parametrize(
    ("query", "status"),
    [
        ("tenant=acme", 200),
        ("tenant=blue", 403),
        ("", 403),
        ("tenant=acme&tenant=blue", 400),
        ("tenant=", 400),
    ],
)
def test_a_token_for_a_tenant_is_for_requests_that_name_it(query: str, status: int) -> None:
    asked: list[object] = []

    def answer(values: Values) -> object:
        asked.append(values["tenant"])
        return {}

    (route,) = served(Tokens(None, lambda _: Grant(READ, "acme", number="1")), {LIST: answer})
    scope = {"type": "http", "method": "GET", "path": "/v1/list", "raw_path": b"/v1/list", "path_params": {}}
    headers = [(b"authorization", b"Bearer hrt_x")]
    scope |= {"query_string": query.encode(), "headers": headers, "client": ("192.0.2.1", 5)}

    async def receive() -> dict[str, object]:
        return {"type": "http.request", "body": b"", "more_body": False}

    found = asyncio.run(route.endpoint(Request(scope, receive)))
    assert found.status_code == status
    assert asked == (["acme"] if status == 200 else [])
