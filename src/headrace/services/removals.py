"""Topic queues, consumer clusters and sessions of a worker's shards that somebody removes, answered when that is durable;
and connections that somebody ends.

Runs on the loop. Which shard has a queue is asked of each: with several workers the others have it not. A session is at
home where its client id says.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Final, Protocol

from headrace.core.broker import Broker
from headrace.core.inbound.dropping import SessionDrop, refuse_own
from headrace.core.outbound.removing import Removal, unfinished
from headrace.errors import InUse, NotThere, ShardAway
from headrace.mqtt import reason_codes as rc
from headrace.services.paging import NOBODY_AWAY, Away

PATIENCE_S: Final = 5.0  # with a journal: less than a supervisor's with a worker
_STEP_S: Final = 0.002
KICKED: Final = "kicked"  # why the connection ended, in its record and in the log


class NotDurable(Exception):
    """What was begun is on its way to a journal that does not get on."""


class Begun(Protocol):
    """What is `over` when it is durable and has taken effect."""

    over: bool


@dataclass(frozen=True, slots=True)
class Removed:
    """What was removed; `cluster` is None where it is a queue with all its clusters, and `messages` were in it.
    `unfinished` were not finished by a cluster that has ended."""

    tenant: str
    topic: str
    cluster: str | None
    messages: int
    unfinished: int


class Removals:
    """Removes queues and clusters of the brokers of one process, drops sessions, and ends connections."""

    def __init__(self, brokers: Sequence[Broker], away: Away = NOBODY_AWAY) -> None:
        """Begin with nothing to remove. `away`: shards of this process that nobody has now, each with the reason; their
        brokers are not in `brokers`."""
        self._brokers = brokers
        self._away = away

    async def queue(self, tenant: str, topic: str, force: bool) -> dict[str, object]:
        """Remove the queue of a topic. Raises NotThere, InUse, NotDurable, ShardAway."""
        name = topic.encode("utf-8")
        return await self._removed(lambda broker: broker.removing.remove_queue(tenant, name, force))

    async def cluster(self, tenant: str, topic: str, name: str) -> dict[str, object]:
        """Remove a cluster. Raises NotThere, InUse, NotDurable, ShardAway."""
        of, named = topic.encode("utf-8"), name.encode("utf-8")
        return await self._removed(lambda broker: broker.removing.remove_cluster(tenant, of, named))

    async def session(self, tenant: str, client_id: str) -> dict[str, object]:
        """Drop the session of a client id, connected or not. Raises NotThere, when that is durable too; BrokersOwn,
        NotDurable, ShardAway."""
        broker = self._home(tenant, client_id)
        if broker is not None:
            drop = broker.dropping.drop(tenant, client_id)
            await until_durable(broker, drop)
            if drop.found:
                return _dropped(tenant, client_id, drop)
        raise NotThere(f"tenant {tenant} has no session {client_id!r}")

    def client(self, tenant: str, client_id: str) -> dict[str, object]:
        """End the connection of a client, told so where its version has a word for it; its session is kept, if it is one
        that outlives connections, and its will is published. Raises NotThere, BrokersOwn, ShardAway."""
        refuse_own(client_id)
        broker = self._home(tenant, client_id)
        if broker is not None:
            of_tenant = broker.fold.tenants.get(tenant)
            session = None if of_tenant is None else of_tenant.sessions.get(client_id)
            if session is not None and session.link is not None:
                kept = session.persistent
                broker.put_out(session.link, rc.ADMINISTRATIVE_ACTION, KICKED)
                return {"tenant": tenant, "client_id": client_id, "session_kept": kept}
        raise NotThere(f"tenant {tenant} has no client {client_id!r} that is connected")

    def _home(self, tenant: str, client_id: str) -> Broker | None:
        """Return the broker of the shard where a client id is at home, None if that is another worker's. Raises
        ShardAway."""
        for broker in self._brokers:
            if broker.shard == broker.worker.homes.of_client(tenant, client_id):
                return broker
        self._require_all()
        return None

    def _require_all(self) -> None:
        """Raise ShardAway if a shard is away: what none of the others has may be there."""
        for shard, why in self._away.items():
            raise ShardAway(shard, why)

    async def _removed(self, begin: Callable[[Broker], Removal]) -> dict[str, object]:
        unknown = NotThere("there is no shard here")
        for broker in self._brokers:
            try:
                removal = begin(broker)
            except NotThere as error:
                unknown = error
                continue
            await until_durable(broker, removal)
            return _told(removal)
        self._require_all()
        raise unknown


async def until_durable(broker: Broker, begun: Begun) -> None:
    """Wait until what was begun in a shard is durable and has taken effect. Raises NotDurable."""
    loop = asyncio.get_running_loop()
    until = loop.time() + PATIENCE_S
    while not begun.over:
        if broker.commit.failed is not None:
            raise NotDurable("the journal has failed")
        if loop.time() >= until:
            raise NotDurable("the journal does not get on: it is done when that does, ask then whether it is")
        await asyncio.sleep(_STEP_S)


def _told(removal: Removal) -> dict[str, object]:
    """Return what was removed. Raises InUse where the queue is there still."""
    topic = removal.queue.topic.decode("utf-8")
    if removal.was_refused:
        raise InUse(unfinished(topic, removal.unfinished))
    cluster = removal.cluster
    found = Removed(
        removal.queue.tenant,
        topic,
        None if cluster is None else cluster.name.decode("utf-8"),
        0 if cluster is not None else removal.queue.count,
        removal.unfinished,
    )
    return asdict(found)


def _dropped(tenant: str, client_id: str, drop: SessionDrop) -> dict[str, object]:
    """Return what was dropped."""
    return {
        "tenant": tenant,
        "client_id": client_id,
        "connected": drop.was_connected,
        "messages": drop.messages,
    }
