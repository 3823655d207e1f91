"""The stores of queues that a worker is connected to: made once, shared by its shards.

Sessions whose stores have the same address share one, and so do all shards of the worker: one connection for what is put
and one for what is read, to each server. Runs on the loop.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from headrace.config import InvalidKey, QueuesConfig
from headrace.core.outbound.stored_queues import Choosing, Placed, homeless
from headrace.core.state.session import APPLICATION, DEVICE
from headrace.core.storing.notes import StoreCounters, StoringSettings
from headrace.core.storing.storing import ALWAYS
from headrace.errors import ConfigError
from headrace.services.store_metrics import StoreFigures
from headrace.stores import placing
from headrace.stores.hbase import address as hbase_address
from headrace.stores.kafka import address as kafka_address
from headrace.stores.placing import JOURNAL, Placing, digest_of, is_hbase, is_kafka
from headrace.stores.redis import address as redis_address
from headrace.stores.sharing import SharedStore, StoreShare

if TYPE_CHECKING:
    from headrace.core.broker import Broker
    from headrace.stores.hbase.store import HBaseStore
    from headrace.stores.kafka.store import KafkaStore
    from headrace.stores.redis.store import RedisStore

    Engine = RedisStore | KafkaStore | HBaseStore

OWNER_SHIFT: Final = 20  # streams that a session may begin under one owner; its epoch is a Kafka offset
TYPES = {DEVICE: placing.DEVICE, APPLICATION: placing.APPLICATION}


class OpenStore:
    """One store, under what it is called where people read it, the digest of its name, and what it has done for each
    shard that there was."""

    def __init__(self, store: Engine, name: str, digest: int) -> None:
        self.store = store
        self.shared = SharedStore(store)
        self.name = name
        self.digest = digest
        self.counters: list[StoreCounters] = []

    def figures(self) -> StoreFigures:
        """Return what /metrics tells of it."""
        store = self.store
        told = store.counters
        usable, commands = store.up() > 0, store.commands
        return StoreFigures(self.name, self.counters, usable, commands, told.faults, told.unsettled)


class ByRules(Choosing):
    """Chooses by the rules of a configuration, among stores by their addresses."""

    def __init__(self, rules: Placing, digests: dict[str, int]) -> None:
        super().__init__([number for number, word in TYPES.items() if word in rules.types()])
        self._rules = rules
        self._digests = digests

    def store_of(self, tenant: str, session_type: int, client_id: str) -> int:
        return self._digests.get(self._rules.store_of(tenant, TYPES[session_type], client_id), 0)


class OpenStores:
    """The stores of one worker. `window_ms`: for so long the journal keeps what they have; `choosing` says which session
    is to have which."""

    def __init__(
        self, queues: QueuesConfig, contain: Callable[[Exception], None], *, tenants: bool = False
    ) -> None:
        """Begin with none that is open. `contain` is told of what goes wrong in one, and nobody has foreseen; `tenants`:
        there is more than one."""
        self._contain = contain
        self._tenants = tenants
        self._keep = queues.application_keep
        self._rules = queues.placing()
        self._stores: dict[str, OpenStore] = {}
        window_s = math.inf if queues.window_s == "always" else queues.window_s
        self.window_ms = ALWAYS if math.isinf(window_s) else int(window_s * 1000)
        self.choosing = ByRules(self._rules, {})

    def open(self) -> None:
        """Begin to connect. Raises InvalidKey for a store that this installation cannot use; those before it are for
        `close` then."""
        rules = self._rules
        named = {"device": rules.device, "application": rules.application}
        named |= {f"rules[{number}].store": rule.store for number, rule in enumerate(rules.rules)}
        for key, address in named.items():
            if address != JOURNAL and address not in self._stores:
                self._stores[address] = self._opened(f"queues.{key}", address)
        self.choosing = ByRules(rules, {address: one.digest for address, one in self._stores.items()})

    def _opened(self, key: str, address: str) -> OpenStore:
        """Return a store that begins to connect. Raises InvalidKey."""
        if is_kafka(address):
            kind, needs, extra = self._in_kafka, "a Kafka needs confluent-kafka", "kafka"
        elif is_hbase(address):
            kind, needs, extra = self._in_hbase, "an HBase needs thriftpy2", "hbase"
        else:
            kind, needs, extra = self._in_redis, "a Redis needs hiredis", "redis"
        try:
            return kind(address)
        except ImportError:
            message = f"{needs}, which is not installed: pip install 'headrace[{extra}]'"
            raise InvalidKey(key, message) from None
        except ValueError as error:
            raise InvalidKey(key, str(error)) from None

    def _in_redis(self, address: str) -> OpenStore:
        """Return a store in a Redis. Raises ImportError, ValueError, as the others do."""
        from headrace.stores.redis.store import RedisStore

        found = redis_address.parse(address)
        return OpenStore(RedisStore(found, self._contain), found.url, digest_of(found.name))

    def _in_kafka(self, address: str) -> OpenStore:
        from headrace.stores.kafka.store import KafkaStore

        found = kafka_address.parse(address)
        store = KafkaStore(found, self._contain, tenants=self._tenants, keep=self._keep)
        return OpenStore(store, found.url, digest_of(found.name))

    def _in_hbase(self, address: str) -> OpenStore:
        from headrace.stores.hbase.store import HBaseStore

        found = hbase_address.parse(address)
        return OpenStore(HBaseStore(found, self._contain), found.url, digest_of(found.name))

    def __bool__(self) -> bool:
        """Return whether there is any."""
        return bool(self._stores)

    def lend(self, broker: Broker, journal: str, owner: int = 0) -> list[StoreShare]:
        """Have the queues of a shard, whose state is recovered, lie in the stores; returns what it has of them, to be
        closed with it. `journal`: what its journal is called; `owner`: its epoch, where other processes may own it before
        and after. Raises ConfigError where a store alone has something, and is not configured any more."""
        stores = list(self._stores.values())
        left = homeless(broker.fold, [one.digest for one in stores], self.choosing)
        if left is not None:
            raise ConfigError(
                f"queues.{TYPES[left.session_type]}: a part of what waits for sessions lies in a store alone, that of "
                f"{left.client_id!r} for one: name that store again until they have got it; at another address, with "
                "the name that it had there (option name)"
            )
        if not stores:
            return []
        shares = [one.shared.share() for one in stores]
        placed = [Placed(one.digest, one.name, share) for one, share in zip(stores, shares, strict=True)]
        epochs = broker.fold.epochs
        base = (epochs[-1][1] if epochs else 0) << 32
        least = owner << OWNER_SHIFT
        settings = StoringSettings(journal.replace("-", ""), self.window_ms, base, least=least)
        broker.keep_queues_in(placed, self.choosing, settings)
        assert broker.stored is not None
        for one, (_, storing) in zip(stores, broker.stored.storings, strict=True):
            one.counters.append(storing.counters)
        return shares

    @property
    def trouble(self) -> str:
        """Return which stores cannot be used now, or are not believed, and why; "" where all is well. The journal keeps
        what waits meanwhile."""
        whys = [(one.name, one.store.why_not() or one.store.doubt()) for one in self._stores.values()]
        return "; ".join(f"{name}: {why}" for name, why in whys if why)

    def figures(self) -> list[StoreFigures]:
        """Return what /metrics tells of them."""
        return [one.figures() for one in self._stores.values()]

    def close(self) -> None:
        """End all connections; what is under way is done or not, and found out at the next start."""
        for one in self._stores.values():
            one.store.close()
