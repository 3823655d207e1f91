"""The client's side of a connection: bytes in, calls of a `ResponseHandler` out. No I/O, no clock.

What a client sends is made by `frame.encode_frame` and the functions of `bodies`.
"""

from __future__ import annotations

from mypy_extensions import i64, mypyc_attr

from headrace.errors import ProtocolError
from headrace.frames.bodies import Body, Pulled, read_pulled
from headrace.frames.frame import (
    ACK,
    ERROR,
    HELLO,
    ID_BYTES,
    JOIN,
    LEAVE,
    NOTIFY,
    PING,
    PUBLISH,
    PULL,
    RESPONSE,
)
from headrace.frames.framing import FrameStream


@mypyc_attr(allow_interpreted_subclasses=True)
class ResponseHandler:
    """What the server says, in the order of its frames."""

    def answered(self, opcode: int, sn: bytes, code: int) -> None:
        """Handle the response to HELLO, JOIN, LEAVE, ACK, or PING (code 0)."""

    def published(self, sn: bytes, seq: int, code: int, message_id: bytes) -> None: ...

    def notified(self, sn: bytes, topic: bytes, cluster: bytes, available: int) -> None: ...

    def pulled(self, sn: bytes, messages: list[Pulled]) -> None: ...

    def failed(self, code: int, reason: str) -> None:
        """Handle ERROR: the server closes."""

    def broken(self, error: ProtocolError) -> None:
        """Handle what is no frame; nothing comes after it."""


class ClientFrames(FrameStream):
    """Parses what a server sends."""

    def __init__(self, handler: ResponseHandler, frame_bytes_max: int = 1 << 31) -> None:
        super().__init__(frame_bytes_max)
        self._handler = handler

    def _refuse(self, error: ProtocolError) -> None:
        self.stop()
        self._handler.broken(error)

    def _frame(self, opcode: i64, body: Body) -> None:
        if opcode == PUBLISH | RESPONSE:
            seq, code = body.number(4), body.number(1)
            message_id = body.raw(ID_BYTES)
            body.finish()
            self._handler.published(self.sn, int(seq), int(code), message_id)
        elif opcode == PULL | RESPONSE:
            messages = read_pulled(body)
            body.finish()
            self._handler.pulled(self.sn, messages)
        elif opcode == NOTIFY:
            topic, cluster, available = body.text(), body.text(), body.number(4)
            body.finish()
            self._handler.notified(self.sn, topic, cluster, int(available))
        elif opcode == ERROR:
            code, reason = body.number(1), body.text()
            body.finish()
            self._handler.failed(int(code), reason.decode("utf-8"))
        else:
            self._answered(opcode, body)

    def _answered(self, opcode: i64, body: Body) -> None:
        asked = opcode & 0x7FFF
        if opcode < RESPONSE or asked not in (HELLO, JOIN, LEAVE, ACK, PING):
            raise ProtocolError(0x82, f"opcode 0x{opcode:04X} from a server")
        code: i64 = 0 if asked == PING else body.number(1)
        body.finish()
        self._handler.answered(int(asked), self.sn, int(code))
