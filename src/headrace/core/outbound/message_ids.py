"""The message id on request: a client of MQTT 5 that asks for it in CONNECT finds it in what it is sent.

The request is the user property that `session.message_id_property` names, whatever its value; each PUBLISH has a user
property of that name then, behind those of the publisher: the 16 bytes of the message id (decision 3) as 32 hexadecimal
digits, the same however often the message comes. Who does not ask pays nothing: this is a `Rendering` of links that did.
"""

from __future__ import annotations

from mypy_extensions import i64

from headrace.core.ports.link import Link, Rendering
from headrace.core.records.message import Message
from headrace.core.records.message_id import JournalName, own_id
from headrace.mqtt.data_types import text


class IdRendering(Rendering):
    """Renders messages with their ids, for one connection."""

    def __init__(self, journal: JournalName, name: str) -> None:
        super().__init__()
        self._journal = journal
        self._head = b"\x26" + text(name)  # User Property (3.3.2.3.7)

    def write(self, link: Link, message: Message, qos: i64, packet_id: i64, first: i64, ids: bytes) -> None:
        properties = self._with_id(link, message, qos, ids)
        now_us = link.worker.clock.now_us
        message.render(link.writer(), link.version, qos, packet_id, first, properties, now_us)

    def size(self, link: Link, message: Message, qos: i64, ids: bytes) -> i64:
        return message.rendered_size(link.version, qos, self._with_id(link, message, qos, ids))

    def _with_id(self, link: Link, message: Message, qos: i64, ids: bytes) -> bytes:
        """Return the properties that come behind the publisher's. A message has no id where it is at QoS 0 and its
        publisher gave none; and none is put where it would make the packet too large for the client."""
        if message.offset < 0 and own_id(message) is None:
            return ids
        found = self._journal.id_of(message)
        properties = ids + self._head + text(found.hex())
        limit = link.max_packet_size
        if limit and message.rendered_size(link.version, qos, properties) > limit:
            return ids
        return properties
