"""A stop takes the main thread out of a request that nobody answers, and nothing else."""

from __future__ import annotations

import signal
import socket
import threading
from collections.abc import Iterator
from types import SimpleNamespace

import pytest

from headrace_spark.base.errors import JournalUnreachable
from headrace_spark.base.stopping import STOPPING, Stopped, Stopping
from headrace_spark.source import remote
from headrace_spark.source.remote import Endpoint


@pytest.fixture(autouse=True)
def _not_stopped() -> Iterator[None]:
    handler = signal.getsignal(signal.SIGUSR1)
    yield
    signal.signal(signal.SIGUSR1, handler)
    STOPPING.event.clear()


def test_who_does_not_wait_is_only_told() -> None:
    stopping = Stopping()
    stopping.ask()
    assert stopping.event.is_set()


def test_what_is_to_be_done_at_once_is_done_on_another_thread() -> None:
    stopping, done = Stopping(), list[int]()
    over = threading.Event()

    def at_once() -> None:
        done.append(threading.get_ident())
        over.set()

    stopping.at_once = at_once
    stopping.ask()
    assert over.wait(60)
    assert done != [threading.get_ident()]


def test_who_waits_is_taken_out_of_it() -> None:
    stopping = Stopping()
    with pytest.raises(Stopped), stopping.ends():
        stopping.ask()
    stopping.ask()  # it has ended: nothing is raised


def test_another_thread_may_wait_on() -> None:
    stopping = Stopping()
    inside, over = threading.Event(), threading.Event()

    def wait() -> None:
        with stopping.ends():
            inside.set()
            over.wait(60)

    thread = threading.Thread(target=wait)
    thread.start()
    assert inside.wait(60)
    stopping.ask()
    over.set()
    thread.join(60)


def test_a_request_to_a_broker_that_hangs_ends_at_once() -> None:
    """It is accepted and never answered, as by a broker that is stopped (SIGSTOP)."""
    signal.signal(signal.SIGUSR1, lambda *_: STOPPING.ask())
    main, kept = threading.get_ident(), list[socket.socket]()
    with socket.create_server(("127.0.0.1", 0)) as server:
        endpoint = Endpoint(f"headrace://127.0.0.1:{server.getsockname()[1]}", "")

        def stop_when_asked() -> None:
            held, _ = server.accept()
            held.recv(100)
            signal.pthread_kill(main, signal.SIGUSR1)
            kept.append(held)  # it stays open

        thread = threading.Thread(target=stop_when_asked)
        thread.start()
        with pytest.raises(Stopped):
            endpoint.get("/watermark")
        thread.join(60)
        kept[0].close()


def test_after_the_stop_nothing_is_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    pauses: list[float] = []
    monkeypatch.setattr(remote, "time", SimpleNamespace(sleep=pauses.append, monotonic=lambda: 0.0))
    STOPPING.event.set()
    with socket.create_server(("127.0.0.1", 0)) as server:
        endpoint = Endpoint(f"headrace://127.0.0.1:{server.getsockname()[1]}", "")
    with pytest.raises(JournalUnreachable):
        endpoint.get("/watermark")
    assert pauses == []
