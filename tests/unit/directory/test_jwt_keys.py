"""Which keys of a JWK Set are taken, and what each may verify."""

from __future__ import annotations

import json
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from jwt.algorithms import RSAAlgorithm

from headrace.directory.jwt_keys import KEYS_MAX, UnusableKeys, keys_of
from token_keys import ED25519, KEYS, RSA, jwk_of_secret, jwks, public


def test_a_key_is_for_the_algorithms_of_its_kind_alone() -> None:
    assert {key.kid: key.algorithms for key in keys_of(jwks())} == {
        "hs": ("HS256", "HS384", "HS512"),
        "rs": ("RS256", "RS384", "RS512"),
        "es": ("ES256",),
        "es384": ("ES384",),
        "ed": ("EdDSA",),
    }
    assert keys_of(jwks(jwk_of_secret(bytes(32))))[0].algorithms == ("HS256",)
    assert keys_of(jwks(public(RSA, alg="RS512")))[0].algorithms == ("RS512",)


def test_keys_for_something_else_are_left_out() -> None:
    others = public(RSA, use="enc"), {**public(RSA), "key_ops": ["encrypt"]}, {"kty": "new"}
    assert [key.kid for key in keys_of(jwks(*others, public(ED25519, kid="a", use="sig")))] == ["a"]
    with pytest.raises(UnusableKeys, match="none of its keys"):
        keys_of(jwks(*others))


@pytest.mark.parametrize(
    ("entry", "why"),
    [
        (public(RSA, alg="HS256", kid="x"), "'x' cannot be used for its alg, 'HS256'"),
        (RSAAlgorithm.to_jwk(RSA, as_dict=True), "key 0 is a private key"),
        (public(rsa.generate_private_key(public_exponent=65537, key_size=1024)), "1024 bits"),
        (public(ec.generate_private_key(ec.SECP256K1())), "on a curve that is none of"),
        (jwk_of_secret(bytes(31)), "a secret of 31 bytes"),
        ({"kty": "oct"}, "cannot be read"),
        ({**public(RSA), "n": "%"}, "cannot be read"),
        ({**public(ED25519), "x": "AA"}, "cannot be read"),
        ({**public(ED25519), "kid": 5}, "no text"),
        (5, "key 0 is no object"),
    ],
)
def test_a_key_that_cannot_be_used_is_named(entry: Any, why: str) -> None:
    with pytest.raises(UnusableKeys, match=why):
        keys_of(jwks(entry))


ODD = [
    public(RSA, alg="HS256", kid="x"),
    public(ec.generate_private_key(ec.SECP256K1()), kid="bitcoin"),
    jwk_of_secret(b"short"),
    {"kty": "oct", "k": 5},
    {"kty": "OKP"},
    {"kty": "EC", "crv": ["P-256"]},
    {"kty": "EC", "crv": "P-256", "x": "AAAA", "y": "AAAA"},
    {**public(RSA), "n": {}},
    {**public(RSA), "e": "AA"},
    {**public(ED25519), "kid": ["a"]},
    {**public(ED25519), "alg": {"a": 1}},
    5,
    None,
    "key",
]


@pytest.mark.parametrize("entry", ODD, ids=str)
def test_a_key_that_cannot_be_used_leaves_the_others(entry: Any) -> None:
    """An issuer that adds a kind of key must not shut out everybody whose token another key has signed."""
    said = list[str]()
    assert [key.kid for key in keys_of(jwks(entry, KEYS[0]), said.append)] == ["hs"]
    assert len(said) == 1
    assert len(said[0]) < 500


def test_a_private_key_is_refused_whatever_else_is_there() -> None:
    private = RSAAlgorithm.to_jwk(RSA, as_dict=True)
    with pytest.raises(UnusableKeys, match="key 1 is a private key"):
        keys_of(jwks(KEYS[0], private))


@pytest.mark.parametrize(
    "text",
    [b"", b"{}", b"[]", b"null", b'{"keys": 5}', b'{"keys": [5]}', b'{"keys": []}', b"\xff", b"[" * 100_000],
)
def test_what_is_no_jwk_set_is_refused(text: bytes) -> None:
    with pytest.raises(UnusableKeys):
        keys_of(text)


def test_there_are_not_too_many() -> None:
    with pytest.raises(UnusableKeys, match="more than"):
        keys_of(json.dumps({"keys": [KEYS[0]] * (KEYS_MAX + 1)}).encode())
