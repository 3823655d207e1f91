"""JSON Web Tokens (RFC 7519) in place of passwords: verified by the keys of a JWK Set, and bound to a tenant and a user.

A token says whose it is: its claims have to name the tenant and the user that CONNECT or HELLO names, and until when it
holds. It may bring rules of its own beside those of the directory. Runs on threads; nothing in it waits for a network.
"""

from __future__ import annotations

import base64
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final
from weakref import WeakValueDictionary

import jwt

from headrace.core.ports.directory import NO_TELLING, TokenClaims, Tokens
from headrace.directory.entries import ACTIONS, ALLOW, DENY, Rule
from headrace.directory.errors import InvalidField
from headrace.directory.jwt_source import KeySource
from headrace.directory.names import tenant_name, topic_filter, user_name
from headrace.directory.policy import Policy
from headrace.directory.tenancy import ByPrefix

WRONG: Final = "wrong_token"
EXPIRED: Final = "expired_token"
EARLY: Final = "early_token"
RULES_MAX: Final = 64
FILTER_BYTES_MAX: Final = 1024
_BEGINS: Final = b"eyJ"  # {" in base64
_DOTS: Final = 2
_BAD: Final = (jwt.PyJWTError, ValueError, TypeError, OverflowError, RecursionError, InvalidField)


class _NoSuchKey(Exception):
    """No key is there that a token may have been signed with."""


@dataclass(frozen=True, slots=True)
class JwtSettings:
    """What a token has to say. `issuer`, `audience` and `acl_claim` empty: none. Sizes in bytes, times in seconds."""

    algorithms: tuple[str, ...] = ("RS256", "ES256", "EdDSA")
    issuer: str = ""
    audience: str = ""
    tenant_claim: str = "tenant"
    user_claim: str = "sub"
    acl_claim: str = "acl"
    leeway_s: int = 5
    token_bytes_max: int = 8192


class JwtTokens(Tokens):
    """Tokens that are signed with keys of `keys`."""

    def __init__(self, keys: KeySource, settings: JwtSettings, names: ByPrefix) -> None:
        super().__init__()
        self._keys = keys
        self._settings = settings
        self._names = names
        # Tokens of one issuer bring the same rules, with %u and %c in them: their trees are there once.
        self._policies: WeakValueDictionary[tuple[Rule, ...], Policy] = WeakValueDictionary()
        self._making = threading.Lock()

    def looks_like(self, password: bytes) -> bool:
        return password.startswith(_BEGINS) and password.count(b".") == _DOTS

    def verify(self, tenant: str, user: str, token: bytes) -> TokenClaims | str:
        settings = self._settings
        if len(token) > settings.token_bytes_max or not _is_spelled_right(token):
            return WRONG
        try:
            header = jwt.get_unverified_header(token)
            algorithm, kid = header.get("alg"), header.get("kid", "")
            if algorithm not in settings.algorithms or not isinstance(kid, str) or "crit" in header:
                return WRONG
            claims = self._claims(token, str(algorithm), kid)
            return WRONG if claims is None else self._bound(claims, tenant, self._names.user_of(user))
        except jwt.ExpiredSignatureError:
            return EXPIRED
        except jwt.ImmatureSignatureError:
            return EARLY
        except _NoSuchKey:
            return self._without_key()
        except _BAD:
            return WRONG

    def close(self) -> None:
        self._keys.close()

    def _claims(self, token: bytes, algorithm: str, kid: str) -> dict[str, Any] | None:
        """Return the claims of a token that one of the keys has signed, None if none has. Raises PyJWTError,
        _NoSuchKey."""
        settings = self._settings
        fitting = [
            one for one in self._keys.keys if algorithm in one.algorithms and (not kid or one.kid == kid)
        ]
        if not fitting:
            raise _NoSuchKey
        for one in fitting:
            try:
                found: dict[str, Any] = jwt.decode(
                    token,
                    one.key,
                    algorithms=[algorithm],
                    audience=settings.audience or None,
                    issuer=settings.issuer or None,
                    leeway=settings.leeway_s,
                    options={"require": ["exp", settings.user_claim, settings.tenant_claim]},
                )
            except jwt.InvalidSignatureError:
                continue
            return found
        return None

    def _without_key(self) -> str:
        """Return what becomes of a token that names a key which is not there: it is wrong if the keys were read just now.
        Before they have been read once, or while they are to be read again, that cannot be told: it may be right."""
        if self._keys.are_fresh():
            return WRONG
        self._keys.look_again()
        return NO_TELLING

    def _bound(self, claims: dict[str, Any], tenant: str, user: str) -> TokenClaims | str:
        """Return what a token says, if it is of this tenant and user, and until when. The name has to be one that a user
        of the directory may have. Raises InvalidField, ValueError, OverflowError."""
        settings = self._settings
        until = claims["exp"]
        if isinstance(until, bool) or not isinstance(until, int | float):
            return WRONG
        if (
            claims[settings.tenant_claim] != tenant
            or claims[settings.user_claim] != user
            or not user_name(user)
        ):
            return WRONG
        brought = claims.get(settings.acl_claim) if settings.acl_claim else None
        policy = None if brought is None else self._policy(tuple(rules_of(tenant, brought)))
        return TokenClaims(float(int(until) + settings.leeway_s), policy)

    def _policy(self, rules: tuple[Rule, ...]) -> Policy:
        """Return the trees of some rules, which all have in common who bring the same now."""
        with self._making:
            found = self._policies.get(rules)
            if found is None:
                found = self._policies[rules] = Policy(rules)
            return found


def _is_spelled_right(token: bytes) -> bool:
    """Return whether the parts of a token are base64url as RFC 7515 writes it, which spells the same bytes in one way
    alone: no padding, nothing in between that a reader passes over, no bits behind the last byte."""
    try:
        return all(
            base64.b64encode(base64.b64decode(part + b"==", b"-_"), b"-_").rstrip(b"=") == part
            for part in token.split(b".")
        )
    except ValueError:
        return False


def rules_of(tenant: str, brought: object) -> list[Rule]:
    """Return the rules of an acl claim: a list of {"allow" or "deny": ACTIONS, "filter": FILTER}, where ACTIONS are as in
    `headrace acl add`, or a list. Raises InvalidField: who cannot read a rule must not pass over it."""
    if not isinstance(brought, list) or len(brought) > RULES_MAX:
        raise InvalidField("acl", f"is a list of {RULES_MAX} rules at most")
    return [_rule(tenant_name(tenant), at, one) for at, one in enumerate(brought)]


def _rule(tenant: str, number: int, one: object) -> Rule:
    if not isinstance(one, Mapping) or len(one) != 2 or "filter" not in one:
        raise InvalidField("acl", "a rule is allow or deny, and a filter")
    effect = ALLOW if ALLOW in one else DENY
    wanted, filtered = one.get(effect), one["filter"]
    if isinstance(wanted, str):
        wanted = list(ACTIONS) if wanted == "all" else wanted.split(",")
    if not isinstance(wanted, list) or not wanted or not all(name in ACTIONS for name in wanted):
        raise InvalidField("acl", f"{effect} is some of {', '.join(ACTIONS)}")
    if not isinstance(filtered, str) or len(filtered.encode("utf-8", "replace")) > FILTER_BYTES_MAX:
        raise InvalidField("acl", f"a filter is a text of {FILTER_BYTES_MAX} bytes at most")
    return Rule(tenant, number, effect, tuple(wanted), topic_filter(filtered))
