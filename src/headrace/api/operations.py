"""What the admin HTTP lets who operates a broker do and see: traces, the clients that are behind, topic queues, the end
of a session.

    POST   /v1/traces      {"kind": "client" | "topic" | "address", "pattern", "seconds"}: begins one, 201 {"id"}
    GET    /v1/traces/ID   {"rows", "left_out", "over"}: what came since the last time
    DELETE /v1/traces/ID   ends it; who does not ask for five seconds has, too

    GET    /v1/clients/behind?limit=N   {"clients"}: the worst of those whose socket is full or for whom something waits

    GET    /v1/clusters?tenant=T&topic=FILTER&cluster=C&limit=N&from=PLACE   {"rows", "next"}: topic queues and consumer
                                                                             clusters; `from` is `next` of the page before
    GET    /v1/queues?tenant=T&topic=FILTER&limit=N&from=PLACE               the same, a row for each queue
    DELETE /v1/clusters?tenant=T&topic=TOPIC&cluster=C                       removes a cluster that nobody reads
    DELETE /v1/queues?tenant=T&topic=TOPIC&force=true                        removes a queue with its clusters

    DELETE /v1/sessions/CLIENT?tenant=T          drops the session of a client id: {"connected", "messages"}
    DELETE /v1/sessions?tenant=T&client=CLIENT   the same, for a client id that a path does not carry unharmed (a//b, ..)

Topics and names are in the query, percent-encoded once: it is decoded once here, and no proxy between makes one slash of
two there, or ends a part of the path at %2F. Traces and DELETE want a bearer token with the role `operate`, the lists one
with `read` (`tokens`). Runs on the loop; the tokens are
read on a thread.
"""

from __future__ import annotations

from collections.abc import Awaitable
from dataclasses import replace
from http import HTTPStatus
from typing import Annotated, Final
from urllib.parse import parse_qsl, unquote_to_bytes

import msgspec
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from headrace.api.problem import problem
from headrace.api.tokens import OPERATE, READ, Answer, Tokens, guarded
from headrace.core.inbound.consuming import CLUSTER_BYTES_MAX
from headrace.core.ports.identity import DEFAULT_TENANT
from headrace.errors import BrokersOwn, InUse, NotThere
from headrace.mqtt.topics import filter_error, valid_topic
from headrace.services.cluster_rows import LIMIT_MAX as ROWS_MAX
from headrace.services.cluster_rows import Place, ShardRows, Wanted
from headrace.services.laggards import LIMIT_MAX, Laggards
from headrace.services.removals import NotDurable, Removals
from headrace.services.tracing import InvalidTrace, Tracing

SESSIONS: Final = ("/v1/sessions", "/v1/sessions/{client:path}")
_SESSION: Final = b"/v1/sessions/"
_DIGITS_MAX = 20
_REMOVED = (("tenant", DEFAULT_TENANT), ("topic", ""))


class TraceRequest(msgspec.Struct, frozen=True):
    """The body that begins a trace."""

    kind: str
    pattern: str
    seconds: Annotated[float, msgspec.Meta(gt=0)] = 60.0


class TraceRoutes:
    """The endpoints of one node's traces."""

    def __init__(self, tracing: Tracing, tokens: Tokens) -> None:
        self._tracing = tracing
        self._tokens = tokens

    def routes(self) -> list[Route]:
        def route(path: str, answer: Answer, method: str) -> Route:
            return Route(path, guarded(self._tokens, OPERATE, answer), methods=[method])

        return [
            route("/v1/traces", self._begin, "POST"),
            route("/v1/traces/{id}", self._take, "GET"),
            route("/v1/traces/{id}", self._end, "DELETE"),
        ]

    def _begin(self, _request: Request, body: bytes) -> Response:
        asked = msgspec.json.decode(body, type=TraceRequest)
        try:
            trace = self._tracing.begin(asked.kind, asked.pattern, asked.seconds)
        except InvalidTrace as error:
            return problem(HTTPStatus.BAD_REQUEST, str(error))
        return JSONResponse({"id": trace.id}, HTTPStatus.CREATED)

    def _take(self, request: Request, _body: bytes) -> Response:
        trace = self._tracing.find(request.path_params["id"])
        if trace is None:
            return problem(HTTPStatus.NOT_FOUND, "this trace is over")
        if trace.ends():
            self._tracing.end(trace)
        rows, left_out = trace.take()
        return JSONResponse({"rows": rows, "left_out": left_out, "over": trace.over})

    def _end(self, request: Request, _body: bytes) -> Response:
        trace = self._tracing.find(request.path_params["id"])
        if trace is not None:
            self._tracing.end(trace)
        return Response(status_code=HTTPStatus.NO_CONTENT)


class ClientRoutes:
    """The endpoint that lists who is behind."""

    def __init__(self, laggards: Laggards, tokens: Tokens) -> None:
        self._laggards = laggards
        self._tokens = tokens

    def routes(self) -> list[Route]:
        return [Route("/v1/clients/behind", guarded(self._tokens, READ, self._behind))]

    async def _behind(self, request: Request, _body: bytes) -> Response:
        return JSONResponse({"clients": await self._laggards.worst(_limit(request, 20, LIMIT_MAX))})


class ClusterRoutes:
    """The endpoints that list topic queues and consumer clusters, and remove them."""

    def __init__(self, rows: ShardRows, removals: Removals, tokens: Tokens) -> None:
        self._rows = rows
        self._removals = removals
        self._tokens = tokens

    def routes(self) -> list[Route]:
        def route(path: str, role: str, answer: Answer, method: str) -> Route:
            return Route(path, guarded(self._tokens, role, answer), methods=[method])

        return [
            route("/v1/clusters", READ, self._clusters, "GET"),
            route("/v1/queues", READ, self._queues, "GET"),
            route("/v1/clusters", OPERATE, self._remove_cluster, "DELETE"),
            route("/v1/queues", OPERATE, self._remove_queue, "DELETE"),
        ]

    async def _clusters(self, request: Request, _body: bytes) -> Response:
        _check_names(request, {"tenant", "topic", "cluster", "limit", "from"})
        return await self._page(request, _wanted(request))

    async def _queues(self, request: Request, _body: bytes) -> Response:
        _check_names(request, {"tenant", "topic", "limit", "from"})
        return await self._page(request, replace(_wanted(request), whole=True))

    async def _remove_cluster(self, request: Request, _body: bytes) -> Response:
        _check_names(request, {"tenant", "topic", "cluster"})
        tenant, topic = _exactly(request)
        name = request.query_params.get("cluster", "")
        if not 0 < len(name.encode("utf-8")) <= CLUSTER_BYTES_MAX:
            raise ValueError(f"cluster: it needs 1 to {CLUSTER_BYTES_MAX} bytes")
        return await _answer(self._removals.cluster(tenant, topic, name))

    async def _remove_queue(self, request: Request, _body: bytes) -> Response:
        _check_names(request, {"tenant", "topic", "force"})
        tenant, topic = _exactly(request)
        force = request.query_params.get("force", "false")
        if force not in ("true", "false"):
            raise ValueError(f"force: {force} is neither true nor false")
        return await _answer(self._removals.queue(tenant, topic, force == "true"))

    async def _page(self, request: Request, wanted: Wanted) -> Response:
        limit = _limit(request, ROWS_MAX, ROWS_MAX)
        rows, following = await self._rows.page(wanted, limit, _place(request))
        return JSONResponse({"rows": rows, "next": None if following is None else str(following)})


class SessionRoutes:
    """The endpoint that drops sessions."""

    def __init__(self, removals: Removals, tokens: Tokens) -> None:
        self._removals = removals
        self._tokens = tokens

    def routes(self) -> list[Route]:
        endpoint = guarded(self._tokens, OPERATE, self._drop)
        return [Route(path, endpoint, methods=["DELETE"]) for path in SESSIONS]

    async def _drop(self, request: Request, _body: bytes) -> Response:
        return await _answer(self._removals.session(*session_named(request)))


def session_named(request: Request) -> tuple[str, str]:
    """Return the tenant and the client id of the session that a request names, the id in its path or in its query; each
    is decoded once. Raises ValueError, with the name of the parameter."""
    in_path = request.scope["raw_path"].startswith(_SESSION)
    _check_names(request, {"tenant"} if in_path else {"tenant", "client"})
    tenant = request.query_params.get("tenant", DEFAULT_TENANT)
    if tenant == "":
        raise ValueError("tenant: it is empty")
    client_id = request.query_params.get("client", "")
    if in_path:
        try:
            client_id = unquote_to_bytes(request.scope["raw_path"].removeprefix(_SESSION)).decode("utf-8")
        except UnicodeDecodeError:
            raise ValueError("client: the path is no UTF-8, percent-encoded") from None
    if client_id == "":
        raise ValueError("client: it is empty, and a session is named exactly")
    return tenant, client_id


async def _answer(removed: Awaitable[dict[str, object]]) -> Response:
    """Return what was removed, or why it was not as a problem document."""
    try:
        return JSONResponse(await removed)
    except NotThere as error:
        return problem(HTTPStatus.NOT_FOUND, str(error))
    except (BrokersOwn, InUse) as error:
        return problem(HTTPStatus.CONFLICT, str(error))
    except NotDurable as error:
        return problem(HTTPStatus.SERVICE_UNAVAILABLE, str(error))


def _check_names(request: Request, known: set[str]) -> None:
    """Raise ValueError where a parameter has a name that there is none of, or comes twice, or the query is no UTF-8: what
    is removed is not guessed."""
    raw = request.url.query
    try:
        names = [name for name, _ in parse_qsl(raw, keep_blank_values=True, errors="strict")]
    except UnicodeDecodeError:
        raise ValueError("the query is no UTF-8, percent-encoded") from None
    unknown = set(names) - known
    if unknown:
        raise ValueError(f"{min(unknown)}: there is no such parameter")
    for name in known:
        if names.count(name) > 1:
            raise ValueError(f"{name}: it is given twice")


def _exactly(request: Request) -> tuple[str, str]:
    """Return tenant and topic of what is to be removed. Raises ValueError, with the name of the parameter."""
    tenant, topic = (request.query_params.get(name, usual) for name, usual in _REMOVED)
    if tenant == "":
        raise ValueError("tenant: it is empty")
    if not valid_topic(topic.encode("utf-8")):
        raise ValueError("topic: it is no topic name: what is removed is named exactly, without wildcards")
    return tenant, topic


def _limit(request: Request, usual: int, most: int) -> int:
    """Return the limit that a request asks for, `usual` without one. Raises ValueError, with the name of the
    parameter."""
    given = request.query_params.get("limit", str(usual))
    if not _is_number(given) or not 1 <= int(given) <= most:
        raise ValueError(f"limit: {given} is not a number from 1 to {most}")
    return int(given)


def _wanted(request: Request) -> Wanted:
    """Return which clusters a request asks for. Raises ValueError, with the name of the parameter."""
    given = request.query_params
    wrong = filter_error(given["topic"]) if "topic" in given else ""
    if wrong:
        raise ValueError(f"topic: {wrong}")
    for name in ("tenant", "cluster"):
        if given.get(name) == "":
            raise ValueError(f"{name}: it is empty")
    return Wanted(given.get("tenant", ""), given.get("topic", ""), given.get("cluster", ""))


def _place(request: Request) -> Place:
    """Return the place at which a page is to begin. Raises ValueError, with the name of the parameter."""
    given = request.query_params.get("from", "0.-1")
    parts = given.split(".")
    if len(parts) == 2:  # of the first shard
        parts.insert(0, "0")
    numbers = parts[:-1] if parts[-1] == "-1" else parts
    if len(parts) != 3 or not all(_is_number(number) for number in numbers):
        raise ValueError(f"from: {given} is not the `next` of a page")
    shard, queue, cluster = map(int, parts)
    return Place(queue, cluster, shard)


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdecimal() and len(text) <= _DIGITS_MAX
