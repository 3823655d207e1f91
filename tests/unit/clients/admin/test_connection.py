"""The connection of the admin client: kept, made anew where it was closed, and a change is never sent twice."""

from __future__ import annotations

import json
import os
import re
import resource
import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from broker_process import free_port
from headrace.clients.admin import NotFound, Unreachable
from headrace.clients.admin.connection import AdminConnection


class Server:
    """Answers requests of one connection after the other. `plan`: what becomes of each request: an answer, "close" for
    none, or an answer and "then close"."""

    def __init__(self) -> None:
        self.plan: list[str] = []
        self.requests: list[str] = []
        self.connections = 0
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listening.getsockname()[1]
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._listening.accept()
            except OSError:
                return
            self.connections += 1
            with connection:
                while self._answer(connection):
                    pass

    def _answer(self, connection: socket.socket) -> bool:
        data = b""
        while b"\r\n\r\n" not in data:
            part = connection.recv(65_536)
            if not part:
                return False
            data += part
        asked, _, sent = data.partition(b"\r\n\r\n")
        found = re.search(rb"\ncontent-length: *(\d+)", asked.lower())
        while found and len(sent) < int(found[1]):  # a connection closed over what was not read is reset
            sent += connection.recv(65_536)
        self.requests.append(data.decode().partition(" HTTP")[0])
        step = self.plan.pop(0)
        if step == "close":
            return False
        text, _, then = step.partition(" then ")
        status, _, body = text.partition(" ")
        head = f"HTTP/1.1 {status} x\r\nContent-Length: {len(body)}\r\nLocation: /y\r\n\r\n"
        connection.sendall((head + body).encode())
        return then != "close"

    def close(self) -> None:
        self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()
        self._thread.join()


@pytest.fixture
def server() -> Iterator[Server]:
    found = Server()
    yield found
    found.close()


@pytest.fixture
def connection(server: Server) -> Iterator[AdminConnection]:
    found = AdminConnection(f"http://127.0.0.1:{server.port}/", "abc", timeout_s=30)
    yield found
    found.close()


def test_it_is_kept(server: Server, connection: AdminConnection) -> None:
    server.plan = ['200 {"a": 1}', "204 ", "200 plain"]
    assert connection.ask("GET", "/x") == {"a": 1}
    assert connection.ask("DELETE", "/x") is None
    assert connection.text("/x") == "plain"
    assert server.connections == 1


def test_one_that_the_other_side_has_closed_meanwhile_is_made_anew_for_changes_too(
    server: Server, connection: AdminConnection
) -> None:
    server.plan = ["200 1 then close", "200 2 then close", "200 3"]
    assert connection.ask("GET", "/x") == 1
    _wait_until_closed(connection)
    assert connection.ask("POST", "/x", {}) == 2
    _wait_until_closed(connection)
    assert connection.ask("GET", "/x") == 3
    assert (server.connections, len(server.requests)) == (3, 3)


def _wait_until_closed(connection: AdminConnection) -> None:
    """Wait until the end of the other side has come."""
    kept = connection._kept
    assert kept is not None
    assert kept.sock.recv(1, socket.MSG_PEEK) == b""


def test_a_program_with_many_descriptors_is_served(server: Server, connection: AdminConnection) -> None:
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    if limit < 1100:
        pytest.skip("not so many descriptors here")
    server.plan = ["200 1", "200 2"]
    with ExitStack() as stack:
        for _ in range(1030):
            stack.enter_context(Path(os.devnull).open("rb"))
        assert [connection.ask("GET", "/x") for _ in range(2)] == [1, 2]
        assert connection._kept is not None
        assert connection._kept.sock.fileno() > 1023


@pytest.mark.parametrize(("method", "requests"), [("GET", 3), ("POST", 2), ("DELETE", 2), ("PATCH", 2)])
def test_a_change_whose_answer_did_not_come_is_not_sent_again(
    server: Server, connection: AdminConnection, method: str, requests: int
) -> None:
    server.plan = ["200 1", "close", "200 2"]
    connection.ask("GET", "/x")
    if method == "GET":
        assert connection.ask(method, "/x") == 2
    else:
        with pytest.raises(Unreachable):
            connection.ask(method, "/x", {})
    assert len(server.requests) == requests


def test_a_refusal_is_a_problem_and_the_connection_goes_on(
    server: Server, connection: AdminConnection
) -> None:
    members = {"status": 404, "detail": "no such thing", "title": "Not Found"}
    server.plan = [f"404 {json.dumps(members)}", f"404 {json.dumps(members)}", "200 1"]
    for asked in (lambda: connection.ask("GET", "/x"), lambda: connection.text("/x")):
        with pytest.raises(NotFound, match="404: no such thing") as found:
            asked()
        assert found.value.members == members
    assert (connection.ask("GET", "/x"), server.connections) == (1, 1)


@pytest.mark.parametrize("answer", ["200 <html>", "302 {}", "500 <html>"])
def test_what_is_no_admin_http_is_named_by_its_address(
    server: Server, connection: AdminConnection, answer: str
) -> None:
    server.plan = [answer]
    with pytest.raises(Unreachable, match=f"no broker answers at http://127.0.0.1:{server.port}: "):
        connection.ask("GET", "/x")


def test_where_nobody_listens() -> None:
    with pytest.raises(Unreachable):
        AdminConnection(f"http://127.0.0.1:{free_port()}").text("/metrics")


@pytest.mark.parametrize(
    "url", ["", "127.0.0.1:1", "tcp://127.0.0.1:1", "http://", "http://x/path", "http://x:y"]
)
def test_a_url_that_is_none_is_refused(url: str) -> None:
    with pytest.raises(ValueError, match=r"address|[Pp]ort"):
        AdminConnection(url)


def test_a_url_has_a_port_without_one() -> None:
    assert AdminConnection("https://[::1]").url == "https://[::1]"
