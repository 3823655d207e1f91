"""The description of the admin HTTP for people: `/docs`, one page of HTML without scripts, made from `openapi.document`.

It needs nothing from the internet, loads nothing, and has nothing of the broker in it: whoever may reach the address may
read it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from html import escape
from typing import Any, Final

from starlette.requests import Request
from starlette.responses import HTMLResponse, Response
from starlette.routing import Route

PATH: Final = "/docs"
_HEADERS: Final = {
    "Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
}
_STYLE: Final = (
    "body{font:16px/1.5 system-ui,sans-serif;max-width:60em;margin:2em auto;padding:0 1em;color:#222;background:#fff}"
    "code{font:14px ui-monospace,monospace}h2{margin:2em 0 .2em;border-top:1px solid #ccc;padding-top:1em}"
    "table{border-collapse:collapse;margin:.5em 0}td,th{text-align:left;vertical-align:top;padding:.2em 1em .2em 0}"
    "@media(prefers-color-scheme:dark){body{color:#ddd;background:#1b1b1b}}"
)
_CODE: Final = re.compile("`([^`]+)`")
_INTRODUCTION: Final = (
    "Each needs a token of <code>journal.token_file</code> with the role named, as <code>Authorization: Bearer TOKEN"
    "</code>. Names in a path are percent-encoded once. What goes wrong is a problem document (RFC 9457). For programs: "
    '<a href="openapi.json">openapi.json</a>.'
)


def page_of(description: Mapping[str, Any]) -> Route:
    """Return the route of the page about what an OpenAPI document describes."""
    content = page(description)

    async def endpoint(_: Request) -> Response:
        return HTMLResponse(content, headers=_HEADERS)

    return Route(PATH, endpoint)


def page(description: Mapping[str, Any]) -> str:
    """Return the page, in UTF-8."""
    schemas = description["components"]["schemas"]
    parts = [
        "<!doctype html><html lang=en><meta charset=utf-8><meta name=viewport content='width=device-width'>",
        f"<title>headrace admin HTTP</title><style>{_STYLE}</style>",
        f"<h1>headrace {escape(description['info']['version'])}: admin HTTP</h1><p>{_INTRODUCTION}</p>",
    ]
    for path, methods in description["paths"].items():
        for method, operation in methods.items():
            parts += _operation(method, path, operation, schemas)
    return "\n".join(parts)


def _operation(
    method: str, path: str, operation: Mapping[str, Any], schemas: Mapping[str, Any]
) -> Iterator[str]:
    yield f"<h2><code>{method.upper()} {escape(path)}</code></h2><p>{_said(operation['summary'])}</p>"
    if operation["parameters"]:
        yield "<table><tr><th>parameter<th>in<th>is"
        for each in operation["parameters"]:
            needed = ", needed" if each["required"] else ""
            kind = escape(_kind(each["schema"], schemas))
            yield f"<tr><td><code>{escape(each['name'])}</code><td>{each['in']}<td>{kind}{needed}"
        yield "</table>"
    body = operation.get("requestBody")
    if body is not None:
        yield from _content("body", body["content"], schemas)
    for status, answer in operation["responses"].items():
        if "application/json" in answer.get("content", {}):
            yield from _content(status, answer["content"], schemas)
        elif status != "default":
            yield f"<p>{status}: {escape(answer['description'])}</p>"


def _content(name: str, content: Mapping[str, Any], schemas: Mapping[str, Any]) -> Iterator[str]:
    """Yield the fields of a body, and of the rows that are in it."""
    schema = content["application/json"]["schema"]
    for one in schema.get("oneOf", [schema]):
        yield from _fields(name, one, schemas)


def _fields(name: str, schema: Mapping[str, Any], schemas: Mapping[str, Any]) -> Iterator[str]:
    found = _resolved(schema, schemas)
    about = f": {_said(found['description'])}" if "description" in found else ""
    yield f"<p>{escape(name)}{about}</p><table><tr><th>field<th>is"
    rows: list[tuple[str, Mapping[str, Any]]] = []
    for field, kind in found.get("properties", {}).items():
        yield f"<tr><td><code>{escape(field)}</code><td>{escape(_kind(kind, schemas))}"
        inner = (kind, kind.get("items"), kind.get("additionalProperties"))
        rows += [(f"in {field}", each) for each in inner if isinstance(each, dict) and "$ref" in each]
    yield "</table>"
    for each, kind in rows:
        yield from _fields(each, kind, schemas)


def _said(text: str) -> str:
    """Return a sentence as HTML: what stands between backticks is code."""
    return _CODE.sub(r"<code>\1</code>", escape(text))


def _resolved(schema: Mapping[str, Any], schemas: Mapping[str, Any]) -> Mapping[str, Any]:
    reference = schema.get("$ref")
    found: Mapping[str, Any] = schema if reference is None else schemas[reference.rpartition("/")[2]]
    return found


def _kind(schema: Mapping[str, Any], schemas: Mapping[str, Any]) -> str:
    """Return in words what a value is."""
    if "anyOf" in schema:
        return " or ".join(_kind(each, schemas) for each in schema["anyOf"])
    if "enum" in schema:
        return " or ".join(map(str, schema["enum"]))
    found = _resolved(schema, schemas)
    said = str(found.get("type", "any"))
    if said == "array" and found.get("items"):
        said = f"list of {_kind(found['items'], schemas)}"
    bounds = [f"{word} {found[key]}" for key, word in _BOUNDS.items() if key in found]
    return " ".join([said, *bounds])


_BOUNDS: Final = {"minimum": "from", "exclusiveMinimum": "above", "maximum": "to", "default": "without it:"}
