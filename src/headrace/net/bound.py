"""Binding: listening sockets of the internet and Unix families."""

from __future__ import annotations

import contextlib
import os
import resource
import socket
import stat

from headrace.net.address import Address

BACKLOG = 4096
RESERVE_MIN, RESERVE_MAX = 48, 512


def allow_all_descriptors() -> int:
    """Allow as many descriptors as the system lets us have: shells start programs with a lower limit. Returns how
    many."""
    soft, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    except (OSError, ValueError):  # macOS calls its limit infinite and refuses to set it
        most = soft
    return most


def room_for_connections(descriptors: int) -> int:
    """Return how many connections fit under a limit of descriptors, with a reserve for the journal and everything
    else that must go on when all of them are there; below 1 if there is no room at all."""
    return descriptors - reserve(descriptors)


def reserve(descriptors: int) -> int:
    """Return how many of so many descriptors connections of clients may not use."""
    return max(RESERVE_MIN, min(RESERVE_MAX, descriptors // 16))


def bind(address: Address) -> socket.socket:
    """Return a non-blocking listening socket. Raises OSError that names the address when it is not ours or taken."""
    try:
        return _unix(address) if address.scheme == "unix" else _internet(address)
    except OSError as error:
        raise OSError(error.errno, f"{address.url(address.port)}: {error.strerror or error}") from None


def _internet(address: Address) -> socket.socket:
    family, _, _, _, name = socket.getaddrinfo(
        address.host, address.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )[0]
    listening = socket.socket(family, socket.SOCK_STREAM)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind(name)
        return _listen(listening)
    except OSError:
        listening.close()
        raise


def _unix(address: Address) -> socket.socket:
    """Return a listening Unix socket: a file that a crash left is replaced, one that somebody listens on is not."""
    _remove_dead(address.path)
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        # The umask belongs to all threads, and others make files; Linux gives the file the mode of the socket.
        os.fchmod(listening.fileno(), address.options.mode)
        listening.bind(address.path)
        _widen(address.path, address.options.mode)
        return _listen(listening)
    except OSError:
        listening.close()
        raise


def _widen(path: str, mode: int) -> None:
    """Give a socket file the modes that the umask has taken away. Whatever somebody puts into the place of the socket
    meanwhile is left alone."""
    fd = os.open(path, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        found = os.fstat(fd)
        if not stat.S_ISSOCK(found.st_mode) or found.st_uid != os.geteuid():
            raise FileExistsError(17, "somebody else has put a file there")
        if stat.S_IMODE(found.st_mode) != mode:
            os.chmod(f"/proc/self/fd/{fd}", mode)
    finally:
        os.close(fd)


def _listen(listening: socket.socket) -> socket.socket:
    listening.setblocking(False)
    listening.listen(BACKLOG)
    return listening


def _remove_dead(path: str) -> None:
    try:
        if not stat.S_ISSOCK(os.stat(path).st_mode):
            raise FileExistsError(17, "is there and no socket")
    except FileNotFoundError:
        return
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.setblocking(False)  # one whose backlog is full would keep us waiting: it lives
        try:
            probe.connect(path)
        except ConnectionRefusedError:
            os.unlink(path)
        except BlockingIOError:
            return


def release(address: Address, listening: socket.socket) -> None:
    """Stop listening; a Unix socket's file goes too."""
    listening.close()
    if address.scheme == "unix":
        with contextlib.suppress(FileNotFoundError):
            os.unlink(address.path)
