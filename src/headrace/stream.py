"""A byte stream taken apart: what the parsers of all protocols share. No I/O, no clock.

Only the incomplete rest of what came is stored, with the number of bytes it lacks, and not looked at again before they
are there: a large packet in small pieces costs its length and not its square. How much one call handles is bounded, and
a handler may have everything behind the packet in hand wait.
"""

from __future__ import annotations

from typing import Final

from mypy_extensions import i64

from headrace.errors import ProtocolError

CLOSED: Final = 4  # the `state` in which nothing is parsed any more

# What came of the bytes that the parser was given last.
WHOLE: Final = 0  # a packet was finished with them, or nothing was expected of them
PARTIAL: Final = 1  # they belong to a packet that is not finished
MORE: Final = 2  # `packets_at_once` were handled, and more wait for `parse_on`
UNLIMITED: Final = 1 << 60


class ByteStream:
    """Base of all parsers. `version` is 0 until it is known.

    `packets_at_once` bounds what one call of `receive_data` handles: what is behind it waits for `parse_on`. `outcome`
    says what came of the last bytes: WHOLE, PARTIAL or MORE.
    """

    def __init__(self) -> None:
        self.version: i64 = 0
        self.state: i64 = 0
        self._rest: bytearray | None = None
        self._missing: i64 = 0
        self._held = False
        self._spent = False
        self.packets_at_once: i64 = UNLIMITED
        self._left: i64 = UNLIMITED
        self._unfinished = False  # of a long packet, only a part was handled
        self.outcome: i64 = WHOLE
        self.leaving = False  # the packet in hand and what follows is somebody else's to parse
        self.unparsed = b""  # that

    @property
    def buffered(self) -> int:
        """Return how many bytes of the incomplete packet are held."""
        return 0 if self._rest is None else len(self._rest)

    def receive_data(self, data: bytes) -> None:
        """Take the next bytes of the stream and call the handler for each packet they complete."""
        if self.state == CLOSED:
            if self.leaving:
                self.unparsed += data
            return
        self.outcome = WHOLE
        if self._rest is not None:
            self._rest += data
            if self._held:
                return
            if self._spent:
                self.outcome = MORE
                return
            self._missing -= len(data)
            if self._missing > 0:
                self.outcome = PARTIAL
                return
            data = bytes(self._rest)
            self._rest = None
        try:
            self._parse(data)
        except ProtocolError as error:
            self._refuse(error)

    def hold(self) -> None:
        """Keep what follows the packet in hand unparsed until `release`; called by a handler."""
        self._held = True

    def release(self) -> None:
        self._held = False
        self.parse_on()

    def parse_on(self) -> None:
        """Handle what waits, as far as one call may: after `release`, and after the outcome MORE."""
        self._spent = False
        if self._unfinished and not self._finished():
            return
        rest = self._rest
        if rest is not None:
            self._rest = None
            self.receive_data(bytes(rest))

    def _finished(self) -> bool:
        """Handle more of the packet that was handled in part; True when that was the last of it and others may follow."""
        self.outcome = WHOLE
        self._left = self.packets_at_once
        try:
            self._next_part()
        except ProtocolError as error:
            self._refuse(error)
        if self._unfinished and not self._held:
            self._spent = True
            self.outcome = MORE
        return not self._unfinished and not self._held and self.state != CLOSED

    def leave(self) -> None:
        """Handle nothing any more: the packet in hand and what follows is kept in `unparsed`, for somebody else to
        parse; called by a handler."""
        self.state = CLOSED
        self.leaving = True

    def spend(self, units: i64) -> None:
        """Note that the packet in hand costs as much as so many more of them; called by a handler."""
        self._left -= units

    def stop(self) -> None:
        """Ignore what is still in the buffer and whatever comes."""
        self.state = CLOSED
        self.outcome = WHOLE
        self.leaving = False
        self.unparsed = b""
        self._rest = None
        self._unfinished = False

    def _interrupt(self, data: bytes, pos: i64) -> None:
        """Handle nothing more now: what is behind `pos` waits for `release` or `parse_on`."""
        if self._held:
            self._rest = bytearray(data[pos:])
        elif pos < len(data) or self._unfinished:
            self._rest = bytearray(data[pos:])
            self._spent = True
            self.outcome = MORE

    # What a protocol says of itself

    def _parse(self, data: bytes) -> None:
        """Call the handler for each packet in `data`, and keep what is left. May raise ProtocolError."""
        raise NotImplementedError

    def _next_part(self) -> None:
        """Handle as much as `_left` allows of a packet that left `_unfinished` behind."""
        raise NotImplementedError

    def _refuse(self, error: ProtocolError) -> None:
        """Parse nothing more, and tell the handler why, once."""
        raise NotImplementedError
