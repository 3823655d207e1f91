"""The server's side of a connection of devices: bytes in, calls of a `FrameHandler` out. No I/O, no clock."""

from __future__ import annotations

from typing import Final

from mypy_extensions import i64, mypyc_attr

from headrace.errors import ProtocolError
from headrace.frames.bodies import Body, error_body, read_ids
from headrace.frames.frame import (
    ACK,
    ERROR,
    HELLO,
    JOIN,
    LEAVE,
    NAMES,
    PING,
    PUBLISH,
    PULL,
    VERSION_1,
    VERSION_2,
    encode_frame,
)
from headrace.frames.framing import FrameStream

_ANY_SN: Final = b"\0"  # of an ERROR to somebody who has not told his


@mypyc_attr(allow_interpreted_subclasses=True)
class FrameHandler:
    """What a client sent, in the order of its frames. Any method may raise ProtocolError."""

    def hello(self, sn: bytes, user: str, password: bytes) -> None:
        raise NotImplementedError

    def publish(self, sn: bytes, seq: i64, topic: bytes, payload: bytes) -> None:
        raise NotImplementedError

    def join(self, sn: bytes, topic: bytes, cluster: bytes) -> None:
        raise NotImplementedError

    def leave(self, sn: bytes, topic: bytes, cluster: bytes) -> None:
        raise NotImplementedError

    def pull(self, sn: bytes, topic: bytes, cluster: bytes, most: i64, wait_ms: i64) -> None:
        raise NotImplementedError

    def ack(self, sn: bytes, topic: bytes, cluster: bytes, ids: list[bytes]) -> None:
        raise NotImplementedError

    def ping(self, sn: bytes) -> None:
        raise NotImplementedError

    def broken(self, error: ProtocolError) -> None:
        """Handle what is no frame, or not allowed; nothing comes after it."""
        raise NotImplementedError


class _Nobody(FrameHandler):
    """The handler of a stream that has stopped."""

    def broken(self, error: ProtocolError) -> None:
        """Tell nobody: the stream has stopped."""


_NOBODY: Final = _Nobody()


class ServerFrames(FrameStream):
    """Parses what one client sends."""

    def __init__(self, handler: FrameHandler, frame_bytes_max: int) -> None:
        super().__init__(frame_bytes_max)
        self._handler = handler
        self._topic = b""  # of the last PUBLISH; the next one has the same most often

    def stop(self) -> None:
        """Ignore whatever comes, and let go of the handler: the two would keep each other alive."""
        super().stop()
        self._handler = _NOBODY

    def _refuse(self, error: ProtocolError) -> None:
        handler = self._handler
        self.stop()
        handler.broken(error)

    def refusal(self, error: ProtocolError) -> bytes:
        """Return an ERROR, in the client's version where it is known, with the SN that it has told last."""
        version: i64 = self.version or VERSION_2
        sn = self.sn or _ANY_SN
        if version == VERSION_1:
            sn = sn[:1]
        return encode_frame(version, ERROR, sn, error_body(error.reason_code, error.message[:1000]))

    def _frame(self, opcode: i64, body: Body) -> None:
        handler = self._handler
        sn = self.sn
        if opcode == PUBLISH:
            seq = body.number(4)
            topic = self._topic = body.text(self._topic)
            handler.publish(sn, seq, topic, body.rest())
        elif opcode == HELLO:
            user = body.text().decode("utf-8")
            password = body.text()
            body.finish()
            handler.hello(sn, user, password)
        elif opcode == PING:
            body.finish()
            handler.ping(sn)
        elif opcode in (JOIN, LEAVE, PULL, ACK):
            self._of_cluster(handler, opcode, body)
        else:
            name = NAMES.get(int(opcode), f"opcode 0x{opcode:04X}")
            raise ProtocolError(0x82, f"{name} from a client")

    def _of_cluster(self, handler: FrameHandler, opcode: i64, body: Body) -> None:
        topic = body.text()
        cluster = body.text()
        if opcode == ACK:
            handler.ack(self.sn, topic, cluster, read_ids(body))
            return
        if opcode == PULL:
            most = body.number(2)
            wait_ms = body.number(2)
            body.finish()
            handler.pull(self.sn, topic, cluster, most, wait_ms)
            return
        body.finish()
        if opcode == JOIN:
            handler.join(self.sn, topic, cluster)
        else:
            handler.leave(self.sn, topic, cluster)
