"""What the shards of a worker have of a tenant that was deleted: it is removed, some at a time.

Runs on the loop. Sessions end as they do when somebody drops them, without their wills, since nobody of the tenant may
publish; topic queues go with what is in them; and what is retained is retained no more. All of it are records, so a
replay finds none of it either. What was in the journal goes with its segments, as all that nobody wants.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import Final

from headrace.core.broker import Broker
from headrace.core.commit import Barrier
from headrace.core.records.event import RetainedExpired
from headrace.core.state.session import OWN_PREFIXES
from headrace.core.state.tenant import Tenant
from headrace.errors import InUse, NotThere

AT_ONCE: Final = 100  # sessions, queues or retained messages: the records of one batch
_STEP_S: Final = 0.005
_AGAIN_S: Final = 1.0  # where something is being used still


class Clearing:
    """Removes what is left of tenants. `opened` gives the brokers of the shards that clients may come to now."""

    def __init__(self, opened: Callable[[], Sequence[Broker]]) -> None:
        self._opened = opened

    def is_needed(self, tenant: str) -> bool:
        """Return whether our shards have anything of a tenant."""
        found = (broker.fold.tenants.get(tenant) for broker in self._opened())
        return any(one is not None and _has_something(one) for one in found)

    async def clear(self, tenant: str, is_wanted: Callable[[], bool]) -> int:
        """Remove all that our shards have of a tenant, as long as that `is_wanted`. Returns how much it was, once it is
        durable."""
        removed = 0
        while is_wanted():
            left = False
            for broker in self._opened():
                count, is_left = await self._clear_some(broker, tenant)
                removed += count
                left = left or is_left
            if not left:
                break
        return removed

    async def _clear_some(self, broker: Broker, tenant: str) -> tuple[int, bool]:
        """Remove some of what a shard has. Returns (how much, whether there may be more)."""
        found = broker.fold.tenants.get(tenant)
        if found is None or broker not in self._opened() or broker.commit.failed is not None:
            return 0, False
        sessions, retained, (queues, used) = (
            _sessions(broker, found),
            _retained(broker, found),
            _queues(broker, found),
        )
        count = sessions + retained + queues
        if count:
            await self._durable(broker)
        elif used:
            await asyncio.sleep(_AGAIN_S)
        return count, bool(count or used)

    async def _durable(self, broker: Broker) -> None:
        """Wait until what was appended is durable, or the shard is not here any more."""
        barrier = Barrier()
        broker.commit.defer(barrier)
        while not barrier.passed and broker in self._opened() and broker.commit.failed is None:
            await asyncio.sleep(_STEP_S)


def _has_something(tenant: Tenant) -> bool:
    return bool(len(tenant.retained) or tenant.queues or next(_names(tenant), ""))


def _names(tenant: Tenant) -> Iterator[str]:
    """Yield the client ids of sessions; those of bridges and members are others' to end."""
    return (name for name in tenant.sessions if not name.startswith(OWN_PREFIXES))


def _sessions(broker: Broker, tenant: Tenant) -> int:
    """Begin to end some sessions, and return how many."""
    names = list(islice(_names(tenant), AT_ONCE))
    return sum(broker.dropping.drop(tenant.name, name).found for name in names)


def _retained(broker: Broker, tenant: Tenant) -> int:
    """Have some messages retained no more, and return how many."""
    now_us, walk = broker.worker.clock.now_us, tenant.retained.walk_all()
    found = walk.take(AT_ONCE)
    while not found and not walk.done:
        found = walk.take(AT_ONCE)
    for message in found:
        topic = message.topic.decode("utf-8")
        broker.commit.append(RetainedExpired.at(now_us, tenant.name, topic, message.offset))
    return len(found)


def _queues(broker: Broker, tenant: Tenant) -> tuple[int, bool]:
    """Begin to remove some topic queues. Returns (how many, whether others are being used still)."""
    removed, used = 0, False
    for topic in list(islice(tenant.queues, AT_ONCE)):
        try:
            broker.removing.remove_queue(tenant.name, topic, force=True)
        except InUse:
            used = True
        except NotThere:  # it is on its way out
            continue
        else:
            removed += 1
    return removed, used
