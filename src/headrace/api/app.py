"""The admin endpoints as a Starlette application, and uvicorn inside the node's own loop."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Callable, Iterator, Sequence
from http import HTTPStatus
from urllib.parse import urlsplit

import uvicorn
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.registry import CollectorRegistry
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import BaseRoute, Route

from headrace.api.problem import problem


def application(
    not_ready: Callable[[], str], metrics: CollectorRegistry, more: Sequence[BaseRoute] = ()
) -> Starlette:
    """`not_ready` says why the node is not ready, "" when it is; `more`: routes of other modules."""

    async def healthz(_: Request) -> Response:
        return PlainTextResponse("ok\n")

    async def readyz(_: Request) -> Response:
        reason = not_ready()
        if reason:
            return problem(HTTPStatus.SERVICE_UNAVAILABLE, reason)
        return PlainTextResponse("ready\n")

    async def scrape(_: Request) -> Response:
        return Response(generate_latest(metrics), media_type=CONTENT_TYPE_LATEST)

    routes = [Route("/healthz", healthz), Route("/readyz", readyz), Route("/metrics", scrape), *more]
    return Starlette(routes=routes)


class AdminServer(uvicorn.Server):
    """uvicorn that leaves the signals to the node."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def admin_server(url: str, app: Starlette) -> tuple[AdminServer, socket.socket]:
    """The server and its bound socket. Raises OSError when the address is taken."""
    parts = urlsplit(url)
    bound = socket.socket(socket.AF_INET6 if ":" in (parts.hostname or "") else socket.AF_INET)
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    bound.bind((parts.hostname or "127.0.0.1", parts.port or 0))
    config = uvicorn.Config(app, log_level="warning", access_log=False, lifespan="off", loop="none")
    return AdminServer(config), bound
