"""The expiry of retained messages: a record for each, a share of them whenever the timer calls.

Runs on the loop.
"""

from __future__ import annotations

from typing import Final

from headrace.core.commit import GroupCommit
from headrace.core.ports.link import WorkerPort
from headrace.core.records.event import RetainedExpired
from headrace.core.records.message import Message
from headrace.core.state.state import Fold
from headrace.core.state.tenant import Tenant

# Retained messages that a call of the timer removes at most. The rest is done in the next pass, but not faster than the
# journal takes it.
EXPIRED_AT_ONCE: Final = 256


def expire_retained(fold: Fold, commit: GroupCommit, worker: WorkerPort) -> bool:
    """Journal the expiry of retained messages; returns whether there may be more of them."""
    left = EXPIRED_AT_ONCE
    for tenant in fold.tenants.values():
        try:
            left -= _expire_some(tenant, left, commit, worker)
        except Exception as error:  # noqa: BLE001
            worker.contain("expiry", None, error)
    return left == 0


def _expire_some(tenant: Tenant, most: int, commit: GroupCommit, worker: WorkerPort) -> int:
    expired = tenant.retained.take_expired(worker.clock.now_us, most)
    for message in expired:
        try:
            _expire(tenant, message, commit, worker.clock.now_us)
        except Exception as error:  # noqa: BLE001
            worker.contain("expiry", None, error)
            tenant.retained.expire_later(message)
    return len(expired)


def _expire(tenant: Tenant, message: Message, commit: GroupCommit, now_us: int) -> None:
    topic = message.topic.decode("utf-8")
    commit.append(RetainedExpired.at(now_us, tenant.name, topic, message.offset))
