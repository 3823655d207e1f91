"""The client of the admin HTTP: what it sends, and the one line that it says when something is wrong."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from broker_process import free_port
from headrace.console.admin import AdminClient, AdminRefused, Unreachable, token_of


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        if self.path == "/refused":
            self._answer(403, {"detail": "not you"})
        elif self.path == "/html":
            self._answer(200, None, b"<html>")
        else:
            self._answer(200, {"token": self.headers.get("Authorization", "")})
        if self.path == "/once":
            self.close_connection = True

    def do_DELETE(self) -> None:
        self._answer(204, None)

    def _answer(self, status: int, content: object, raw: bytes = b"") -> None:
        body = raw or (b"" if content is None else json.dumps(content).encode())
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        return


@pytest.fixture
def port() -> Iterator[int]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield server.server_address[1]
    server.shutdown()
    thread.join()
    server.server_close()


def test_answers_and_tokens(port: int) -> None:
    admin = AdminClient("127.0.0.1", port, token="abc")
    assert admin.get("/x") == {"token": "Bearer abc"}
    assert admin.ask("DELETE", "/x") is None
    admin.close()


def test_a_connection_that_was_closed_meanwhile_is_made_anew(port: int) -> None:
    admin = AdminClient("127.0.0.1", port)
    admin.get("/once")
    assert admin.get("/x") == {"token": ""}
    admin.close()


def test_a_refusal_has_the_broker_s_words(port: int) -> None:
    admin = AdminClient("127.0.0.1", port)
    with pytest.raises(AdminRefused, match="answers 403: not you") as refused:
        admin.get("/refused")
    assert refused.value.status == 403
    admin.close()


def test_whoever_is_no_broker_is_named_by_address(port: int) -> None:
    for wrong, path in ((free_port(), "/x"), (port, "/html")):
        admin = AdminClient("127.0.0.1", wrong)
        with pytest.raises(Unreachable, match=f"no broker answers at http://127.0.0.1:{wrong}: "):
            admin.get(path)
        admin.close()


def test_an_address_of_version_6_is_written_in_brackets() -> None:
    assert AdminClient("::1", 1).address == "http://[::1]:1"


@pytest.mark.parametrize(
    ("text", "token"),
    [("abc\n", "abc"), ("# no\nread r\noperate o\n", "o"), ("read r\n", "r"), ("\n", "")],
)
def test_the_token_of_a_file(tmp_path: Path, text: str, token: str) -> None:
    file = tmp_path / "tokens"
    file.write_text(text)
    assert token_of(file) == token


def test_a_change_is_sent_once() -> None:
    """A command that has dropped a session does not say that there was none."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        asked: list[bytes] = []

        def answer() -> None:
            for reply in (b"HTTP/1.1 200 x\r\nContent-Length: 2\r\n\r\n{}", b""):
                if not asked:
                    connection, _ = listening.accept()
                data = connection.recv(65_536)
                asked.append(data.partition(b" HTTP")[0])
                connection.sendall(reply)
            connection.close()

        thread = threading.Thread(target=answer)
        thread.start()
        admin = AdminClient("127.0.0.1", listening.getsockname()[1], timeout_s=60)
        admin.get("/x")
        with pytest.raises(Unreachable):
            admin.ask("DELETE", "/x")
        thread.join()
        admin.close()
    assert asked == [b"GET /x", b"DELETE /x"]
