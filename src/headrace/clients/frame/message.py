"""A message as a consumer gets it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Message:
    """A message as a consumer gets it. `message_id` are the 16 bytes that name it for ever; `sn` is the client id of
    who published it, `time_ms` when the broker received it (Unix, milliseconds). `redelivered`: it was, or may have
    been, delivered before."""

    message_id: bytes
    topic: str
    sn: str
    time_ms: int
    payload: bytes
    redelivered: bool
