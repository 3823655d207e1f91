"""The admin address of several workers: a worker that hangs or is away costs those who ask no more than it has to."""

from __future__ import annotations

import shutil
import socket
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from http import HTTPStatus
from pathlib import Path
from urllib.parse import quote

import pytest
from prometheus_client.registry import CollectorRegistry
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Route

from headrace.api.apart import ServedApart
from headrace.api.app import application, bind_unix
from headrace.api.operations import DROP_SESSION, of_removals
from headrace.api.resource import served
from headrace.api.tokens import Tokens
from headrace.core.homes import Homes
from headrace.errors import BrokersOwn
from headrace.services.removals import Removals
from headrace.workers import overview
from headrace.workers.member import Member
from headrace.workers.overview import Overview, ask, socket_of

PATIENCE_S = 60.0


def told(_event: str, _detail: str) -> None:
    """Nobody listens."""


def never(_index: int, _run: int, _end: socket.socket) -> object:
    raise AssertionError("no process is needed")


@pytest.fixture
def runtime() -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix="hr-"))  # short: the path of a Unix socket has 107 bytes
    yield folder
    shutil.rmtree(folder)


@contextmanager
def worker(runtime: Path, index: int, *routes: BaseRoute) -> Iterator[None]:
    """The admin HTTP of a worker."""
    path = socket_of(runtime, index)
    app = application(lambda: "", CollectorRegistry(), routes)
    with ServedApart(app, bind_unix(path), str(path), told):
        yield


@contextmanager
def hung(runtime: Path, index: int) -> Iterator[socket.socket]:
    """Where a worker listens that stands still."""
    with bind_unix(socket_of(runtime, index)) as listening:
        listening.listen(128)
        listening.settimeout(PATIENCE_S)
        yield listening


@contextmanager
def node(runtime: Path, workers: int = 2) -> Iterator[Path]:
    """The supervisor's admin HTTP; yields its socket."""
    members = [Member(index, never) for index in range(workers)]  # type: ignore[arg-type]
    app = Overview(runtime, members, workers).site([], None, str)
    path = runtime / "node.sock"
    with ServedApart(app, bind_unix(path), str(path), told):
        yield path


def test_a_worker_that_hangs_does_not_have_those_who_ask_wait_for_each_other(
    runtime: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(overview, "METRICS_PATIENCE_S", PATIENCE_S)
    with ExitStack() as stack:
        stack.enter_context(worker(runtime, 0))
        listening = stack.enter_context(hung(runtime, 1))
        path = stack.enter_context(node(runtime))
        asking = stack.enter_context(ThreadPoolExecutor(8))
        found = [asking.submit(ask, path, "GET", "/metrics", patience_s=2 * PATIENCE_S) for _ in range(8)]
        held = [listening.accept()[0] for _ in found]  # all of them ask it at the same time
        for one in held:
            one.close()
        assert [answer.result().status for answer in found] == [200] * 8


class Traces:
    """The traces of a worker, by id; `refuses`: it has no place for another one."""

    def __init__(self, refuses: bool) -> None:
        self.on: set[str] = set()
        self._refuses = refuses

    def routes(self) -> list[Route]:
        return [
            Route("/v1/traces", self._begin, methods=["POST"]),
            Route("/v1/traces/{id}", self._end, methods=["DELETE"]),
        ]

    async def _begin(self, _request: Request) -> Response:
        if self._refuses:
            return JSONResponse({"detail": "as many as there may be"}, HTTPStatus.BAD_REQUEST)
        self.on.add("ab12")
        return JSONResponse({"id": "ab12"}, HTTPStatus.CREATED)

    async def _end(self, request: Request) -> Response:
        self.on.discard(request.path_params["id"])
        return Response(status_code=HTTPStatus.NO_CONTENT)


@pytest.mark.parametrize("is_there", [False, True])
def test_a_trace_that_cannot_begin_in_one_worker_goes_on_in_none(runtime: Path, is_there: bool) -> None:
    traces = [Traces(False), Traces(True), Traces(False)]
    with ExitStack() as stack:
        for index in (0, 1, 2) if is_there else (0, 2):
            stack.enter_context(worker(runtime, index, *traces[index].routes()))
        path = stack.enter_context(node(runtime, 3))
        answer = ask(path, "POST", "/v1/traces", "Bearer secret", b"{}", PATIENCE_S)
        assert answer.status == (HTTPStatus.BAD_REQUEST if is_there else HTTPStatus.SERVICE_UNAVAILABLE)
        assert [one.on for one in traces] == [set(), set(), set()]


@pytest.mark.parametrize("name", ["x", "ab12", "ab12.", "ab12.%C3%A9", "ab%20.12", "%3Fab.12", "ab.%0D%0A"])
@pytest.mark.parametrize("method", ["GET", "DELETE"])
def test_what_is_no_trace_is_over(runtime: Path, method: str, name: str) -> None:
    with node(runtime) as path:
        answer = ask(path, method, f"/v1/traces/{name}", "Bearer secret", b"", PATIENCE_S)
        assert (answer.status, answer.json()["detail"]) == (HTTPStatus.NOT_FOUND, "this trace is over")


def _says(status: int, asked: list[str]) -> Route:
    """A worker's answer to a removal, and what it was asked."""

    async def endpoint(request: Request) -> Response:
        asked.append(f"{request.scope['raw_path'].decode()}?{request.url.query}")
        return JSONResponse({"said": status}, status)

    return Route("/v1/queues", endpoint, methods=["DELETE"])


@pytest.mark.parametrize(
    ("statuses", "answer"),
    [
        ((404, 200), 200),
        ((200, 404), 200),
        ((404, 409), 409),
        ((404, 404), 404),
        ((403, 403), 403),
        ((None, 200), 200),
        ((None, 404), 503),
    ],
)
def test_the_worker_that_has_a_queue_removes_it_and_one_that_is_away_may_have_it(
    runtime: Path, statuses: tuple[int | None, ...], answer: int
) -> None:
    asked: list[str] = []
    with ExitStack() as stack:
        for index, status in enumerate(statuses):
            if status is not None:
                stack.enter_context(worker(runtime, index, _says(status, asked)))
        path = stack.enter_context(node(runtime))
        assert ask(path, "DELETE", "/v1/queues?topic=a%2F%252Fb&force=true").status == answer
    assert asked == ["/v1/queues?topic=a%2F%252Fb&force=true"] * (len(statuses) - statuses.count(None))


class Dropped(Removals):
    """Says which sessions a worker was asked for."""

    def __init__(self, index: int, asked: list[tuple[int, str, str]]) -> None:
        super().__init__([])
        self._index = index
        self._asked = asked

    async def session(self, tenant: str, client_id: str) -> dict[str, object]:
        self._asked.append((self._index, tenant, client_id))
        if client_id.startswith("$"):
            raise BrokersOwn("it is the broker's own")
        return {"tenant": tenant, "client_id": client_id}


NAMES = ["c1", "c2", "c3", "a/b", "a//b", "../x", ".", "a%2Fb", "größe/日本", "?x=1&client=y", "#", " "]


@contextmanager
def dropping(runtime: Path) -> Iterator[tuple[Path, list[tuple[int, str, str]]]]:
    """A node of two workers; yields its socket, and what its workers were asked."""
    asked: list[tuple[int, str, str]] = []
    (runtime / "tokens").write_text("secret\n")
    with ExitStack() as stack:
        for index in range(2):
            answers = {DROP_SESSION: of_removals(Dropped(index, asked))[DROP_SESSION]}
            stack.enter_context(worker(runtime, index, *served(Tokens(runtime / "tokens"), answers)))
        yield stack.enter_context(node(runtime)), asked


def test_the_owner_of_its_home_drops_a_session_whatever_its_name(runtime: Path) -> None:
    with dropping(runtime) as (path, asked):
        for name in NAMES:
            encoded = quote(name, safe="")
            for url in (f"/v1/sessions/{encoded}?tenant=t", f"/v1/sessions?tenant=t&client={encoded}"):
                answer = ask(path, "DELETE", url, "Bearer secret")
                assert (answer.status, answer.json()) == (200, {"tenant": "t", "client_id": name})
        assert ask(path, "DELETE", "/v1/sessions/a/b", "Bearer secret").json()["client_id"] == "a/b"
    homes = Homes(2)
    expected = [(homes.of_client("t", name), "t", name) for name in NAMES for _ in range(2)]
    assert asked == [*expected, (homes.of_client("default", "a/b"), "default", "a/b")]
    assert {index for index, _, _ in asked} == {0, 1}


@pytest.mark.parametrize(
    ("url", "named"),
    [
        ("", "client"),
        ("/", "client"),
        ("?client=", "client"),
        ("?client=a&client=b", "client"),
        ("/a?client=b", "client"),
        ("/a?tenant=", "tenant"),
        ("/a?force=true", "force"),
        ("/%FF", "client"),
        ("?client=%FF", "UTF-8"),
    ],
)
def test_a_session_that_is_not_named_exactly_is_a_problem_that_names_it(
    runtime: Path, url: str, named: str
) -> None:
    with dropping(runtime) as (path, asked):
        answer = ask(path, "DELETE", f"/v1/sessions{url}", "Bearer secret")
        assert (answer.status, named in answer.json()["detail"], asked) == (400, True, [])
        assert ask(path, "DELETE", f"/v1/sessions{url}").status == HTTPStatus.UNAUTHORIZED


def test_the_brokers_own_session_is_a_conflict(runtime: Path) -> None:
    with dropping(runtime) as (path, _):
        answer = ask(path, "DELETE", "/v1/sessions/%24bridge%2Fx", "Bearer secret")
        assert (answer.status, answer.json()["title"]) == (HTTPStatus.CONFLICT, "Conflict")
