"""The right of a device to read a topic for as long as it does, whose rules may change meanwhile."""

from __future__ import annotations

from headrace.core.ports.link import Link
from headrace.core.ports.rights import Rights
from headrace.errors import ProtocolError
from headrace.mqtt import reason_codes as rc

_NEVER_ASKED = -1


class Reading:
    """What one device of a connection reads. It was let in; it is asked for again where the rules have changed since, or
    the connection has another user: to look whether they have costs two comparisons."""

    def __init__(self, link: Link, client_id: str, topic: bytes) -> None:
        self._link = link
        self._client_id = client_id
        self._topic = topic
        self._rights: Rights | None = link.rights
        self._generation = _NEVER_ASKED if link.rights is None else link.rights.generation()
        self._allowed = True

    def holds(self) -> bool:
        """Return whether the device may read the topic now."""
        rights = self._link.rights
        if rights is None:
            return True
        generation = rights.generation()
        if rights is not self._rights or generation != self._generation:
            self._allowed = rights.ask_device(self._client_id, self._topic)
            self._rights, self._generation = rights, generation
            if not self._allowed:
                rights.note_denied("subscribe", self._topic)
        return self._allowed

    def end(self) -> None:
        """End the connection, whose device asks for what it may not read any more: there is no code in the answer."""
        link = self._link
        if not link.closed:
            link.on_protocol_error(ProtocolError(rc.NOT_AUTHORIZED, "PULL from a topic that may not be read"))
