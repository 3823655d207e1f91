"""What the admin HTTP lets who operates a broker do and see: traces, the clients that are behind, topic queues.

    POST   /v1/traces      {"kind": "client" | "topic" | "address", "pattern", "seconds"}: begins one, 201 {"id"}
    GET    /v1/traces/ID   {"rows", "left_out", "over"}: what came since the last time
    DELETE /v1/traces/ID   ends it; who does not ask for five seconds has, too

    GET    /v1/clients/behind?limit=N   {"clients"}: the worst of those whose socket is full or for whom something waits

    GET    /v1/clusters?tenant=T&topic=FILTER&cluster=C&limit=N&from=PLACE   {"rows", "next"}: topic queues and consumer
                                                                             clusters; `from` is `next` of the page before

Traces want a bearer token with the role `operate`, the lists one with `read` (`tokens`). Runs on the loop; the tokens are
read on a thread.
"""

from __future__ import annotations

from http import HTTPStatus
from typing import Annotated

import msgspec
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from headrace.api.problem import problem
from headrace.api.tokens import OPERATE, READ, Answer, Tokens, guarded
from headrace.mqtt.topics import filter_error
from headrace.services.cluster_rows import LIMIT_MAX as ROWS_MAX
from headrace.services.cluster_rows import Place, ShardRows, Wanted
from headrace.services.laggards import LIMIT_MAX, Laggards
from headrace.services.tracing import InvalidTrace, Tracing

_DIGITS_MAX = 20


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
    """The endpoint that lists topic queues and consumer clusters."""

    def __init__(self, rows: ShardRows, tokens: Tokens) -> None:
        self._rows = rows
        self._tokens = tokens

    def routes(self) -> list[Route]:
        return [Route("/v1/clusters", guarded(self._tokens, READ, self._page))]

    async def _page(self, request: Request, _body: bytes) -> Response:
        limit = _limit(request, ROWS_MAX, ROWS_MAX)
        rows, following = await self._rows.page(_wanted(request), limit, _place(request))
        return JSONResponse({"rows": rows, "next": None if following is None else str(following)})


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
    unknown = set(given) - {"tenant", "topic", "cluster", "limit", "from"}
    if unknown:
        raise ValueError(f"{min(unknown)}: there is no such parameter")
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
