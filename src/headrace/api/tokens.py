"""Who may ask the admin HTTP for what: bearer tokens with a role, a line each, in a file that only the owner reads.

    TOKEN                             may do everything, as `operate`
    read TOKEN                        may look
    operate TOKEN                     may also change something: move the position of a consumer
    operate consumer=NAME TOKEN       may read the journal and move this consumer, or these: consumer=A,B; nothing else
    read tenant=NAME TOKEN            may read this tenant's messages in the journal, and nothing of anybody else
    operate tenant=A consumer=B TOKEN the same, and may move this consumer

Empty lines and lines that begin with `#` count for nothing. A line with any other word grants nothing, nor does one whose
token was forgotten: `read` alone is a role, no token; `headrace config check` names such lines. The file is read at every
request, so a change holds at once.

A broker with tenants knows the tokens of their directory too. One that is for a tenant lets in where a resource names
that tenant.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from hmac import compare_digest
from http import HTTPStatus
from pathlib import Path
from typing import Final

import msgspec
from starlette.concurrency import run_in_threadpool
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from headrace.api.problem import problem
from headrace.errors import HeadraceError

READ: Final = "read"
OPERATE: Final = "operate"
ADMINISTER: Final = "administer"  # tenants, with their users and rules: what `operate` of the file may, too
_LIMITS: Final = ("tenant", "consumer")
BODY_BYTES_MAX: Final = 4096
_DIGITS_MAX: Final = 18  # of a length that is looked at as a number
_LINGER_S: Final = 1.0
_LINGER_BYTES: Final = 8 << 20

_BEARER: Final = "Bearer "

Answer = Callable[[Request, bytes], Response | Awaitable[Response]]


@dataclass(frozen=True, slots=True)
class Grant:
    """What a token may: its role, and what that is limited to. `tenant` "": all; no `consumers`: any, or with a tenant
    none. `line`: of the file, the first one 1; of a token of the directory there is a `number` instead. `administers`:
    with the role `operate` it may change tenants."""

    role: str
    tenant: str = ""
    consumers: tuple[str, ...] = ()
    line: int = field(default=0, compare=False)
    number: str = field(default="", compare=False)
    administers: bool = field(default=True, compare=False)

    @property
    def whose(self) -> dict[str, object]:
        """Return what the log says of whose token it is."""
        return {"token": self.number} if self.number else {"token_line": self.line}

    @property
    def is_limited(self) -> bool:
        return self.tenant != "" or self.consumers != ()

    def names(self, consumer: str) -> bool:
        """Return whether the token may see, and with the role `operate` move, the position of this consumer."""
        return consumer in self.consumers if self.is_limited else True

    def allows(self, role: str) -> bool:
        if role == ADMINISTER:
            return self.role == OPERATE and self.administers
        return self.role in (role, OPERATE)


Elsewhere = Callable[
    [str], Grant | None
]  # what a token grants; raises HeadraceError where that cannot be told


class Tokens:
    """The tokens of one file, None: there is none; and those that somebody else knows. Runs on threads."""

    def __init__(self, file: Path | None, elsewhere: Elsewhere | None = None) -> None:
        self._file = file
        self._elsewhere = elsewhere

    def refusal(self, given: str, role: str) -> Response | None:
        """Return why whoever sent this Authorization header may not do what needs `role`, for all tenants; None if they
        may."""
        found = self.unlimited(given, role)
        return found if isinstance(found, Response) else None

    def unlimited(self, given: str, role: str, of_tenants: bool = False) -> Grant | Response:
        """Return what the token in this Authorization header may, which is what needs `role`, for all tenants; or why
        that is refused. `of_tenants`: what is asked for names a tenant, so a token of the directory may be for one."""
        found = self.grant(given, role)
        if isinstance(found, Grant) and found.is_limited and not (of_tenants and found.number):
            detail = "this token is for a tenant or a consumer of the journal, and for nothing else"
            return problem(HTTPStatus.FORBIDDEN, detail)
        return found

    def grant(self, given: str, role: str) -> Grant | Response:
        """Return what the token in this Authorization header may, which is at least `role`; or why that is refused."""
        if self._file is None and self._elsewhere is None:
            return problem(
                HTTPStatus.FORBIDDEN,
                "this needs a token, and the key journal.token_file names no file of them",
            )
        try:
            found = self._granted(given)
        except (OSError, UnicodeDecodeError) as error:
            detail = f"journal.token_file cannot be read: {getattr(error, 'strerror', None) or error}"
            return problem(HTTPStatus.INTERNAL_SERVER_ERROR, detail)
        except HeadraceError as error:
            return problem(HTTPStatus.SERVICE_UNAVAILABLE, str(error))
        if allowing := [grant for grant in found if grant.allows(role)]:
            return min(allowing, key=lambda grant: grant.is_limited)
        if found:
            return problem(
                HTTPStatus.FORBIDDEN, f"this token may {found[0].role}, and what is asked for needs {role}"
            )
        known = (
            "journal.token_file" if self._elsewhere is None else "journal.token_file, nor of the directory"
        )
        detail = f"this is not the token of {known}" if given else "a bearer token is needed"
        return problem(HTTPStatus.UNAUTHORIZED, detail, {"WWW-Authenticate": "Bearer"})

    def _granted(self, given: str) -> list[Grant]:
        """Return what the token in this header grants. Raises OSError, UnicodeDecodeError, HeadraceError."""
        lines = [] if self._file is None else self._file.read_text(encoding="utf-8").splitlines()
        found = _grants(lines, given)
        if not found and self._elsewhere is not None and given.startswith(_BEARER):
            other = self._elsewhere(given.removeprefix(_BEARER))
            found += [] if other is None else [other]
        return found


def _grants(lines: list[str], given: str) -> list[Grant]:
    """Return what the lines with the token in this header grant. Every line is looked at, so that the time tells
    nothing."""
    found = []
    for number, line in enumerate(lines, 1):
        *words, token = line.split() or [""]
        grant = _grant(words) if _is_token(token) and not _is_comment(line) else None
        if compare_digest(given.encode(), f"Bearer {token}".encode()) and grant is not None:
            found.append(replace(grant, line=number))
    return found


def lines_without_grant(text: str) -> list[int]:
    """Return the numbers of the lines that are neither empty nor a comment and still grant nothing, the first one 1."""
    found = []
    for number, line in enumerate(text.splitlines(), 1):
        *words, token = line.split() or [""]
        if token and not _is_comment(line) and not (_is_token(token) and _grant(words)):
            found.append(number)
    return found


def _is_comment(line: str) -> bool:
    return line.lstrip().startswith("#")


def _is_token(word: str) -> bool:
    """Return whether the last word of a line is a token, and no role or limit that was to stand before one, in capital
    letters or not."""
    small = word.lower()
    return small not in ("", READ, OPERATE) and not small.startswith(tuple(f"{key}=" for key in _LIMITS))


def _grant(words: list[str]) -> Grant | None:
    """Return what the words before a token say; None if one of them says nothing."""
    role, limits = OPERATE, dict[str, str]()
    for place, word in enumerate(words):
        key, is_limit, value = word.partition("=")
        if place == 0 and word in (READ, OPERATE):
            role = word
        elif is_limit and value and key in _LIMITS and key not in limits:
            limits[key] = value
        else:
            return None
    consumers = tuple(name for name in limits.get("consumer", "").split(",") if name)
    if "consumer" in limits and not consumers:
        return None
    return Grant(role, limits.get("tenant", ""), consumers)


def guarded(
    tokens: Tokens, role: str, answer: Answer, of_tenants: bool = False, bytes_max: int = BODY_BYTES_MAX
) -> Callable[[Request], Awaitable[Response]]:
    """Return an endpoint for whoever has a token of that role without limits, which is asked before a body is read; the
    answer finds it in `state.grant` of the request. `of_tenants`: or for a tenant, which the answer compares."""

    async def endpoint(request: Request) -> Response:
        given = request.headers.get("authorization", "")
        found = await run_in_threadpool(tokens.unlimited, given, role, of_tenants)
        if isinstance(found, Response):
            return found
        request.state.grant = found
        return await answered(request, answer, bytes_max)

    return endpoint


async def answered(request: Request, answer: Answer, bytes_max: int = BODY_BYTES_MAX) -> Response:
    """Return the answer to a request that was let in, whose body has at most so many bytes; what is wrong with it as a
    problem document."""
    body = b""
    told = request.headers.get("content-length", "")
    if told.isdecimal() and (len(told) > _DIGITS_MAX or int(told) > bytes_max):
        return _too_long(bytes_max)  # before it comes, which may take for ever
    try:
        async for part in request.stream():
            body += part
            if len(body) > bytes_max:
                return _too_long(bytes_max)
    except ClientDisconnect:
        return Response()  # nobody is there to read it
    try:
        found = answer(request, body)
        return found if isinstance(found, Response) else await found
    except (ValueError, msgspec.MsgspecError) as error:
        return problem(HTTPStatus.BAD_REQUEST, str(error))


def _too_long(bytes_max: int) -> Response:
    """Refuse a body, and the connection on which the rest of it may come."""
    detail = f"the body is longer than {bytes_max} bytes"
    refusal = problem(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, detail, {"connection": "close"})
    return _Lingering(refusal.body, refusal.status_code, dict(refusal.headers))


class _Lingering(Response):
    """An answer behind which a body is read on and thrown away for a while: a connection that is closed over what has
    come and was not read is reset, and who still sends would never see the answer."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        start = {"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers}
        await send(start)
        await send({"type": "http.response.body", "body": self.body, "more_body": True})
        left = _LINGER_BYTES
        with suppress(TimeoutError):
            async with asyncio.timeout(_LINGER_S):
                while left > 0:
                    message = await receive()
                    left -= len(message.get("body", b""))
                    if not message.get("more_body", False):
                        break
        await send({"type": "http.response.body", "body": b""})
