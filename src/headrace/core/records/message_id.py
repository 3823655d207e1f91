"""The global message id in 16 bytes (decision 3): the MD5 of its text, which Spark's `md5` makes of `message_id` too.

The text is `client:<tenant>/<client id>/<id>` where the publisher gave an id of its own, as the user property
`message-id`, else `journal:<uuid>:<epoch>:<offset>`. Both stand for the same message for ever, however often it is
delivered. MD5 is no secret here: it spreads texts over 128 bits.
"""

from __future__ import annotations

from hashlib import md5
from typing import Final

from headrace.core.records.message import Message
from headrace.mqtt.publish import user_property

ID_PROPERTY: Final = b"message-id"


class JournalName:
    """What ids call a journal, "<uuid>:<epoch>": a message has the epoch that it was written in."""

    def __init__(self, uuid: str = "", epochs: list[tuple[int, int]] | None = None) -> None:
        """`epochs`: offset from which on one holds, and the epoch; in ascending order, the first from the beginning."""
        self._names = [(start, f"{uuid}:{epoch}") for start, epoch in epochs or [(0, 0)]]

    def at(self, offset: int) -> str:
        """The name for a message of this offset."""
        names = self._names
        at = len(names) - 1
        while at > 0 and names[at][0] > offset:
            at -= 1
        return names[at][1]


def message_id(journal: str, message: Message) -> bytes:
    """The 16 bytes of a message that has its offset. `journal` is "<uuid>:<epoch>"."""
    return md5(_text(journal, message, own_id(message)), usedforsecurity=False).digest()


def own_id(message: Message) -> bytes | None:
    """The id that the publisher gave, None where it gave none."""
    return user_property(message.properties, ID_PROPERTY) if message.properties else None


def _text(journal: str, message: Message, own: bytes | None) -> bytes:
    if own is None:
        return f"journal:{journal}:{message.offset}".encode()
    client_id = message.client_id.replace("%", "%25").replace("/", "%2F")
    return f"client:{message.tenant}/{client_id}/".encode() + own
