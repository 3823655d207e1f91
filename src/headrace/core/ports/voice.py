"""What the core says to a client that speaks frames: `links.frame_link` makes frames of it.

Each verb but `notify` and `fail` answers one request of the device `sn`. A base class rather than a protocol, because
compiled code calls it per message (decision 27: hot ports).
"""

from __future__ import annotations

from mypy_extensions import i64, mypyc_attr

from headrace.core.records.message import Message
from headrace.frames.serials import client_id_of
from headrace.frames.server import ServerFrames


class Draught:
    """A message that a consumer pulls: its id, whether somebody may have had it before, and the message."""

    def __init__(self, message_id: bytes, redelivered: bool, message: Message) -> None:
        self.message_id = message_id
        self.redelivered = redelivered
        self.message = message


@mypyc_attr(allow_interpreted_subclasses=True)
class Voice:
    """The answers of the server on one connection. Reason codes are those of MQTT 5; `frames` knows the version."""

    def __init__(self) -> None:
        self.frames: ServerFrames | None = None

    def device(self, sn: bytes) -> str:
        """Return the client id of a device; "" while the version is not known, and for a connection elsewhere."""
        frames = self.frames
        return "" if frames is None else client_id_of(int(frames.version), sn)

    def welcome(self, sn: bytes, code: int) -> None:
        """Answer HELLO."""
        raise NotImplementedError

    def published(self, sn: bytes, sequence: i64, code: int, message_id: bytes) -> None:
        """Answer PUBLISH: the message is durable and has this id, or it is refused and has none."""
        raise NotImplementedError

    def joined(self, sn: bytes, code: int) -> None:
        raise NotImplementedError

    def left(self, sn: bytes, code: int) -> None:
        raise NotImplementedError

    def notify(self, sn: bytes, topic: bytes, cluster: bytes, available: i64) -> None:
        """Tell the consumer that so many messages of a topic wait for a cluster."""
        raise NotImplementedError

    def pulled(self, sn: bytes, messages: list[Draught]) -> None:
        raise NotImplementedError

    def acknowledged(self, sn: bytes, code: int) -> None:
        raise NotImplementedError

    def pong(self, sn: bytes) -> None:
        raise NotImplementedError

    def fail(self, code: int, reason: str) -> None:
        """Say why the connection ends."""
        raise NotImplementedError
