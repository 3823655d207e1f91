"""Wires between shards (`core.shards.peer`): over the link to another worker, or within this one.

Runs on the loop. A wire knows the shard at its near end, and tells `Wires` when it has ended, so that whoever follows on
it begins again on another one.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final

from mypy_extensions import mypyc_attr

from headrace.core.records.message import Message
from headrace.core.shards.neighbours import Neighbours
from headrace.core.shards.peer import Copied, Frame, Hello, Passed, Wire
from headrace.core.shards.peer_codec import decode
from headrace.errors import CorruptRecord
from headrace.peers.channel import Carrier
from headrace.peers.peer_frames import CLOSE, SAY, BrokenLink

LOCAL_AT_ONCE: Final = (
    1000  # frames between shards of this worker that are handed over in one pass of the loop
)


@mypyc_attr(allow_interpreted_subclasses=True)
class Wires:
    """Whoever opens wires hears of their ends."""

    def wire_ended(self, wire: ShardWire) -> None:
        """Note that nothing more comes on a wire, whoever has ended it."""
        raise NotImplementedError

    def failed(self, error: Exception) -> None:
        """Note that a shard has raised what it should not have; its wire was cut."""
        raise NotImplementedError


class ShardWire(Wire):
    """One side of a conversation: `near` hears what `far`, another shard, says. `follows`: it is `near` that follows."""

    def __init__(self, wires: Wires, near: Neighbours, far: int, follows: bool) -> None:
        self.near = near
        self.far = far
        self.follows = follows
        self.open = True
        self._wires = wires

    def hear(self, frame: Frame) -> None:
        """Hand a frame to the shard. What that raises ends the wire."""
        if not self.open:
            return
        try:
            self.near.heard(self, frame)
        except Exception as error:  # noqa: BLE001  it begins again from its position, on another wire
            self._wires.failed(error)
            self.end()

    def cut(self) -> None:
        if self.open:
            self._tell_end()
            self._close()

    def end(self) -> None:
        """End the conversation; both sides hear of it."""
        if self.open:
            self._tell_end()
            self.lose()

    def lose(self) -> None:
        """Note that the other side has ended the conversation, or can no longer be heard."""
        if self.open:
            self._close()
            self._tell_near()

    def _tell_near(self) -> None:
        try:
            self.near.broken(self)
        except Exception as error:  # noqa: BLE001  the other wires are others' business
            self._wires.failed(error)

    def _not_said(self, error: Exception) -> None:
        """End the wire, on which something could not be said for want of memory: without that, what comes behind it says
        something else. Who speaks hears of it later, as when a wire breaks."""
        self._wires.failed(error)
        self._close()
        self._later(self._tell_near)
        self._tell_end()

    def _close(self) -> None:
        self.open = False
        self._wires.wire_ended(self)

    def _later(self, call: Callable[[], None]) -> None:
        """Call `call` in a later pass of the loop."""
        raise NotImplementedError

    def _tell_end(self) -> None:
        """Tell the other side that the conversation has ended."""
        raise NotImplementedError


class LinkWire(ShardWire):
    """A wire over the link to another worker."""

    def __init__(
        self, wires: Wires, near: Neighbours, far: int, follows: bool, carrier: Carrier, number: int
    ) -> None:
        super().__init__(wires, near, far, follows)
        self.number = number
        self._carrier = carrier

    @property
    def full(self) -> bool:
        return self._carrier.piled

    def say(self, frame: Frame) -> None:
        if self.open:
            try:
                self._carrier.send(SAY, self.number, frame.encode())
            except Exception as error:  # noqa: BLE001  it is said anew on another wire
                self._not_said(error)

    def say_copied(self, message: Message, source: int) -> None:
        if self.open:
            try:
                self._carrier.send_copied(self.number, message, source)
            except Exception as error:  # noqa: BLE001  it is said anew on another wire
                self._not_said(error)

    def take(self, body: bytes) -> None:
        """Hear what came on the link. Raises BrokenLink."""
        try:
            frame = decode(body)
        except CorruptRecord as error:
            raise BrokenLink("garbage", f"from shard {self.far}: {error}") from error
        if isinstance(frame, Hello) and (self.follows or frame.shard != self.far):
            raise BrokenLink("garbage", f"shard {frame.shard} speaks as shard {self.far}")
        self.hear(frame)

    def _later(self, call: Callable[[], None]) -> None:
        self._carrier.later(call)

    def _tell_end(self) -> None:
        self._carrier.send(CLOSE, self.number, b"")

    def _close(self) -> None:
        self._carrier.forget(self.number)
        super()._close()


class LocalWire(ShardWire):
    """A wire to another shard of this worker. What is said arrives in a later pass of the loop, as it was when it was
    said: nothing is shared. A copy, and a message at QoS 0, were made for this wire alone; all else passes as bytes."""

    def __init__(
        self, wires: Wires, near: Neighbours, far: Neighbours, follows: bool, exchange: Exchange
    ) -> None:
        super().__init__(wires, near, far.shard, follows)
        self.other: LocalWire | None = None
        self._exchange = exchange

    def say(self, frame: Frame) -> None:
        other = self.other
        if self.open and other is not None:
            try:
                alone = isinstance(frame, (Copied, Passed))
                self._exchange.put(other, frame if alone else decode(frame.encode()))
            except Exception as error:  # noqa: BLE001  it is said anew on another wire
                self._not_said(error)

    def cut(self) -> None:
        super().cut()
        self.other = None  # the two would keep each other alive, and their shards

    def lose(self) -> None:
        super().lose()
        self.other = None

    def _later(self, call: Callable[[], None]) -> None:
        self._exchange.later(call)

    def _tell_end(self) -> None:
        if self.other is not None:
            self._exchange.put(self.other, None)


class Exchange:
    """What shards of one worker have said to each other and have not heard yet, in the order in which it was said."""

    def __init__(self, call_soon: Callable[[Callable[[], None]], object]) -> None:
        self.later = call_soon
        self._coming: deque[tuple[LocalWire, Frame | None]] = deque()
        self._is_due = False  # a later pass will hand over

    def pair(self, wires: Wires, follower: Neighbours, source: Neighbours) -> LocalWire:
        """Return the follower's side of a new wire between two shards."""
        near = LocalWire(wires, follower, source, True, self)
        far = LocalWire(wires, source, follower, False, self)
        near.other, far.other = far, near
        return near

    def put(self, wire: LocalWire, frame: Frame | None) -> None:
        """Let a frame arrive at a wire, or its end."""
        if not self._is_due:
            self.later(self.hand_over)
            self._is_due = True
        self._coming.append((wire, frame))

    def hand_over(self) -> None:
        """Let a share of what was said until now arrive."""
        self._is_due = False
        coming = self._coming
        for _ in range(min(len(coming), LOCAL_AT_ONCE)):
            wire, frame = coming[0]
            if frame is None:
                wire.lose()
            else:
                wire.hear(frame)
            coming.popleft()
        if coming and not self._is_due:
            self.later(self.hand_over)
            self._is_due = True
