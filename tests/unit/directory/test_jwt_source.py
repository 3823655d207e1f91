"""Keys from a file and from a URL: read again, and kept where that fails."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from headrace.directory.jwt_keys import UnusableKeys
from headrace.directory.jwt_source import AGAIN_S, BYTES_MAX, KeySource
from token_keys import KEYS, jwks

WITHIN_S = 20.0


class Server(ThreadingHTTPServer):
    """Answers with `status` and `text`."""

    status, text, asked = 200, jwks(), 0


class Handler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        server = self.server
        assert isinstance(server, Server)
        server.asked += 1
        self.send_response(server.status)
        if server.status == 302:
            self.send_header("Location", "/elsewhere")
        self.send_header("Content-Length", str(len(server.text)))
        self.end_headers()
        self.wfile.write(server.text)

    def log_message(self, *_: object) -> None: ...


@pytest.fixture
def server() -> Iterator[Server]:
    made = Server(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=made.serve_forever)
    thread.start()
    yield made
    made.shutdown()
    thread.join()
    made.server_close()


def until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + WITHIN_S
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


def test_a_file_has_to_be_right_at_the_start_and_is_kept_where_it_is_not_later(tmp_path: Path) -> None:
    file, told = tmp_path / "keys.json", list[str | None]()
    source = KeySource(str(file), 300, told.append)
    with pytest.raises(UnusableKeys, match="cannot be read"):
        source.open()
    file.write_bytes(jwks())
    source.load()
    file.write_bytes(b"{")
    for _ in range(2):
        source.read()
    assert len(source.keys) == len(KEYS)
    file.write_bytes(jwks(KEYS[0]))
    source.read()
    assert [key.kid for key in source.keys] == ["hs"]
    assert told == ["it is not JSON", None]


def test_a_url_is_read_on_a_thread_and_may_be_away_at_the_start(server: Server) -> None:
    told = list[str | None]()
    server.status = 500
    now = [0.0]
    source = KeySource(f"http://127.0.0.1:{server.server_port}/keys", 300, told.append, lambda: now[0])
    source.open()
    try:
        until(lambda: len(told) == 1)
        assert source.keys == ()
        server.status = 200
        now[0] += 11
        source.look_again()
        until(lambda: len(source.keys) == len(KEYS))
        assert told[-1] is None
        asked = server.asked
        for _ in range(5):
            source.look_again()
        now[0] += 11
        until(lambda: server.asked > asked)
        assert server.asked == asked + 1, "not more often than that, however many want it"
    finally:
        source.close()


def test_keys_are_fresh_for_a_while_after_they_were_read_and_none_are_before(tmp_path: Path) -> None:
    file, now = tmp_path / "keys.json", [0.0]
    source = KeySource(str(file), 300, lambda _: None, lambda: now[0])
    assert not source.are_fresh()
    file.write_bytes(jwks())
    source.load()
    assert source.are_fresh()
    now[0] += AGAIN_S
    assert not source.are_fresh()
    file.unlink()
    source.read()
    assert not source.are_fresh()  # what is there was read before
    file.write_bytes(jwks())
    source.read()
    assert source.are_fresh()


def test_keys_that_are_left_out_are_told_of_once(tmp_path: Path) -> None:
    file, said = tmp_path / "keys.json", list[str]()
    source = KeySource(str(file), 300, lambda _: None, left_out=said.append)
    file.write_bytes(jwks(KEYS[0], {"kty": "oct", "kid": "odd"}))
    source.load()
    source.read()
    assert [one.partition(" cannot")[0] for one in said] == ["key 'odd'"]
    file.write_bytes(jwks(KEYS[0]))
    source.read()
    file.write_bytes(jwks(KEYS[0], {"kty": "oct", "kid": "odd"}))
    source.read()
    assert len(said) == 2


@pytest.mark.parametrize(
    ("status", "text"), [(302, b""), (404, jwks()), (200, b" " * (BYTES_MAX + 1)), (200, b"x")]
)
def test_other_answers_are_no_keys(server: Server, status: int, text: bytes) -> None:
    server.status, server.text = status, text
    source = KeySource(f"http://127.0.0.1:{server.server_port}/keys", 300, lambda _: None)
    with pytest.raises(UnusableKeys):
        source.load()
    assert server.asked == 1


def test_an_answer_that_is_no_http_leaves_the_keys_and_the_thread() -> None:
    """Something else on the port, as a proxy that restarts, must not end the reading of keys for good."""
    told = list[str | None]()
    with socket.create_server(("127.0.0.1", 0)) as listening:
        source = KeySource(f"http://127.0.0.1:{listening.getsockname()[1]}/keys", 300, told.append)

        def answer() -> None:
            taken, _ = listening.accept()
            with taken:
                taken.recv(65_536)
                taken.sendall(b"SSH-2.0-something\r\n\r\n")

        thread = threading.Thread(target=answer)
        thread.start()
        source.read()
        thread.join(WITHIN_S)
    assert len(told) == 1
    assert "cannot be read" in str(told[0])


def test_what_nobody_foresaw_ends_the_reading_of_keys_as_little(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A key that is new would be unknown for as long as the broker runs."""
    file, told = tmp_path / "keys.json", list[str | None]()
    file.write_bytes(jwks(KEYS[0]))
    source = KeySource(str(file), 300, told.append)
    source.load()
    with monkeypatch.context() as without_memory:

        def read(_: Path) -> bytes:
            raise MemoryError

        without_memory.setattr(Path, "read_bytes", read)
        source.read()
    assert ([key.kid for key in source.keys], told) == (["hs"], ["MemoryError"])
    file.write_bytes(jwks())
    source.read()
    assert (len(source.keys), told[1:]) == (len(KEYS), [None])
