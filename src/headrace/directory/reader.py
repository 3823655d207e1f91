"""The directory as brokers read it: cached, brought up to date by polling, and for a time without its database.

Entries of the cache count as long as a poll has lately said what changed; while the database is away they go on counting
for `outage_s` after the last good poll. What is not known then cannot be told: DirectoryUnavailable, which is no refusal.
Runs on threads; `listeners` are called on that of `poll`, with the changes, or with none where anything may have changed.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, cast

from sqlalchemy import Connection

from headrace.directory.cache import MISSING, Cache, Key
from headrace.directory.entries import Ban, Change, Tenant, User
from headrace.directory.errors import DirectoryUnavailable
from headrace.directory.policy import Permissions, Policy
from headrace.directory.store import Store
from headrace.directory.tenants import find_tenant, quotas_of, settings_of

COSTS_MAX: Final = 3  # of hashes, beside our own: the most frequent ones
BansByName = Mapping[tuple[str, str, str], Ban]  # by kind, tenant and name


@dataclass(frozen=True, slots=True)
class ReaderSettings:
    """What a broker keeps of the directory. `outage_s`: for so long it goes on with that without the database."""

    entries_max: int = 100_000
    outage_s: float = 3600.0


@dataclass(frozen=True, slots=True)
class TenantView:
    """A tenant with its limits, its settings, and the rules that are about no single user."""

    tenant: Tenant
    quotas: dict[str, int]
    settings: dict[str, str]
    policy: Policy


@dataclass(frozen=True, slots=True)
class UserView:
    """A user with the rules about it alone."""

    user: User
    policy: Policy


def permissions(tenant: TenantView, user: UserView | None, client_id: str) -> Permissions:
    """Return what a client may do, as a user of the tenant or as nobody in particular."""
    if user is None:
        return Permissions(tenant.policy.trees(None, (), client_id), None, client_id)
    name, groups = user.user.name, user.user.groups
    trees = tenant.policy.trees(None, groups, client_id) + user.policy.trees(name, (), client_id)
    return Permissions(trees, name, client_id)


class Reader:
    """Reads one directory for a broker. `clock` tells seconds that only grow."""

    def __init__(
        self,
        store: Store,
        settings: ReaderSettings,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._store = store
        self._settings = settings
        self._clock = clock
        self._cache = Cache(settings.entries_max)
        self._polled: float | None = None  # when the last good poll began
        self._last: Change | None = None
        self._outage: DirectoryUnavailable | None = None
        self.costs: tuple[str, ...] = ()
        self.bans: BansByName = {}
        self.listeners: list[Callable[[list[Change]], object]] = []
        self.queries = 0  # that the cache had no answer to

    @property
    def outage(self) -> DirectoryUnavailable | None:
        """Return why the last poll failed, None if it did not."""
        return self._outage

    def tenant(self, name: str) -> TenantView | None:
        """Return a tenant; None if there is none. Raises DirectoryUnavailable."""
        return cast(TenantView | None, self._read(("tenant", name), self._tenant))

    def user(self, tenant: str, name: str, *, fresh: bool = False) -> UserView | None:
        """Return a user of a tenant, out of the database if it is to be `fresh`; None if there is none. Raises
        DirectoryUnavailable."""
        return cast(UserView | None, self._read(("user", tenant, name), self._user, fresh))

    def cached_user(self, tenant: str, name: str) -> UserView | None:
        """Return a user without asking the database; None if it would have to be. Never blocks."""
        found = self._cached(("user", tenant, name))
        return None if found is MISSING else cast(UserView, found)

    def cached_tenant(self, name: str) -> TenantView | None:
        """Return a tenant without asking the database; None if it would have to be. Never blocks."""
        found = self._cached(("tenant", name))
        return None if found is MISSING else cast(TenantView, found)

    def poll(self) -> int:
        """Bring what is known up to date, and return how many changes there were. Raises DirectoryUnavailable."""
        began = self._clock()
        try:
            count = self._catch_up()
        except DirectoryUnavailable as error:
            self._outage = error
            raise
        self._outage, self._polled = None, began
        return count

    # Reading

    def _cached(self, key: Key) -> object:
        """Return an entry that counts, or MISSING."""
        if self._polled is None or self._clock() - self._polled > self._settings.outage_s:
            return MISSING
        return self._cache.get(key)

    def _read(self, key: Key, read: Callable[[Connection, Key], object], fresh: bool = False) -> object:
        found = MISSING if fresh else self._cached(key)
        if found is not MISSING:
            return found
        if (
            self._outage is not None
        ):  # a thread that waits for a database that is away is missed by all others
            raise DirectoryUnavailable(str(self._outage))
        self.queries += 1
        database = self._store.database
        with database.reading() as connection:
            revision = database.revision(connection)
            value = read(connection, key)
        if value is not None:  # names that there are not would drive out those that there are
            self._cache.put(key, value, revision)
        return value

    def _tenant(self, connection: Connection, key: Key) -> TenantView | None:
        tenant = find_tenant(connection, key[1])
        if tenant is None:
            return None
        policy = Policy(self._store.rules.shared(connection, tenant.name))
        quotas, settings = quotas_of(connection, tenant.name), settings_of(connection, tenant.name)
        return TenantView(tenant, quotas, settings, policy)

    def _user(self, connection: Connection, key: Key) -> UserView | None:
        user = self._store.users.find(connection, key[1], key[2])
        if user is None:
            return None
        return UserView(user, Policy(self._store.rules.of_user(connection, user.tenant, user.name)))

    # Polling

    def _catch_up(self) -> int:
        last = self._last
        if last is None:
            self._begin_anew()
            return 0
        count = 0
        # The last change is read again: a directory that was put back has another one at its place, or none.
        found = self._store.changes.since(last.revision - 1)
        if not found or found[0].stamp != last.stamp:
            self._begin_anew()
            for listener in self.listeners:
                listener([])
            return 0
        found = found[1:]
        while found:
            self._apply(found)
            count += len(found)
            found = self._store.changes.since(found[-1].revision)
        return count

    def _begin_anew(self) -> None:
        """Forget everything, and go on from the newest change that there is."""
        revision = self._store.changes.revision()
        newest = self._store.changes.since(revision - 1, 1)
        self._cache.clear(revision)
        self._load(bans=True, costs=True)
        self._last = newest[0] if newest else None

    def _apply(self, changes: list[Change]) -> None:
        keys = [key for change in changes if (key := key_of(change)) is not None]
        whole = {change.tenant for change in changes if change.what in _WHOLE}
        words = {change.what for change in changes}
        self._cache.apply(changes[-1].revision, keys, whole)
        self._load(bans=bool(words & (_OF_BANS | _WHOLE)), costs="user imported" in words)
        self._last = changes[-1]
        for listener in self.listeners:
            listener(changes)

    def _load(self, *, bans: bool, costs: bool) -> None:
        """Read bans and the costs of hashes again."""
        with self._store.database.reading() as connection:
            if bans:
                holding = self._store.bans.holding(connection)
                self.bans = {(ban.kind, ban.tenant, ban.subject): ban for ban in holding}
            if costs:
                self.costs = tuple(self._store.users.costs(connection, COSTS_MAX + 1))


_WHOLE: Final = frozenset({"tenant created", "tenant deleted", "tenant released"})
_OF_BANS: Final = frozenset({"ban added", "ban removed"})
_OF_USERS: Final = ("user ", "password ", "group ")
_OF_TENANTS: Final = ("tenant ", "quotas ", "settings ")


def key_of(change: Change) -> Key | None:
    """Return the key of the entry that a change is about; None if it is about none."""
    if change.what.startswith("rule "):
        user = change.detail.get("kind") == "user"
        return ("user", change.tenant, change.subject) if user else ("tenant", change.tenant)
    if change.what.startswith(_OF_USERS):
        return "user", change.tenant, change.subject
    if change.what.startswith(_OF_TENANTS):
        return "tenant", change.tenant
    return None


def banned(bans: BansByName, kind: str, tenant: str, subject: str, now_us: int) -> Ban | None:
    """Return the ban that holds for a client or a user now; None if none does."""
    found = bans.get((kind, tenant, subject))
    return found if found is not None and (not found.until_us or found.until_us > now_us) else None
