"""Passwords by the directory: verified in the same time whoever it is, and remembered for a while.

A refusal costs one question to the database and one hash of each cost that the directory has, ours among them, whether
the tenant is unknown, the user, or the password wrong; and a user that may not come in is told so behind all that. A
hash that was known already and does not fit is read again: the password may have been changed a moment ago.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import time
from collections.abc import Callable, Iterable

from headrace.core.ports import directory as ports
from headrace.directory.hashes import OURS, cost_of, matches, nobody_of
from headrace.directory.known import KnownUser
from headrace.directory.reader import UserView

REMEMBER_S = 3600.0
Again = Callable[[], UserView | None]


class Hashing:
    """Hashes passwords. `costs` gives those that hashes of the directory have, `remember_s` says for how long a password
    that was right needs no hash, by a keyed digest that never leaves this process."""

    def __init__(
        self,
        costs: Callable[[], Iterable[str]],
        remember_s: float = REMEMBER_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._costs = costs
        self._remember_s = remember_s
        self._clock = clock
        self._secret = os.urandom(32)
        self._nobodies = {OURS: nobody_of(OURS)}

    def is_right(self, hashed: str | None, password: bytes) -> bool:
        """Return whether a password has this hash, None: nobody's, by one hash of each cost. Slow."""
        own = "" if hashed is None else cost_of(hashed)
        costs = dict.fromkeys((OURS, *self._costs()))
        right = False
        for cost in costs:
            if hashed is not None and cost == own:
                right = matches(hashed, password)
            else:
                matches(self._nobody(cost), password)
        if hashed is not None and own not in costs:
            right = matches(hashed, password)
        return right

    def remember(self, user: KnownUser, hashed: str, password: bytes) -> None:
        """Note that a password was right just now, with this hash: not with another one that the user may have by now."""
        if self._remember_s:
            user.remembered = self._digest(hashed, password), self._clock()

    def is_remembered(self, user: KnownUser | None, password: bytes) -> bool:
        """Return whether this very password was right lately, with the hash that the user has now."""
        view = None if user is None else user.view
        digest = self._digest("" if view is None else view.user.hashed, password)
        if user is None or user.remembered is None:
            return False
        known, at = user.remembered
        return hmac.compare_digest(digest, known) and self._clock() - at < self._remember_s

    def _nobody(self, cost: str) -> str:
        found = self._nobodies.get(cost)
        if found is None:
            found = self._nobodies[cost] = nobody_of(cost)
        return found

    def _digest(self, hashed: str, password: bytes) -> bytes:
        """Return a digest of the password together with the hash that it fits."""
        return hashlib.blake2b(hashed.encode() + b"\0" + password, key=self._secret).digest()


class UserSecrets(ports.Secrets):
    """The password of one user as it was when the user was looked up; None: there is none of that name. `again` reads
    the user once more, on a thread; it is given where the user was known already."""

    def __init__(self, hashing: Hashing, user: KnownUser | None, again: Again | None = None) -> None:
        super().__init__()
        self._hashing = hashing
        self._user = user
        self._view = None if user is None else user.view
        self._again = again
        self._guessed = False

    def knows(self, user: str) -> bool:
        return self._view is not None

    def line(self, user: str) -> str | None:
        view = self._view
        return None if view is None or view.user.disabled else view.user.hashed

    def remembered(self, user: str, password: bytes) -> bool:
        return self._hashing.is_remembered(self._user, password)

    def remember(self, user: str, password: bytes) -> None:
        if self._user is not None and self._view is not None:
            self._hashing.remember(self._user, self._view.user.hashed, password)

    def verify(self, user: str, password: bytes) -> bool:
        """Return whether the password is the user's. Raises DirectoryUnavailable where it does not fit and the database
        cannot say whether it is another one by now."""
        view = self._view
        right = self._hashing.is_right(None if view is None else view.user.hashed, password)
        if view is None or right or self._again is None:
            return right
        self._guessed = True  # unless the database says otherwise
        fresh = self._again()
        self._guessed = False
        if fresh is None or fresh.user.hashed == view.user.hashed:
            return False
        self._view = fresh
        return self._hashing.is_right(fresh.user.hashed, password)

    def was_guess(self, user: str) -> bool:
        return self._guessed


class TenantSecrets(ports.Secrets):
    """The passwords of a tenant's users that are known, as they are now. `find` gives one of them by the name that
    it signs in with."""

    def __init__(self, find: Callable[[str], UserSecrets]) -> None:
        super().__init__()
        self._find = find

    def knows(self, user: str) -> bool:
        return self._find(user).knows(user)

    def line(self, user: str) -> str | None:
        return self._find(user).line(user)

    def remembered(self, user: str, password: bytes) -> bool:
        return self._find(user).remembered(user, password)

    def remember(self, user: str, password: bytes) -> None:
        self._find(user).remember(user, password)

    def verify(self, user: str, password: bytes) -> bool:
        return self._find(user).verify(user, password)
