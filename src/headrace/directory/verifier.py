"""Who signs in as TENANT/USER with a password, verified in the same time whoever it is. Runs on threads.

A refusal costs one question to the database and one hash of each cost that the directory has, ours among them, whether
the tenant is unknown, the user, or the password wrong; and a user that may not come in is told so behind all that. A
user's hash out of the cache that does not fit is read again: the password may have been changed a moment ago.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from headrace.directory.entries import ACTIVE
from headrace.directory.errors import InvalidField
from headrace.directory.hashes import OURS, cost_of, matches, nobody_of
from headrace.directory.names import tenant_name, user_name
from headrace.directory.reader import Reader, TenantView, UserView, banned

REMEMBER_S: Final = 3600.0
REMEMBERED_MAX: Final = 100_000

UNKNOWN: Final = "unknown_user"
WRONG: Final = "wrong_password"
USER_DISABLED: Final = "user_disabled"
TENANT_DISABLED: Final = "tenant_disabled"
BANNED: Final = "banned"


@dataclass(frozen=True, slots=True)
class Answer:
    """Whom a client is, or why it is refused: that is for the audit log, and never told to the client."""

    tenant: TenantView | None = None
    user: UserView | None = None
    refused: str = ""


class Verifier:
    """Verifies passwords by the directory. A password that was right lately is remembered by a keyed digest, which
    never leaves this process, as long as the user's hash is the same."""

    def __init__(
        self,
        reader: Reader,
        remember_s: float = REMEMBER_S,
        clock: Callable[[], float] = time.monotonic,
        now_us: Callable[[], int] = lambda: time.time_ns() // 1000,
    ) -> None:
        self._reader = reader
        self._remember_s = remember_s
        self._clock = clock
        self._now_us = now_us
        self._secret = os.urandom(32)
        self._remembered: OrderedDict[tuple[str, str], tuple[bytes, float]] = OrderedDict()
        self._lock = threading.Lock()
        self._nobodies = {OURS: nobody_of(OURS)}

    def verify(self, name: str, password: bytes) -> Answer:
        """Return whom a user name and a password belong to, or why not. Slow. Raises DirectoryUnavailable."""
        tenant, user = _divided(name)
        known = self._reader.cached_user(tenant, user)
        asked = known is None
        if known is None:
            known = self._reader.user(tenant, user, fresh=True)
        right = self._hash(known, password)
        if not right and not asked:
            before, known = known, self._reader.user(tenant, user, fresh=True)
            if known is not None and before is not None and known.user.hashed != before.user.hashed:
                right = self._hash(known, password)
        if known is None or not right:
            return Answer(refused=UNKNOWN if known is None else WRONG)
        return self._let_in(known, password)

    def remembered(self, name: str, password: bytes) -> Answer | None:
        """Return the answer if this very password was right lately and all of it is known; else None. Never blocks."""
        tenant, user = _divided(name)
        known = self._reader.cached_user(tenant, user)
        found = self._reader.cached_tenant(tenant)
        digest, at = self._remembered.get((tenant, user), (b"", 0.0))
        if known is None or found is None or self._clock() - at >= self._remember_s:
            return None
        if not hmac.compare_digest(digest, self._digest(known, password)):
            return None
        return self._answer(found, known)

    def _let_in(self, known: UserView, password: bytes) -> Answer:
        tenant = self._reader.tenant(known.user.tenant)
        if tenant is None:
            return Answer(refused=UNKNOWN)
        answer = self._answer(tenant, known)
        if not answer.refused and self._remember_s:
            key = known.user.tenant, known.user.name
            with self._lock:
                self._remembered[key] = self._digest(known, password), self._clock()
                self._remembered.move_to_end(key)
                if len(self._remembered) > REMEMBERED_MAX:
                    self._remembered.popitem(last=False)
        return answer

    def _answer(self, tenant: TenantView, user: UserView) -> Answer:
        one = user.user
        if tenant.tenant.state != ACTIVE:
            return Answer(refused=TENANT_DISABLED)
        if one.disabled:
            return Answer(refused=USER_DISABLED)
        if banned(self._reader.bans, "user", one.tenant, one.name, self._now_us()) is not None:
            return Answer(refused=BANNED)
        return Answer(tenant, user)

    def _hash(self, known: UserView | None, password: bytes) -> bool:
        """Return whether a password is a user's, by one hash of each cost."""
        own = None if known is None else known.user.hashed
        own_cost = "" if own is None else cost_of(own)
        costs = dict.fromkeys((OURS, *self._reader.costs))
        right = False
        for cost in costs:
            if own is not None and cost == own_cost:
                right = matches(own, password)
            else:
                matches(self._nobody(cost), password)
        if own is not None and own_cost not in costs:
            right = matches(own, password)
        return right

    def _nobody(self, cost: str) -> str:
        found = self._nobodies.get(cost)
        if found is None:
            found = self._nobodies[cost] = nobody_of(cost)
        return found

    def _digest(self, known: UserView, password: bytes) -> bytes:
        """Return a digest of the password together with the hash that it fits."""
        return hashlib.blake2b(known.user.hashed.encode() + b"\0" + password, key=self._secret).digest()


def _divided(name: str) -> tuple[str, str]:
    """Return tenant and user of a name; for one that cannot be any, names that nobody has."""
    tenant, slash, user = name.partition("/")
    try:
        if slash:
            return tenant_name(tenant), user_name(user)
    except InvalidField:
        pass
    return "-", "-"  # a tenant whose name no tenant can have
