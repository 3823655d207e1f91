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


def message_id(journal: str, message: Message) -> bytes:
    """The 16 bytes of a message that has its offset. `journal` is "<uuid>:<epoch>"."""
    own = user_property(message.properties, ID_PROPERTY) if message.properties else None
    return md5(_text(journal, message, own), usedforsecurity=False).digest()


def _text(journal: str, message: Message, own: bytes | None) -> bytes:
    if own is None:
        return f"journal:{journal}:{message.offset}".encode()
    client_id = message.client_id.replace("%", "%25").replace("/", "%2F")
    return f"client:{message.tenant}/{client_id}/".encode() + own
