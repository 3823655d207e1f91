"""The port of whoever keeps latencies: of the messages that one flush wrote something of, it is told of the oldest.

Runs on the loop. One acknowledgement and one delivery a flush, and of one flush a millisecond, so a message costs nothing
but a look at whether there is one already, however small the flushes are.
"""

from __future__ import annotations

from mypy_extensions import mypyc_attr


@mypyc_attr(allow_interpreted_subclasses=True)
class Latencies:
    """Hears when the bytes have left. `arrived_us`: when the message came, Unix microseconds by the broker's clock."""

    def acknowledged(self, arrived_us: int) -> None:
        """Note that a PUBACK or PUBREC was written."""

    def delivered(self, arrived_us: int) -> None:
        """Note that a PUBLISH with QoS > 0 was written to a client that was connected when the message came."""
