"""What a resource of the admin HTTP is: declared once, and served from that by workers and by who answers for them.

A `Resource` has method, path, role, parameters, and how the answers of several workers become the one of their node. A
worker serves it with a function of the values of its parameters (`served`); the supervisor asks the workers as `merge`
says (`workers.overview`). What is wrong with a request is said by a worker, once it has looked at the token.

Whatever names something is percent-encoded once: it is decoded once here, and no proxy between makes one slash of two in
a query, or ends a part of the path at %2F. So what a `{NAME:path}` names may stand in the query instead, as `NAME`.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from http import HTTPStatus
from inspect import isawaitable
from typing import Any, Final
from urllib.parse import parse_qsl, unquote_to_bytes

import msgspec
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from headrace.api.problem import problem
from headrace.api.tokens import BODY_BYTES_MAX, Grant, Tokens, guarded
from headrace.core.homes import Homes
from headrace.errors import BrokersOwn, InUse, NotReadableNow, NotTaken, NotThere, ShardAway
from headrace.mqtt import reason_codes as rc
from headrace.services.paging import Place, is_number
from headrace.services.removals import NotDurable

# Of parameters, by name; of the body as `body`; who asks as `who` and `came_from`; the tag of If-Match as `if_match`.
Values = Mapping[str, Any]
Content = object  # of an answer, as JSON; None: there is nothing to say
Answer = Callable[[Values], Content | Awaitable[Content]]
# Writes a change down: what was done, of which tenant, by whom and from where, and more about it.
Tell = Callable[[str, str, Mapping[str, str], Mapping[str, object]], Awaitable[None]]
Endpoint = Callable[[Request], Awaitable[Response]]
Fields = Mapping[str, Callable[[Sequence[Any]], object]]  # how those of several answers become one, by name
Refusals = dict[type[Exception], HTTPStatus]
_REFUSALS: Final[Refusals] = {
    NotThere: HTTPStatus.NOT_FOUND,
    BrokersOwn: HTTPStatus.CONFLICT,
    InUse: HTTPStatus.CONFLICT,
    NotDurable: HTTPStatus.SERVICE_UNAVAILABLE,
    ShardAway: HTTPStatus.SERVICE_UNAVAILABLE,
    NotReadableNow: HTTPStatus.SERVICE_UNAVAILABLE,
}
_NOT_TAKEN: Final[Mapping[int, HTTPStatus]] = {
    rc.NOT_AUTHORIZED: HTTPStatus.FORBIDDEN,
    rc.QUOTA_EXCEEDED: HTTPStatus.INSUFFICIENT_STORAGE,
    rc.SERVER_BUSY: HTTPStatus.SERVICE_UNAVAILABLE,
}  # any other: the request is wrong
_RAW: Final = ":path}"
_NOT_TOLD: Final = (
    "body",
    "who",
    "came_from",
    "if_match",
    "token_tenant",
)  # of what was asked: the body may have a password
_TAG: Final = re.compile(r'[ \t]*"([^"]*)"[ \t]*')
_FORWARDED: Final = re.compile(r'for="([0-9A-Za-z.:\[\]%]+)"')
_LOG: Final = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Parameter:
    """A parameter of the query or of the path. `read` makes a value of its text; it raises ValueError. `otherwise`: the
    value where it is not given; one that is `required` is read as an empty text then. `schema`: its JSON Schema."""

    name: str
    read: Callable[[str], object]
    otherwise: object = None
    required: bool = False
    schema: Mapping[str, object] = field(default_factory=lambda: {"type": "string"})

    def value(self, text: str | None) -> object:
        """Return the value of a text, None if there is none. Raises ValueError, with the name of the parameter."""
        if text is None and not self.required:
            return self.otherwise
        try:
            return self.read(text or "")
        except ValueError as error:
            raise ValueError(f"{self.name}: {error}") from None


def named(name: str, otherwise: str = "") -> Parameter:
    """Return a parameter that is any text but the empty one."""

    def read(text: str) -> str:
        if not text:
            raise ValueError("it is empty")
        return text

    return Parameter(name, read, otherwise)


def flag(name: str) -> Parameter:
    """Return a parameter that is `true` or `false`; false without it."""

    def read(text: str) -> bool:
        if text not in ("true", "false"):
            raise ValueError(f"{text} is neither true nor false")
        return text == "true"

    return Parameter(name, read, False, schema={"type": "boolean", "default": False})


def one_of(name: str, choices: Sequence[str]) -> Parameter:
    """Return a parameter that is one of these words; "" without it."""

    def read(text: str) -> str:
        if text not in choices:
            raise ValueError(f"{text} is none of {', '.join(choices)}")
        return text

    return Parameter(name, read, "", schema={"type": "string", "enum": list(choices)})


def paging(usual: int, most: int) -> tuple[Parameter, Parameter]:
    """Return the parameters of a page: how many rows, and where it begins."""
    return limit(usual, most), Parameter("from", Place.parse, Place())


def limit(usual: int, most: int) -> Parameter:
    """Return the parameter that says how many rows an answer has at most."""

    def read(text: str) -> int:
        if not is_number(text) or not 1 <= int(text) <= most:
            raise ValueError(f"{text} is not a number from 1 to {most}")
        return int(text)

    schema = {"type": "integer", "minimum": 1, "maximum": most, "default": usual}
    return Parameter("limit", read, usual, schema=schema)


class Merge:
    """Says how the answers of workers become the one of their node."""


@dataclass(frozen=True, slots=True)
class Ranking(Merge):
    """Every worker answers, and the rows that come first in `order`, as many as `limit` says, are the answer. `place`
    names what the last one of a page has that its `next` is; "": there is one page alone."""

    rows: str
    order: tuple[str, ...]
    place: str = ""


@dataclass(frozen=True, slots=True)
class Pages(Merge):
    """The owner of the shard in `from` answers `rows` and `next`; the page behind its last one is of the next shard. If
    it `goes_on`, the page of an owner that does not answer is empty, with its shard in `unanswered`."""

    goes_on: bool = False


@dataclass(frozen=True, slots=True)
class AtHome(Merge):
    """The owner of the shard answers where something is at home, which the values name."""

    shard: Callable[[Homes, Values], int]


@dataclass(frozen=True, slots=True)
class Anyone(Merge):
    """One worker answers, whichever serves."""


@dataclass(frozen=True, slots=True)
class Holder(Merge):
    """Every worker is asked, one of them has it, and its answer counts."""


@dataclass(frozen=True, slots=True)
class OfNode(Merge):
    """The supervisor does its part, once a worker that may be asked has said that whoever asks may, and then every worker
    does. What a GET asks for the supervisor alone knows."""


@dataclass(frozen=True, slots=True)
class Begun(Merge):
    """Every worker begins it or none does: what the others have begun is ended. Its id has the ids of all in it."""


@dataclass(frozen=True, slots=True)
class Parts(Merge):
    """Every worker is asked for the part that it has of what the id names, `gone` if nothing is called so; `fields` says
    how they are put together."""

    gone: str
    fields: Fields


@dataclass(frozen=True, slots=True)
class Everyone(Merge):
    """Every worker is asked, and `fields` says how what they answer is put together. Those that do not answer are in
    `unanswered`, as long as one does."""

    fields: Fields


@dataclass(frozen=True, eq=False)
class Resource:
    """One method of one path. `status` is that of an answer that says something; what was changed is told in the log and
    the events as `event`, with what is answered, whose token it was, and from where. `for_all`: a token for one tenant
    does not do. Not `is_strict`: a parameter that there is none of counts for nothing. `refusals`: the status of errors
    that it alone raises. `summary` and `answer`, the type of what is answered, are for its description (`openapi`)."""

    method: str
    path: str
    role: str
    merge: Merge
    parameters: tuple[Parameter, ...] = ()
    body: Any = None  # the type of what is to be in it
    body_bytes_max: int = BODY_BYTES_MAX
    status: HTTPStatus = HTTPStatus.OK
    is_strict: bool = True
    event: str = ""
    for_all: bool = False
    refusals: Refusals = field(default_factory=dict)
    summary: str = ""
    answer: Any = None

    @property
    def name(self) -> str:
        """Return the name of the parameter in its path, "" if there is none."""
        return self.path.removeprefix(self._prefix).strip("{}").partition(":")[0]

    @property
    def is_of_tenants(self) -> bool:
        """Return whether it names the tenant that it is about, and a token for that one does."""
        return not self.for_all and any(each.name == "tenant" for each in self.parameters)

    @property
    def _prefix(self) -> str:
        return self.path.partition("{")[0]

    @property
    def paths(self) -> list[str]:
        """Return its path, and the one where what it names is in the query."""
        return [self._prefix.rstrip("/"), self.path] if self.path.endswith(_RAW) else [self.path]

    def values(self, request: Request) -> dict[str, Any]:
        """Return the values of a request's parameters. Raises ValueError, with the name of the parameter."""
        in_path = self._in_path(request)
        if self.is_strict:
            _check_names(request, {each.name for each in self.parameters} - {in_path})
        found = {}
        for each in self.parameters:
            given = self._of_path(request, in_path) if each.name == in_path else None
            found[each.name] = each.value(request.query_params.get(each.name) if given is None else given)
        return found

    def decoded(self, body: bytes) -> Any:
        """Return what is in a body. Raises MsgspecError."""
        return msgspec.json.decode(body, type=self.body)

    def _in_path(self, request: Request) -> str:
        """Return the name of what the path of a request names, "" if it is in the query."""
        is_raw = self.path.endswith(_RAW)
        is_there = not is_raw or request.scope["raw_path"].startswith(self._prefix.encode())
        return self.name if is_there else ""

    def _of_path(self, request: Request, name: str) -> str:
        """Return what the path names; of the path as it came where that may hold slashes. Raises ValueError."""
        if not self.path.endswith(_RAW):
            return str(request.path_params[name])
        raw: bytes = request.scope["raw_path"].removeprefix(self._prefix.encode())
        try:
            return unquote_to_bytes(raw).decode("utf-8")
        except UnicodeDecodeError:
            raise ValueError(f"{name}: the path is no UTF-8, percent-encoded") from None


def _check_names(request: Request, known: set[str]) -> None:
    """Raise ValueError where a parameter has a name that there is none of, or comes twice, or the query is no UTF-8: what
    is removed is not guessed."""
    try:
        names = [name for name, _ in parse_qsl(request.url.query, keep_blank_values=True, errors="strict")]
    except UnicodeDecodeError:
        raise ValueError("the query is no UTF-8, percent-encoded") from None
    unknown = set(names) - known
    if unknown:
        raise ValueError(f"{min(unknown)}: there is no such parameter")
    for name in known:
        if names.count(name) > 1:
            raise ValueError(f"{name}: it is given twice")


def routes(resources: Sequence[Resource], endpoint: Callable[[Resource], Endpoint]) -> list[Route]:
    """Return the routes of these resources, each with what answers it. Where one that the query names has the path of a
    list, a request with that name in its query is for the one."""
    found: dict[tuple[str, str], dict[Resource, Endpoint]] = {}
    for resource in resources:
        answer = endpoint(resource)
        for path in resource.paths:
            found.setdefault((path, resource.method), {})[resource] = answer
    return [Route(path, _choice(of), methods=[method]) for (path, method), of in found.items()]


def _choice(endpoints: Mapping[Resource, Endpoint]) -> Endpoint:
    """Return what answers requests for one of these resources: the first one unless the query names another."""
    first, *others = endpoints

    async def endpoint(request: Request) -> Response:
        named = (each for each in others if each.name in request.query_params)
        return await endpoints[next(named, first)](request)

    return endpoint


async def nobody(_event: str, _tenant: str, _by: Mapping[str, str], _detail: Mapping[str, object]) -> None:
    """Write nothing down."""


def served(tokens: Tokens, answers: Mapping[Resource, Answer], tell: Tell = nobody) -> list[Route]:
    """Return the routes of a worker: whoever has a token of a resource's role is answered by its function, what that
    raises as a problem document. `tell` is told of each change before it is answered."""

    def endpoint(resource: Resource) -> Endpoint:
        async def answer(request: Request, body: bytes) -> Response:
            return await _answer(resource, answers[resource], request, body, tell)

        return guarded(tokens, resource.role, answer, resource.is_of_tenants, resource.body_bytes_max)

    return routes(list(answers), endpoint)


async def _answer(resource: Resource, answer: Answer, request: Request, body: bytes, tell: Tell) -> Response:
    values, grant = resource.values(request), request.state.grant
    if grant.tenant and values.get("tenant") != grant.tenant:
        return problem(HTTPStatus.FORBIDDEN, f"this token is for one tenant: tenant={grant.tenant}")
    values["came_from"], values["if_match"] = _asker(request), if_match(request)
    values["token_tenant"] = grant.tenant
    values["who"] = f"token {grant.number}" if grant.number else f"token file, line {grant.line}"
    if resource.body is not None:
        values["body"] = resource.decoded(body)
    try:
        found = answer(values)
        content = await found if isawaitable(found) else found
    except NotTaken as error:
        status = _NOT_TAKEN.get(error.reason_code, HTTPStatus.BAD_REQUEST)
        return problem(status, str(error), more={"reason_code": error.reason_code})
    except (*_REFUSALS, *resource.refusals) as error:
        return problem((_REFUSALS | resource.refusals)[type(error)], str(error))
    if resource.event:
        await _tell(resource.event, values, content, grant, tell)
    if content is None:
        return Response(status_code=HTTPStatus.NO_CONTENT)
    return JSONResponse(content, resource.status, _tagged(content))


def _tagged(content: Content) -> dict[str, str] | None:
    """Return the header that names the revision of what is answered, if that has one (RFC 9110, 8.8.3)."""
    tag = content.get("revision") if isinstance(content, dict) else None
    return None if tag is None else {"ETag": f'"{tag}"'}


def if_match(request: Request) -> str | None:
    """Return the entity tag with which alone a request wants something changed; None if it does not say, or `*`, which
    is any. Raises ValueError for several, and for a weak one."""
    given = request.headers.get("if-match", "*").strip()
    if given == "*":
        return None
    found = _TAG.fullmatch(given)
    if found is None:
        raise ValueError('If-Match: it is one entity tag as ETag gives it, as "7", or *')
    return found[1]


async def _tell(event: str, values: Values, content: Content, grant: Grant, tell: Tell) -> None:
    """Tell the log, and the events, of a change: with what was answered, or with what was asked where that is nothing."""
    asked = {name: value for name, value in values.items() if name not in _NOT_TOLD and value}
    about = content if isinstance(content, dict) else asked
    by = {"role": grant.role, **grant.whose, "by": values["came_from"]}
    _LOG.warning(event, extra={"fields": about | by})
    tenant = values.get("tenant") or (about.get("name", "") if event.startswith("tenant ") else "")
    whose = {"who": values["who"], "role": grant.role, "came_from": values["came_from"]}
    await tell(event, tenant, whose, about)


def forwarded(request: Request) -> str:
    """Return a Forwarded header (RFC 7239) that tells a worker from where we are asked."""
    return f'for="{_address(request)}"'


def _address(request: Request) -> str:
    client = request.client
    host = "unknown" if client is None else f"[{client.host}]" if ":" in client.host else client.host
    return host if client is None else f"{host}:{client.port}"


def _asker(request: Request) -> str:
    """Return from which address a request comes. One over a Unix socket has no address: it is the supervisor's, which
    says; what others say of themselves counts for nothing."""
    said = _FORWARDED.fullmatch(request.headers.get("forwarded", ""))
    return said[1] if request.client is None and said is not None else _address(request)
