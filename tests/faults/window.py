"""What a publisher has sent and not seen finished, at QoS 1 and 2, over any number of connections."""

from __future__ import annotations

from collections.abc import Callable

from headrace.mqtt import codec

_PUBREC = 5
# Writes a PUBLISH: packet id, number, DUP.
Publish = Callable[[int, int, bool], None]


class Window:
    """The numbers 1, 2, 3, ... on their way. `acked` gets each one whose PUBACK or PUBREC has come; `write` takes the
    bytes of other packets."""

    def __init__(self, acked: set[int], publish: Publish, write: Callable[[bytes], None]) -> None:
        self.acked = acked
        self.sent = 0
        self._publish = publish
        self._write = write
        self._open: dict[int, tuple[int, bool]] = {}  # packet id -> number, PUBREC seen

    def __len__(self) -> int:
        return len(self._open)

    def send(self) -> None:
        """Send the next number."""
        self.sent += 1
        packet_id = self.sent % 65_535 + 1
        self._open[packet_id] = (self.sent, False)
        self._publish(packet_id, self.sent, False)

    def send_again(self) -> None:
        """Go on where the connection before has ended."""
        for packet_id, (number, released) in self._open.items():
            if released:
                self._write(codec.encode_pubrel(4, packet_id))
            else:
                self._publish(packet_id, number, True)

    def answered(self, first: int, body: bytes) -> None:
        """Take a PUBACK, PUBREC or PUBCOMP of the server."""
        packet_id = int.from_bytes(body[:2], "big")
        number, _ = self._open.get(packet_id, (0, False))
        if not number:
            return
        self.acked.add(number)
        if first >> 4 == _PUBREC:
            self._open[packet_id] = (number, True)
            self._write(codec.encode_pubrel(4, packet_id))
        else:
            del self._open[packet_id]
