"""The state of a shard that is given up: it lets go of its sessions, in slices."""

from __future__ import annotations

from headrace.core.state.session import Session
from headrace.core.state.state import Fold
from headrace.mqtt.topics import SHARE_PREFIX


def let_go(fold: Fold, most: int) -> bool:
    """Let go of at most so many sessions and subscriptions, or one session if it has more: the shard is given up, and
    nothing may refer to a session that it refers to, or it would stay for as long as the collector looks elsewhere.
    True if there are more; what else there is goes with the fold."""
    while fold.by_incarnation:
        if most <= 0:
            return True
        _, session = fold.by_incarnation.popitem()
        fold.in_stores.pop(session.incarnation, None)
        most -= 1 + len(session.subscriptions or {})
        _let_go_of(fold, session)
    for tenant in fold.tenants.values():
        tenant.devices.let_go()
    return False


def _let_go_of(fold: Fold, session: Session) -> None:
    tenant = fold.tenants[session.tenant.name]
    fold.roster.remove(session)
    tenant.drop(session)
    session.end()  # its subscriptions count no more
    for topic_filter in session.subscriptions or {}:
        if not topic_filter.startswith(SHARE_PREFIX):
            tenant.tree.remove(topic_filter, session)
    session.subscriptions = session.queue = session.shared = None
    if session.timer is not None:
        session.timer.cancel()
        session.timer = None
