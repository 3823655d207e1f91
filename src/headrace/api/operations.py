"""What the admin HTTP lets who operates a broker do and see: traces, and the clients that are behind.

    POST   /v1/traces      {"kind": "client" | "topic" | "address", "pattern", "seconds"}: begins one, 201 {"id"}
    GET    /v1/traces/ID   {"rows", "left_out", "over"}: what came since the last time
    DELETE /v1/traces/ID   ends it; who does not ask for five seconds has, too

    GET    /v1/clients/behind?limit=N   {"clients"}: the worst of those whose socket is full or for whom something waits

Traces want a bearer token with the role `operate`, the list one with `read` (`tokens`). Runs on the loop; the tokens are
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
from headrace.services.laggards import LIMIT_MAX, Laggards
from headrace.services.tracing import InvalidTrace, Tracing


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
        limit = request.query_params.get("limit", "20")
        if not limit.isascii() or not limit.isdecimal() or not 1 <= int(limit) <= LIMIT_MAX:
            return problem(HTTPStatus.BAD_REQUEST, f"limit: {limit} is not a number from 1 to {LIMIT_MAX}")
        return JSONResponse({"clients": await self._laggards.worst(int(limit))})
