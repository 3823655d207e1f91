"""Refusals over HTTP as problem documents (RFC 9457)."""

from __future__ import annotations

from http import HTTPStatus

from starlette.responses import JSONResponse, Response

PROBLEM_JSON = "application/problem+json"


def problem(status: HTTPStatus, detail: str, headers: dict[str, str] | None = None) -> Response:
    """`detail` says what is wrong with this request and what would help."""
    content = {"type": "about:blank", "title": status.phrase, "status": int(status), "detail": detail}
    return JSONResponse(content, status, headers, media_type=PROBLEM_JSON)
