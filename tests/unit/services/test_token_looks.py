"""Tokens in the queue of hashes, and connections that end when theirs does."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from typing import Any

from harness import Harness
from headrace.core.ports.directory import Directory, TokenClaims, Tokens
from headrace.services.audit import Audit
from headrace.services.pacing import JWT, PASSWORD, Known
from headrace.services.permissions import Permissions
from headrace.services.token_looks import LOOK_S, Expiring, TokenLook


class Signed(Tokens):
    def verify(self, tenant: str, user: str, token: bytes) -> TokenClaims | str:
        return TokenClaims(100.0, tenant) if token == b"right" else "expired_token"


class Loop:
    """Time, and what is to be called then."""

    def __init__(self) -> None:
        self.now = 0.0
        self.calls: list[Callable[..., object]] = []

    def call_soon_threadsafe(self, *_: object) -> None: ...

    def call_soon(self, *_: object) -> None: ...

    def call_later(self, delay: float, callback: Callable[..., object], *_: object) -> None:
        assert delay == LOOK_S
        self.calls.append(callback)

    def run(self, seconds: int) -> None:
        for _ in range(seconds):
            self.now += 1
            calls, self.calls = self.calls, []
            for call in calls:
                call()


def test_a_look_says_what_was_found_or_why_not() -> None:
    look = TokenLook(Signed(), "acme")
    assert look.knows("anybody")
    assert not look.verify("gw", b"wrong")
    assert (look.why, look.claims) == ("expired_token", None)
    assert look.verify("gw", b"right")
    assert look.claims is not None
    assert look.claims.rules == "acme"


class Held:
    """What a directory knows of a user."""


def test_who_has_gone_is_known_to_the_directory_for_as_long_as_its_will_may_be_judged_by_its_token() -> None:
    """Else its own rules, those that deny too, would be missed where those of the token are not."""
    harness, held = Harness(), Held()
    client = harness.client("a", version=5)
    known = Known(JWT)
    known.claims, known.held = TokenClaims(100.0, None), held
    client.link.identity.user = "acme/gw"
    client.link.grants = known
    permissions, seen = Permissions(Directory(), Audit(lambda *_, **__: None)), weakref.ref(held)
    permissions.left(client.link)
    client.link.grants = None
    del known, held
    gc.collect()
    assert seen() is not None
    permissions.came(client.link.identity.tenant, "acme/gw", "a")
    gc.collect()
    assert seen() is None


def test_who_is_back_without_a_token_leaves_no_will_by_the_rules_of_the_one_before() -> None:
    """The connection that it takes over ends when the new one has been let in."""
    harness = Harness()
    before, after = harness.client("a", version=5).link, harness.client("b", version=5).link
    after.client_id = before.client_id
    permissions = Permissions(Directory(), Audit(lambda *_, **__: None))
    for link, way in ((before, JWT), (after, PASSWORD)):
        link.identity.user, link.grants = "acme/gw", Known(way)
    of_token = before.grants
    assert isinstance(of_token, Known)
    of_token.claims = TokenClaims(100.0, None)
    permissions.came(after.identity.tenant, "acme/gw", "a")
    permissions.left(before)
    permissions.left(after)
    assert not any(permissions._tokens.values())


def test_connections_end_with_their_tokens_and_nobody_is_held_who_has_gone() -> None:
    harness, loop, told = Harness(), Loop(), list[Any]()
    audit = Audit(lambda event, **more: told.append((event, more["reason"], more["client"])))
    expiring = Expiring(loop, audit, lambda: loop.now)
    clients = [harness.client(name, version=5) for name in "abc"]
    for client, until_s in zip(clients, (5, 9, 5), strict=True):
        client.take()
        expiring.add(client.link, until_s)
    expiring.left(clients[2].link)
    expiring.left(clients[2].link)
    loop.run(5)
    assert [client.link.closed for client in clients] == [False, False, False]
    loop.run(1)
    assert [client.link.closed for client in clients] == [True, False, False]
    assert [body[:1] for first, body in clients[0].take() if first >> 4 == 14] == [b"\x87"]
    assert told == [("put out", "token_expired", "a")]
    assert len(expiring) == 1
    loop.run(10)
    assert (len(expiring), loop.calls) == (0, [])
    expiring.add(clients[2].link, loop.now + 1)
    expiring.close()
    loop.run(5)
    assert (clients[2].link.closed, loop.calls) == (False, [])
