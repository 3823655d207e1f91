"""Which store the long backlog of a session lies in: the first rule that fits, else what its type of session has.

Stores are named as the configuration names them: `JOURNAL`, where a backlog needs no store, or an address such as
`redis://host`, `kafka://host:port/prefix` or `hbase://host:port/prefix`. Groups and topic queues stay in the journal,
whatever the rules say.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Iterator
from dataclasses import dataclass
from hashlib import blake2b
from typing import Final

from headrace.stores.hbase import address as hbase_address
from headrace.stores.kafka import address as kafka_address
from headrace.stores.redis import address as redis_address

JOURNAL: Final = "journal"
DEVICE: Final = "device"
APPLICATION: Final = "application"
TYPES: Final = (DEVICE, APPLICATION)


@dataclass(frozen=True, slots=True)
class Rule:
    """Sessions of a tenant, of a type, whose client id fits a shell pattern; "" fits all. `store` is where they are."""

    store: str
    tenant: str = ""
    session_type: str = ""
    client_ids: str = ""

    def fits(self, tenant: str, session_type: str, client_id: str) -> bool:
        """Return whether the rule is one for this session."""
        return (
            self.tenant in ("", tenant)
            and self.session_type in ("", session_type)
            and (not self.client_ids or fnmatch.fnmatchcase(client_id, self.client_ids))
        )


@dataclass(frozen=True, slots=True)
class Placing:
    """The stores that sessions have their backlogs in. `device` and `application` are for those that no rule fits."""

    device: str = JOURNAL
    application: str = JOURNAL
    rules: tuple[Rule, ...] = ()

    def store_of(self, tenant: str, session_type: str, client_id: str) -> str:
        """Return the store that a session is to have."""
        for rule in self.rules:
            if rule.fits(tenant, session_type, client_id):
                return rule.store
        return self.application if session_type == APPLICATION else self.device

    def stores(self) -> list[str]:
        """Return the stores that may be used, each once, but for the journal."""
        named = [self.device, self.application, *(rule.store for rule in self.rules)]
        return [store for store in dict.fromkeys(named) if store != JOURNAL]

    def mistakes(self) -> Iterator[tuple[str, str]]:
        """Yield what is wrong: the key below `queues`, and why, in words."""
        named = [("device", self.device), ("application", self.application)]
        for number, rule in enumerate(self.rules):
            named.append((f"rules[{number}].store", rule.store))
            if rule.session_type not in ("", *TYPES):
                why = f"{rule.session_type!r} is neither device nor application"
                yield f"rules[{number}].type", why
            if not (rule.tenant or rule.session_type or rule.client_ids):
                yield f"rules[{number}]", "it fits every session: name the store as device and application"
        names: dict[str, str] = {}
        for key, store in named:
            why = mistake_in(store)
            if not why and store != JOURNAL:
                why = _shared_name(names, store)
            if why:
                yield key, why

    def types(self) -> list[str]:
        """Return the types of sessions of which some may have a store."""
        found = [
            kind
            for kind, store in ((DEVICE, self.device), (APPLICATION, self.application))
            if store != JOURNAL
        ]
        for rule in self.rules:
            if rule.store != JOURNAL:
                found += [rule.session_type] if rule.session_type else TYPES
        return list(dict.fromkeys(found))


def _shared_name(names: dict[str, str], store: str) -> str:
    """Return what is wrong with the name of a store among those of others, "" if nothing is, and note it."""
    name = _name_of(store)
    if names.setdefault(name, store) != store:
        return f"two addresses have the name {name!r}: the journal could not tell which store has what"
    return ""


def is_kafka(store: str) -> bool:
    """Return whether an address is that of a Kafka."""
    return store.startswith(f"{kafka_address.SCHEME}://")


def is_hbase(store: str) -> bool:
    """Return whether an address is that of an HBase."""
    return store.startswith(f"{hbase_address.SCHEME}://")


def _name_of(store: str) -> str:
    """Return what the journal calls a store. Raises ValueError for what is no address."""
    if is_hbase(store):
        return hbase_address.parse(store).name
    return kafka_address.parse(store).name if is_kafka(store) else redis_address.parse(store).name


def digest_of(name: str) -> int:
    """Return the digest of a store's name, as the journal has it: of 62 bits, never 0."""
    return int.from_bytes(blake2b(name.encode(), digest_size=8).digest(), "little") >> 2 or 1


def mistake_in(store: str) -> str:
    """Return what is wrong with the name of a store, "" if nothing is. A password in it is not repeated."""
    if store == JOURNAL:
        return ""
    scheme, mark, _ = store.partition("://")
    if not mark or scheme not in ("redis", "rediss", kafka_address.SCHEME, hbase_address.SCHEME):
        return "expected journal, redis://HOST:PORT, kafka://HOST:PORT/PREFIX or hbase://HOST:PORT/PREFIX"
    try:
        _name_of(store)
    except ValueError as error:
        return str(error)
    return ""
