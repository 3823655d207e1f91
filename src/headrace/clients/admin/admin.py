"""A broker as who operates it sees it: every resource of its admin HTTP as a method.

    with Admin("http://127.0.0.1:18830", token) as admin:
        for session in admin.sessions(state="away"):
            print(session.client_id, session.backlog)
        admin.publish("plant/7/set", "21.5", retain=True)

Names are sent as they are: whatever a client id or a topic holds, it is the one that is meant. Every method raises
Unreachable, and Problem, as its subclass for the status of the answer. For one thread at a time.
"""

from __future__ import annotations

import ssl
from base64 import b64encode
from collections.abc import Mapping
from types import TracebackType
from typing import Any, Final, Literal, Self, TypeVar
from urllib.parse import quote, urlencode

import msgspec

from headrace.clients.admin.connection import AdminConnection
from headrace.clients.admin.errors import Unavailable
from headrace.clients.admin.pages import Pages
from headrace.clients.admin.rows import (
    BacklogRow,
    Client,
    Cluster,
    Deleted,
    Drain,
    Dropped,
    Event,
    Kicked,
    Laggard,
    Posted,
    PublishProperties,
    Queue,
    Refusal,
    Reloaded,
    Removed,
    RetainedMessage,
    RetainedRow,
    Session,
    SessionRow,
    Subscription,
)
from headrace.clients.admin.trace import Trace

TENANT: Final = "default"
Found = TypeVar("Found")


class Admin:
    """Asks the broker whose admin address is `url`. `token`: of its token file, or of its directory; `context`: for
    https, whom to trust."""

    def __init__(
        self, url: str, token: str = "", context: ssl.SSLContext | None = None, timeout_s: float = 10.0
    ) -> None:
        self._connection = AdminConnection(url, token, context, timeout_s)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """End the connection; the next request makes another one."""
        self._connection.close()

    # Clients and sessions

    def clients(self, tenant: str = "", pattern: str = "") -> Pages[Client]:
        """Return who is connected, of one tenant, with client ids that a shell pattern matches."""
        return self._pages("clients", Client, tenant=tenant, pattern=pattern)

    def client(self, client_id: str, tenant: str = TENANT) -> Client:
        """Return one client that is connected. Raises NotFound."""
        return self._one("GET", "clients", Client, tenant=tenant, client=client_id)

    def kick(self, client_id: str, tenant: str = TENANT) -> Kicked:
        """End a connection; the session stays if it is one that does. Raises NotFound, Conflict."""
        return self._one("DELETE", "clients", Kicked, tenant=tenant, client=client_id)

    def behind(self, limit: int = 20) -> list[Laggard]:
        """Return the worst of those whose socket is full or for whom messages wait."""
        found = self._connection.ask("GET", _target("clients/behind", limit=str(limit)))
        return msgspec.convert(found["clients"], list[Laggard])

    def refused(self, pattern: str = "", limit: int = 100) -> list[Refusal]:
        """Return who was refused lately, and why, the last one first."""
        asked = {"pattern": pattern, "limit": str(limit)}
        return msgspec.convert(
            self._connection.ask("GET", _target("refusals", **asked))["rows"], list[Refusal]
        )

    def sessions(
        self, tenant: str = "", pattern: str = "", state: Literal["connected", "away", ""] = ""
    ) -> Pages[SessionRow]:
        """Return the sessions, connected or not."""
        return self._pages("sessions", SessionRow, tenant=tenant, pattern=pattern, state=state)

    def session(self, client_id: str, tenant: str = TENANT) -> Session:
        """Return everything about one session. Raises NotFound."""
        return self._one("GET", "sessions", Session, tenant=tenant, client=client_id)

    def drop(self, client_id: str, tenant: str = TENANT) -> Dropped:
        """End a session for good, with all that waits in it. Raises NotFound, Conflict."""
        return self._one("DELETE", "sessions", Dropped, tenant=tenant, client=client_id)

    def backlog(self, client_id: str, tenant: str = TENANT) -> Pages[BacklogRow]:
        """Return what is in flight to a session and what waits for it, oldest first; nothing is taken. Raises
        NotFound."""
        return self._pages("backlogs", BacklogRow, tenant=tenant, client=client_id)

    def subscriptions(
        self,
        tenant: str = "",
        pattern: str = "",
        state: Literal["connected", "away", ""] = "",
        topic_filter: str = "",
        topic: str = "",
    ) -> Pages[Subscription]:
        """Return subscriptions: with this very filter, or with one that matches a topic, which is who gets what is
        published there."""
        asked = {"tenant": tenant, "pattern": pattern, "state": state, "filter": topic_filter, "topic": topic}
        return self._pages("subscriptions", Subscription, **asked)

    # Messages

    def publish(
        self,
        topic: str,
        payload: str | bytes = b"",
        qos: Literal[0, 1, 2] = 1,
        retain: bool = False,
        properties: PublishProperties | None = None,
        tenant: str = TENANT,
    ) -> Posted:
        """Publish a message; returns when it is durable. It may have been published where this raises Unreachable or
        Unavailable: what may be sent again has a producer's sequence. Raises Forbidden, NotFound, InsufficientStorage."""
        body: dict[str, Any] = {"topic": topic, "qos": qos, "retain": retain, "properties": properties or {}}
        if isinstance(payload, str):
            body["text"] = payload
        else:
            body["payload"] = b64encode(payload).decode("ascii")
        return msgspec.convert(self._connection.ask("POST", _target("publish", tenant=tenant), body), Posted)

    def retained(self, topic_filter: str = "", tenant: str = TENANT) -> Pages[RetainedRow]:
        """Return the retained messages of one tenant."""
        return self._pages("retained", RetainedRow, tenant=tenant, filter=topic_filter)

    def retained_message(self, topic: str, tenant: str = TENANT) -> RetainedMessage:
        """Return a retained message with what is in it. Raises NotFound."""
        return self._one("GET", "retained", RetainedMessage, tenant=tenant, topic=topic)

    def delete_retained(self, topic: str, tenant: str = TENANT) -> Deleted:
        """Delete a retained message. Raises NotFound."""
        return self._one("DELETE", "retained", Deleted, tenant=tenant, topic=topic)

    # Topic queues

    def queues(self, topic_filter: str = "", tenant: str = "") -> Pages[Queue]:
        """Return the topic queues."""
        return self._pages("queues", Queue, tenant=tenant, topic=topic_filter)

    def clusters(self, topic_filter: str = "", cluster: str = "", tenant: str = "") -> Pages[Cluster]:
        """Return the topic queues with their consumer clusters."""
        return self._pages("clusters", Cluster, tenant=tenant, topic=topic_filter, cluster=cluster)

    def remove_queue(self, topic: str, force: bool = False, tenant: str = TENANT) -> Removed:
        """Remove a topic queue; with `force` one in which something is not finished. Raises NotFound, Conflict."""
        asked = {"tenant": tenant, "topic": topic, "force": "true" if force else ""}
        return self._one("DELETE", "queues", Removed, **asked)

    def remove_cluster(self, topic: str, cluster: str, tenant: str = TENANT) -> Removed:
        """Remove a consumer cluster that nobody reads. Raises NotFound, Conflict."""
        return self._one("DELETE", "clusters", Removed, tenant=tenant, topic=topic, cluster=cluster)

    # The broker itself

    def events(self, tenant: str = "") -> Pages[Event]:
        """Return what was changed over the admin HTTP, the newest change first."""
        return self._pages("events", Event, tenant=tenant)

    def trace(
        self, kind: Literal["client", "topic", "address"], pattern: str, seconds: float = 60.0
    ) -> Trace:
        """Begin to trace the packets of some clients."""
        body = {"kind": kind, "pattern": pattern, "seconds": seconds}
        return Trace(self._connection, self._connection.ask("POST", "/v1/traces", body)["id"])

    def configuration(self) -> dict[str, Any]:
        """Return every key with its value, secrets hidden."""
        found: dict[str, Any] = self._connection.ask("GET", "/v1/configuration")
        return found

    def pending_reload(self) -> Reloaded:
        """Return what reading the configuration again would change."""
        return msgspec.convert(self._connection.ask("GET", "/v1/reload"), Reloaded)

    def reload(self) -> Reloaded:
        """Have the broker read its configuration, certificates, passwords and ACL again; look at `failed`."""
        return msgspec.convert(self._connection.ask("POST", "/v1/reload"), Reloaded)

    def drain(
        self,
        rate: int = 200,
        reason: Literal["use_another_server", "server_shutting_down"] = "use_another_server",
    ) -> None:
        """Have the broker let no client in any more, and ask so many of those that are there away in a second."""
        self._connection.ask("POST", "/v1/drain", {"rate": rate, "reason": reason})

    def drain_progress(self) -> Drain:
        """Return how far that is."""
        return msgspec.convert(self._connection.ask("GET", "/v1/drain"), Drain)

    def end_drain(self) -> None:
        """Have it let clients in again."""
        self._connection.ask("DELETE", "/v1/drain")

    def not_ready(self) -> str:
        """Return why the broker is not ready, "" if it is."""
        try:
            self._connection.text("/readyz")
        except Unavailable as error:
            return error.detail or "it does not say why"
        return ""

    def metrics(self) -> str:
        """Return the metrics in the text format of Prometheus."""
        return self._connection.text("/metrics")

    def _one(self, method: str, what: str, kind: type[Found], **asked: str) -> Found:
        """Return what is answered about the one that the query names."""
        return msgspec.convert(self._connection.ask(method, _target(what, **asked)), kind)

    def _pages(self, what: str, kind: type[Found], **asked: str) -> Pages[Found]:
        """Return the list of this name as an iterator."""

        def page(place: str) -> Any:
            return self._connection.ask("GET", _target(what, **asked, **({"from": place} if place else {})))

        return Pages(page, kind)


def _target(what: str, **asked: str) -> str:
    """Return the path of a resource with its query; what is "" is not asked."""
    given: Mapping[str, str] = {name: value for name, value in asked.items() if value}
    return f"/v1/{what}?{urlencode(given, quote_via=quote, safe='')}" if given else f"/v1/{what}"
