"""The frames that shards say to each other, made of bytes again. Each says itself what its bytes are.

One frame is a kind and its fields; whoever carries it says where it ends::

     1 to 16   what is said about one stream (`peer`)
    32 to 36   what is asked and answered about retained messages (`retained_frames`)
    48 to 59   what is said about shared subscriptions (`group_frames`)
    64 to 73   what is said about topic queues (`queue_frames`)

A frame that is none of these, or whose fields do not fill it, is refused: the connection is of no use any more.
"""

from __future__ import annotations

import struct
from typing import Final

from headrace.core.shards import group_frames, peer, queue_frames, retained_frames
from headrace.core.shards.peer import COPIED, PASSED, Frame, decode_message
from headrace.errors import CorruptRecord

_DECODERS: Final = peer.DECODERS | retained_frames.DECODERS | group_frames.DECODERS | queue_frames.DECODERS


def decode(data: bytes) -> Frame:
    """Return the frame of these bytes. Raises CorruptRecord."""
    kind = data[0] if len(data) else 0
    try:
        if kind in (COPIED, PASSED):  # as most are
            return decode_message(data)
        decoder = _DECODERS.get(kind)
        if decoder is None:
            raise CorruptRecord(f"a frame of unknown kind {kind}")
        return decoder(data)
    except (struct.error, UnicodeDecodeError, ValueError) as error:
        raise CorruptRecord(f"a frame of kind {kind} and {len(data)} bytes: {error}") from error
