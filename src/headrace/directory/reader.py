"""The directory as brokers read it: what there is to say of a tenant or a user, and what has changed.

Blocks; runs on threads. While the last poll has failed nothing is looked up: a thread that waits for a database that is
away is missed by all others.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Final, TypeVar

from sqlalchemy import Connection

from headrace.directory.entries import Ban, Change, Tenant, Token, User
from headrace.directory.errors import DirectoryUnavailable
from headrace.directory.policy import Policy
from headrace.directory.store import Store
from headrace.directory.tenants import find_tenant, quotas_of, settings_of

COSTS_MAX: Final = 3  # of hashes, beside our own: the most frequent ones
CHANGES_MAX: Final = 10_000  # of one poll; where there were more, anything may have changed
ADDRESS: Final = "address"
Changed = TypeVar("Changed")
BansByName = Mapping[tuple[str, str, str], Ban]  # of users and clients, by kind, tenant and name


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


@dataclass(frozen=True, slots=True)
class LookUp:
    """What is to be looked up: a tenant, a user of it, or both. `user` None: nobody in particular."""

    tenant: str
    user: str | None
    with_tenant: bool = True


@dataclass(frozen=True, slots=True)
class Found:
    """What was found, as of a revision or a later one. `tenant` is None where it was not wanted or is not there, `user`
    where nobody was wanted or there is none."""

    wanted: LookUp
    revision: int
    tenant: TenantView | None
    user: UserView | None


class Reader:
    """Reads one directory for a broker, which `opening` opens as soon as that can be done. `clock` tells seconds that
    only grow, `polled` is when the last good poll began."""

    def __init__(self, opening: Callable[[], Store], clock: Callable[[], float] = time.monotonic) -> None:
        self._opening = opening
        self._clock = clock
        self._opened: Store | None = None
        self._last: Change | None = None
        self._begun = False
        self._outage: DirectoryUnavailable | None = None
        self.polled: float | None = None
        self.costs: tuple[str, ...] = ()
        self.bans: BansByName = {}
        self._addresses: list[Ban] = []
        self.queries = 0

    @property
    def outage(self) -> DirectoryUnavailable | None:
        """Return why the last poll failed, None if it did not."""
        return self._outage

    def look(self, wanted: Iterable[LookUp]) -> list[Found]:
        """Return what there is to say of tenants and users. Raises DirectoryUnavailable."""
        store, found = self._store(), []
        with store.database.reading() as connection:
            for one in wanted:
                self.queries += 1
                found.append(_look(store, connection, one))
        return found

    def _store(self) -> Store:
        """Return what is open. Raises DirectoryUnavailable."""
        if self._opened is None or self._outage is not None:
            raise DirectoryUnavailable(str(self._outage or "the directory was not opened yet"))
        return self._opened

    def poll(self) -> list[Change] | None:
        """Return what has changed since the last poll; None where anything may have. Raises DirectoryUnavailable, and at
        the first time what opening the directory does."""
        began = self._clock()
        try:
            if self._opened is None:
                self._opened = self._opening()
            found = self._catch_up(self._opened)
        except DirectoryUnavailable as error:
            self._outage = error
            raise
        self._outage, self.polled = None, began
        return found

    def token(self, secret: str) -> Token | None:
        """Return what a token is for; None if it is none. Raises DirectoryUnavailable."""
        return self._store().tokens.find(secret)

    def change(self, change: Callable[[Store], Changed]) -> Changed:
        """Do something to the directory, and return its result. Raises what that raises, and DirectoryUnavailable."""
        return change(self._store())

    def addresses(self, now_us: int) -> tuple[str, ...]:
        """Return the addresses and networks that are banned now, as of the last poll."""
        return tuple(ban.subject for ban in self._addresses if not ban.until_us or ban.until_us > now_us)

    def close(self) -> None:
        """Close the connections to the database."""
        if self._opened is not None:
            self._opened.close()

    def _catch_up(self, store: Store) -> list[Change] | None:
        last = self._last
        if last is None and self._begun and not store.changes.revision():
            return []
        # The last change is read again: a directory that was put back has another one at its place, or none.
        found = [] if last is None else store.changes.since(last.revision - 1)
        if last is None or not found or found[0].stamp != last.stamp:
            self._begin(store)
            return None
        changes, found = found[1:], found[1:]
        while found:
            found = store.changes.since(found[-1].revision)
            changes += found
            if len(changes) > CHANGES_MAX:
                self._begin(store)
                return None
        if changes:
            words = {change.what for change in changes}
            self._load(store, bans=bool(words & (OF_BANS | WHOLE)), costs="user imported" in words)
            self._last = changes[-1]
        return changes

    def _begin(self, store: Store) -> None:
        """Go on from the newest change that there is."""
        newest = store.changes.since(store.changes.revision() - 1, 1)
        self._load(store, bans=True, costs=True)
        self._last, self._begun = newest[0] if newest else None, True

    def _load(self, store: Store, *, bans: bool, costs: bool) -> None:
        """Read bans and the costs of hashes again."""
        with store.database.reading() as connection:
            if bans:
                holding = store.bans.holding(connection)
                self.bans = {
                    (ban.kind, ban.tenant, ban.subject): ban for ban in holding if ban.kind != ADDRESS
                }
                self._addresses = [ban for ban in holding if ban.kind == ADDRESS]
            if costs:
                self.costs = tuple(store.users.costs(connection, COSTS_MAX + 1))


def _look(store: Store, connection: Connection, wanted: LookUp) -> Found:
    """Look up a tenant and a user. The revision is read first: what is found is of that one, or newer."""
    revision = store.database.revision(connection)
    tenant = _tenant(store, connection, wanted.tenant) if wanted.with_tenant else None
    user = None if wanted.user is None else store.users.find(connection, wanted.tenant, wanted.user)
    if user is None:
        return Found(wanted, revision, tenant, None)
    policy = Policy(store.rules.of_user(connection, user.tenant, user.name))
    return Found(wanted, revision, tenant, UserView(user, policy))


def _tenant(store: Store, connection: Connection, name: str) -> TenantView | None:
    tenant = find_tenant(connection, name)
    if tenant is None:
        return None
    policy = Policy(store.rules.shared(connection, name))
    return TenantView(tenant, quotas_of(connection, name), settings_of(connection, name), policy)


WHOLE: Final = frozenset({"tenant created", "tenant deleted", "tenant released"})
OF_BANS: Final = frozenset({"ban added", "ban removed"})
_OF_USERS: Final = ("user ", "password ", "group ")
_OF_TENANTS: Final = ("tenant ", "quotas ", "settings ")
Key = tuple[str, str | None]  # a tenant, or a user of one


def key_of(change: Change) -> Key | None:
    """Return the tenant or the user that a change is about; None where it is about neither."""
    if change.what.startswith("rule "):
        return (change.tenant, change.subject if change.detail.get("kind") == "user" else None)
    if change.what.startswith(_OF_USERS):
        return change.tenant, change.subject
    if change.what.startswith(_OF_TENANTS):
        return change.tenant, None
    return None


def banned(bans: BansByName, kind: str, tenant: str, subject: str, now_us: int) -> Ban | None:
    """Return the ban that holds for a client or a user now; None if none does."""
    found = bans.get((kind, tenant, subject))
    return found if found is not None and (not found.until_us or found.until_us > now_us) else None
