"""Sessions as `headrace session` prints them."""

from __future__ import annotations

from headrace.core.state.session import NEVER_EXPIRES, TYPE_NAMES, Session


def summary(session: Session) -> dict[str, object]:
    """Return the row of `session list`."""
    queue = session.queue
    return {
        "tenant": session.tenant.name,
        "client_id": session.client_id,
        "type": TYPE_NAMES[session.session_type],
        "state": "connected" if session.closed_at_us == 0 else "away",
        "inflight": 0 if queue is None else int(queue.inflight.count),
        "backlog": 0 if queue is None else int(queue.backlog.count),
        "dropped": sum((session.dropped or {}).values()),
    }


def details(session: Session) -> dict[str, object]:
    """Return everything `session show` prints."""
    queue = session.queue
    return summary(session) | {
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
    }
