"""Who may ask the admin HTTP for what: bearer tokens with a role, a line each, in a file that only the owner reads.

    TOKEN            may do everything, as `operate`
    read TOKEN       may look
    operate TOKEN    may also change something: move the position of a consumer

Empty lines and lines that begin with `#` count for nothing. The file is read at every request, so a change holds at once.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from hmac import compare_digest
from http import HTTPStatus
from pathlib import Path
from typing import Final

import msgspec
from starlette.concurrency import run_in_threadpool
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from headrace.api.problem import problem

READ: Final = "read"
OPERATE: Final = "operate"
BODY_BYTES_MAX: Final = 4096

Answer = Callable[[Request, bytes], Response | Awaitable[Response]]


class Tokens:
    """The tokens of one file; None: nobody is let in. Runs on threads."""

    def __init__(self, file: Path | None) -> None:
        self._file = file

    def refusal(self, given: str, role: str) -> Response | None:
        """Why whoever sent this Authorization header may not do what needs `role`; None if they may."""
        if self._file is None:
            return problem(
                HTTPStatus.FORBIDDEN,
                "this needs a token, and the key journal.token_file names no file of them",
            )
        try:
            lines = self._file.read_text(encoding="utf-8").splitlines()
        except (OSError, UnicodeDecodeError) as error:
            detail = f"journal.token_file cannot be read: {getattr(error, 'strerror', None) or error}"
            return problem(HTTPStatus.INTERNAL_SERVER_ERROR, detail)
        found = _roles(lines, given)
        if role in found or OPERATE in found:
            return None
        if found:
            return problem(
                HTTPStatus.FORBIDDEN, f"this token may {READ}, and what is asked for needs {OPERATE}"
            )
        detail = "a bearer token is needed" if not given else "this is not the token of journal.token_file"
        return problem(HTTPStatus.UNAUTHORIZED, detail, {"WWW-Authenticate": "Bearer"})


def _roles(lines: list[str], given: str) -> set[str]:
    """The roles of the token in this header. Looks at every line, so that the time tells nothing."""
    found = set()
    for line in lines:
        role, _, token = line.strip().rpartition(" ")
        ours = token != "" and not line.startswith("#") and role in ("", READ, OPERATE)
        if compare_digest(given.encode(), f"Bearer {token}".encode()) and ours:
            found.add(role or OPERATE)
    return found


def guarded(tokens: Tokens, role: str, answer: Answer) -> Callable[[Request], object]:
    """An endpoint for whoever has a token of that role, which is asked before a body is read."""

    async def endpoint(request: Request) -> Response:
        given = request.headers.get("authorization", "")
        refusal = await run_in_threadpool(tokens.refusal, given, role)
        if refusal is not None:
            return refusal
        body = b""
        try:
            async for part in request.stream():
                body += part
                if len(body) > BODY_BYTES_MAX:
                    detail = f"the body is longer than {BODY_BYTES_MAX} bytes"
                    return problem(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, detail)
        except ClientDisconnect:
            return Response()  # nobody is there to read it
        try:
            found = answer(request, body)
            return found if isinstance(found, Response) else await found
        except (ValueError, msgspec.MsgspecError) as error:
            return problem(HTTPStatus.BAD_REQUEST, str(error))

    return endpoint
