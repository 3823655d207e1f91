"""Plain sockets pass between workers as descriptors, over SEQPACKET sockets `hand-<index>.sock`, each with its parcel.

Runs on the loop, which never waits. The first datagram of a parcel has the descriptor (SCM_RIGHTS). The sender closes its
own copy when the last datagram has left, and answers the client itself where that fails; a receiver that dies, or has no
descriptor free, closes the connection. Who is not of our user is not listened to, and what is no parcel ends the sender's
socket, with whatever descriptor came.
"""

from __future__ import annotations

import array
import asyncio
import errno
import os
import socket
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final

from headrace.net.connection import Connection
from headrace.peers.departures import NotNow, Road, parcel_of
from headrace.peers.parcel import DATAGRAM_BYTES, Assembly, BadParcel, Parcel
from headrace.peers.peers import user_of
from headrace.workers.runtime import identity

SENDERS_MAX: Final = 1024  # more than there are workers, since one that starts again may be there twice
_BACKLOG: Final = 64
_PAUSE_S: Final = 0.25  # while no descriptor is free
_AT_ONCE: Final = 64  # datagrams of one sender in a pass of the loop
_DESCRIPTOR: Final = array.array("i").itemsize
# The other side is not there, or there are too many sockets or descriptors on their way.
_AWAY: Final = (errno.ECONNREFUSED, errno.ENOENT, errno.EPIPE, errno.ECONNRESET, errno.ENOTCONN)
_TOO_MANY: Final = (
    errno.EAGAIN,
    errno.ENOBUFS,
    errno.ENOMEM,
    errno.ETOOMANYREFS,
    errno.EMFILE,
    errno.ENFILE,
)
_NOT_NOW: Final = frozenset((*_AWAY, *_TOO_MANY))
# Takes an open descriptor, which is its own from then on, and what came with it.
Take = Callable[[int, Parcel], None]


def path_of(runtime: Path, worker: int) -> str:
    """Return where a worker takes descriptors."""
    return str(runtime / f"hand-{worker}.sock")


class DescriptorRoad(Road):
    """Sends descriptors to the worker that listens at `path`, unless that one stands still: the system would keep what
    it cannot take, and its clients would wait for nobody knows how long."""

    def __init__(
        self, path: str, loop: asyncio.AbstractEventLoop, stands_still: Callable[[], bool] = bool
    ) -> None:
        self._path = path
        self._stands_still = stands_still
        self._loop = loop
        self._socket: socket.socket | None = None
        self._left: deque[bytes] = deque()  # datagrams whose descriptor has gone before them
        self._watched = False

    def send(self, link: Connection) -> None:
        connected = self._connected()
        if not self._left:
            if self._stands_still():
                raise NotNow("its worker stands still")
            first, *rest = parcel_of(link).datagrams()
            self._send_datagram(connected, first, link.descriptor())
            self._left.extend(rest)
        while self._left:
            self._send_datagram(connected, self._left[0], -1)
            self._left.popleft()
        link.abort()  # closes our descriptor, which is not the only one any more

    def give_up(self) -> None:
        if self._left:
            self.close()

    def close(self) -> None:
        """Close the socket: the other side forgets what it has of an unfinished parcel."""
        self._left.clear()
        self._watch(False)
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def _connected(self) -> socket.socket:
        """Return the socket to the other worker. Raises NotNow, OSError."""
        if self._socket is None:
            try:
                self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
                self._socket.setblocking(False)
                self._socket.connect(self._path)
            except OSError as error:
                raise self._failed(error) from None
        return self._socket

    def _send_datagram(self, connected: socket.socket, data: bytes, descriptor: int) -> None:
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [descriptor]))]
        try:
            connected.sendmsg([data], rights if descriptor >= 0 else [], socket.MSG_DONTWAIT)
        except BlockingIOError as error:
            self._watch(True)
            raise NotNow(str(error)) from None
        except OSError as error:
            raise self._failed(error) from None

    def _failed(self, error: OSError) -> NotNow | OSError:
        self.close()
        return NotNow(str(error)) if error.errno in _NOT_NOW else error

    def _watch(self, wanted: bool) -> None:
        if self._socket is None or wanted == self._watched:
            return
        self._watched = wanted
        if wanted:
            self._loop.add_writer(self._socket.fileno(), self._writable)
        else:
            self._loop.remove_writer(self._socket.fileno())

    def _writable(self) -> None:
        self._watch(False)
        if self.departures is not None:
            self.departures.open_again()


class Arrivals:
    """Takes the descriptors that other workers send. `refused` counts, by reason, what was not taken."""

    def __init__(
        self, path: str, take: Take, loop: asyncio.AbstractEventLoop, report: Callable[[str], None]
    ) -> None:
        self._path = path
        self._take = take
        self._loop = loop
        self._report = report
        self._listening: socket.socket | None = None
        self._identity: tuple[int, int] | None = None  # of the file under which others find it
        self._senders: set[_Sender] = set()
        self.taken = 0
        self.refused = {"user": 0, "garbage": 0, "descriptors": 0, "cut off": 0}

    def open(self) -> None:
        """Listen. Raises OSError."""
        with suppress(FileNotFoundError):
            os.unlink(self._path)  # of a worker that is dead: there is one of this index at a time
        listening = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            listening.setblocking(False)
            listening.bind(self._path)
            listening.listen(_BACKLOG)
        except OSError as error:
            listening.close()
            raise OSError(error.errno, f"{self._path}: {error.strerror or error}") from None
        self._listening = listening
        self._identity = identity(self._path)
        self._loop.add_reader(listening.fileno(), self._accept)

    def keep(self) -> None:
        """Listen anew where another program has removed the socket, or was put in its place. Raises OSError."""
        listening = self._listening
        if listening is None or identity(self._path) == self._identity:
            return
        self.open()
        self._loop.remove_reader(listening.fileno())
        listening.close()

    def close(self) -> None:
        """Take nothing more: what is on its way comes to nothing, and its client's connection ends."""
        if self._listening is not None:
            self._loop.remove_reader(self._listening.fileno())
            self._listening.close()
            self._listening = None
            with suppress(FileNotFoundError):
                os.unlink(self._path)
        for sender in list(self._senders):
            sender.close()

    def _accept(self) -> None:
        if self._listening is None:
            return
        try:
            accepted, _ = self._listening.accept()
        except (BlockingIOError, InterruptedError, ConnectionAbortedError):
            return
        except OSError as error:
            self._report(f"connections from other workers wait: {error.strerror}")
            self._loop.remove_reader(self._listening.fileno())
            self._loop.call_later(_PAUSE_S, self._resume)
            return
        accepted.setblocking(False)
        if len(self._senders) >= SENDERS_MAX or user_of(accepted.fileno()) not in (None, os.geteuid()):
            self.refuse("user", "somebody else connects to the socket for descriptors")
            accepted.close()
            return
        self._senders.add(_Sender(self, accepted, self._loop))

    def _resume(self) -> None:
        if self._listening is not None:
            self._loop.add_reader(self._listening.fileno(), self._accept)

    def took(self, descriptor: int, parcel: Parcel) -> None:
        """Hand a connection that has arrived to whom it is for."""
        self.taken += 1
        self._take(descriptor, parcel)

    def refuse(self, reason: str, why: str) -> None:
        """Count what was not taken, and tell of the first of its kind."""
        self.refused[reason] += 1
        if self.refused[reason] == 1:
            self._report(f"a connection from another worker was not taken: {why}")

    def ended(self, sender: _Sender) -> None:
        self._senders.discard(sender)


class _Sender:
    """One worker that sends."""

    def __init__(self, arrivals: Arrivals, accepted: socket.socket, loop: asyncio.AbstractEventLoop) -> None:
        self._arrivals = arrivals
        self._socket = accepted
        self._loop = loop
        self._assembly: Assembly | None = None
        self._descriptor = -1  # of the parcel that is not whole yet
        loop.add_reader(accepted.fileno(), self._read)

    def close(self) -> None:
        self._forget()
        self._loop.remove_reader(self._socket.fileno())
        self._socket.close()
        self._arrivals.ended(self)

    def _forget(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
        self._descriptor = -1
        self._assembly = None

    def _read(self) -> None:
        try:
            for _ in range(_AT_ONCE):
                data, descriptors, cut = _receive(self._socket)
                if not data:
                    if self._assembly is not None:
                        self._arrivals.refuse("cut off", "its worker has ended in between")
                    _close_all(descriptors)
                    self.close()
                    return
                self._datagram(data, descriptors, cut)
        except (BlockingIOError, InterruptedError):
            return
        except BadParcel as error:
            self._arrivals.refuse("garbage", str(error))
            self.close()
        except OSError as error:
            self._arrivals.refuse("cut off", str(error))
            self.close()

    def _datagram(self, data: bytes, descriptors: list[int], cut: bool) -> None:
        """Take one datagram. Raises BadParcel; the descriptors are ours in any case."""
        allowed = 1 if self._assembly is None else 0
        try:
            if len(descriptors) > allowed:
                raise BadParcel(f"{len(descriptors)} descriptors with one datagram")
            if self._assembly is None:
                self._assembly = Assembly(data)
                if not descriptors:
                    self._arrivals.refuse(
                        "descriptors", "no descriptor came with it" + " (none is free)" * cut
                    )
            else:
                self._assembly.add(data)
        except BadParcel:
            _close_all(descriptors)
            raise
        if descriptors:
            self._descriptor = descriptors[0]
        if self._assembly.whole:
            self._arrived(self._assembly.parcel())

    def _arrived(self, parcel: Parcel) -> None:
        descriptor, self._descriptor = self._descriptor, -1
        self._assembly = None
        if descriptor >= 0:
            self._arrivals.took(descriptor, parcel)


def _receive(connected: socket.socket) -> tuple[bytes, list[int], bool]:
    """Return a datagram, the descriptors that came with it, and whether some were lost on the way. Raises OSError."""
    room = socket.CMSG_LEN(_DESCRIPTOR)  # for one, without the padding that a second one would fit into
    data, ancillary, flags, _ = connected.recvmsg(DATAGRAM_BYTES + 1, room, socket.MSG_CMSG_CLOEXEC)
    descriptors = array.array("i")
    for level, kind, body in ancillary:
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
            descriptors.frombytes(body[: len(body) - len(body) % _DESCRIPTOR])
    return data, list(descriptors), bool(flags & socket.MSG_CTRUNC)


def _close_all(descriptors: list[int]) -> None:
    for descriptor in descriptors:
        os.close(descriptor)
