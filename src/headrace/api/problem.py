"""Refusals over HTTP as problem documents (RFC 9457)."""

from __future__ import annotations

from collections.abc import Mapping
from http import HTTPStatus

from starlette.responses import JSONResponse, Response

PROBLEM_JSON = "application/problem+json"


def content(status: HTTPStatus, detail: str) -> dict[str, object]:
    return {"type": "about:blank", "title": status.phrase, "status": int(status), "detail": detail}


def problem(
    status: HTTPStatus,
    detail: str,
    headers: dict[str, str] | None = None,
    more: Mapping[str, object] | None = None,
) -> Response:
    """Return a problem document; `detail` says what is wrong with this request and what would help, `more` are members
    beside the usual ones."""
    return JSONResponse(content(status, detail) | dict(more or {}), status, headers, media_type=PROBLEM_JSON)
