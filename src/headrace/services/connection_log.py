"""How connections and sessions begin and end, in the audit log: one line each. Runs on the loop.

`connected`, `disconnected`, `taken over` and `session ended` are news, as Mosquitto's users know them; `refused`, `turned
away`, `packet rejected` (one that is too large), `publish rejected`, `subscribe rejected` and `publish not delayed` are
failures, told whatever the log's level is. What access control refuses it tells itself.
"""

from __future__ import annotations

from headrace.core.ports.link import Link
from headrace.core.ports.witness import Witness
from headrace.core.state.session import BRIDGE_PREFIX
from headrace.mqtt import reason_codes as rc
from headrace.mqtt.packets import Connect
from headrace.net.remote import source_of
from headrace.services.audit import Audit
from headrace.services.tracing import Tracing

CLIENTS_MAX = 10_000  # that are remembered, to be told of something once
VERSIONS = {3: "3.1", 4: "3.1.1", 5: "5.0"}


class ConnectionLog(Witness):
    """Writes to `audit`, and to the traces of `tracing`. A line is put together only if somebody is to read it."""

    def __init__(self, audit: Audit, tracing: Tracing | None = None) -> None:
        super().__init__()
        self._audit = audit
        self._tracing = tracing
        self._told_of_delay: set[str] = set()

    def connected(self, link: Link, packet: Connect, present: bool) -> None:
        more = {
            "user": link.identity.user or packet.username or "",
            "version": VERSIONS.get(packet.version, ""),
            "keep_alive_s": str(packet.keep_alive_s),
            "session": "resumed" if present else "new",
        }
        self._news("connected", link.client_id, link, more)

    def disconnected(self, link: Link, client_id: str, kept: bool, reason: str, reason_code: int) -> None:
        if reason_code == rc.PACKET_TOO_LARGE and reason != "disconnected":  # we have ended it
            self._failure("packet rejected", reason_code, link, client_id, detail=reason)
        if client_id.startswith(BRIDGE_PREFIX):
            return
        if reason_code > 0 and reason == "disconnected":
            reason = rc.name(reason_code)
        more = {"reason": reason, "session": "kept" if kept else "ended"}
        self._news("disconnected", client_id, link, more)

    def taken_over(self, link: Link, client_id: str, by: Link) -> None:
        self._news("taken over", client_id, link, {"by": by.peer()})

    def session_ended(self, client_id: str, waiting: int, reason: str) -> None:
        more = {"reason": reason, "dropped": str(waiting) if waiting else ""}
        self._news("session ended", client_id, None, more)

    def refused(self, link: Link, client_id: str, reason_code: int, detail: str) -> None:
        self._failure("refused", reason_code, link, client_id, detail=detail)

    def rejected(self, link: Link, what: str, topic: str, reason_code: int) -> None:
        self._failure(f"{what} rejected", reason_code, link, link.client_id, topic=topic)

    def not_delayed(self, link: Link, topic: str) -> None:
        client = link.client_id
        if client in self._told_of_delay:
            return
        if len(self._told_of_delay) >= CLIENTS_MAX:
            self._told_of_delay.clear()
        self._told_of_delay.add(client)
        detail = "$delayed/ is a topic as any other here: nothing is delayed"
        where = _where(link)
        source = source_of(link.peer())
        self._audit.failure(
            "publish not delayed", "topic", source, client=client, topic=topic, detail=detail, **where
        )

    def turned_away(self, peer: str, listener: str, reason: str) -> None:
        """Note that a listener did not let somebody in, or has cut off who had not said CONNECT."""
        if reason != "error":  # which is told with its traceback
            self._audit.failure("turned away", reason, source_of(peer), address=peer, listener=listener)
        if self._tracing is not None and self._tracing.traces:
            self._tracing.event("turned away", "", peer, {"reason": reason, "listener": listener})

    def _news(self, event: str, client: str, link: Link | None, more: dict[str, str]) -> None:
        if self._audit.takes_news(event, client):
            where = {} if link is None else _where(link)
            self._audit.news(event, client, **where, **more)
        if self._tracing is not None and self._tracing.traces:
            self._tracing.event(event, client, "" if link is None else link.peer(), more)

    def _failure(self, event: str, reason_code: int, link: Link, client: str, **more: str) -> None:
        reason = rc.name(reason_code).lower().replace(" ", "_")
        peer = link.peer()
        more |= {"user": link.identity.user or "", **_where(link)}
        self._audit.failure(event, reason, source_of(peer), client=client, **more)
        if self._tracing is not None and self._tracing.traces:
            self._tracing.event(event, client, peer, {"reason": reason, **more})


def _where(link: Link) -> dict[str, str]:
    return {"address": link.peer(), "listener": link.listener()}
