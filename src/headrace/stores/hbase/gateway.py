"""What is said to HBase, through its Thrift2 gateways: one connection, and a small pool of them on threads.

A call is answered within its time, or its connection is closed and the next call begins another, to the next gateway.
`Gateway` runs on one thread at a time; `GatewayPool` is asked from the loop, which waits for nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import socket
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final

import thriftpy2
from thriftpy2.protocol import TCyBinaryProtocolFactory
from thriftpy2.thrift import TApplicationException, TClient, TException
from thriftpy2.transport import TCyBufferedTransportFactory, TSocket

TYPES: Final[Any] = thriftpy2.load(str(Path(__file__).with_name("hbase.thrift")), "headrace_hbase_thrift")
CONNECT_S: Final = 3.0
CALL_S: Final = 10.0
_KIND: Final = re.compile(r"([A-Za-z]+(?:Exception|Error))\b")

Place = tuple[str, int]


class HBaseError(Exception):
    """A call that was not done, or of which nobody knows. `fault` is a word for the metrics; `answered`: HBase itself has
    said so, and the connection stands."""

    def __init__(self, fault: str, why: str, *, answered: bool) -> None:
        super().__init__(why)
        self.fault = fault
        self.answered = answered


class Gateway:
    """One connection to one of some gateways, made when something is called."""

    def __init__(self, places: list[Place], call_s: float = CALL_S, first: int = 0) -> None:
        """Begin with none. `call_s` is for each read and each write of it, `first` the gateway to begin with."""
        self._places = places
        self._next = first
        self._call_s = call_s
        self._client: TClient | None = None
        self._socket: socket.socket | None = None
        self._has_ended = False

    def call(self, method: str, *arguments: Any) -> Any:
        """Return the answer to a call. Raises HBaseError."""
        try:
            client = self._client
            if client is None:
                client = self._client = self._connected()
            if self._has_ended:
                raise ConnectionError("the store is closed")
            return getattr(client, method)(*arguments)
        except TYPES.TIOError as error:
            raise _refusal(str(error.message)) from None
        except TApplicationException as error:  # what went wrong in the gateway itself, which goes on
            self.close()
            raise _refusal(f"{type(error).__name__}: {_words(error)}") from None
        except (TException, OSError, EOFError) as error:
            self.close()
            raise HBaseError(type(error).__name__, _words(error), answered=False) from None
        except BaseException:
            self.close()  # whatever it is, half an answer may lie in the connection
            raise

    def _connected(self) -> TClient:
        """Return a client of the next gateway. Raises OSError."""
        if self._has_ended:
            raise ConnectionError("the store is closed")
        place = self._places[self._next % len(self._places)]
        self._next += 1
        connection = self._socket = socket.create_connection(place, CONNECT_S)
        connection.settimeout(self._call_s)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        transport = TCyBufferedTransportFactory().get_transport(TSocket(sock=connection))
        return TClient(TYPES.THBaseService, TCyBinaryProtocolFactory().get_protocol(transport))

    def end(self) -> None:
        """End the connection, and make no other one: whatever is called from now on fails."""
        self._has_ended = True
        self.close()

    def close(self) -> None:
        """End the connection; whoever waits for an answer on another thread hears of it."""
        connection, self._socket, self._client = self._socket, None, None
        if connection is not None:
            with contextlib.suppress(OSError):  # it has ended
                connection.shutdown(socket.SHUT_RDWR)
            connection.close()


def _refusal(message: str) -> HBaseError:
    """Return what HBase has answered instead of doing something, under the name that it has there, if that is told."""
    kind = _KIND.search(message)
    words = message.strip().splitlines()
    return HBaseError(kind[1] if kind else "TIOError", words[0] if words else "", answered=True)


def _words(error: BaseException) -> str:
    text = str(getattr(error, "message", None) or error).strip()
    return text.splitlines()[0] if text else type(error).__name__


class GatewayPool:
    """Some connections to the gateways, each on a thread of its own."""

    def __init__(self, places: list[Place], size: int, name: str, call_s: float = CALL_S) -> None:
        self._places = places
        self._call_s = call_s
        self._own = threading.local()
        self._gateways: list[Gateway] = []  # a thread adds its own, once
        self._closed = False
        self._threads = ThreadPoolExecutor(size, name)

    async def call(self, method: str, *arguments: Any) -> Any:
        """Return the answer to a call. Raises HBaseError. Who gives up waiting leaves the call to its time-out."""
        return await self.run(lambda gateway: gateway.call(method, *arguments))

    async def run(self, work: Callable[[Gateway], Any]) -> Any:
        """Return what comes of several calls, one after the other over one connection."""
        return await asyncio.get_running_loop().run_in_executor(self._threads, self._work, work)

    def _work(self, work: Callable[[Gateway], Any]) -> Any:
        """Do something over the connection of this thread."""
        gateway: Gateway | None = getattr(self._own, "gateway", None)
        if gateway is None:
            gateway = self._own.gateway = Gateway(self._places, self._call_s, len(self._gateways))
            self._gateways.append(gateway)
        if self._closed:  # else it is among those that are ended when it is
            raise HBaseError("closed", "the store is closed", answered=False)
        return work(gateway)

    def close(self) -> None:
        """End all connections; no thread is waited for."""
        self._closed = True
        for gateway in list(self._gateways):
            gateway.end()
        self._threads.shutdown(wait=False, cancel_futures=True)
