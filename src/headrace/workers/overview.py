"""The admin address of a node with several workers, served by its supervisor: it asks the workers, and answers for all.

A worker serves what a node with one worker serves, on a Unix socket in the runtime directory (`admin-<index>.sock`).
Journals are read here, from the data directories, whoever owns them. What needs a worker that is away gets 503.
"""

from __future__ import annotations

import json
import re
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from http import HTTPStatus
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from socket import AF_UNIX, SOCK_STREAM, socket
from typing import Any, Final

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector, CollectorRegistry
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from headrace.api.app import application
from headrace.api.journal import JournalRoutes
from headrace.api.operations import SESSIONS, session_named
from headrace.api.problem import problem
from headrace.api.tokens import answered
from headrace.core.homes import Homes
from headrace.workers.member import Member
from headrace.workers.merging import Merged
from headrace.workers.owners import Owners

PATIENCE_S: Final = 10.0  # with a worker's answer
METRICS_PATIENCE_S: Final = 5.0  # half of Prometheus's own: those of the others come in time
REQUESTS_MAX: Final = (
    40  # that Starlette answers on threads at the same time: each may wait for a worker that hangs
)


def socket_of(runtime: Path, index: int) -> Path:
    """Return where a worker serves its admin HTTP."""
    return runtime / f"admin-{index}.sock"


@dataclass(frozen=True, slots=True)
class Answer:
    """What a worker has answered."""

    status: int
    body: bytes
    kind: str = "application/json"

    def response(self) -> Response:
        return Response(self.body, self.status, media_type=self.kind)

    def json(self) -> dict[str, Any]:
        found = json.loads(self.body)
        return found if isinstance(found, dict) else {}


class _UnixConnection(HTTPConnection):
    """HTTP over a Unix socket."""

    def __init__(self, path: Path, patience_s: float) -> None:
        super().__init__("localhost", timeout=patience_s)
        self._path = path

    def connect(self) -> None:
        self.sock = socket(AF_UNIX, SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(str(self._path))


def ask(
    path: Path, method: str, url: str, token: str = "", body: bytes = b"", patience_s: float = PATIENCE_S
) -> Answer:
    """Ask a worker. Runs on a thread. One that does not answer is an answer too, 503."""
    connection = _UnixConnection(path, patience_s)
    try:
        connection.request(method, url, body or None, {"Authorization": token} if token else {})
        found = connection.getresponse()
        return Answer(found.status, found.read(), found.getheader("Content-Type", ""))
    except (OSError, HTTPException) as error:
        reason = str(error) or type(error).__name__
        said = problem(HTTPStatus.SERVICE_UNAVAILABLE, f"a worker does not answer now: {reason}")
        return Answer(said.status_code, bytes(said.body), "application/problem+json")
    finally:
        connection.close()


class MemberCollector(Collector):
    """Tells which workers serve, and how often each was started again."""

    def __init__(self, members: Sequence[Member]) -> None:
        self._members = members

    def collect(self) -> list[Metric]:
        up = GaugeMetricFamily("headrace_worker_up", "1 while a worker serves", labels=["worker"])
        restarts = CounterMetricFamily(
            "headrace_worker_restarts", "Times that a worker was started again", labels=["worker"]
        )
        for member in self._members:
            up.add_metric([str(member.index)], int(member.serves))
            restarts.add_metric([str(member.index)], member.restarts)
        return [up, restarts]


class Overview:
    """Answers for all workers of a node."""

    def __init__(self, runtime: Path, members: Sequence[Member], shards: int) -> None:
        self._paths = [socket_of(runtime, member.index) for member in members]
        self._members = members
        self._shards = shards
        self._homes = Homes(shards)
        self._table = Owners(shards, len(members))
        self._merged = Merged()
        self._threads = ThreadPoolExecutor(len(self._paths) + REQUESTS_MAX, "workers-http")

    def site(
        self, directories: Sequence[Path], tokens: Path | None, not_ready: Callable[[], str]
    ) -> Starlette:
        """Return the application of the admin address. `directories`: of all shards. `tokens`: the file of the bearer
        tokens; whether one may see what a worker knows the worker says."""
        metrics = CollectorRegistry(auto_describe=False)
        metrics.register(self._merged)
        metrics.register(MemberCollector(self._members))
        routes = [
            JournalRoutes(directories, tokens).mount(),
            _route("/v1/clients/behind", self._behind, "GET"),
            _route("/v1/clusters", self._clusters, "GET"),
            _route("/v1/queues", self._clusters, "GET"),
            _route("/v1/clusters", self._remove, "DELETE"),
            _route("/v1/queues", self._remove, "DELETE"),
            *[_route(path, self._drop, "DELETE") for path in SESSIONS],
            _route("/v1/traces", self._begin, "POST"),
            _route("/v1/traces/{id}", self._take, "GET"),
            _route("/v1/traces/{id}", self._end, "DELETE"),
        ]
        return application(not_ready, metrics, routes, (self._refresh,))

    def _refresh(self) -> None:
        """Ask all workers for their metrics. Runs on a thread; of who does not answer there is what it had counted."""
        asked = self._threads.map(
            lambda path: ask(path, "GET", "/metrics", patience_s=METRICS_PATIENCE_S), self._paths
        )
        found = enumerate(asked)
        self._merged.tell({n: answer.body.decode() for n, answer in found if answer.status == HTTPStatus.OK})

    async def _asked(
        self, request: Request, method: str, urls: Sequence[str | None], body: bytes = b""
    ) -> list[Answer]:
        """Ask each worker at its URL, on behalf of who asks us; one with None is not asked. Returns the answers of those
        that were."""
        token = request.headers.get("authorization", "")

        def asked() -> list[Answer]:
            wanted = [(path, url) for path, url in zip(self._paths, urls, strict=True) if url is not None]
            return list(self._threads.map(lambda one: ask(one[0], method, one[1], token, body), wanted))

        return await run_in_threadpool(asked)

    async def _all(self, request: Request, url: str, body: bytes = b"") -> list[Answer] | Response:
        """Ask all workers the same; the first refusal is the answer for all."""
        found = await self._asked(request, request.method, [url] * len(self._paths), body)
        refused = _refusal(found)
        return found if refused is None else refused.response()

    async def _behind(self, request: Request, _body: bytes) -> Response:
        found = await self._all(request, f"{request.url.path}{_query(request)}")
        if isinstance(found, Response):
            return found
        rows = [row for answer in found for row in answer.json()["clients"]]
        rows.sort(key=lambda row: (row["slow"], row["bytes"], row["messages"]), reverse=True)
        return JSONResponse({"clients": rows[: int(request.query_params.get("limit", _USUAL_LIMIT))]})

    async def _clusters(self, request: Request, _body: bytes) -> Response:
        """Ask the owner of the shard where the page is to begin; the next one begins in the shard behind it."""
        parts = request.query_params.get("from", "0.-1").split(".")
        first = parts[0] if len(parts) == _PARTS_WITH_SHARD and parts[0].isdecimal() else "0"
        shard = min(int(first[:9]), self._shards - 1)
        answer = await self._owners(request, shard, "GET", f"{request.url.path}{_query(request)}")
        if answer.status != HTTPStatus.OK:
            return answer.response()
        found = answer.json()
        return JSONResponse({"rows": found["rows"], "next": self._following(shard, found["next"])})

    async def _remove(self, request: Request, _body: bytes) -> Response:
        """Ask all workers: one of them has the queue, and its answer counts; the others have it not. Where one of them is
        away, what none of the others has may be there."""
        url = f"{request.url.path}{_query(request)}"
        found = await self._asked(request, "DELETE", [url] * len(self._paths))
        known = [answer for answer in found if answer.status != HTTPStatus.NOT_FOUND]
        known.sort(key=lambda answer: answer.status == HTTPStatus.SERVICE_UNAVAILABLE)
        return (known or found)[0].response()

    async def _drop(self, request: Request, _body: bytes) -> Response:
        """Ask the owner of the shard where the session is at home: the connection of its client ends there, whichever
        worker has accepted it. A request that names none is refused by any worker, once that has looked at its token."""
        try:
            shard = self._homes.of_client(*session_named(request))
        except ValueError:
            shard = 0
        url = request.scope["raw_path"].decode("ascii") + _query(request)
        return (await self._owners(request, shard, "DELETE", url)).response()

    async def _owners(self, request: Request, shard: int, method: str, url: str) -> Answer:
        """Return what the owner of a shard answers, whom the token of the request is shown."""
        token = request.headers.get("authorization", "")
        return await run_in_threadpool(ask, self._paths[self._table.of(shard)], method, url, token)

    def _following(self, shard: int, following: str | None) -> str | None:
        """Return where the page behind one of this shard begins."""
        prefix = f"{shard}." if shard else ""
        dots = 0 if following is None else following.count(".")
        if following is not None and dots == prefix.count(".") + 1 and following.startswith(prefix):
            return following
        return f"{shard + 1}.0.-1" if shard + 1 < self._shards else None

    async def _begin(self, request: Request, body: bytes) -> Response:
        """Begin a trace in all workers or in none: what one of them has begun counts against its limit of traces."""
        found = await self._asked(request, "POST", [request.url.path] * len(self._paths), body)
        begun = [answer.json()["id"] if answer.status == HTTPStatus.CREATED else None for answer in found]
        refused = _refusal(found)
        if refused is None:
            return JSONResponse({"id": ".".join(map(str, begun))}, HTTPStatus.CREATED)
        await self._asked(request, "DELETE", [each and f"/v1/traces/{each}" for each in begun])
        return refused.response()

    async def _each_of(self, request: Request) -> list[Answer] | Response:
        """Ask each worker about its part of a trace."""
        ids = request.path_params["id"].split(".")
        if len(ids) != len(self._paths) or not all(map(_TRACE.fullmatch, ids)):
            return problem(HTTPStatus.NOT_FOUND, "this trace is over")
        return await self._asked(request, request.method, [f"/v1/traces/{each}" for each in ids])

    async def _take(self, request: Request, _body: bytes) -> Response:
        found = await self._each_of(request)
        if isinstance(found, Response):
            return found
        known = [answer for answer in found if answer.status == HTTPStatus.OK]
        if not known:
            return found[0].response()
        parts = [answer.json() for answer in known]
        rows = [row for part in parts for row in part["rows"]]
        left_out = sum(part["left_out"] for part in parts)
        return JSONResponse({"rows": rows, "left_out": left_out, "over": all(part["over"] for part in parts)})

    async def _end(self, request: Request, _body: bytes) -> Response:
        found = await self._each_of(request)
        return found if isinstance(found, Response) else found[0].response()


_PARTS_WITH_SHARD: Final = 3
_TRACE: Final = re.compile(r"[0-9a-f]+")  # what a worker calls one


def _refusal(found: Sequence[Answer]) -> Answer | None:
    """Return the first answer that is a refusal, None if there is none."""
    return next((answer for answer in found if answer.status >= HTTPStatus.BAD_REQUEST), None)


def _route(path: str, answer: Callable[[Request, bytes], Awaitable[Response]], method: str) -> Route:
    """Return a route whose body is read up to a limit; who may ask is for the workers to say."""

    async def endpoint(request: Request) -> Response:
        return await answered(request, answer)

    return Route(path, endpoint, methods=[method])


def _query(request: Request) -> str:
    return f"?{request.url.query}" if request.url.query else ""


_USUAL_LIMIT: Final = 20
