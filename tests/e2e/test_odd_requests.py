"""Odd requests to the admin HTTP, made of what `/openapi.json` describes, without a token and with one of each role: each
is answered on the connection that it came on, by what the description says or by a problem document, and is no defect."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from e2e.administered import STARTED_S, Asked, Hub
from headrace.api.bans import OF_BANS
from headrace.api.documents import OF_DOCUMENTS
from headrace.api.operations import RESOURCES
from headrace.api.resource import Resource
from headrace.api.tenants import OF_DIRECTORY

pytestmark = [pytest.mark.slow, pytest.mark.skipif("__import__('broker_process').UNDER_AUDIT != 'headrace'")]

EXAMPLES = 250
SERVICE_UNAVAILABLE = 503
INSUFFICIENT_STORAGE = 507
# What nobody else may take away from under the test, and what would do something elsewhere.
KEPT = {("DELETE", "/v1/tenants/{tenant}"), ("PATCH", "/v1/tenants/{tenant}")}


@pytest.fixture(scope="module", params=[1, 2], ids=["one process", "two workers"])
def hub(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hub]:
    made = Hub(tmp_path_factory.mktemp("hub"), request.param)
    made.broker.start(STARTED_S)
    try:
        yield made
    finally:
        made.end()


NUMBERS = [
    0,
    1,
    -1,
    99,
    2**31,
    2**32,
    2**53 + 1,
    2**62,
    2**63 - 1,
    2**63,
    2**64 - 1,
    2**64,
    2**70,
    10**19,
    10**40,
]
ODD_TEXTS = [
    "", " ", ".", "..", "/", "a/b", "a//b", "%", "%2F", "%00", "\x00", "#", "+", "a/#/b", "$share/g/a", "$SYS/x",
    "\u202e", "gr\u00f6\u00dfe", "\ufeff", "\U0001f600", "[", "[!", "*" * 30, "null", "true", "1e9", "inf", "NaN",
    "0x10", "\u0661", "a" * 300, "'; DROP TABLE users", "acme", "blue", "default", "gw", "behind", "client", "0.0.0",
    "1.2.3.4",
]  # fmt: skip
texts = st.one_of(st.sampled_from(ODD_TEXTS), st.text(max_size=12), st.sampled_from(NUMBERS).map(str))
places = st.lists(st.sampled_from([*NUMBERS, "", "x", "\u0661"]).map(str), min_size=1, max_size=4).map(
    ".".join
)
RAW = ["%ff", "%ed%a0%80", "%", "%zz", "a%00b", "+", ";"]


def encoded(text: str) -> str:
    return quote(text.encode("utf-8", "surrogatepass"), safe="")


def value_of(name: str, schema: dict[str, Any]) -> st.SearchStrategy[str]:
    """Return texts for a parameter, percent-encoded: such as its schema allows, and others."""
    usual: list[st.SearchStrategy[str]] = [texts]
    if name == "from":
        usual = [places]
    elif "enum" in schema:
        usual = [st.sampled_from(schema["enum"]), texts]
    elif schema.get("type") == "integer":
        usual = [st.sampled_from(NUMBERS).map(str), st.integers(1, 50).map(str)]
    elif schema.get("type") == "boolean":
        usual = [st.sampled_from(["true", "false", "1", ""])]
    elif name == "tenant":
        usual = [st.just("acme"), st.sampled_from(["blue", "default", "none", "ACME", "-"]), texts]
    return st.one_of(*(each.map(encoded) for each in usual), st.sampled_from(RAW))


ANYTHING = st.recursive(
    st.none() | st.booleans() | st.sampled_from(NUMBERS) | st.floats(allow_nan=False) | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=6,
)


def content_of(schema: dict[str, Any], parts: dict[str, Any]) -> st.SearchStrategy[Any]:
    """Return JSON that a schema allows, with odd numbers and texts in it, or which it nearly allows."""
    if "$ref" in schema:
        return content_of(parts[schema["$ref"].rpartition("/")[2]], parts)
    if "anyOf" in schema:
        return st.one_of(*(content_of(each, parts) for each in schema["anyOf"]), ANYTHING)
    if "enum" in schema:
        return st.sampled_from(schema["enum"])
    match schema.get("type"):
        case "object" if "properties" in schema:
            needed = set(schema.get("required", ()))
            fields = {name: content_of(each, parts) for name, each in schema["properties"].items()}
            must = {name: each for name, each in fields.items() if name in needed}
            may = {name: each for name, each in fields.items() if name not in needed}
            return st.fixed_dictionaries(must, optional=may)
        case "object":
            inner = schema.get("additionalProperties")
            names = st.sampled_from(["connections", "backlog_bytes", "over_rate", "maximum_qos"]) | texts
            return st.dictionaries(
                names, content_of(inner, parts) if isinstance(inner, dict) else ANYTHING, max_size=3
            )
        case "array":
            inner = schema.get("items")
            return st.lists(content_of(inner, parts) if isinstance(inner, dict) else ANYTHING, max_size=3)
        case "integer" | "number":
            return st.sampled_from(NUMBERS) | st.integers(0, 9)
        case "boolean":
            return st.booleans()
        case "string":
            return st.sampled_from(["publish", "allow", "client", "a/b", "eA=="]) | texts
        case _:
            return ANYTHING


def bodies(operation: dict[str, Any], parts: dict[str, Any]) -> st.SearchStrategy[bytes]:
    schema = operation.get("requestBody", {}).get("content", {}).get("application/json", {}).get("schema")
    odd = st.sampled_from(
        [b"", b"{", b"[]", b"null", b'{"a":1e999}', b"\xff", b'"\\ud800"', b"[" * 2000, b"9" * 3000]
    )
    if schema is None:
        return st.just(b"") | odd
    fitting = content_of(schema, parts).map(lambda one: json.dumps(one).encode())
    return st.one_of(fitting, fitting, fitting, odd, ANYTHING.map(lambda one: json.dumps(one).encode()))


def requests(description: dict[str, Any]) -> st.SearchStrategy[tuple[str, str, str, bytes]]:
    """Return requests: method, path of the description, target, body."""
    parts = description["components"]["schemas"]

    @st.composite
    def one(draw: st.DrawFn) -> tuple[str, str, str, bytes]:
        path = draw(st.sampled_from(sorted(description["paths"])))
        method = draw(st.sampled_from(sorted(description["paths"][path])))
        operation = description["paths"][path][method]
        target, query = path, []
        for each in operation["parameters"]:
            values = value_of(each["name"], each["schema"])
            if each["in"] == "path":
                text = draw(values)
                if (method.upper(), path) in KEPT and text in ("acme", "blue"):
                    text = "none"
                target = target.replace(f"{{{each['name']}}}", text)
            elif draw(st.integers(0, 3)) < (3 if each["required"] or each["name"] == "tenant" else 2):
                query += [f"{each['name']}={draw(values)}"] * draw(st.sampled_from([1, 1, 1, 1, 2]))
        if draw(st.integers(0, 9)) == 0:
            query.append(f"{draw(texts.map(encoded))}={draw(texts.map(encoded))}")
        whole = target + ("?" + "&".join(query) if query else "")
        return method.upper(), path, whole, draw(bodies(operation, parts))

    return one()


def resources_of(method: str, path: str) -> list[Resource]:
    """Return what may answer here: the list, or the one that a query names."""
    return [
        each
        for each in (*RESOURCES, *OF_DIRECTORY, *OF_DOCUMENTS, *OF_BANS)
        if each.method == method and path in [of.replace(":path}", "}") for of in each.paths]
    ]


def check(asked: Asked, method: str, path: str) -> None:
    """Check that an answer is one of those that are described."""
    found = resources_of(method, path)
    if asked.status < 400:
        fitting = [each for each in found if asked.status in (each.status, 204)]
        assert fitting
        if asked.status == 204:
            assert not asked.body
            return
        assert asked.kind == "application/json"
        types = tuple(each.answer for each in fitting)
        for each in types:
            try:
                msgspec.json.decode(asked.body, type=each)
            except msgspec.ValidationError:
                if each is types[-1]:
                    raise
            else:
                return
    content = json.loads(asked.body)
    assert asked.kind == "application/problem+json", asked
    assert content["status"] == asked.status
    assert isinstance(content["detail"], str), content
    assert content["detail"], content
    if asked.status >= 500:
        assert asked.status in (SERVICE_UNAVAILABLE, INSUFFICIENT_STORAGE), asked


def test_odd_requests_get_what_is_described_or_a_problem(hub: Hub) -> None:
    description = json.loads(hub.ask("GET", "/openapi.json", "").body)
    statuses: dict[int, int] = {}

    @settings(
        max_examples=EXAMPLES,
        deadline=None,
        database=None,
        suppress_health_check=list(HealthCheck),
        print_blob=True,
    )
    @given(requests(description), st.sampled_from(sorted(hub.tokens)))
    def asked(request: tuple[str, str, str, bytes], token: str) -> None:
        method, path, target, body = request
        answer = hub.ask(method, target, token, body)
        statuses[answer.status] = statuses.get(answer.status, 0) + 1
        is_of_path = target.partition("?")[0].count("/") == path.count("/")  # else it is another one's
        if is_of_path and answer.status not in (404, 405):
            check(answer, method, path)

    asked()
    assert {200, 400, 401, 403, 404} <= set(statuses), statuses
    assert hub.broker.running
    assert "Traceback" not in hub.broker.stderr


@pytest.mark.parametrize("path", ["clients", "sessions", "subscriptions", "retained", "queues", "clusters"])
def test_a_place_that_no_page_has_is_refused(hub: Hub, path: str) -> None:
    for number in (2**62, 2**63, 2**64 - 1, 2**64, 2**70, 10**20 - 1, -7):
        for place in (f"{number}.-1", f"0.{number}", f"{number}.0.-1", f"0.0.{number}"):
            answer = hub.ask("GET", f"/v1/{path}?from={place}", "does")
            assert answer.status == 400, (path, place, answer)
            assert b"`next` of a page" in answer.body


def test_a_serial_that_no_queue_has_is_refused(hub: Hub) -> None:
    for number in (2**63, 2**70):
        answer = hub.ask("GET", f"/v1/backlogs/none?from={number}.-1", "does")
        assert (answer.status, answer.kind) == (400, "application/problem+json")
