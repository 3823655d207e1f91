"""Channels of bytes between two workers, many on one link: what relays a client's connection, what asks a question.

Runs on the loop. Each side may send WINDOW_BYTES, and then as much more as the other side has taken: who does not read
holds back the sender of its own channel and nobody else. What may not leave yet waits here and shows as `buffered`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from mypy_extensions import i64, mypyc_attr

from headrace.core.ports.clock import Hearing
from headrace.core.records.message import Message
from headrace.peers.peer_frames import BEAT, CLOSE, CREDIT, DATA, BrokenLink, Splitter, encode_number

WINDOW_BYTES: Final = 256 << 10
AT_ONCE_BYTES: Final = 64 << 10  # of one frame: the channels of a link take turns


@mypyc_attr(allow_interpreted_subclasses=True)
class Carrier(Splitter):
    """Carries the frames of channels: `full` says that the other worker does not take what is written for now, and
    `piled` that far more waits than it should."""

    def __init__(self, bytes_max: i64) -> None:
        super().__init__(bytes_max)
        self.full = False
        self.piled = False
        self.hearing = Hearing()  # when the other worker gave a sign of life

    def send(self, kind: int, channel: int, body: bytes) -> None:
        """Send a frame behind those before it; nothing happens once the link has ended."""
        raise NotImplementedError

    def send_copied(self, channel: int, message: Message, source: int) -> None:
        """Send the frame of a copy of a message of shard `source`, as `send` does."""
        raise NotImplementedError

    def later(self, call: Callable[[], None]) -> None:
        """Call `call` in a later pass of the loop."""
        raise NotImplementedError

    def wait_for(self, channel: Channel) -> None:
        """Tell this channel once when the link is no longer full."""
        raise NotImplementedError

    def forget(self, number: int) -> None:
        """Hand nothing more to the channel of this number."""
        raise NotImplementedError

    def failed(self, error: Exception) -> None:
        """Note that somebody who uses a channel has raised what it should not have."""
        raise NotImplementedError


@mypyc_attr(allow_interpreted_subclasses=True)
class Channel:
    """One side of a channel of bytes to the worker `peer`.

    Set `on_bytes`, `on_writable` and `on_closed` before anything can come: in the call that opened the channel, or that
    accepted it. None of them is called from within `send`, `close` or `resume_reading`. `on_closed` is called once, when
    the other side has closed, everything before that was handed out, or the link has ended; not after `close`.
    """

    def __init__(self, carrier: Carrier, number: int, peer: int) -> None:
        self.peer = peer
        self.number = number
        self.on_bytes: Callable[[bytes], None] = _no_bytes
        self.on_writable: Callable[[], None] = _nothing
        self.on_closed: Callable[[], None] = _nothing
        # The other side's node stops, or is drained, and waits for what is said last: by which reason code, and why.
        self.on_leaving: Callable[[int, str], None] = _not_leaving
        self.says_goodbye = False  # somebody hears `on_leaving`
        self.leaves = False  # the other side's node stops: `leaving` is called, also once the link has ended
        self.closed = False  # nothing is sent, and nothing handed out, any more
        self.broken = False  # the link has ended, and the other side has not said that it closes
        self._carrier = carrier
        self._credit: i64 = WINDOW_BYTES  # bytes that the other side will take
        self._waiting = bytearray()  # sent, and beyond the credit
        self._blocked = False  # `send` has returned False
        self._closing = False
        self._reading = True
        self._aside: list[bytes] = []  # came while nobody reads
        self._window: i64 = WINDOW_BYTES  # bytes that the other side may still send
        self._taken: i64 = 0  # handed out, and not granted again
        self._ended = False  # the other side has closed

    @property
    def hearing(self) -> Hearing:
        """Return when the worker at the other side gave a sign of life."""
        return self._carrier.hearing

    @property
    def buffered(self) -> int:
        """Return how many bytes wait for the other side to take more."""
        return len(self._waiting)

    @property
    def over(self) -> bool:
        """Return whether the other side has closed, or the link has ended: what came before may wait to be handed out."""
        return self._ended

    def send(self, data: bytes) -> bool:
        """Send bytes. Returns False if nothing more should be sent until `on_writable`; what is sent anyway waits."""
        if self.closed or self._closing:
            return False
        if self._waiting:
            self._waiting += data
        else:
            self._send_part(data)
        if self._waiting or self._credit == 0 or self._carrier.full:
            if self._carrier.full and not self._blocked:
                self._carrier.wait_for(self)
            self._blocked = True
            return False
        return True

    def _send_part(self, data: bytes) -> None:
        """Send as much as the credit allows; the rest waits."""
        at: i64 = 0
        size: i64 = len(data)
        while at < size and self._credit > 0:
            end: i64 = min(size, at + AT_ONCE_BYTES, at + self._credit)
            self._carrier.send(DATA, self.number, data[at:end])
            self._credit -= end - at
            at = end
        if at < size:
            self._waiting += data[at:]

    def pause_reading(self) -> None:
        """Hand out nothing more: what comes is kept, at most WINDOW_BYTES, and the other side is granted nothing."""
        self._reading = False

    def resume_reading(self) -> None:
        """Hand out again what comes, beginning with what was kept, in a later pass of the loop."""
        if not self._reading:
            self._reading = True
            if self._aside or self._ended:
                self._carrier.later(self._hand_out)

    def close(self) -> None:
        """Hand out nothing more, send what waits, then close."""
        if self._closing or self.closed:
            return
        self._closing = True
        self._aside = []
        if not self._waiting or self._ended:
            self._finish()

    def say_leaving(self, code: int) -> None:
        """Ask the other side to say goodbye to who has its socket here, by this reason code, and to close."""
        if not self.closed and not self._closing:
            self._carrier.send(BEAT, self.number, bytes((code,)))

    def abort(self) -> None:
        """Close now; what waits is lost."""
        if not self.closed:
            self._finish()

    def _finish(self) -> None:
        self.closed = True
        self._carrier.forget(self.number)
        if not self._ended:
            self._carrier.send(CLOSE, self.number, b"")

    # What the link calls

    def came(self, data: bytes) -> None:
        """Take the next bytes. Raises BrokenLink when they are more than was granted."""
        self._window -= len(data)
        if self._window < 0:
            raise BrokenLink("garbage", f"channel {self.number}: more bytes than were granted")
        if self._closing or self.closed:
            self._grant(len(data))
        elif self._reading and not self._aside:
            self._hand(data)
        else:
            self._aside.append(data)

    def credited(self, credit: i64) -> None:
        """Send what has waited for more credit."""
        self._credit += credit
        if self._credit > WINDOW_BYTES:
            raise BrokenLink("garbage", f"channel {self.number}: more was granted than was sent")
        if self._waiting:
            data = bytes(self._waiting)
            self._waiting = bytearray()
            self._send_part(data)
        if not self._waiting:
            if self._closing:
                self.abort()
            elif not self._carrier.full:
                self.writable()

    def writable(self) -> None:
        """Tell the sender that it may go on, if it waits for that."""
        if self._blocked and not self._waiting and self._credit > 0 and not self.closed:
            self._blocked = False
            self._tell(self.on_writable)

    def ended(self) -> None:
        """Note that the other side has closed: what it sent before is handed out first."""
        self._ended = True
        if self._closing:
            self.abort()
        elif not self._aside:
            self._end()

    def leaving(self, code: int, why: str) -> None:
        """Note that the other side wants to be left: who has its socket there is to hear goodbye, by a reason code."""
        if not self._closing and (not self.closed or self._is_left()):
            try:
                self.on_leaving(code, why)
            except Exception as error:  # noqa: BLE001  it costs this channel and nobody else
                self._broke(error)

    def lost(self) -> None:
        """Note that the link has ended."""
        if not self.closed:
            self.broken = not self._ended
            self._ended = True
            self._aside = []
            if self._is_left() and not self._closing:
                self._finish()
            else:
                self._end()

    def _is_left(self) -> bool:
        """Return whether the link has ended before what waits for that had heard that the other side's node stops."""
        return self.leaves and self.broken and self.says_goodbye

    def _end(self) -> None:
        """Tell the end, once."""
        if not self.closed:
            closing = self._closing
            self._finish()
            if not closing:
                self._tell(self.on_closed)

    def _hand_out(self) -> None:
        """Hand out what was kept, if somebody reads it now."""
        if not self._reading or self._closing:
            return
        if self._aside:
            kept, self._aside = b"".join(self._aside), []
            self._hand(kept)
        if self._ended and not self._closing:
            self._end()

    def _hand(self, data: bytes) -> None:
        try:
            self.on_bytes(data)
        except Exception as error:  # noqa: BLE001  it costs this channel and nobody else
            self._broke(error)
        self._grant(len(data))

    def _grant(self, size: i64) -> None:
        """Grant what was taken again, once it is much of the window."""
        self._taken += size
        if self._taken >= WINDOW_BYTES // 4 and not self.closed and not self._ended:
            self._window += self._taken
            self._carrier.send(CREDIT, self.number, encode_number(int(self._taken)))
            self._taken = 0

    def _tell(self, call: Callable[[], None]) -> None:
        try:
            call()
        except Exception as error:  # noqa: BLE001  it costs this channel and nobody else
            self._broke(error)

    def _broke(self, error: Exception) -> None:
        self._carrier.failed(error)
        self.abort()


def _no_bytes(data: bytes) -> None:
    """Drop what comes on a channel that nobody reads."""


def _nothing() -> None:
    """Do nothing."""


def _not_leaving(code: int, why: str) -> None:
    """Say goodbye to nobody."""
