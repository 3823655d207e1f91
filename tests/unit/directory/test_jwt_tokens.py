"""Which tokens let whom in: real keys, and everything that a token can be instead of right."""

from __future__ import annotations

import base64
import gc
import hashlib
import hmac
import json
import math
import time
from typing import Any

import jwt
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from headrace.core.ports.directory import NO_TELLING, TokenClaims
from headrace.directory.errors import InvalidField
from headrace.directory.jwt_keys import ALGORITHMS, keys_of
from headrace.directory.jwt_source import KeySource
from headrace.directory.jwt_tokens import EARLY, EXPIRED, WRONG, JwtSettings, JwtTokens, rules_of
from headrace.directory.policy import PUBLISH, SUBSCRIBE, Permissions, Policy
from headrace.directory.tenancy import ByPrefix
from token_keys import (
    DAY_S,
    KEYS,
    OTHER,
    P256,
    PRIVATE,
    RSA,
    SECRET,
    jwk_of_secret,
    jwks,
    part,
    pem_of,
    public,
    token,
)


class Keys(KeySource):
    """Keys that are there, and how often somebody wanted others."""

    def __init__(self, text: bytes) -> None:
        super().__init__("nowhere", 300, lambda _: None)
        self.keys = keys_of(text)
        self.wanted = 0
        self.fresh = True

    def are_fresh(self) -> bool:
        return self.fresh

    def look_again(self) -> None:
        self.wanted += 1


def tokens(text: bytes = b"", **said: Any) -> JwtTokens:
    made = JwtSettings(**{"algorithms": ALGORITHMS, **said})
    return JwtTokens(Keys(text or jwks()), made, ByPrefix("/", "default"))


def verify(value: bytes, tenant: str = "acme", user: str = "acme/gw", **said: Any) -> TokenClaims | str:
    return tokens(**said).verify(tenant, user, value)


@pytest.mark.parametrize("algorithm", list(PRIVATE))
@pytest.mark.parametrize("kid", [True, False])
def test_a_token_of_each_algorithm_lets_its_user_in(algorithm: str, kid: bool) -> None:
    kids = {"HS256": "hs", "RS256": "rs", "RS512": "rs", "ES256": "es", "ES384": "es384", "EdDSA": "ed"}
    value = token(algorithm, header={"kid": kids[algorithm]} if kid else None)
    assert tokens().looks_like(value)
    found = verify(value)
    assert isinstance(found, TokenClaims)
    assert DAY_S - 60 <= found.until_s - time.time() <= DAY_S + 6
    assert found.rules is None


@pytest.mark.parametrize(
    ("tenant", "user"), [("blue", "blue/gw"), ("acme", "acme/app"), ("acme", "acme/gw/x"), ("default", "gw")]
)
def test_it_lets_nobody_else_in(tenant: str, user: str) -> None:
    assert verify(token(), tenant, user) == WRONG


def test_of_the_default_tenant_both_names_of_a_user_are_one() -> None:
    for user in ("gw", "default/gw"):
        assert isinstance(verify(token(tenant="default"), "default", user), TokenClaims)


@pytest.mark.parametrize(
    ("claims", "why"),
    [
        ({"exp": int(time.time()) - 60}, EXPIRED),
        ({"exp": 0}, EXPIRED),
        ({"exp": None}, WRONG),
        ({"exp": "soon"}, WRONG),
        ({"exp": float("inf")}, WRONG),
        ({"exp": float("nan")}, WRONG),
        ({"exp": 10**400}, WRONG),  # no float is that large
        ({"exp": -(10**400)}, EXPIRED),
        ({"exp": str(int(time.time()) + DAY_S)}, WRONG),
        ({"exp": [int(time.time()) + DAY_S]}, WRONG),
        ({"nbf": 10**400}, EARLY),
        ({"iat": 10**400}, EARLY),
        ({"iat": {}}, WRONG),
        ({"jti": 5}, WRONG),
        ({"nbf": int(time.time()) + DAY_S}, EARLY),
        ({"nbf": "x"}, WRONG),
        ({"tenant": None}, WRONG),
        ({"tenant": ["acme"]}, WRONG),
        ({"sub": None}, WRONG),
        ({"sub": ""}, WRONG),
        ({"aud": "somebody"}, WRONG),
        ({"acl": "all"}, WRONG),
        ({"acl": [{"allow": "publish"}]}, WRONG),
        ({"acl": [{"allow": "fly", "filter": "a"}]}, WRONG),
        ({"acl": [{"allow": "publish", "filter": "a/#/b"}]}, WRONG),
        ({"acl": [{"allow": "publish", "deny": "publish", "filter": "a"}]}, WRONG),
        ({"acl": [{"allow": "publish", "filter": "a" * 1025}]}, WRONG),
        ({"acl": [{"allow": "publish", "filter": "a"}] * 65}, WRONG),
    ],
)
def test_what_is_wrong_with_its_claims_lets_nobody_in(claims: dict[str, Any], why: str) -> None:
    assert verify(token(**claims)) == why


@pytest.mark.parametrize("name", ["a\0b", "a\nb", "a\x7fb", "\ud800", "x" * 256, "\ufdd0", "a\u2028b"])
def test_no_name_that_no_user_can_have_comes_in_by_a_token(name: str) -> None:
    """What the directory would refuse to make is in no list, no rule and no line of a log either."""
    said = json.dumps({"tenant": "acme", "sub": name, "exp": int(time.time()) + DAY_S})
    claims = json.loads(said)
    assert tokens().verify("acme", f"acme/{name}", jwt.encode(claims, SECRET, "HS256").encode()) == WRONG


def test_names_that_mean_more_than_one_level_come_in_and_fill_in_nothing() -> None:
    """As with a password: `%u` is void for them (`services.filters`)."""
    for name in ("+", "#", "a/b", "/"):
        found = verify(token(sub=name, acl=[{"allow": "publish", "filter": "up/%u/x"}]), user=f"acme/{name}")
        assert isinstance(found, TokenClaims)
        assert isinstance(found.rules, Policy)
        may = Permissions(found.rules.trees(None, (), "c"), name, "c")
        assert not may.allows(PUBLISH, f"up/{name}/x")
        assert not may.allows(PUBLISH, "up/other/x")


ODD = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.sampled_from([10**400, -(10**400), 2**63, 2**64])
    | st.floats()
    | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)
NAMES = ("tenant", "sub", "exp", "nbf", "iat", "iss", "aud", "jti", "acl")


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.dictionaries(st.sampled_from(NAMES), ODD, max_size=4), st.booleans(), ODD, ODD)
def test_whatever_a_token_claims_there_is_an_answer(
    claims: dict[str, Any], is_asked_for: bool, algorithm: Any, kid: Any
) -> None:
    """Whoever holds a key may sign anything; nothing of it is an error on a thread."""
    said = {"tenant": "acme", "sub": "gw", "exp": int(time.time()) + DAY_S, **claims}
    asked: dict[str, Any] = {"issuer": "us", "audience": "hub"} if is_asked_for else {}
    made = tokens(**asked)
    for header in ({"alg": "HS256"}, {"alg": "HS256", "kid": kid}, {"alg": algorithm}):
        signing = part(header) + b"." + part(said)
        mac = hmac.new(SECRET, signing, hashlib.sha256).digest()
        value = signing + b"." + base64.urlsafe_b64encode(mac).rstrip(b"=")
        found = made.verify("acme", "acme/gw", value)
        assert isinstance(found, TokenClaims) or found in (WRONG, EXPIRED, EARLY)
        if isinstance(found, TokenClaims):
            assert math.isfinite(found.until_s)


def test_clocks_may_differ_a_little() -> None:
    now = int(time.time())
    assert isinstance(verify(token(exp=now - 3, nbf=now + 3)), TokenClaims)
    assert verify(token(exp=now - 3), leeway_s=0) == EXPIRED


def test_issuer_and_audience_are_asked_for_where_they_are_said() -> None:
    said = token(iss="us", aud=["hub", "x"])
    assert isinstance(verify(said, issuer="us", audience="hub"), TokenClaims)
    assert verify(said, issuer="them", audience="hub") == WRONG
    assert verify(said, issuer="us", audience="y") == WRONG
    assert verify(token(), issuer="us") == WRONG
    assert verify(token(), audience="hub") == WRONG


def forged(header: dict[str, Any], secret: bytes = b"") -> bytes:
    """A token with any header, and an HMAC of any secret."""
    claims = {"tenant": "acme", "sub": "gw", "exp": int(time.time()) + 3600}
    signing = part(header) + b"." + part(claims)
    mac = hmac.new(secret, signing, hashlib.sha256).digest() if secret else b""
    return signing + b"." + base64.urlsafe_b64encode(mac).rstrip(b"=")


@pytest.mark.parametrize(
    "algorithm", ["none", "None", "NONE", "nOnE", "", None, 5, ["HS256"], "PS256", "RS256"]
)
def test_no_token_without_a_signature(algorithm: object) -> None:
    assert verify(forged({"alg": algorithm, "typ": "JWT"})) == WRONG


@pytest.mark.parametrize("key", [RSA, P256])
@pytest.mark.parametrize("kid", [{}, {"kid": "rs"}, {"kid": "es"}, {"kid": "hs"}])
def test_no_public_key_is_a_secret(key: Any, kid: dict[str, str]) -> None:
    """Algorithm confusion: whoever knows a public key signs with its text by HMAC."""
    pem = pem_of(key)
    for secret in (pem, pem.strip(), pem_of(key).replace(b"\n", b"\r\n")):
        assert verify(forged({"alg": "HS256", **kid}, secret)) == WRONG
    only = jwks(public(key, **({"kid": "rs"} if kid else {})))
    assert tokens(only).verify("acme", "acme/gw", forged({"alg": "HS256", **kid}, pem)) == WRONG


def test_a_secret_that_is_the_text_of_a_public_key_is_none() -> None:
    secret = pem_of(RSA)
    made = tokens(jwks(jwk_of_secret(secret)))
    assert made.verify("acme", "acme/gw", forged({"alg": "HS256"}, secret)) == WRONG


def changed(value: bytes, place: int) -> bytes:
    """Return a token of whose signature a letter is another one; its last may differ in bits that say nothing."""
    head, _, signature = value.rpartition(b".")
    letters = bytearray(signature)
    letters[place] = ord("B") if letters[place] == ord("A") else ord("A")
    return head + b"." + bytes(letters)


@pytest.mark.parametrize(
    "value",
    [
        token(key=OTHER),
        token(key=OTHER, header={"kid": "ed"}),
        token(header={"kid": "none"}),
        token("RS256", header={"kid": "ed"}),
        token(header={"crit": ["exp"]}),
        changed(token(), 5),
        changed(token(), -4),
        token().rsplit(b".", 1)[0] + b".",
        b"eyJ..",
        b"eyJ.eyJ.eyJ",
        b"eyJ\xff.a.b",
        part([]) + b"." + part([]) + b".",
        part({"alg": "EdDSA"}) + b"." + part("x") + b".AAAA",
        b"eyJ" + b"[" * 3000 + b".a.b",
        base64.urlsafe_b64encode(b'{"alg":' + b"[" * 4000) + b".a.b",
    ],
)
def test_wrong_keys_and_what_is_no_token(value: bytes) -> None:
    assert verify(value) == WRONG


def test_the_same_bytes_in_another_spelling_are_no_token() -> None:
    """A list of tokens that somebody stole, or a log, knows one by its text: it has to have one text."""
    right = token()
    signed, _, signature = right.rpartition(b".")
    alphabet = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"
    last = alphabet.index(signature[-1:])
    assert last % 16 == 0  # 64 bytes leave four bits of the last character that say nothing
    assert isinstance(verify(right), TokenClaims)
    for unused in range(1, 16):
        assert verify(right[:-1] + alphabet[last + unused : last + unused + 1]) == WRONG
    for other in (right + b"==", right + b"\n", signed + b".!" + signature, signed + b". " + signature):
        assert verify(other) == WRONG


def test_keys_that_a_token_brings_along_are_not_looked_at() -> None:
    brought = {"jwk": public(OTHER), "jku": "https://127.0.0.1:9/keys", "x5u": "https://127.0.0.1:9/x"}
    assert verify(token(key=OTHER, header=brought)) == WRONG


def test_a_huge_token_is_not_taken_apart() -> None:
    value = token(more="x" * 9000)
    assert verify(value) == WRONG
    assert isinstance(verify(value, token_bytes_max=20_000), TokenClaims)


def test_algorithms_that_are_not_wanted_are_refused_and_an_unknown_key_is_looked_for() -> None:
    assert verify(token("HS256"), algorithms=("EdDSA",)) == WRONG
    keys = Keys(jwks(KEYS[0]))
    made = JwtTokens(keys, JwtSettings(algorithms=ALGORITHMS), ByPrefix("/", "default"))
    assert made.verify("acme", "acme/gw", token(header={"kid": "ed"})) == WRONG
    assert keys.wanted == 0


@pytest.mark.parametrize("kid", [None, {"kid": "ed"}])
def test_a_key_that_may_be_there_by_now_is_no_reason_to_call_a_token_wrong(
    kid: dict[str, str] | None,
) -> None:
    """Its issuer has begun to sign with another key, or none was read yet: whoever has it is no guesser."""
    keys = Keys(jwks(KEYS[0]))
    made = JwtTokens(keys, JwtSettings(algorithms=ALGORITHMS), ByPrefix("/", "default"))
    right = token(header=kid)
    for known in (keys.keys, ()):
        keys.keys, keys.fresh, before = known, False, keys.wanted
        assert made.verify("acme", "acme/gw", right) == NO_TELLING
        assert keys.wanted == before + 1
    assert made.verify("acme", "acme/gw", forged({"alg": "none"})) == WRONG
    keys.keys, keys.fresh = keys_of(jwks()), True
    assert isinstance(made.verify("acme", "acme/gw", right), TokenClaims)
    assert made.verify("acme", "acme/gw", token(header={"kid": "none"})) == WRONG


def test_the_trees_of_the_same_rules_are_there_once_and_go_with_the_last_of_their_tokens() -> None:
    """They may take a megabyte, of each connection of a fleet, and of each client id that has left."""
    lets_in = tokens()

    def rules(topic: str, **said: Any) -> object:
        value = token(acl=[{"allow": "publish", "filter": topic}], **said)
        found = lets_in.verify(said.get("tenant", "acme"), f"{said.get('tenant', 'acme')}/gw", value)
        assert isinstance(found, TokenClaims)
        return found.rules

    first = rules("up/%u/#")
    assert rules("up/%u/#", jti="another") is first
    assert rules("down/%u/#") is not first
    assert rules("up/%u/#", tenant="blue") is not first  # %t is another one
    del first
    gc.collect()
    assert len(lets_in._policies) == 0


def test_rules_of_a_token_are_those_of_acl_add() -> None:
    found = verify(
        token(
            acl=[{"allow": "publish,retain", "filter": "up/%u/#"}, {"deny": ["subscribe"], "filter": "%t/#"}]
        )
    )
    assert isinstance(found, TokenClaims)
    assert isinstance(found.rules, Policy)
    may = Permissions(found.rules.trees(None, (), "c"), "gw", "c")
    assert may.allows(PUBLISH, "up/gw/x")
    assert not may.allows(PUBLISH, "up/other/x")
    assert not may.allows(SUBSCRIBE, "acme/x")
    assert [rule.actions for rule in rules_of("acme", [{"allow": "all", "filter": "#"}])] == [
        ("publish", "subscribe", "retain")
    ]
    several: list[object] = [{}, [5], [{"filter": "a"}], [{"allow": [], "filter": "a"}]]
    for wrong in (*several, [{"allow": "publish", "filter": 5}]):
        with pytest.raises(InvalidField):
            rules_of("acme", wrong)


@pytest.mark.parametrize("password", [b"", b"eyJ", b"eyJ.a", b"a.b.c", b"secret"])
def test_passwords_are_no_tokens(password: bytes) -> None:
    assert not tokens().looks_like(password)
