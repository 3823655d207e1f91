"""Journals with messages, for sinks."""

from __future__ import annotations

from pathlib import Path

from librt.strings import BytesWriter

from headrace.core.records.message import Carried, Message, copy_of
from unit.journal.log_at import filled

START_US = 1_700_000_000_123_456


def message(topic: str, payload: bytes = b"x", tenant: str = "default", properties: bytes = b"") -> Message:
    """A message of client `p`, at QoS 1."""
    name = tenant.encode()
    return Message(START_US, 1, 7, 3, tenant, name + b"p", len(name), topic.encode(), properties, -1, payload)


def encoded(one: Message) -> bytes:
    out = BytesWriter()
    one.encode_into(out)
    return out.getvalue()


def copied(topic: str) -> bytes:
    """A message of another shard."""
    return encoded(copy_of(message(topic), 1, 5))


def carried(topic: str) -> bytes:
    """A message that the journal began with."""
    return encoded(Carried(message(topic)))


def journal(data_dir: Path, *bodies: bytes) -> Path:
    """Write a record a batch, behind those that are there."""
    filled(data_dir, bodies)
    return data_dir
