"""Clients that came with a token: it is looked at on the threads that hash passwords, and ends their connections when it
ends."""

from __future__ import annotations

import time
from collections.abc import Callable

from headrace.core.ports.directory import Secrets, TokenClaims, Tokens
from headrace.core.ports.link import Link
from headrace.mqtt import reason_codes as rc
from headrace.net.remote import source_of
from headrace.services.audit import Audit
from headrace.services.pacing import named
from headrace.services.verifying import Loop

EXPIRED = "token_expired"
LOOK_S = 1.0


class TokenLook(Secrets):
    """A look at one token, as the queue in front of the threads takes it. `claims` or `why` is there behind it."""

    def __init__(self, tokens: Tokens, tenant: str) -> None:
        super().__init__()
        self._tokens = tokens
        self._tenant = tenant
        self.claims: TokenClaims | None = None
        self.why = "wrong_token"

    def knows(self, user: str) -> bool:
        return True  # a token says by itself whose it is: no look is spared

    def verify(self, user: str, password: bytes) -> bool:
        found = self._tokens.verify(self._tenant, user, password)
        if isinstance(found, TokenClaims):
            self.claims = found
            return True
        self.why = found
        return False


class Expiring:
    """Ends connections when the tokens end that they came with, by the clock on the wall. Runs on the loop."""

    def __init__(self, loop: Loop, audit: Audit, now: Callable[[], float] = time.time) -> None:
        self._loop = loop
        self._audit = audit
        self._now = now
        self._until: dict[Link, int] = {}
        self._ends: dict[int, dict[Link, None]] = {}  # by second
        self._looks = False
        self._closed = False

    def __len__(self) -> int:
        return len(self._until)

    def add(self, link: Link, until_s: float) -> None:
        """End a connection then, unless it has left before."""
        self.left(link)
        second = int(until_s) + 1
        self._until[link] = second
        self._ends.setdefault(second, {})[link] = None
        if not self._looks:
            self._looks = True
            self._loop.call_later(LOOK_S, self._look)

    def left(self, link: Link) -> None:
        """Note that a connection has ended."""
        second = self._until.pop(link, None)
        if second is None:
            return
        there = self._ends[second]
        del there[link]
        if not there:
            del self._ends[second]

    def close(self) -> None:
        """Look at nobody any more."""
        self._closed = True

    def _look(self) -> None:
        if self._closed or not self._ends:
            self._looks = False
            return
        now = self._now()
        try:
            for second in [one for one in self._ends if one <= now]:
                for link in list(self._ends[second]):
                    self._put_out(link)
        finally:
            self._loop.call_later(LOOK_S, self._look)

    def _put_out(self, link: Link) -> None:
        self.left(link)
        if link.closed:
            return
        self._audit.failure("put out", EXPIRED, source_of(link.peer()), **named(link))
        link.broker.put_out(link, rc.NOT_AUTHORIZED, EXPIRED.replace("_", " "))
