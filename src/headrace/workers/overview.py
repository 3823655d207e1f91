"""The admin address of a node with several workers, served by its supervisor: it asks the workers, and answers for all.

A worker serves what a node with one worker serves, on a Unix socket in the runtime directory (`admin-<index>.sock`).
Journals are read here, from the data directories, whoever owns them. What needs a worker that is away gets 503.
"""

from __future__ import annotations

import json
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from http import HTTPMethod, HTTPStatus
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from socket import AF_UNIX, SOCK_STREAM, socket
from typing import Any, Final, Protocol, cast

import msgspec
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector, CollectorRegistry
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from headrace.api.app import application
from headrace.api.journal import JournalRoutes
from headrace.api.openapi import description
from headrace.api.operations import RESOURCES
from headrace.api.problem import problem
from headrace.api.read_only import READ_ONLY
from headrace.api.resource import (
    Anyone,
    AtHome,
    Begun,
    Endpoint,
    Everyone,
    Holder,
    Merge,
    OfNode,
    Pages,
    Parts,
    Ranking,
    Resource,
    forwarded,
    routes,
)
from headrace.api.tokens import Tokens, answered
from headrace.core.homes import Homes
from headrace.services.configuration import Reloaded
from headrace.services.paging import Place as PagePlace
from headrace.workers.member import Member
from headrace.workers.merging import Merged
from headrace.workers.owners import Owners

PATIENCE_S: Final = 10.0  # with a worker's answer
METRICS_PATIENCE_S: Final = 5.0  # half of Prometheus's own: those of the others come in time
REQUESTS_MAX: Final = (
    40  # that Starlette answers on threads at the same time: each may wait for a worker that hangs
)


Merging = Callable[[Request, Resource, bytes], Awaitable[Response]]


def socket_of(runtime: Path, index: int) -> Path:
    """Return where a worker serves its admin HTTP."""
    return runtime / f"admin-{index}.sock"


@dataclass(frozen=True, slots=True)
class Answer:
    """What a worker has answered."""

    status: int
    body: bytes
    kind: str = "application/json"
    tag: str | None = None  # ETag

    def response(self) -> Response:
        headers = None if self.tag is None else {"ETag": self.tag}
        return Response(self.body, self.status, headers, media_type=self.kind)

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
    path: Path,
    method: str,
    url: str,
    token: str = "",
    body: bytes = b"",
    patience_s: float = PATIENCE_S,
    asker: str = "",
    if_match: str = "",
) -> Answer:
    """Ask a worker, on behalf of who asks from the address `asker`. Runs on a thread. One that does not answer is an
    answer too, 503."""
    connection = _UnixConnection(path, patience_s)
    try:
        headers = {"Authorization": token, "Forwarded": asker, "If-Match": if_match}
        connection.request(method, url, body or None, {name: text for name, text in headers.items() if text})
        found = connection.getresponse()
        kind, tag = found.getheader("Content-Type", ""), found.getheader("ETag")
        return Answer(found.status, found.read(), kind, tag)
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


class Configuring(Protocol):
    """Has the sources of the configuration of a node."""

    def pending(self) -> Reloaded:
        """Return what `reload` would change."""

    def reload(self) -> Reloaded:
        """Read the sources again, for workers to read."""

    def remind(self, index: int) -> None:
        """Have a worker that has not answered read again what it can, as soon as it can."""


class Overview:
    """Answers for all workers of a node."""

    def __init__(self, runtime: Path, members: Sequence[Member], shards: int) -> None:
        self._paths = [socket_of(runtime, member.index) for member in members]
        self._members = members
        self._homes = Homes(shards)
        self._table = Owners(shards, len(members))
        self._merged = Merged()
        self._tokens = Tokens(None)
        self._configuring: Configuring | None = None
        self._threads = ThreadPoolExecutor(len(self._paths) + REQUESTS_MAX, "workers-http")
        self._merges: Mapping[type[Merge], Merging] = {
            Ranking: self._ranked,
            Pages: self._paged,
            Anyone: self._anyone,
            AtHome: self._at_home,
            OfNode: self._of_node,
            Holder: self._held,
            Begun: self._begun,
            Parts: self._put_together,
            Everyone: self._summed,
        }

    def site(
        self,
        directories: Sequence[Path],
        tokens: Path | None,
        not_ready: Callable[[], str],
        degraded: Callable[[], str] = str,
        more: Sequence[Resource] = (),
        configuring: Configuring | None = None,
    ) -> Starlette:
        """Return the application of the admin address. `directories`: of all shards. `tokens`: the file of the bearer
        tokens; whether one may see what a worker knows the worker says. `more`: what workers serve beside the usual, of a
        directory where they have one; `configuring` reads the sources of the configuration again."""
        metrics = CollectorRegistry(auto_describe=False)
        metrics.register(self._merged)
        metrics.register(MemberCollector(self._members))
        self._tokens = Tokens(tokens)
        self._configuring = configuring
        journals = JournalRoutes(directories, tokens).routes()
        resources = [*RESOURCES, *more]
        hidden = () if more else READ_ONLY
        found = [*journals, *routes([*resources, *hidden], self._endpoint), *description(resources)]
        return application(not_ready, metrics, found, (self._refresh,), degraded)

    def _endpoint(self, resource: Resource) -> Endpoint:
        """Return what asks the workers for a resource; a body is read up to a limit. Who may ask is for them to say."""
        merged = self._merges[type(resource.merge)]

        async def endpoint(request: Request) -> Response:
            most = resource.body_bytes_max
            return await answered(request, lambda _, body: merged(request, resource, body), most)

        return endpoint

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

        def asked() -> list[Answer]:
            wanted = [(path, url) for path, url in zip(self._paths, urls, strict=True) if url is not None]
            return list(self._threads.map(lambda one: _ask(request, one[0], method, one[1], body), wanted))

        return await run_in_threadpool(asked)

    async def _all(self, request: Request, resource: Resource, body: bytes = b"") -> list[Answer]:
        """Ask all workers the same."""
        return await self._asked(request, resource.method, [_url(request)] * len(self._paths), body)

    async def _of_shard(self, request: Request, resource: Resource, shard: int, body: bytes = b"") -> Answer:
        """Return what the owner of a shard answers, whom the token of the request is shown."""
        path = self._paths[self._table.of(shard)]
        return await run_in_threadpool(_ask, request, path, resource.method, _url(request), body)

    # How the answers become one: `api.resource` says what each of these is

    async def _ranked(self, request: Request, resource: Resource, _body: bytes) -> Response:
        ranking = cast(Ranking, resource.merge)
        found = await self._all(request, resource)
        refused = _refusal(found)
        if refused is not None:
            return refused.response()
        rows = [row for answer in found for row in answer.json()[ranking.rows]]
        rows.sort(key=lambda row: [row[name] for name in ranking.order], reverse=True)
        most = resource.values(request)["limit"]
        content: dict[str, object] = {ranking.rows: rows[:most]}
        if ranking.place:
            goes_on = len(rows) > most or any(answer.json()["next"] is not None for answer in found)
            content["next"] = rows[:most][-1][ranking.place] if goes_on else None
        return JSONResponse(content)

    async def _paged(self, request: Request, resource: Resource, _body: bytes) -> Response:
        shard = min(_values(request, resource).get("from", PagePlace()).shard, self._homes.shards - 1)
        answer = await self._of_shard(request, resource, shard)
        if answer.status == HTTPStatus.SERVICE_UNAVAILABLE and cast(Pages, resource.merge).goes_on:
            return await self._without(request, resource, shard)
        if answer.status != HTTPStatus.OK:
            return answer.response()
        found = answer.json()
        return JSONResponse(found | {"next": self._following(shard, found["next"])})

    async def _without(self, request: Request, resource: Resource, shard: int) -> Response:
        """Return the page of a shard whose owner does not answer, for who may ask: that is for us to say now."""
        token = request.headers.get("authorization", "")
        refused = await run_in_threadpool(self._tokens.refusal, token, resource.role)
        page = {"rows": [], "next": self._following(shard, None), "unanswered": [shard]}
        return JSONResponse(page) if refused is None else refused

    def _following(self, shard: int, following: str | None) -> str | None:
        """Return where the page behind one of this shard begins."""
        if following is not None and PagePlace.parse(following).shard == shard:
            return following
        return str(PagePlace(shard=shard + 1)) if shard + 1 < self._homes.shards else None

    async def _anyone(self, request: Request, resource: Resource, body: bytes) -> Response:
        """Ask a worker that serves; one alone, since what it was asked may be done even where no answer comes."""
        index = next((member.index for member in self._members if member.serves), 0)
        answer = await run_in_threadpool(
            _ask, request, self._paths[index], resource.method, _url(request), body
        )
        return answer.response()

    async def _held(self, request: Request, resource: Resource, _body: bytes) -> Response:
        """Let the answer of the worker that has it count. Where one of them is away, what none of the others has may be
        there."""
        found = await self._all(request, resource)
        known = [answer for answer in found if answer.status != HTTPStatus.NOT_FOUND]
        known.sort(key=lambda answer: answer.status == HTTPStatus.SERVICE_UNAVAILABLE)
        return (known or found)[0].response()

    async def _at_home(self, request: Request, resource: Resource, body: bytes) -> Response:
        """Ask the owner of the home: the connection of a client ends there, whichever worker has accepted it. A request
        that names none is refused by any worker."""
        values = _values(request, resource, body)
        shard = cast(AtHome, resource.merge).shard(self._homes, values) if values else 0
        return (await self._of_shard(request, resource, shard, body)).response()

    async def _of_node(self, request: Request, resource: Resource, body: bytes) -> Response:
        """Let a worker say whether who asks may, before anything is done: workers alone know all tokens. Whoever of them
        does not answer then does its part later, as the others have."""
        configuring = self._configuring
        index = next((member.index for member in self._members if member.serves), 0)
        url = _url(request)
        said = await run_in_threadpool(_ask, request, self._paths[index], HTTPMethod.GET, url)
        if said.status != HTTPStatus.OK or configuring is None:
            return said.response()
        if resource.method == HTTPMethod.GET:
            return JSONResponse(asdict(configuring.pending()))
        own = configuring.reload()
        found = await self._all(request, resource, body)
        silent = [index for index, answer in enumerate(found) if answer.status != HTTPStatus.OK]
        for index in silent:
            configuring.remind(index)
        others = [answer.json() for answer in found if answer.status == HTTPStatus.OK]
        return JSONResponse(asdict(own.merged(others, silent)))

    async def _summed(self, request: Request, resource: Resource, _body: bytes) -> Response:
        """Put together what the workers answer; who does not answer is named."""
        found = await self._all(request, resource)
        known = [answer.json() for answer in found if answer.status == HTTPStatus.OK]
        refused = [answer for answer in found if answer.status != HTTPStatus.SERVICE_UNAVAILABLE]
        if not known:
            return (refused or found)[0].response()
        put = {
            of: put([one[of] for one in known]) for of, put in cast(Everyone, resource.merge).fields.items()
        }
        silent = [index for index, answer in enumerate(found) if answer.status != HTTPStatus.OK]
        return JSONResponse(put | {"unanswered": silent})

    async def _begun(self, request: Request, resource: Resource, body: bytes) -> Response:
        """Begin it in all workers or in none: what one of them has begun counts against its limit."""
        path = request.url.path
        found = await self._asked(request, resource.method, [path] * len(self._paths), body)
        begun = [answer.json()["id"] if answer.status == resource.status else None for answer in found]
        refused = _refusal(found)
        if refused is None:
            return JSONResponse({"id": ".".join(map(str, begun))}, resource.status)
        await self._asked(request, "DELETE", [each and f"{path}/{each}" for each in begun])
        return refused.response()

    async def _put_together(self, request: Request, resource: Resource, _body: bytes) -> Response:
        parts = cast(Parts, resource.merge)
        [name] = request.path_params
        ids = request.path_params[name].split(".")
        if len(ids) != len(self._paths) or not all(map(_PART.fullmatch, ids)):
            return problem(HTTPStatus.NOT_FOUND, parts.gone)
        folder = request.url.path.rpartition("/")[0]
        found = await self._asked(request, resource.method, [f"{folder}/{each}" for each in ids])
        known = [answer.json() for answer in found if answer.status == HTTPStatus.OK]
        if not known or not parts.fields:
            return found[0].response()
        return JSONResponse({of: put([one[of] for one in known]) for of, put in parts.fields.items()})


_PART: Final = re.compile(r"[0-9a-f]+")  # what a worker calls its part of something


def _ask(request: Request, path: Path, method: str, url: str, body: bytes = b"") -> Answer:
    """Ask a worker on behalf of who asks us, with the token of the request."""
    token, tag = (request.headers.get(name, "") for name in ("authorization", "if-match"))
    return ask(path, method, url, token, body, asker=forwarded(request), if_match=tag)


def _refusal(found: Sequence[Answer]) -> Answer | None:
    """Return the first answer that is a refusal, None if there is none."""
    return next((answer for answer in found if answer.status >= HTTPStatus.BAD_REQUEST), None)


def _values(request: Request, resource: Resource, body: bytes = b"") -> dict[str, Any]:
    """Return the values of a request's parameters, and of its body where it is to have one; none of a request that a
    worker will refuse."""
    try:
        values = resource.values(request)
        return values if resource.body is None else values | {"body": resource.decoded(body)}
    except (ValueError, msgspec.MsgspecError):
        return {}


def _url(request: Request) -> str:
    """Return what a worker is asked: the path as it came, since decoded and encoded again it may be another one."""
    query = f"?{request.url.query}" if request.url.query else ""
    return f"{request.scope['raw_path'].decode('ascii')}{query}"
