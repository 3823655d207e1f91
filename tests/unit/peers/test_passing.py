"""Descriptors between workers: what is no parcel is refused, and no descriptor stays behind, whatever goes wrong."""

from __future__ import annotations

import array
import asyncio
import os
import resource
import socket
from pathlib import Path

import pytest

from headrace.peers.parcel import DATAGRAM_BYTES, Parcel
from headrace.peers.passing import Arrivals, path_of
from machine import open_descriptors, run, settled, until

SMALL = Parcel("tcp://127.0.0.1:1883", "127.0.0.1:5", "", b"\x10")
LARGE = Parcel("tcp://127.0.0.1:1883", "127.0.0.1:5", "", bytes(3 * DATAGRAM_BYTES))


class Taken:
    """What has arrived."""

    def __init__(self, folder: Path) -> None:
        self.parcels: list[Parcel] = []
        self.told: list[str] = []
        self.path = path_of(folder, 1)
        self.arrivals = Arrivals(self.path, self._take, asyncio.get_running_loop(), self.told.append)

    def _take(self, descriptor: int, parcel: Parcel) -> None:
        self.parcels.append(parcel)
        os.close(descriptor)

    def sender(self) -> socket.socket:
        made = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        made.setblocking(False)
        made.connect(self.path)
        return made


def send(sender: socket.socket, data: bytes, *descriptors: int) -> None:
    rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors))]
    sender.sendmsg([data], rights if descriptors else [])


@pytest.mark.parametrize(
    ("reason", "datagrams"),
    [
        ("garbage", [(b"GET / HTTP/1.1", 0)]),
        ("garbage", [(b"\xff" * DATAGRAM_BYTES, 1)]),
        ("garbage", [(bytes(DATAGRAM_BYTES + 5000), 1)]),
        ("garbage", [(SMALL.encode() + b"more", 1)]),
        ("garbage", [(LARGE.datagrams()[0], 1), (LARGE.datagrams()[1], 1)]),
        ("descriptors", [(SMALL.encode(), 0)]),
        ("garbage", [(b"\xfe" + SMALL.encode()[1:], 1)]),
    ],
    ids=["text", "bytes", "too long", "more than it says", "a second descriptor", "no descriptor", "magic"],
)
def test_what_is_no_parcel_is_refused_and_leaves_no_descriptor(
    tmp_path: Path, reason: str, datagrams: list[tuple[bytes, int]]
) -> None:
    async def body() -> None:
        taken = Taken(tmp_path)
        taken.arrivals.open()
        before = open_descriptors()
        left, right = socket.socketpair()
        sender = taken.sender()
        for data, count in datagrams:
            send(sender, data, *[right.fileno()] * count)
        await until(lambda: taken.arrivals.refused[reason] == 1)
        right.close()
        left.setblocking(False)
        assert await asyncio.get_running_loop().sock_recv(left, 1) == b""  # nobody has the other end
        left.close()
        sender.close()
        await settled(before)
        assert taken.parcels == []
        assert len(taken.told) == 1
        taken.arrivals.close()

    run(body)


def test_two_descriptors_with_one_parcel_are_cut_to_one_that_is_taken(tmp_path: Path) -> None:
    """There is room for one: the system closes the other."""

    async def body() -> None:
        taken = Taken(tmp_path)
        taken.arrivals.open()
        before = open_descriptors()
        pairs = [socket.socketpair() for _ in range(2)]
        sender = taken.sender()
        send(sender, SMALL.encode(), *[right.fileno() for _, right in pairs])
        await until(lambda: taken.arrivals.taken or sum(taken.arrivals.refused.values()))
        for each in pairs:
            for end in each:
                end.close()
        sender.close()
        await settled(before)
        taken.arrivals.close()

    run(body)


def test_a_sender_that_dies_within_a_parcel_leaves_nothing(tmp_path: Path) -> None:
    async def body() -> None:
        taken = Taken(tmp_path)
        taken.arrivals.open()
        before = open_descriptors()
        left, right = socket.socketpair()
        sender = taken.sender()
        send(sender, LARGE.datagrams()[0], right.fileno())
        sender.close()
        right.close()
        left.setblocking(False)
        assert await asyncio.get_running_loop().sock_recv(left, 1) == b""
        await until(lambda: taken.arrivals.refused["cut off"] == 1)
        left.close()
        await settled(before)
        taken.arrivals.close()

    run(body)


def test_a_receiver_that_dies_before_it_has_read_leaves_nothing(tmp_path: Path) -> None:
    """What lies in its socket goes with it, and the client sees its connection end."""

    async def body() -> None:
        before = open_descriptors()
        taken = Taken(tmp_path)
        taken.arrivals.open()
        left, right = socket.socketpair()
        sender = taken.sender()
        send(sender, SMALL.encode(), right.fileno())
        right.close()
        taken.arrivals.close()
        left.setblocking(False)
        assert await asyncio.get_running_loop().sock_recv(left, 1) == b""
        assert taken.parcels == []
        left.close()
        sender.close()
        await settled(before)

    run(body)


def test_without_a_free_descriptor_the_connection_ends_and_the_next_one_is_taken(tmp_path: Path) -> None:
    """EMFILE at the receiver: the system drops the descriptor, the parcel comes without it (MSG_CTRUNC)."""

    async def body() -> None:
        taken = Taken(tmp_path)
        taken.arrivals.open()
        sender = taken.sender()
        left, right = socket.socketpair()
        send(sender, SMALL.encode(), right.fileno())
        await until(lambda: taken.arrivals.taken == 1)
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(map(int, os.listdir("/proc/self/fd"))) + 1, hard))
        held = []
        try:
            while True:
                try:
                    held.append(os.dup(right.fileno()))
                except OSError:
                    break
            send(sender, SMALL.encode(), right.fileno())
            await until(lambda: taken.arrivals.refused["descriptors"] == 1)
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
            for one in held:
                os.close(one)
        assert "none is free" in taken.told[0]
        send(sender, SMALL.encode(), right.fileno())
        await until(lambda: taken.arrivals.taken == 2)
        for end in (left, right, sender):
            end.close()
        taken.arrivals.close()

    run(body)


def test_who_is_another_user_is_not_listened_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def body() -> None:
        taken = Taken(tmp_path)
        taken.arrivals.open()
        monkeypatch.setattr("headrace.peers.passing.os.geteuid", lambda: os.getuid() + 1)
        sender = taken.sender()
        await until(lambda: taken.arrivals.refused["user"] == 1)
        with pytest.raises(OSError, match=r"."):
            send(sender, SMALL.encode())
        sender.close()
        taken.arrivals.close()

    run(body)


def test_the_socket_of_a_worker_that_was_killed_is_replaced(tmp_path: Path) -> None:
    async def body() -> None:
        taken = Taken(tmp_path)
        stale = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        stale.bind(taken.path)
        stale.close()
        taken.arrivals.open()
        sender = taken.sender()
        left, right = socket.socketpair()
        send(sender, SMALL.encode(), right.fileno())
        await until(lambda: taken.parcels == [SMALL])
        for end in (left, right, sender):
            end.close()
        taken.arrivals.close()
        assert os.listdir(tmp_path) == []

    run(body)


def test_a_path_that_cannot_be_bound_is_named(tmp_path: Path) -> None:
    async def body() -> None:
        taken = Taken(tmp_path / "missing")
        with pytest.raises(OSError, match=r"hand-1\.sock"):
            taken.arrivals.open()

    run(body)
