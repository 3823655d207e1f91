"""The voice of a connection whose client speaks frames: the verbs of `core.ports.voice` in its version."""

from __future__ import annotations

from mypy_extensions import i64

from headrace.core.ports.link import Link
from headrace.core.ports.voice import Draught, Voice
from headrace.errors import ProtocolError
from headrace.frames.bodies import Pulled, code_body, notify_body, published_body, pulled_body
from headrace.frames.frame import (
    ACK,
    HELLO,
    JOIN,
    LEAVE,
    NOTIFY,
    PING,
    PUBLISH,
    PULL,
    REDELIVERED,
    RESPONSE,
    frame_into,
)


class FrameVoice(Voice):
    """Sends what the core wants to say as frames."""

    def __init__(self, link: Link) -> None:
        super().__init__()
        self._link = link

    def welcome(self, sn: bytes, code: int) -> None:
        self._say(HELLO | RESPONSE, sn, code_body(code))

    def published(self, sn: bytes, sequence: i64, code: int, message_id: bytes) -> None:
        self._say(PUBLISH | RESPONSE, sn, published_body(sequence, code, message_id))

    def joined(self, sn: bytes, code: int) -> None:
        self._say(JOIN | RESPONSE, sn, code_body(code))

    def left(self, sn: bytes, code: int) -> None:
        self._say(LEAVE | RESPONSE, sn, code_body(code))

    def notify(self, sn: bytes, topic: bytes, cluster: bytes, available: i64) -> None:
        self._say(NOTIFY, sn, notify_body(topic, cluster, available))

    def pulled(self, sn: bytes, messages: list[Draught]) -> None:
        self._say(PULL | RESPONSE, sn, pulled_body([_pulled(one) for one in messages]))

    def acknowledged(self, sn: bytes, code: int) -> None:
        self._say(ACK | RESPONSE, sn, code_body(code))

    def pong(self, sn: bytes) -> None:
        self._say(PING | RESPONSE, sn, b"")

    def fail(self, code: int, reason: str) -> None:
        frames = self.frames
        if frames is not None:
            self._link.send(frames.refusal(ProtocolError(code, reason)))

    def _say(self, opcode: i64, sn: bytes, body: bytes) -> None:
        frames, link = self.frames, self._link
        if frames is not None and not link.closed:
            frame_into(link.writer(), frames.version, opcode, sn, body)


def _pulled(one: Draught) -> Pulled:
    message = one.message
    sn = message.origin[message.tenant_len :]
    flags = REDELIVERED if one.redelivered else 0
    return Pulled(one.message_id, flags, sn, message.timestamp_us // 1000, message.payload)
