"""The admin address of several workers: a worker that hangs or is away costs those who ask no more than it has to."""

from __future__ import annotations

import shutil
import socket
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from prometheus_client.registry import CollectorRegistry
from starlette.routing import BaseRoute

from headrace.api.apart import ServedApart
from headrace.api.app import application, bind_unix
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
