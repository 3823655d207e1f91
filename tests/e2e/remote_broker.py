"""A remote broker that a test plays: it says what it is told to, over a real socket, and may close at a topic."""

from __future__ import annotations

import socket
import threading
from types import TracebackType
from typing import Self

from headrace.mqtt import codec

CONNECT, PUBLISH, PUBREL, SUBSCRIBE = 1, 3, 6, 8


class RemoteBroker:
    """Answers whoever connects, one at a time. `greets`: what it publishes once it is subscribed to, as topic and
    payload, at QoS 1. It closes the connection at each message to a topic that ends with `poison`."""

    def __init__(self, greets: list[tuple[bytes, bytes]], poison: bytes = b"") -> None:
        self._greets = greets
        self._poison = poison
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listener.getsockname()[1])
        self.connections = 0
        self.received: list[tuple[bytes, bytes]] = []
        self._current: socket.socket | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        if self._current is not None:
            self._current.close()
        self._thread.join(10)

    def _run(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            self.connections += 1
            self._current = connection
            try:
                self._serve(connection)
            except OSError:
                pass
            finally:
                connection.close()

    def _serve(self, connection: socket.socket) -> None:
        stream = connection.makefile("rb")
        while first := stream.read(1):
            size = shift = 0
            while True:
                byte = stream.read(1)[0]
                size |= (byte & 127) << shift
                shift += 7
                if byte < 128:
                    break
            if not self._answer(connection, first[0], stream.read(size)):
                return

    def _answer(self, connection: socket.socket, first: int, body: bytes) -> bool:
        kind = first >> 4
        if kind == CONNECT:
            connection.sendall(codec.encode_connack(5, self.connections > 1, 0))
        elif kind == SUBSCRIBE:
            connection.sendall(codec.encode_suback(5, int.from_bytes(body[:2], "big"), [1]))
            for packet_id, (topic, payload) in enumerate(self._greets, 1):
                connection.sendall(codec.encode_publish(5, topic, payload, 1, True, False, packet_id))
        elif kind == PUBLISH and first >> 1 & 3:
            at = 2 + int.from_bytes(body[:2], "big")
            topic = body[2:at]
            if self._poison and topic.endswith(self._poison):
                return False
            self.received.append((topic, body[at + 3 + body[at + 2] :]))
            connection.sendall(codec.encode_puback(5, int.from_bytes(body[at : at + 2], "big")))
        return True
