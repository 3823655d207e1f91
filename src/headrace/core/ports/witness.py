"""The port of whoever is told how connections and sessions begin and end: the log, and a trace.

Runs on the loop, never for a message that goes its way. What a witness raises costs nobody anything (`Testimony`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mypy_extensions import mypyc_attr

from headrace.core.ports.failures import Failures

if TYPE_CHECKING:
    from headrace.core.ports.link import Link
    from headrace.mqtt.packets import Connect


@mypyc_attr(allow_interpreted_subclasses=True)
class Witness:
    """Hears what has happened, after it has. The connection that an end is told of still knows its address."""

    def connected(self, link: Link, packet: Connect, present: bool) -> None:
        """Note that a client was let in; `present`: it has found its session."""

    def refused(self, link: Link, client_id: str, reason_code: int, detail: str) -> None:
        """Note that a connection was not let in, and access control has not told why."""

    def disconnected(self, link: Link, client_id: str, kept: bool, reason: str, reason_code: int) -> None:
        """Note that a connection with a session has ended; `kept`: its session has not. `reason_code` is MQTT 5's, -1
        if neither side gave one."""

    def taken_over(self, link: Link, client_id: str, by: Link) -> None:
        """Note that the connection of a client has ended because `by` has come with the same client id."""

    def session_ended(self, client_id: str, waiting: int, reason: str) -> None:
        """Note that a session that outlived its connection is over, with so many messages that it had not got."""

    def rejected(self, link: Link, what: str, topic: str, reason_code: int) -> None:
        """Note that a PUBLISH or a subscription was refused, and access control has not told why."""

    def not_delayed(self, link: Link, topic: str) -> None:
        """Note that a PUBLISH went to a topic that makes EMQX wait, and makes no difference here."""


class Testimony:
    """Tells a witness, if there is one."""

    def __init__(self) -> None:
        self.witness: Witness | None = None
        self.failures: Failures | None = None  # where what a witness raises is noted

    def connected(self, link: Link, packet: Connect, present: bool) -> None:
        if self.witness is not None:
            try:
                self.witness.connected(link, packet, present)
            except Exception as error:  # noqa: BLE001
                self._failed(link.client_id, error)

    def refused(self, link: Link, client_id: str, reason_code: int, detail: str) -> None:
        if self.witness is not None:
            try:
                self.witness.refused(link, client_id, reason_code, detail)
            except Exception as error:  # noqa: BLE001
                self._failed(client_id, error)

    def disconnected(self, link: Link, client_id: str, kept: bool, reason: str, reason_code: int) -> None:
        if self.witness is not None:
            try:
                self.witness.disconnected(link, client_id, kept, reason, reason_code)
            except Exception as error:  # noqa: BLE001
                self._failed(client_id, error)

    def taken_over(self, link: Link, client_id: str, by: Link) -> None:
        if self.witness is not None:
            try:
                self.witness.taken_over(link, client_id, by)
            except Exception as error:  # noqa: BLE001
                self._failed(client_id, error)

    def session_ended(self, client_id: str, waiting: int, reason: str) -> None:
        if self.witness is not None:
            try:
                self.witness.session_ended(client_id, waiting, reason)
            except Exception as error:  # noqa: BLE001
                self._failed(client_id, error)

    def rejected(self, link: Link, what: str, topic: str, reason_code: int) -> None:
        if self.witness is not None:
            try:
                self.witness.rejected(link, what, topic, reason_code)
            except Exception as error:  # noqa: BLE001
                self._failed(link.client_id, error)

    def not_delayed(self, link: Link, topic: str) -> None:
        if self.witness is not None:
            try:
                self.witness.not_delayed(link, topic)
            except Exception as error:  # noqa: BLE001
                self._failed(link.client_id, error)

    def _failed(self, client_id: str, error: Exception) -> None:
        if self.failures is not None:
            self.failures.note("log", client_id, error)
