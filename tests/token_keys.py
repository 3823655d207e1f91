"""Keys that tokens are signed with in tests, and tokens of them."""

from __future__ import annotations

import base64
import json
import time
from typing import Any, Final

import jwt
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from jwt.algorithms import ECAlgorithm, OKPAlgorithm, RSAAlgorithm

DAY_S: Final = 86_400  # tokens are made when tests are collected, too
SECRET: Final = bytes(range(64))
RSA: Final = rsa.generate_private_key(public_exponent=65537, key_size=2048)
P256: Final = ec.generate_private_key(ec.SECP256R1())
P384: Final = ec.generate_private_key(ec.SECP384R1())
ED25519: Final = ed25519.Ed25519PrivateKey.generate()
OTHER: Final = ed25519.Ed25519PrivateKey.generate()
PRIVATE: Final[dict[str, Any]] = {
    "HS256": SECRET,
    "RS256": RSA,
    "RS512": RSA,
    "ES256": P256,
    "ES384": P384,
    "EdDSA": ED25519,
}


def jwk_of_secret(secret: bytes, **more: str) -> dict[str, Any]:
    return {"kty": "oct", "k": base64.urlsafe_b64encode(secret).rstrip(b"=").decode(), **more}


def public(key: Any, **more: str) -> dict[str, Any]:
    """The JWK of the public part of a key."""
    kinds = {rsa.RSAPrivateKey: RSAAlgorithm, ec.EllipticCurvePrivateKey: ECAlgorithm}
    kind: Any = next((found for of, found in kinds.items() if isinstance(key, of)), OKPAlgorithm)
    return {**kind.to_jwk(key.public_key(), as_dict=True), **more}


def pem_of(key: Any) -> bytes:
    pem: bytes = key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    return pem


KEYS: Final = [
    jwk_of_secret(SECRET, kid="hs"),
    public(RSA, kid="rs"),
    public(P256, kid="es"),
    public(P384, kid="es384"),
    public(ED25519, kid="ed"),
]


def jwks(*keys: dict[str, Any]) -> bytes:
    return json.dumps({"keys": list(keys or KEYS)}).encode()


def token(
    algorithm: str = "EdDSA", key: Any = None, header: dict[str, Any] | None = None, **claims: Any
) -> bytes:
    """A token of gw of acme for a day, unless its claims say otherwise; None leaves one out."""
    found = {"tenant": "acme", "sub": "gw", "exp": int(time.time()) + DAY_S, **claims}
    said = {name: value for name, value in found.items() if value is not None}
    signed = PRIVATE[algorithm] if key is None else key
    return jwt.encode(said, signed, algorithm, headers=header).encode()


def part(value: object) -> bytes:
    return base64.urlsafe_b64encode(json.dumps(value).encode()).rstrip(b"=")
