"""The directory in a SQL database, behind the port that access control asks (`core.ports.directory`).

Runs on the loop, and blocks it never: who is known is answered at once, who is not is looked up on a few threads. A
thread polls for what has changed; what of that is known here is read again, and then counts for those who are connected.
Without the database those who are known are answered for `outage_s` more; the others are told to come later.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import Final

from headrace.core.ports import directory as ports
from headrace.core.ports.directory import Account, Inquiry
from headrace.core.ports.limits import Limits
from headrace.directory.calls import Calls
from headrace.directory.entries import DELETING, Change, Token
from headrace.directory.errors import DirectoryUnavailable, InvalidField, TooManyWaiting
from headrace.directory.known import KnownTenant, KnownUser, Memory
from headrace.directory.limits import limits_of
from headrace.directory.names import user_name
from headrace.directory.passwords import Hashing, TenantSecrets, UserSecrets
from headrace.directory.poller import Poller
from headrace.directory.reader import Changed, Found, LookUp, Reader, UserView, banned, key_of
from headrace.directory.store import Store
from headrace.directory.tenancy import ByPrefix
from headrace.directory.tokens import PREFIX
from headrace.services.verifying import Loop

THREADS: Final = 4
WAITING_MAX: Final = 10_000
REFRESHED_AT_ONCE: Final = 200  # tenants and users that are read again in one transaction
_NOBODY: Final = LookUp("-", "-")  # no tenant can have this name: so long does it take to find nobody


@dataclass(frozen=True, slots=True)
class SqlSettings:
    """Numbers of a directory: it is polled every `poll_s`, may be away for `outage_s`, a password that was right is
    remembered for `remember_s`, a look-up waits for `patience_s` at most, and `recent_max` users without a connection are
    known. Times in seconds."""

    poll_s: float = 1.0
    outage_s: float = 3600.0
    remember_s: float = 3600.0
    patience_s: float = 8.0
    recent_max: int = 100_000


def _nothing(_: object) -> None:
    """Do nothing."""


class SqlDirectory(ports.Directory):
    """Tenants, users, rules and limits of a SQL database. `told` hears, on the poller's thread, of the first poll that
    fails, with the error, and of the first that goes well again, with None. `changed` is called on the loop with the
    names of tenants whose rules, users or limits are others from then on, `banned` with all addresses that are banned,
    when others are, or other users or clients."""

    def __init__(
        self,
        reader: Reader,
        settings: SqlSettings,
        names: ByPrefix,
        loop: Loop,
        told: Callable[[Exception | None], object],
        clock: Callable[[], float] = time.monotonic,
        now_us: Callable[[], int] = lambda: time.time_ns() // 1000,
    ) -> None:
        super().__init__()
        self._now_us = now_us
        self._reader = reader
        self._settings = settings
        self._names = names
        self._loop = loop
        self._told = told
        self._clock = clock
        self._memory = Memory(settings.recent_max, names)
        self._hashing = Hashing(lambda: reader.costs, settings.remember_s, clock)
        self._calls = Calls(THREADS, WAITING_MAX, settings.patience_s)
        self._poller: Poller | None = None
        self._asked: dict[LookUp, list[Inquiry]] = {}
        self._later: dict[LookUp, None] = {}  # what is looked up once the database answers
        self._refreshing = False
        self._closed = False
        self.usual = Limits()  # of tenants that have no others
        self.changed: Callable[[set[str]], object] = _nothing
        self._banned: tuple[object, tuple[str, ...]] = reader.bans, ()  # when `banned` was told last
        self.banned: Callable[[tuple[str, ...]], object] = _nothing
        self.deleting: set[str] = (
            set()
        )  # of the tenants that are known those that brokers are to have nothing of
        self.polled: Callable[[set[str]], object] = _nothing  # on the loop after each poll, with these

    def open(self) -> None:
        """Read the directory for the first time and begin to poll it. Blocks. One that is away is told of and opened
        later. Raises InvalidField, WrongSchema."""
        away: Exception | None = None
        try:
            self._reader.poll()
        except DirectoryUnavailable as error:
            away = error
            self._told(error)
        self._poller = Poller(self._poll, self._settings.poll_s, self._told, is_away=away is not None)
        self._poller.start()

    def open_once(self) -> None:
        """Read the directory for a program that asks what it needs by `read`, and ends. Blocks. Raises
        DirectoryUnavailable, InvalidField, WrongSchema."""
        self._reader.poll()

    def close(self) -> None:
        self._closed = True
        self._calls.close()
        if self._poller is not None:
            self._poller.stop(0)
        self._reader.close()

    # Figures

    @property
    def is_away(self) -> bool:
        """Return whether the last poll has failed."""
        return self._reader.outage is not None

    @property
    def lookups(self) -> int:
        """Return how many tenants and users were looked up."""
        return self._reader.queries

    @property
    def calls(self) -> int:
        """Return how many look-ups are made or wait."""
        return self._calls.there

    @property
    def abandoned(self) -> int:
        """Return how many look-ups had waited too long."""
        return self._calls.dropped

    @property
    def users(self) -> int:
        """Return how many users are known."""
        return sum(len(tenant.users) for tenant in self._memory.tenants())

    # What access control asks

    def name_of(self, user: str) -> str:
        return self._names.name_of(user)

    def find(self, inquiry: Inquiry) -> None:
        name = None if inquiry.user is None else self._names.user_of(inquiry.user)
        account = self._known(inquiry.tenant, name)
        if account is None:
            self._look_up(inquiry, name)
        else:
            inquiry.answer(account)

    def revision(self, tenant: str) -> int:
        known = self._memory.tenant(tenant)
        return 0 if known is None else known.revision

    def rules(self, tenant: str) -> ports.Rules | None:
        known = self._memory.tenant(tenant)
        return UNKNOWN.rules if known is None else known.rules

    def secrets(self, tenant: str) -> ports.Secrets | None:
        return TenantSecrets(partial(self._secrets_of, tenant))

    def closed(self, tenant: str, user: str | None) -> str:
        known = self._memory.tenant(tenant)
        if known is None:
            return ""
        if user is None:
            return known.closed()
        found = known.users.get(self._names.user_of(user))
        return known.closed() if found is None else found.closed()

    def bans(self, tenant: str, user: str | None, client_id: str) -> bool:
        found = self._reader.bans
        if not found:
            return False
        now_us, name = self._now_us(), None if user is None else self._names.user_of(user)
        of_user = name is not None and banned(found, "user", tenant, name, now_us) is not None
        return of_user or banned(found, "client", tenant, client_id, now_us) is not None

    def bearer(self, tenant: str, user: str, revision: int) -> object:
        return self._memory.bearer(tenant, self._names.user_of(user), revision)

    def reload(self) -> None:
        """Give the tenants the limits of the configuration as they are now, where they have no others. What is in the
        database is polled in any case."""
        self._tell({tenant.name for tenant in self._memory.tenants()})

    # Looking up

    def _known(self, tenant: str, name: str | None) -> Account | None:
        """Return the account of a user if all of it is known and counts still."""
        polled, memory = self._reader.polled, self._memory
        if polled is None or self._clock() - polled > self._settings.outage_s:
            return None
        known = memory.tenant(tenant)
        if known is None or (tenant, None) in memory.stale:
            return None
        user = None
        if name is not None:
            user = known.users.get(name)
            if user is None or (tenant, name) in memory.stale or user.view is None:
                return None
            memory.came(user)
        return self._account(known, user, known.revision, again=user is not None)

    def _account(
        self, tenant: KnownTenant | None, user: KnownUser | None, revision: int, *, again: bool = False
    ) -> Account:
        """Return what there is to say of a user, or of a client without one."""
        if tenant is None:
            return Account(revision, UserSecrets(self._hashing, None), UNKNOWN.rules, None, False)
        reading = partial(self._read_again, user) if again and user is not None else None
        secrets = UserSecrets(self._hashing, user, reading)
        is_there = user is None or user.view is not None
        is_open = is_there and not (tenant.closed() if user is None else user.closed())
        return Account(revision, secrets, tenant.rules, tenant.limits, is_open, user or tenant)

    def _look_up(self, inquiry: Inquiry, name: str | None) -> None:
        """Have a tenant and a user looked up, once for all who ask meanwhile."""
        known = self._memory.tenant(inquiry.tenant)
        fresh = known is not None and (inquiry.tenant, None) not in self._memory.stale
        wanted = LookUp(inquiry.tenant, name, not fresh) if _can_be(name) else _NOBODY
        waiting = self._asked.get(wanted)
        if waiting is not None:
            waiting.append(inquiry)
            return
        try:
            call = self._calls.submit(lambda: self._reader.look((wanted,)))
        except TooManyWaiting:
            inquiry.answer(None)
            return
        self._asked[wanted] = [inquiry]
        call.add_done_callback(lambda done: self._hand_over(self._looked_up, wanted, done))

    def _looked_up(self, wanted: LookUp, done: Future[list[Found]]) -> None:
        """Answer those who have asked for this."""
        inquiries, found = self._asked.pop(wanted), list[Found]()
        try:
            found = self._result(done)
        finally:
            if not found:
                for inquiry in inquiries:
                    inquiry.answer(None)
        if not found:
            return
        self._take_over(found)
        tenant = self._memory.tenant(wanted.tenant)
        user = None if wanted.user is None else self._memory.user(wanted.tenant, wanted.user)
        for inquiry in inquiries:
            if tenant is None or (wanted.user is not None and user is None):
                account = self._account(None, None, found[0].revision)
            else:
                account = self._account(tenant, user, found[0].revision)
            inquiry.answer(account)

    def _result(self, done: Future[list[Found]]) -> list[Found]:
        """Return what was found, nothing where that could not be told. What nobody foresaw is raised."""
        if self._closed or done.cancelled():
            return []
        try:
            return done.result()
        except DirectoryUnavailable:
            return []

    def _read_again(self, user: KnownUser) -> UserView | None:
        """Return a user as it is in the database now; the loop learns of it before it hears what that was good for. Runs
        on a thread. Raises DirectoryUnavailable."""
        found = self._reader.look((LookUp(user.tenant.name, user.name, with_tenant=False),))
        self._hand_over(self._take_over, found)
        return found[0].user

    def _secrets_of(self, tenant: str, user: str) -> UserSecrets:
        return UserSecrets(self._hashing, self._memory.user(tenant, self._names.user_of(user)))

    # What is brought back

    def read(self, users: Iterable[tuple[str, str | None]]) -> list[Found]:
        """Return what there is to say of users, named as they sign in, with their tenants; None is nobody in particular.
        Blocks. While the database is away there is nothing."""
        try:
            return self._reader.look([self._wanted(tenant, user) for tenant, user in users])
        except DirectoryUnavailable:
            return []

    def read_later(self, users: Iterable[tuple[str, str | None]]) -> None:
        """Have looked up, once the database answers, what `read` could not: then it is known, and `changed` is told."""
        self._later |= dict.fromkeys(self._wanted(tenant, user) for tenant, user in users)

    def _wanted(self, tenant: str, user: str | None) -> LookUp:
        name = None if user is None else self._names.user_of(user)
        return LookUp(tenant, name) if _can_be(name) else _NOBODY

    def token(self, secret: str) -> Token | None:
        """Return what a token for the admin HTTP is for; None if it is none. Blocks. Raises DirectoryUnavailable."""
        return self._reader.token(secret) if secret.startswith(PREFIX) else None

    def administer(self, change: Callable[[Store], Changed]) -> Changed:
        """Do something to the directory, which counts here at once, and return what that returns. Blocks. Raises
        DirectoryUnavailable, and what it raises."""
        found = self._reader.change(change)
        if self._poller is not None:
            self._poller.wake()
        return found

    def take_over(self, found: Iterable[Found]) -> None:
        """Know from now on what was read, for wills and limits of those who are not here. What is newer stays."""
        self._take_over(found)

    # What has changed

    def _poll(self) -> None:
        """Poll, and hand over what has changed. Runs on the poller's thread."""
        changes: list[Change] | None = []
        try:
            changes = self._reader.poll()
        finally:  # a ban ends without the database too
            self._hand_over(self._polled, changes, self._reader.addresses(self._now_us()))

    def _polled(self, changes: list[Change] | None, addresses: tuple[str, ...]) -> None:
        """Note what has changed, and have it read again."""
        users = self._reader.bans
        if users is not self._banned[0] or addresses != self._banned[1]:
            self._banned = users, addresses
            self.banned(addresses)
        if changes is None:
            self._memory.note_all(self._memory.tenants())
        for change in changes or ():
            key = key_of(change)
            if key is not None:
                self._memory.note(key, change.revision)
        for change in changes or ():
            known = self._memory.tenant(change.tenant) if change.what.startswith("tenant ") else None
            if known is not None:  # its users went with it, or may be others
                for name in list(known.users):
                    self._memory.note((change.tenant, name), change.revision)
        self._refresh()
        self.polled(self.deleting)

    def _refresh(self) -> None:
        """Read again some of what has changed, or what could not be read before, unless that is being done."""
        if self._refreshing or self._closed:
            return
        wanted = self._stale_ones() or list(islice(self._later, REFRESHED_AT_ONCE))
        if not wanted:
            return
        try:
            call = self._calls.submit(lambda: self._reader.look(wanted))
        except TooManyWaiting:
            return  # the next poll is not far
        self._refreshing = True
        call.add_done_callback(lambda done: self._hand_over(self._refreshed, done))

    def _stale_ones(self) -> list[LookUp]:
        """Return some of those of which something has changed; who is not known any more is forgotten."""
        memory, wanted = self._memory, list[LookUp]()
        while memory.stale and not wanted:
            for tenant, name in list(islice(memory.stale, REFRESHED_AT_ONCE)):
                is_known = memory.tenant(tenant) if name is None else memory.user(tenant, name)
                if is_known is None:
                    del memory.stale[tenant, name]
                else:
                    wanted.append(LookUp(tenant, name, with_tenant=name is None))
        return wanted

    def _refreshed(self, done: Future[list[Found]]) -> None:
        self._refreshing = False
        found = self._result(done)
        before = len(self._memory.stale) + len(self._later)
        self._take_over(found)
        awaited = [one.wanted for one in found if one.wanted in self._later]
        for wanted in awaited:
            del self._later[wanted]
        self._tell({wanted.tenant for wanted in awaited})
        if len(self._memory.stale) + len(self._later) < before:
            self._refresh()  # the rest; without an answer the next poll tries again

    def _take_over(self, found: Iterable[Found]) -> None:
        """Take over what was read, and tell whose rules, users or limits are others now."""
        names = set()
        for one in found:
            before = self._memory.tenant(one.wanted.tenant)
            changed = self._memory.learn(one)
            known = self._memory.tenant(one.wanted.tenant)
            if known is not None and (changed or before is None):
                known.limits = limits_of(known.view, self.usual)
            if known is None or known.view is None or known.view.tenant.state != DELETING:
                self.deleting.discard(one.wanted.tenant)
            else:
                self.deleting.add(one.wanted.tenant)
            if changed:
                names.add(one.wanted.tenant)
        if names:
            self.changed(names)

    def _tell(self, names: set[str]) -> None:
        """Tell that the limits of some tenants are others now."""
        for tenant in self._memory.tenants():
            if tenant.name in names:
                tenant.limits = limits_of(tenant.view, self.usual)
        if names:
            self.changed(names)

    def limits(self, tenant: str) -> Limits | None:
        """Return the limits of a tenant that is known, None where it has the usual ones."""
        known = self._memory.tenant(tenant)
        return None if known is None else known.limits

    def _hand_over(self, callback: Callable[..., object], *args: object) -> None:
        """Have something called on the loop, unless that has ended. Runs on any thread."""
        try:
            self._loop.call_soon_threadsafe(callback, *args)
        except RuntimeError:
            return  # nobody waits any more


UNKNOWN: Final = KnownTenant(
    "-", None, 0, ByPrefix("/", "")
)  # of which nothing is known: nobody may do anything


def _can_be(name: str | None) -> bool:
    """Return whether a user can have this name, or is nobody in particular."""
    try:
        return name is None or user_name(name) == name
    except InvalidField:
        return False
