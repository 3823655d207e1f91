from __future__ import annotations

import errno
import os
import select
import socket
import struct
from collections.abc import Iterator
from pathlib import Path
from threading import Thread

import pytest

from headrace import syscalls

Pair = tuple[socket.socket, socket.socket]


@pytest.fixture
def pair() -> Iterator[Pair]:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.setblocking(False)
        yield ours, theirs


def test_nothing_to_read_is_none_and_the_end_is_empty(pair: Pair) -> None:
    ours, theirs = pair
    assert syscalls.read(ours.fileno()) is None
    theirs.sendall(b"abc")
    assert syscalls.read(ours.fileno()) == b"abc"
    theirs.close()
    assert syscalls.read(ours.fileno()) == b""


def test_a_read_is_bounded(pair: Pair) -> None:
    ours, theirs = pair
    theirs.setblocking(False)
    sent = 0
    while sent <= syscalls.READ_BYTES_MAX and (took := syscalls.write(theirs.fileno(), bytes(16_384))):
        sent += took
    assert len(syscalls.read(ours.fileno()) or b"") <= syscalls.READ_BYTES_MAX


@pytest.mark.parametrize("data", [b"abc", bytearray(b"abc")])
def test_write_says_how_much_was_taken(pair: Pair, data: bytes | bytearray) -> None:
    ours, theirs = pair
    assert syscalls.write(ours.fileno(), data) == 3
    assert theirs.recv(10) == b"abc"
    assert syscalls.write(ours.fileno(), data[:0]) == 0


@pytest.mark.parametrize("data", [b"x", bytearray(b"x")])
def test_a_full_socket_takes_nothing_more(pair: Pair, data: bytes | bytearray) -> None:
    ours, _ = pair
    while syscalls.write(ours.fileno(), bytes(65_536)):
        pass
    assert syscalls.write(ours.fileno(), data) == 0


@pytest.mark.parametrize("data", [b"x", bytearray(b"x")])
def test_a_socket_whose_peer_is_gone_raises(pair: Pair, data: bytes | bytearray) -> None:
    ours, theirs = pair
    theirs.close()
    with pytest.raises(BrokenPipeError):
        syscalls.write(ours.fileno(), data)


def test_a_bad_descriptor_raises() -> None:
    with pytest.raises(OSError) as caught:
        syscalls.read(-1)
    assert caught.value.errno == errno.EBADF


def test_ready_gives_descriptor_and_events(pair: Pair) -> None:
    ours, theirs = pair
    with select.epoll() as epoll:
        epoll.register(ours.fileno(), select.EPOLLIN)
        assert syscalls.ready(epoll) == b""
        theirs.sendall(b"x")
        assert struct.unpack("=ii", syscalls.ready(epoll)) == (ours.fileno(), select.EPOLLIN)


def test_what_is_written_is_synced_where_it_was_to_go(tmp_path: Path) -> None:
    fd = os.open(tmp_path / "log", os.O_RDWR | os.O_CREAT)
    try:
        assert syscalls.write_and_sync(fd, [b"head", b"", b"body"], 4) == 8
        assert os.pread(fd, 20, 0) == b"\0\0\0\0headbody"
    finally:
        os.close(fd)


def test_a_failed_write_raises_and_a_failed_sync_is_told_apart() -> None:
    with pytest.raises(OSError) as caught:
        syscalls.write_and_sync(-1, [b"x"], 0)
    assert caught.value.errno == errno.EBADF
    reading, writing = os.pipe()
    try:
        with pytest.raises(OSError) as caught:
            syscalls.write_and_sync(writing, [b"x"], 0)
        assert caught.value.errno == errno.ESPIPE
    finally:
        os.close(reading)
        os.close(writing)
    null = os.open("/dev/null", os.O_WRONLY)  # takes every write and has nothing to sync
    try:
        assert syscalls.write_and_sync(null, [b"x"], 0) == -errno.EINVAL
    finally:
        os.close(null)


def test_more_buffers_than_the_system_takes_at_once_are_refused(tmp_path: Path) -> None:
    fd = os.open(tmp_path / "log", os.O_RDWR | os.O_CREAT)
    try:
        with pytest.raises(OSError) as caught:
            syscalls.write_and_sync(fd, [b"x"] * 1025, 0)
        assert caught.value.errno == errno.EINVAL
    finally:
        os.close(fd)


class Served:
    """A syncer with its thread."""

    def __init__(self, folder: Path) -> None:
        self.syncer = syscalls.Syncer()
        self.fd = os.open(folder / "log", os.O_RDWR | os.O_CREAT)
        self.index = os.open(folder / "index", os.O_RDWR | os.O_CREAT)
        self._thread = Thread(target=self.syncer.serve)

    def start(self) -> None:
        self._thread.start()

    def job(self, fd: int, buffers: list[bytes], position: int = 0, growth: int = 0) -> int | None:
        """Done by the thread, with an entry for the index."""
        self.syncer.begin(fd, buffers, position, 0, growth, self.index, b"entry", 2)
        self.syncer.wait()
        return self.syncer.result()

    def entry(self) -> bytes:
        return os.pread(self.index, 20, 0)

    def close(self) -> None:
        self.syncer.stop()
        self._thread.join()
        os.close(self.fd)
        os.close(self.index)


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    found = Served(tmp_path)
    found.start()
    yield found
    found.close()


def test_a_syncer_writes_grows_and_notes_in_the_index(served: Served) -> None:
    assert served.job(served.fd, [b"head", b"body"], 4, growth=4096) == 8
    assert os.fstat(served.fd).st_size == 4096
    assert os.pread(served.fd, 12, 0) == b"\0\0\0\0headbody"
    assert served.entry() == b"\0\0entry"
    assert served.job(served.fd, [b"more"], 12) == 4
    assert os.pread(served.fd, 8, 8) == b"bodymore"


def test_a_syncer_says_when_a_job_is_done(tmp_path: Path) -> None:
    served = Served(tmp_path)
    with select.epoll() as epoll:
        epoll.register(served.syncer.fd, select.EPOLLIN | select.EPOLLET)
        served.syncer.begin(served.fd, [b"x"], 0, 0, 0, -1, b"", 0)
        assert served.syncer.result() is None, "nobody serves it yet"
        assert epoll.poll(0) == []
        served.start()
        assert epoll.poll() == [(served.syncer.fd, select.EPOLLIN)]
        assert served.syncer.result() == 1
        assert served.syncer.result() is None, "once a job"
        assert epoll.poll(0) == []
    served.close()


def test_a_job_that_fails_leaves_the_index_alone(served: Served) -> None:
    with pytest.raises(OSError) as caught:
        served.job(-1, [b"x"])
    assert caught.value.errno == errno.EBADF
    with pytest.raises(OSError) as caught:
        served.job(-1, [b"x"], growth=4096)
    assert caught.value.errno == errno.EBADF
    null = os.open("/dev/null", os.O_WRONLY)
    try:
        assert served.job(null, [b"x"]) == -errno.EINVAL
    finally:
        os.close(null)
    with pytest.raises(OSError) as caught:
        served.job(served.fd, [b"x"] * 1025)
    assert caught.value.errno == errno.EINVAL
    assert served.entry() == b""
    assert served.job(served.fd, [b"x"]) == 1, "it goes on"


def test_a_job_is_timed(served: Served) -> None:
    for _ in range(3):
        assert served.job(served.fd, [b"x" * 4096]) == 4096
        assert 0 < served.syncer.took_ns < 30 * 10**9
