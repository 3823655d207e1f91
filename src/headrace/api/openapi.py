"""The description of the admin HTTP's resources for programs (OpenAPI 3.1), made from what serves them: `/openapi.json`.

Whoever may reach the address may read it, as the metrics: there is nothing of the broker in it.
"""

from __future__ import annotations

from collections.abc import Sequence
from http import HTTPStatus
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from headrace import __version__
from headrace.api.handbook import page_of
from headrace.api.problem import PROBLEM_JSON
from headrace.api.resource import Parameter, Resource

PATH = "/openapi.json"
_REF = "#/components/schemas/{name}"


def description(resources: Sequence[Resource]) -> list[Route]:
    """Return the routes of the description of these resources, for programs and for people."""
    content = document(resources)

    async def endpoint(_: Request) -> Response:
        return JSONResponse(content)

    return [Route(PATH, endpoint), page_of(content)]


def document(resources: Sequence[Resource]) -> dict[str, Any]:
    """Return the description as JSON. A request that names in its query what a path of a list does not is the one's."""
    types = [each for resource in resources for each in (resource.answer, resource.body) if each is not None]
    schemas, parts = msgspec.json.schema_components(types, ref_template=_REF)
    by_type = dict(zip(map(id, types), schemas, strict=True))
    paths: dict[str, dict[str, Any]] = {}
    for resource in resources:
        answer, body = by_type.get(id(resource.answer)), by_type.get(id(resource.body))
        for path in resource.paths:
            shown = path.replace(":path}", "}")
            methods, method = paths.setdefault(shown, {}), resource.method.lower()
            if method in methods:
                _add_named(methods[method], resource, answer)
            else:
                methods[method] = _operation(resource, shown, answer, body)
    return {
        "openapi": "3.1.0",
        "info": {"title": "headrace", "version": __version__},
        "paths": paths,
        "components": {
            "schemas": parts,
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
        "security": [{"token": []}],
    }


def _operation(resource: Resource, path: str, answer: Any, body: Any) -> dict[str, Any]:
    said: dict[str, Any] = {"description": "done"}
    status = HTTPStatus.NO_CONTENT
    if answer is not None:
        status = resource.status
        said["content"] = {"application/json": {"schema": answer}}
    refused = {"description": "a problem document", "content": {PROBLEM_JSON: {}}}
    operation: dict[str, Any] = {
        "summary": f"{resource.summary} (role {resource.role})",
        "parameters": [_parameter(each, path) for each in resource.parameters],
        "responses": {str(int(status)): said, "default": refused},
    }
    if body is not None:
        operation["requestBody"] = {"required": True, "content": {"application/json": {"schema": body}}}
    return operation


def _parameter(parameter: Parameter, path: str) -> dict[str, Any]:
    in_path = f"{{{parameter.name}}}" in path
    return {
        "name": parameter.name,
        "in": "path" if in_path else "query",
        "required": in_path or parameter.required,
        "schema": dict(parameter.schema),
    }


def _add_named(operation: dict[str, Any], resource: Resource, answer: Any) -> None:
    """Add to the operation of a list what it answers about the one that the query names."""
    [named] = [each for each in resource.parameters if each.name == resource.name]
    operation["parameters"].append(_parameter(named, "") | {"required": False})
    operation["summary"] += f"; with `{named.name}`: {resource.summary}"
    content = operation["responses"][str(int(resource.status))]["content"]["application/json"]
    content["schema"] = {"oneOf": [content["schema"], answer]}
