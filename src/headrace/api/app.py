"""The admin endpoints as a Starlette application, and the socket they are served on."""

from __future__ import annotations

import socket
from collections.abc import Callable, Sequence
from http import HTTPStatus
from pathlib import Path

from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import CollectorRegistry
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import BaseRoute, Route

from headrace.api.problem import problem


def application(
    not_ready: Callable[[], str],
    metrics: CollectorRegistry,
    more: Sequence[BaseRoute] = (),
    refresh: Sequence[Callable[[], None]] = (),
    degraded: Callable[[], str] = str,
) -> Starlette:
    """Return the application that answers on the admin address. `not_ready` says why the node is not ready, "" when it
    is; `more`: routes of other modules. `refresh`: called on a thread before each scrape, for what has to be asked of
    the disk or the system. `degraded`: what does not work though clients are served, "" when everything does."""

    async def healthz(_: Request) -> Response:
        return PlainTextResponse("ok\n")

    async def readyz(_: Request) -> Response:
        reason = not_ready()
        if reason:
            return problem(HTTPStatus.SERVICE_UNAVAILABLE, reason)
        missing = degraded()
        return PlainTextResponse(f"ready, degraded: {missing}\n" if missing else "ready\n")

    async def scrape(request: Request) -> Response:
        for ask in refresh:
            await run_in_threadpool(ask)
        encode, content_type = _encoder(request.headers.get("accept", ""))
        return Response(encode(metrics), media_type=content_type)

    routes = [Route("/healthz", healthz), Route("/readyz", readyz), Route("/metrics", scrape), *more]
    made = Starlette(routes=routes, exception_handlers={HTTPException: _refused, Exception: _failed})
    made.router.redirect_slashes = (
        False  # a path that is not there is 404, and the Host of a request is in no answer
    )
    return made


def _encoder(accept: str) -> tuple[Callable[[CollectorRegistry], bytes], str]:
    """Return how metrics are written for this Accept header; the text format for one that makes no sense, at which the
    library raises."""
    try:
        return choose_encoder(accept)
    except (TypeError, ValueError):
        return choose_encoder("")


async def _refused(_: Request, error: Exception) -> Response:
    """Answer 404, 405 and the like as a problem document."""
    assert isinstance(error, HTTPException)
    return problem(HTTPStatus(error.status_code), error.detail, dict(error.headers or {}))


async def _failed(_: Request, error: Exception) -> Response:
    """Answer that there is a defect of ours; what it is stands in the log."""
    return problem(HTTPStatus.INTERNAL_SERVER_ERROR, type(error).__name__)


def bind_unix(path: Path) -> socket.socket:
    """Return the bound Unix socket of a worker's admin HTTP, in a directory that is nobody else's; what a worker of
    before has left there goes. Raises OSError."""
    path.unlink(missing_ok=True)
    bound = socket.socket(socket.AF_UNIX)
    try:
        bound.bind(str(path))
    except OSError:
        bound.close()
        raise
    return bound


def bind(url: str, host: str, port: int) -> socket.socket:
    """Return the bound socket of the admin address `url`. Raises OSError, with the address, when it is taken or
    nobody's."""
    bound = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        bound.bind((host, port))
    except OSError as error:
        bound.close()
        raise OSError(error.errno, f"{url}: {error.strerror}") from None
    return bound
