"""Which plain sockets are ready: one epoll of our own, which the loop watches as a single descriptor. Runs on the loop.

The loop calls back once a pass, however many sockets are ready, and compiled code reads them. Other systems than Linux
have no epoll: there plain sockets are left to the loop's own transports.
"""

from __future__ import annotations

import select
import sys
from typing import TYPE_CHECKING, Final

from librt.strings import read_i32_le
from mypy_extensions import i64

from headrace import syscalls

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

HAS_EPOLL: Final = sys.platform == "linux"
READABLE: Final = 0x01  # EPOLLIN
WRITABLE: Final = 0x04  # EPOLLOUT
_EACH_TIME: Final = 1 << 31  # EPOLLET: told once for each write to an eventfd, which nobody need read then


class Watched:
    """What the poller calls when a descriptor is ready."""

    def on_ready(self, events: i64) -> None:
        """Handle what the descriptor is ready for. Raises whatever it likes; then comes `abort`."""
        raise NotImplementedError

    def abort(self) -> None:
        raise NotImplementedError


class _Signal(Watched):
    """An eventfd that another thread writes to."""

    def __init__(self, call: Callable[[], None]) -> None:
        self._call = call

    def on_ready(self, events: i64) -> None:
        self._call()

    def abort(self) -> None:
        """Do nothing: the next one comes all the same."""


class Poller:
    """The epoll, and the watched transports by their descriptor."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self._epoll = select.epoll()
        self._transports: list[Watched | None] = []
        self.read = syscalls.read  # found once: of a module they would be looked up at every call
        self.write = syscalls.write
        self.ready = syscalls.ready
        loop.add_reader(self._epoll.fileno(), self.poll)

    def watch(self, fd: int, before: i64, after: i64, transport: Watched) -> None:
        """Watch `fd` from now on for the events of the mask `after` in place of `before`; 0: not at all.

        Raises OSError, and then nothing has changed: the system has a limit of what may be watched, and of memory.
        """
        if not before:
            while len(self._transports) <= fd:
                self._transports.append(None)
            self._epoll.register(fd, int(after))
            self._transports[fd] = transport
        elif after:
            self._epoll.modify(fd, int(after))
        else:
            self._transports[fd] = None
            self._epoll.unregister(fd)

    def watch_signal(self, fd: int, call: Callable[[], None]) -> None:
        """Call `call` from now on, in turn with the sockets, after each write to the eventfd `fd`."""
        self.watch(fd, 0, READABLE | _EACH_TIME, _Signal(call))

    def unwatch_signal(self, fd: int) -> None:
        """Call nobody any more for this eventfd. Does nothing once the poller is closed."""
        if not self._epoll.closed:
            self.watch(fd, READABLE, 0, self._transports[fd] or Watched())

    def poll(self) -> None:
        """Handle everything that is ready now, each socket once."""
        transports = self._transports
        ready = self.ready(self._epoll)
        for pos in range(0, len(ready), 8):
            transport = transports[read_i32_le(ready, pos)]
            if transport is None:
                continue  # ended by one before it
            try:
                transport.on_ready(i64(read_i32_le(ready, pos + 4)))
            except MemoryError:
                self.loop.call_exception_handler({"message": "a connection ends for want of memory"})
                transport.abort()
            except Exception as error:  # noqa: BLE001  it must not cost the others
                self.loop.call_exception_handler({"message": "connection failed", "exception": error})
                transport.abort()

    def close(self) -> None:
        """Watch no more sockets. The transports were aborted before."""
        self.loop.remove_reader(self._epoll.fileno())
        self._epoll.close()
