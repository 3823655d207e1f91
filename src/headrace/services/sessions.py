"""Sessions as `headrace session` prints them."""

from __future__ import annotations

from typing import Final, TypedDict

from headrace.core.state.queue import OutboundQueue
from headrace.core.state.session import NEVER_EXPIRES, TYPE_NAMES, Session

STATES: Final = ("connected", "away")
JOURNAL: Final = "journal"


class Summary(TypedDict):
    """The row of a session in a list."""

    tenant: str
    client_id: str
    type: str
    state: str
    inflight: int
    backlog: int
    dropped: int


class Subscribed(TypedDict):
    """The options of a subscription."""

    qos: int
    no_local: bool
    retain_as_published: bool


class Details(Summary):
    """Everything about a session. `expiry_s` is None for one that never expires, `closed_at_us` while it is connected;
    `subscriptions` are by filter. `backlog_in`: the journal, or the store that has `in_store` of the entries that wait or
    are in flight, of which the journal was let go of `in_store_alone`."""

    incarnation: int
    expiry_s: int | None
    closed_at_us: int | None
    subscriptions: dict[str, Subscribed]
    next_serial: int
    floor: int
    sent_limit: int
    incoming_packet_ids: list[int]
    will: bool
    dropped_by_reason: dict[str, int]
    backlog_in: str
    in_store: int
    in_store_alone: int


def state_of(session: Session) -> str:
    """Return one of STATES: a session is away since its connection has ended."""
    return STATES[session.closed_at_us != 0]


def summary(session: Session) -> Summary:
    """Return the row of `session list`."""
    queue = session.queue
    return {
        "tenant": session.tenant.name,
        "client_id": session.client_id,
        "type": TYPE_NAMES[session.session_type],
        "state": state_of(session),
        "inflight": 0 if queue is None else int(queue.inflight.count),
        "backlog": 0 if queue is None else int(queue.backlog.count),
        "dropped": sum((session.dropped or {}).values()),
    }


def _place(queue: OutboundQueue | None) -> tuple[str, int, int]:
    """Return where the entries of a queue lie, how many of them a store has, and how many it has alone."""
    if queue is None or queue.rows is None:
        return JOURNAL, 0, 0
    in_store, alone = queue.rows.held(queue.floor())
    return (queue.rows.store or "store") if in_store else JOURNAL, in_store, alone


def details(session: Session) -> Details:
    """Return everything `session show` prints."""
    queue = session.queue
    backlog_in, in_store, alone = _place(queue)
    return {
        **summary(session),
        "incarnation": session.incarnation,
        "expiry_s": None if session.expiry_s == NEVER_EXPIRES else session.expiry_s,
        "closed_at_us": session.closed_at_us or None,
        "subscriptions": {
            name: {"qos": s.qos, "no_local": s.no_local, "retain_as_published": s.retain_as_published}
            for name, s in (session.subscriptions or {}).items()
        },
        "next_serial": 1 if queue is None else int(queue.next_serial),
        "floor": 1 if queue is None else int(queue.floor()),
        "sent_limit": session.opened_limit if queue is None else int(queue.sent_limit),
        "incoming_packet_ids": sorted(session.incoming or {}),
        "will": session.will is not None,
        "dropped_by_reason": session.drops_by_name(),
        "backlog_in": backlog_in,
        "in_store": in_store,
        "in_store_alone": alone,
    }
