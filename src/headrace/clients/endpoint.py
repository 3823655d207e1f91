"""Where a broker is and how it is reached: `tcp://`, `tls://`, `ws://` and `wss://` addresses, and the way there.

What is behind the address looks the same to a `Link`: a byte stream.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from headrace.address import Location, locate_remote
from headrace.clients.errors import ConnectionLost, unreachable
from headrace.clients.link import Link
from headrace.errors import HeadraceError
from headrace.links.websocket_client import WebSocketClient

PORTS = {"tcp": 1883, "tls": 8883, "ws": 8083, "wss": 8084}


class UnusableFile(HeadraceError):
    """A CA, certificate or key file cannot be used. The message names the file."""


@dataclass(frozen=True, slots=True)
class Endpoint:
    """An address of a broker and how it is reached. `path` is the resource of a WebSocket, empty without one; `tls` is
    None without encryption."""

    host: str
    port: int
    path: str = ""
    tls: ssl.SSLContext | None = None

    @property
    def plain(self) -> bool:
        """Return whether what MQTT says goes over the socket as it is."""
        return not self.path and self.tls is None

    async def connect(self) -> socket.socket:
        """Return a non-blocking socket, connected to the first of the host's addresses that answers. Raises
        OSError, which says where and why."""
        with self._explained():
            return await self._connected()

    async def _connected(self) -> socket.socket:
        loop = asyncio.get_running_loop()
        why = OSError(f"{self.host} has no address")
        found = await loop.getaddrinfo(self.host, self.port, type=socket.SOCK_STREAM)
        for family, kind, protocol, _, address in found:
            connected = socket.socket(family, kind, protocol)
            connected.setblocking(False)
            connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            try:
                await loop.sock_connect(connected, address)
                return connected
            except OSError as error:
                connected.close()
                why = error
            except asyncio.CancelledError:
                connected.close()
                raise
        raise why

    async def dial(self, link: Link) -> None:
        """Connect `link`; returns when MQTT may be spoken. Raises OSError (ssl.SSLError among them), ConnectionLost."""
        with self._explained():
            await self._dial(link)

    @contextmanager
    def _explained(self) -> Iterator[None]:
        """Say where it was that the system reports an error; what is wrong with TLS says it itself."""
        try:
            yield
        except ssl.SSLError:
            raise
        except OSError as error:
            raise unreachable(self.address, error) from None

    @property
    def address(self) -> str:
        """Return host and port as people write them."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    async def _dial(self, link: Link) -> None:
        loop = asyncio.get_running_loop()
        if not self.path:
            await loop.create_connection(lambda: link, self.host, self.port, ssl=self.tls)
            return
        scheme = "ws" if self.tls is None else "wss"
        upgrade = _Upgrade(link)
        socket = WebSocketClient(upgrade, f"{scheme}://{self.address}{self.path}", None, loop.call_soon)
        try:
            await loop.create_connection(lambda: socket, self.host, self.port, ssl=self.tls)  # type: ignore[type-var]
        except BaseException:
            socket.give_up()
            raise
        try:
            await upgrade.done
        except BaseException:
            socket.abort()
            raise


class _Upgrade:
    """A link over a WebSocket. `done` is when MQTT may be spoken; ConnectionLost if it never may."""

    def __init__(self, link: Link) -> None:
        self._link = link
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.data_received = link.data_received
        self.pause_writing = link.pause_writing
        self.resume_writing = link.resume_writing

    def connection_made(self, transport: asyncio.Transport) -> None:
        self._link.connection_made(transport)
        self.done.set_result(None)

    def connection_lost(self, error: Exception | None) -> None:
        self.fail(str(error or "the server closed it"))
        self._link.connection_lost(error)

    def fail(self, reason: str) -> None:
        if not self.done.done():
            self.done.set_exception(ConnectionLost(reason))

    def failed(self, error: Exception) -> None:
        self.fail(f"{type(error).__name__}: {error}")

    def bound_pending(self) -> None:
        """Look at nothing: a client reads what it asked for."""


def parse(url: str) -> Location:
    """Return the parts of an address. ValueError says what is wrong with it."""
    return locate_remote(url, PORTS)


def client_context(ca: str, certificate: str, key: str, insecure: bool) -> ssl.SSLContext:
    """Return a context for TLS 1.2 or newer; the server's certificate and name are checked unless `insecure`. Empty:
    the system's CAs, no certificate, a key that is in the certificate's file. Raises UnusableFile."""
    context = ssl.create_default_context()
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    if insecure:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    file = ca
    try:
        if ca:
            context.load_verify_locations(ca)
        file = f"{certificate} {key}".strip()
        if certificate:
            context.load_cert_chain(certificate, key or None, _no_password)
    except (OSError, ValueError) as error:  # ssl.SSLError is an OSError
        raise UnusableFile(f"{file}: {error}") from None
    return context


def _no_password() -> str:
    """Return no password, where OpenSSL would ask for one at the terminal."""
    raise ValueError("the private key is encrypted; use one that is not")
