"""Files of a journal over HTTP as the reader meets them, served by a script: ranges, compression, requests in flight,
answers that are cut off or not what was asked for. No Spark."""

from __future__ import annotations

import gzip
import re
import ssl
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from random import Random
from typing import ClassVar

import pytest

from certificates import Authority
from headrace_spark.base.errors import BadOption, JournalRefused, JournalUnreachable
from headrace_spark.source import remote
from headrace_spark.source.remote import Address, Endpoint, Patience, RemoteDisk

SIZE = (5 << 20) + 123
DATA = Random(1).randbytes(SIZE // 2) + bytes(SIZE - SIZE // 2)
FILE = Path("00000000000000000000.log")
Fault = Callable[["Server"], bool]


class Server(BaseHTTPRequestHandler):
    """Serves DATA in ranges of at most 1 MiB. `faults` come first, one for each request: they answer themselves, and
    return whether that was all."""

    protocol_version = "HTTP/1.1"
    faults: ClassVar[list[Fault]] = []
    asked: ClassVar[list[tuple[int, str]]] = []
    together: ClassVar[threading.Semaphore | None] = None
    tag = "one"

    def do_GET(self) -> None:
        found = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range", ""))
        assert found is not None
        first, last = int(found[1]), min(int(found[2]), SIZE - 1, int(found[1]) + (1 << 20) - 1)
        self.asked.append((first, self.headers.get("Accept-Encoding", "")))
        if self.faults and self.faults.pop(0)(self):
            return
        self.answer(first, last, DATA[first : last + 1])

    def answer(self, first: int, last: int, data: bytes, **more: str) -> None:
        if self.headers.get("Accept-Encoding") == "gzip" and "encoding" not in more:
            data, more = gzip.compress(data, 1), {"encoding": "gzip"}
        self.send_response(206)
        self.send_header("Content-Range", f"bytes {first}-{last}/{SIZE}")
        self.send_header("ETag", self.tag)
        if more.get("encoding"):
            self.send_header("Content-Encoding", more["encoding"])
        self.send_header("Content-Length", more.get("length", str(len(data))))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@pytest.fixture
def server() -> Iterator[ThreadingHTTPServer]:
    Server.faults, Server.asked, Server.tag = [], [], "one"
    with ThreadingHTTPServer(("127.0.0.1", 0), Server) as serving:
        serving.daemon_threads = True
        thread = threading.Thread(target=serving.serve_forever, args=(0.01,))
        thread.start()
        yield serving
        serving.shutdown()
        thread.join()


def location(server: ThreadingHTTPServer, query: str = "") -> str:
    return f"headrace://127.0.0.1:{server.server_address[1]}{query}"


def read_through(disk: RemoteDisk, length: int = 1 << 20, step: int = 700_000) -> bytes:
    """As a walk does: large reads, each from where something of the one before is left."""
    fd = disk.open(FILE)
    try:
        assert disk.size(fd) == SIZE
        parts = [disk.pread(fd, length, position)[:step] for position in range(0, SIZE, step)]
    finally:
        disk.close(fd)
    return b"".join(parts)


@pytest.mark.parametrize(
    "query", ["", "?requests=1", "?requests=5", "?compression=gzip", "?compression=gzip&requests=3"]
)
def test_a_file_read_from_front_to_back_is_the_file(server: ThreadingHTTPServer, query: str) -> None:
    assert read_through(RemoteDisk(Endpoint(location(server, query), ""))) == DATA
    assert {encoding for _, encoding in Server.asked} == ({"gzip"} if "gzip" in query else {"identity"})
    beginnings = [first for first, _ in Server.asked[2:]]  # the first look, and the first large read
    assert len(set(beginnings)) == len(beginnings), "nothing is asked for twice"


def test_reads_here_and_there_take_what_they_ask_for(server: ThreadingHTTPServer) -> None:
    disk = RemoteDisk(Endpoint(location(server), ""))
    fd = disk.open(FILE)
    random = Random(2)
    for _ in range(40):
        position, length = random.randrange(SIZE), random.choice([1, 56, 1000, 100_000, 1 << 20, 3 << 20])
        assert disk.pread(fd, length, position) == DATA[position : position + length]
    assert disk.pread(fd, 100, SIZE) == b""
    disk.close(fd)


def test_several_requests_are_in_flight(server: ThreadingHTTPServer) -> None:
    """Two answers wait for each other: one after the other they would not come."""
    both = threading.Barrier(2, timeout=60)

    def wait(_: Server) -> bool:
        both.wait()
        return False

    Server.faults = [lambda _: False, lambda _: False, wait, wait]
    assert read_through(RemoteDisk(Endpoint(location(server, "?requests=2"), ""))) == DATA


def cut_off(server: Server) -> bool:
    server.answer(0, (64 << 10) - 1, b"half", length=str(64 << 10), encoding="")
    server.close_connection = True
    return True


def of_another_place(server: Server) -> bool:
    server.answer(5, 8, b"here", encoding="")
    return True


def shorter_than_it_says(server: Server) -> bool:
    server.answer(0, (64 << 10) - 1, b"short", encoding="")
    return True


def no_gzip(server: Server) -> bool:
    server.answer(0, (64 << 10) - 1, b"not packed", encoding="gzip")
    return True


def a_bomb(server: Server) -> bool:
    server.answer(0, (64 << 10) - 1, gzip.compress(bytes(50 << 20)), encoding="gzip")
    return True


def without_a_range(server: Server) -> bool:
    server.send_response(200)
    server.send_header("Content-Length", "4")
    server.end_headers()
    server.wfile.write(b"this")
    return True


def hung_up(server: Server) -> bool:
    server.close_connection = True
    return True


def not_now(status: int) -> Fault:
    def answer(server: Server) -> bool:
        server.send_response(status)
        server.send_header("Content-Length", "2")
        server.end_headers()
        server.wfile.write(b"{}")
        return True

    return answer


FAULTS = [
    cut_off,
    of_another_place,
    shorter_than_it_says,
    no_gzip,
    a_bomb,
    without_a_range,
    hung_up,
    not_now(503),
    not_now(429),
    not_now(502),
]


def test_an_answer_that_is_not_what_was_asked_for_is_asked_for_again(
    server: ThreadingHTTPServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remote, "_FIRST_PAUSE_S", 0.0001)
    Server.faults = list(FAULTS)
    assert read_through(RemoteDisk(Endpoint(location(server, "?compression=gzip"), ""))) == DATA
    assert Server.faults == []


def test_what_does_not_get_better_is_said(server: ThreadingHTTPServer) -> None:
    Server.faults = [shorter_than_it_says] * 100
    with pytest.raises(JournalUnreachable, match="the answer has 5 bytes instead of 65536"):
        RemoteDisk(Endpoint(location(server), "", Patience(0.0, 60))).open(FILE)


def test_a_refusal_in_the_middle_reaches_who_reads(server: ThreadingHTTPServer) -> None:
    """The token is taken away while requests are in flight."""
    Server.faults = [lambda _: False, lambda _: False, *[not_now(401)] * 100]
    with pytest.raises(JournalRefused, match="HEADRACE_JOURNAL_TOKEN"):
        read_through(RemoteDisk(Endpoint(location(server), "")))


def test_a_file_that_is_replaced_meanwhile_is_gone(server: ThreadingHTTPServer) -> None:
    def replaced(_: Server) -> bool:
        Server.tag = "two"
        return False

    Server.faults = [lambda _: False, lambda _: False, replaced]
    with pytest.raises(FileNotFoundError, match="it was replaced"):
        read_through(RemoteDisk(Endpoint(location(server), "")))


def test_tls_with_an_authority_of_one_s_own(server: ThreadingHTTPServer, tmp_path: Path) -> None:
    authority = Authority(tmp_path / "ca")
    certificate, key = authority.issue("localhost")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    url = location(server).replace("headrace:", "headraces:")
    assert read_through(RemoteDisk(Endpoint(f"{url}?ca={authority.ca}&requests=3", ""))) == DATA
    with pytest.raises(JournalRefused, match="CERTIFICATE_VERIFY_FAILED"):
        Endpoint(url, "").get("/watermark")
    with pytest.raises(BadOption, match=r"ca='/nowhere': No such file"):
        Endpoint(f"{url}?ca=/nowhere", "")


@pytest.mark.parametrize(
    "wrong",
    [
        "headrace://",
        "headrace://h/path",
        "headrace://h:99999",
        "headrace://h?requests=0",
        "headrace://h?requests=17",
        "headrace://h?compression=zstd",
        "headrace://h?ca=file",
        "headraces://h?ca=",
        "headrace://h?speed=9",
        "headrace://h?requests",
    ],
)
def test_an_address_that_cannot_be_used_is_named(wrong: str) -> None:
    with pytest.raises(BadOption, match="option path='headrace"):
        Address.parse(wrong)


def test_an_address_taken_apart() -> None:
    assert Address.parse("headrace://h") == Address("h", 18830, False, "", "none", 2)
    found = Address.parse("headraces://[::1]:7?ca=/etc/ca.pem&compression=gzip&requests=4")
    assert found == Address("::1", 7, True, "/etc/ca.pem", "gzip", 4)
