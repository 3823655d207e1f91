"""The stores of queues that a worker is connected to: made once, shared by its shards.

Two types of sessions with the same address share one store, and so do all shards of the worker: one connection for what
is put and one for what is read, to each server. Runs on the loop.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from headrace.config import InvalidKey, QueuesConfig
from headrace.core.outbound.stored_queues import Placed, homeless
from headrace.core.state.session import APPLICATION, DEVICE
from headrace.core.storing.notes import StoreCounters, StoringSettings
from headrace.core.storing.storing import ALWAYS
from headrace.errors import ConfigError
from headrace.services.store_metrics import StoreFigures
from headrace.stores.placing import JOURNAL
from headrace.stores.redis import address as redis_address
from headrace.stores.sharing import SharedStore, StoreShare

if TYPE_CHECKING:
    from headrace.core.broker import Broker
    from headrace.stores.redis.store import RedisStore

KEYS = {DEVICE: "queues.device", APPLICATION: "queues.application"}


class OpenStores:
    """The stores of one worker, by their addresses. `window_ms`: for so long the journal keeps what they have."""

    def __init__(self, queues: QueuesConfig, contain: Callable[[Exception], None]) -> None:
        """Begin with none that is open. `contain` is told of what goes wrong in one, and nobody has foreseen."""
        self._contain = contain
        self._addresses = {DEVICE: queues.device, APPLICATION: queues.application}
        self._stores: dict[str, RedisStore] = {}
        self._shared: dict[str, SharedStore] = {}
        self._names: dict[str, str] = {}
        self._counters: dict[str, list[StoreCounters]] = {}  # by name; of all shards that there were
        self.window_ms = ALWAYS if queues.window_s == "always" else int(queues.window_s * 1000)

    def open(self) -> None:
        """Begin to connect. Raises InvalidKey for a store that this installation cannot use; those before it are for
        `close` then."""
        for session_type, address in self._addresses.items():
            if address != JOURNAL and address not in self._stores:
                self._open(address, KEYS[session_type])

    def _open(self, address: str, key: str) -> None:
        try:
            from headrace.stores.redis.store import RedisStore
        except ImportError:
            message = "a Redis needs hiredis, which is not installed: pip install 'headrace[redis]'"
            raise InvalidKey(key, message) from None
        try:
            found = redis_address.parse(address)
        except ValueError as error:
            raise InvalidKey(key, str(error)) from None
        store = self._stores[address] = RedisStore(found, self._contain)
        self._shared[address] = SharedStore(store)
        scheme = "rediss" if found.tls is not None else "redis"
        self._names[address] = f"{scheme}://{','.join(f'{host}:{port}' for host, port in found.places)}"

    def __bool__(self) -> bool:
        """Return whether there is any."""
        return bool(self._stores)

    def lend(self, broker: Broker, journal: str) -> list[StoreShare]:
        """Have the queues of a shard, whose state is recovered, lie in the stores; returns what it has of them, to be
        closed with it. `journal`: what its journal is called. Raises ConfigError where a store alone has something, and
        is not configured any more."""
        types = [one for one, address in self._addresses.items() if address != JOURNAL]
        left = homeless(broker.fold, types)
        if left is not None:
            raise ConfigError(
                f"{KEYS[left.session_type]}: a part of what waits for sessions lies in a store alone, that of "
                f"{left.client_id!r} for one: name the store again until they have got it"
            )
        if not types:
            return []
        placed, shares = [], []
        for one in types:
            address = self._addresses[one]
            share = self._shared[address].share()
            shares.append(share)
            placed.append(Placed(one, self._names[address], share))
        epochs = broker.fold.epochs
        base = (epochs[-1][1] if epochs else 0) << 32
        broker.keep_queues_in(placed, StoringSettings(journal.replace("-", ""), self.window_ms, base))
        assert broker.stored is not None
        for name, storing in broker.stored.storings:
            self._counters.setdefault(name, []).append(storing.counters)
        return shares

    def unusable(self) -> list[tuple[str, str]]:
        """Return (store, why) of those that cannot be used now."""
        whys = [(self._names[address], store.why_not()) for address, store in self._stores.items()]
        return [(name, why) for name, why in whys if why]

    @property
    def trouble(self) -> str:
        """Return which stores cannot be used, and why; "" where all can. The journal keeps what waits meanwhile."""
        return "; ".join(f"{name}: {why}" for name, why in self.unusable())

    def figures(self) -> list[StoreFigures]:
        """Return what /metrics tells of them."""
        found = []
        for address, store in self._stores.items():
            name = self._names[address]
            counters = self._counters.get(name, [])
            usable = store.up() > 0
            found.append(StoreFigures(name, counters, usable, store.meter.commands, store.counters.faults))
        return found

    def close(self) -> None:
        """End all connections; what is under way is done or not, and found out at the next start."""
        for store in self._stores.values():
            store.close()
