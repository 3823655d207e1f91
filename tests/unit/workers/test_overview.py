"""The admin address of several workers: a worker that hangs or is away costs those who ask no more than it has to."""

from __future__ import annotations

import json
import logging
import shutil
import socket
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from http import HTTPStatus
from http.client import HTTPConnection
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from prometheus_client.registry import CollectorRegistry
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Route

from headrace.api.apart import ServedApart
from headrace.api.app import application, bind, bind_unix
from headrace.api.configuration import of_configuration
from headrace.api.operations import DROP_SESSION, of_removals, of_sessions
from headrace.api.posts import BODY_BYTES_MAX, PUBLISH, of_posts
from headrace.api.resource import served
from headrace.api.tokens import Tokens
from headrace.core.homes import Homes
from headrace.errors import BrokersOwn
from headrace.mqtt.packets import Publish
from headrace.services.configuration import Configured, Reloaded
from headrace.services.paging import ByHome, Place, Rows, ShardRows
from headrace.services.posts import Posts
from headrace.services.removals import Removals
from headrace.services.session_rows import Chosen, SessionRows
from headrace.workers import overview
from headrace.workers.member import Member
from headrace.workers.overview import Answer, Configuring, Overview, ask, socket_of

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
def node(
    runtime: Path,
    workers: int = 2,
    shards: int = 0,
    tokens: Path | None = None,
    configuring: Configuring | None = None,
) -> Iterator[Path]:
    """The supervisor's admin HTTP; yields its socket."""
    members = [Member(index, never) for index in range(workers)]  # type: ignore[arg-type]
    app = Overview(runtime, members, shards or workers).site([], tokens, str, configuring=configuring)
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


def test_a_change_is_told_with_whose_token_it_was_and_from_where(
    runtime: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Over TCP the supervisor tells the worker; nobody else's word counts."""
    (runtime / "tokens").write_text("read other\n\noperate secret\n")
    asked: list[tuple[int, str, str]] = []
    with ExitStack() as stack, caplog.at_level(logging.WARNING, "headrace"):
        answers = {DROP_SESSION: of_removals(Dropped(0, asked))[DROP_SESSION]}
        routes = served(Tokens(runtime / "tokens"), answers)
        stack.enter_context(worker(runtime, 0, *routes))
        app = Overview(runtime, [Member(0, never)], 1).site([], None, str)  # type: ignore[arg-type]
        bound = bind("http://127.0.0.1:0", "127.0.0.1", 0)
        stack.enter_context(ServedApart(app, bound, "http://127.0.0.1", told))
        connection = HTTPConnection("127.0.0.1", bound.getsockname()[1], timeout=PATIENCE_S)
        stack.callback(connection.close)
        headers = {"Authorization": "Bearer secret", "Forwarded": 'for="192.0.2.1:1"'}
        connection.request("DELETE", "/v1/sessions/c?tenant=t", headers=headers)
        host, port = connection.sock.getsockname()
        assert connection.getresponse().status == HTTPStatus.OK
        assert ask(socket_of(runtime, 0), "DELETE", "/v1/sessions/%24x", "Bearer secret").status == 409
    [line] = [record for record in caplog.records if record.message == "session dropped"]
    expected = {"tenant": "t", "client_id": "c", "role": "operate", "token_line": 3, "by": f"{host}:{port}"}
    assert vars(line)["fields"] == expected


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


class Two(SessionRows):
    """Two sessions of a shard, of which a page has one."""

    def __init__(self, shard: int) -> None:
        self._shard = shard

    async def page(self, wanted: Chosen, limit: int, place: Place) -> tuple[Rows, Place | None]:
        row: dict[str, object] = {"shard": self._shard, "number": place.number, "clients": wanted.as_clients}
        return [row], None if place.number else Place(1, 99)

    def client(self, tenant: str, client_id: str) -> dict[str, object]:
        return {"client": client_id, "tenant": tenant, "shard": self._shard}

    def session(self, tenant: str, client_id: str) -> dict[str, object]:
        return {"session": client_id, "tenant": tenant, "shard": self._shard}


@contextmanager
def listing(runtime: Path, there: tuple[int, ...] = (0, 1), lost: tuple[int, ...] = ()) -> Iterator[Path]:
    """A node of two workers and four shards, of which these workers are there, without the shards that they have lost;
    yields its socket."""
    tokens = runtime / "tokens"
    tokens.write_text("secret\n")
    with ExitStack() as stack:
        for index in there:
            mine = (index, index + 2)
            shards: dict[int, SessionRows] = {shard: Two(shard) for shard in mine if shard not in lost}
            away = {shard: "its journal has failed" for shard in mine if shard in lost}
            answers = of_sessions(
                ShardRows(shards, away), ByHome(shards, Homes(4).of_client, away), ShardRows({}, away)
            )
            stack.enter_context(worker(runtime, index, *served(Tokens(tokens), answers)))
        yield stack.enter_context(node(runtime, 2, 4, tokens))


def walked(path: Path, url: str) -> tuple[list[tuple[int, int]], list[int]]:
    """All pages of a list: shard and number of each row, and the shards that did not answer."""
    rows, unanswered = [], []
    following: str | None = ""
    while following is not None:
        answer = ask(path, "GET", f"{url}{following and f'?from={following}'}", "Bearer secret")
        assert answer.status == HTTPStatus.OK
        page = answer.json()
        rows += [(row["shard"], row["number"]) for row in page["rows"]]
        unanswered += page["unanswered"]
        following = page["next"]
    return rows, unanswered


@pytest.mark.parametrize("url", ["/v1/clients", "/v1/sessions"])
def test_a_list_walks_through_all_shards_and_names_those_that_do_not_answer(runtime: Path, url: str) -> None:
    with listing(runtime) as path:
        assert walked(path, url) == ([(shard, number) for shard in range(4) for number in (0, 1)], [])
    with listing(runtime, (1,)) as path:
        assert walked(path, url) == ([(1, 0), (1, 1), (3, 0), (3, 1)], [0, 2])
        for token, status in (("", 401), ("Bearer wrong", 401), ("Bearer secret", 200)):
            assert (
                ask(path, "GET", url, token).status == status
            )  # whoever is asked, and whether or not it is there


@pytest.mark.parametrize("url", ["/v1/clients", "/v1/sessions"])
@pytest.mark.parametrize("lost", [(0,), (2,), (3,), (0, 2), (0, 1, 2, 3)])
def test_a_shard_that_its_worker_has_lost_is_named_and_the_others_are_listed_once(
    runtime: Path, url: str, lost: tuple[int, ...]
) -> None:
    with listing(runtime, lost=lost) as path:
        left = [shard for shard in range(4) if shard not in lost]
        assert walked(path, url) == ([(shard, number) for shard in left for number in (0, 1)], list(lost))
        for name in NAMES:
            expected = 503 if Homes(4).of_client("default", name) in lost else 200
            assert (
                ask(path, "GET", f"{url}?client={quote(name, safe='')}", "Bearer secret").status == expected
            )


def test_one_is_asked_for_at_its_home_whatever_its_name(runtime: Path) -> None:
    with listing(runtime) as path:
        for name in [*NAMES, "behind", "%", "a?b&c"]:
            encoded = quote(name, safe="")
            home = Homes(4).of_client("t", name)
            for what in ("client", "session"):
                expected = {what: name, "tenant": "t", "shard": home}
                urls = [f"/v1/{what}s?tenant=t&client={encoded}", f"/v1/{what}s/{encoded}?tenant=t"]
                if (what, name) == ("client", "behind"):
                    urls.pop()  # that is the list
                for url in urls:
                    answer = ask(path, "GET", url, "Bearer secret")
                    assert (answer.status, answer.json()) == (200, expected), url


def test_the_owner_of_the_home_that_is_away_is_503_for_one(runtime: Path) -> None:
    name = next(name for name in NAMES if Homes(4).of_client("t", name) % 2 == 0)
    with listing(runtime, (1,)) as path:
        answer = ask(path, "GET", f"/v1/clients?tenant=t&client={quote(name, safe='')}", "Bearer secret")
        assert (answer.status, answer.kind) == (HTTPStatus.SERVICE_UNAVAILABLE, "application/problem+json")


class Taken(Posts):
    """Says which posts a worker was asked for."""

    def __init__(self, index: int, asked: list[tuple[int, str, int]]) -> None:
        super().__init__([])
        self._index = index
        self._asked = asked

    async def publish(self, tenant: str, packet: Publish) -> dict[str, object]:
        topic = packet.topic.decode()
        self._asked.append((self._index, topic, len(packet.payload)))
        return {"tenant": tenant, "topic": topic}


def test_a_post_goes_whole_to_the_home_of_its_topic_and_one_that_names_none_is_refused_by_a_worker(
    runtime: Path,
) -> None:
    (runtime / "tokens").write_text("secret\n")
    asked: list[tuple[int, str, int]] = []
    with ExitStack() as stack:
        for index in range(2):
            answers = {PUBLISH: of_posts(Taken(index, asked))[PUBLISH]}
            stack.enter_context(worker(runtime, index, *served(Tokens(runtime / "tokens"), answers)))
        path = stack.enter_context(node(runtime))

        def post(body: bytes, token: str = "Bearer secret") -> Answer:
            return ask(path, "POST", "/v1/publish?tenant=t", token, body)

        sizes = {"t0": 3, "bc": 1000, "größe/日本": BODY_BYTES_MAX - 100}
        for topic, size in sizes.items():
            answer = post(json.dumps({"topic": topic, "text": size * "x"}).encode())
            assert (answer.status, answer.json()) == (200, {"tenant": "t", "topic": topic})
        homes = Homes(2)
        assert asked == [(homes.of_topic("t", topic), topic, size) for topic, size in sizes.items()]
        for body in (b"", b"{", b'{"topic": 1}', b'{"topic": "a/#"}'):
            assert (post(body).status, post(body, "").status) == (400, 401)
        assert post(bytes(BODY_BYTES_MAX + 1)).status == HTTPStatus.REQUEST_ENTITY_TOO_LARGE
    assert len(asked) == len(sizes)


class Node:
    """The sources of a node's configuration, and what was done with them, in order."""

    def __init__(self) -> None:
        self.done: list[str] = []

    def pending(self) -> Reloaded:
        self.done.append("pending")
        return Reloaded(["limits.a"])

    def reload(self) -> Reloaded:
        self.done.append("read")
        return Reloaded(["limits.a"], ["data_dir"])

    def remind(self, index: int) -> None:
        self.done.append(f"remind {index}")


class Worker(Configured):
    """The configuration of a worker."""

    def __init__(self, index: int, done: list[str]) -> None:
        self._index = index
        self._done = done

    def shown(self) -> dict[str, Any]:
        return {"worker": self._index}

    def pending(self) -> Reloaded:
        return Reloaded()

    def reload(self) -> Reloaded:
        self._done.append(f"worker {self._index}")
        return Reloaded(failed=["bans"] if self._index else [])


@contextmanager
def reloading(runtime: Path, there: tuple[int, ...]) -> Iterator[tuple[Path, Node]]:
    """A node of three workers, of which these are there."""
    (runtime / "tokens").write_text("read looks\nsecret\n")
    of_node = Node()
    with ExitStack() as stack:
        for index in there:
            answers = of_configuration(Worker(index, of_node.done))
            stack.enter_context(worker(runtime, index, *served(Tokens(runtime / "tokens"), answers)))
        yield stack.enter_context(node(runtime, 3, configuring=of_node)), of_node


def test_a_node_reloads_its_sources_before_its_workers_do_and_says_what_all_of_them_say(
    runtime: Path,
) -> None:
    with reloading(runtime, (0, 1, 2)) as (path, of_node):
        assert ask(path, "GET", "/v1/reload", "Bearer secret").json()["changed"] == ["limits.a"]
        assert of_node.done == ["pending"]
        answer = ask(path, "POST", "/v1/reload", "Bearer secret")
        assert answer.json() == {
            "changed": ["limits.a"],
            "restart": ["data_dir"],
            "failed": ["bans"],
            "why": "",
            "unanswered": [],
        }
        assert of_node.done[1] == "read"
        assert sorted(of_node.done[2:]) == ["worker 0", "worker 1", "worker 2"]
        assert ask(path, "GET", "/v1/configuration", "Bearer looks").json() == {"worker": 0}


def test_a_worker_that_does_not_answer_is_named_and_reminded(runtime: Path) -> None:
    with reloading(runtime, (0, 2)) as (path, of_node):
        answer = ask(path, "POST", "/v1/reload", "Bearer secret")
        assert (answer.status, answer.json()["unanswered"]) == (200, [1])
        assert "remind 1" in of_node.done


@pytest.mark.parametrize(("token", "status"), [("Bearer looks", 403), ("Bearer other", 401), ("", 401)])
def test_who_may_not_reload_reloads_nothing_nor_does_anybody_while_no_worker_can_tell(
    runtime: Path, token: str, status: int
) -> None:
    with reloading(runtime, (0, 1, 2)) as (path, of_node):
        for method in ("GET", "POST"):
            assert ask(path, method, "/v1/reload", token).status == status
        assert of_node.done == []
    with reloading(runtime, ()) as (path, of_node):
        assert ask(path, "POST", "/v1/reload", "Bearer secret").status == HTTPStatus.SERVICE_UNAVAILABLE
        assert of_node.done == []
