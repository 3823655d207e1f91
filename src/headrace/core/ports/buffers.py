"""Write buffers that go from connection to connection.

A connection has one between its first byte of a tick and its write. A buffer that has grown keeps its memory for the
next one: neither the object nor the steps of its growth are allocated anew for each write.
"""

from __future__ import annotations

from typing import Final

from librt.strings import BytesWriter

KEPT_MAX: Final = 256
KEPT_BYTES_MAX: Final = 16 << 10  # what one of them may have held; together no more than 8 MiB


class Buffers:
    """Keeps the buffers that nobody uses now, all of them empty. Runs on the loop."""

    def __init__(self) -> None:
        self._kept: list[BytesWriter] = []

    def __len__(self) -> int:
        return len(self._kept)

    def take(self) -> BytesWriter:
        kept = self._kept
        return kept.pop() if kept else BytesWriter()

    def give_back(self, buffer: BytesWriter) -> None:
        """Take a buffer back: what it holds has been written, or is of no use any more."""
        if len(buffer) <= KEPT_BYTES_MAX and len(self._kept) < KEPT_MAX:
            buffer.truncate(0)
            self._kept.append(buffer)
