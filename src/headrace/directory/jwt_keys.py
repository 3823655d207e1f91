"""The keys of a JWK Set (RFC 7517) that tokens are signed with, each with the algorithms that it may be used for.

Which these are follows from the kind of the key and from what the key says of itself, never from a token: a public RSA
key is no secret of HMAC, whatever the header of a token says. Pure.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from jwt.algorithms import ECAlgorithm, HMACAlgorithm, OKPAlgorithm, RSAAlgorithm

KEYS_MAX: Final = 64
_ODD_NAMED_MAX: Final = 3  # keys that cannot be used, where none can
_NAME_MAX: Final = 64  # characters of a kid or an alg in a message
_REASON_MAX: Final = 200
RSA_BITS_LEAST: Final = 2048
_SECRET_BYTES_LEAST: Final = {"HS256": 32, "HS384": 48, "HS512": 64}  # RFC 7518, section 3.2
_CURVES: Final = {"P-256": "ES256", "P-384": "ES384", "P-521": "ES512"}
_RSA: Final = ("RS256", "RS384", "RS512")
_EDWARDS: Final = ("Ed25519", "Ed448")
ALGORITHMS: Final = (*_SECRET_BYTES_LEAST, *_RSA, *_CURVES.values(), "EdDSA")


class UnusableKeys(ValueError):
    """A JWK Set cannot be used. The message says which of its keys, and why."""


@dataclass(frozen=True, slots=True)
class VerifyingKey:
    """A key that tokens are verified with. `kid` is empty where it has no name."""

    kid: str
    algorithms: tuple[str, ...]
    key: Any


def pass_over(_: str) -> None:
    """Tell nobody of a key that is left out."""


def keys_of(text: bytes, left_out: Callable[[str], object] = pass_over) -> tuple[VerifyingKey, ...]:
    """Return the keys of a JWK Set that verify signatures. Those for something else are left out, and so is one that
    cannot be used, of which `left_out` is told (RFC 7517, section 5): an issuer may have added one of a new kind. Raises
    UnusableKeys where no key is left, or a private one is among them."""
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        raise UnusableKeys("it is not JSON") from None
    entries = found.get("keys") if isinstance(found, dict) else None
    if not isinstance(entries, list):
        raise UnusableKeys('it is no JWK Set, which is {"keys": [...]}')
    if len(entries) > KEYS_MAX:
        raise UnusableKeys(f"it has more than {KEYS_MAX} keys")
    for at, entry in enumerate(entries):
        _check_public(at, entry)
    keys, odd = list[VerifyingKey](), list[str]()
    for at, entry in enumerate(entries):
        try:
            keys += [_key(at, entry)] if _is_for_signatures(at, entry) else []
        except UnusableKeys as error:
            odd.append(str(error))
    if not keys:
        raise UnusableKeys("; ".join(["none of its keys verifies signatures", *odd[:_ODD_NAMED_MAX]]))
    for one in odd:
        left_out(one)
    return tuple(keys)


def _check_public(at: int, entry: object) -> None:
    """Refuse an entry that has what its owner alone should have. Raises UnusableKeys."""
    if not isinstance(entry, dict):
        return
    if entry.get("kty") != "oct" and "d" in entry:
        raise UnusableKeys(f"key {at} is a private key: the public part is enough, and all that may be here")


def _is_for_signatures(at: int, entry: object) -> bool:
    """Return whether an entry may be used for signatures, as far as it says so (RFC 7517, sections 4.2 and 4.3). Raises
    UnusableKeys."""
    if not isinstance(entry, dict):
        raise UnusableKeys(f"key {at} is no object")
    operations = entry.get("key_ops")
    allowed = operations is None or (isinstance(operations, list) and "verify" in operations)
    return entry.get("use", "sig") == "sig" and allowed and entry.get("kty") in ("oct", "RSA", "EC", "OKP")


def _key(at: int, entry: dict[str, Any]) -> VerifyingKey:
    kid = entry.get("kid", "")
    name = f"key {kid[:_NAME_MAX]!r}" if kid and isinstance(kid, str) else f"key {at}"
    if not isinstance(kid, str):
        raise UnusableKeys(f"key {at} has a kid that is no text")
    kind = entry["kty"]
    try:
        key, algorithms = _READ[kind](entry)
    except UnusableKeys as error:
        raise UnusableKeys(f"{name} {error}") from None
    except Exception as error:  # noqa: BLE001  of libraries, about what a stranger wrote: it costs this key alone
        raise UnusableKeys(f"{name} cannot be read: {str(error)[:_REASON_MAX]}") from None
    wanted = entry.get("alg")
    if wanted is not None:
        algorithms = tuple(one for one in algorithms if one == wanted)
        if not algorithms:
            raise UnusableKeys(f"{name} cannot be used for its alg, {str(wanted)[:_NAME_MAX]!r}")
    return VerifyingKey(kid, algorithms, key)


def _secret(entry: dict[str, Any]) -> tuple[Any, tuple[str, ...]]:
    key = HMACAlgorithm.from_jwk(entry)
    algorithms = tuple(name for name, least in _SECRET_BYTES_LEAST.items() if len(key) >= least)
    if not algorithms:
        raise UnusableKeys(f"is a secret of {len(key)} bytes: 32 are the least")
    return key, algorithms


def _rsa(entry: dict[str, Any]) -> tuple[Any, tuple[str, ...]]:
    key: Any = RSAAlgorithm.from_jwk(entry)
    if key.key_size < RSA_BITS_LEAST:
        raise UnusableKeys(f"has {key.key_size} bits: {RSA_BITS_LEAST} are the least")
    return key, _RSA


def _curve(entry: dict[str, Any]) -> tuple[Any, tuple[str, ...]]:
    algorithm = _CURVES.get(entry["crv"])
    if algorithm is None:
        raise UnusableKeys(f"is on a curve that is none of {', '.join(_CURVES)}")
    return ECAlgorithm.from_jwk(entry), (algorithm,)


def _edwards(entry: dict[str, Any]) -> tuple[Any, tuple[str, ...]]:
    if entry["crv"] not in _EDWARDS:
        raise UnusableKeys(f"is on a curve that is none of {', '.join(_EDWARDS)}")
    return OKPAlgorithm.from_jwk(entry), ("EdDSA",)


_READ: Final = {"oct": _secret, "RSA": _rsa, "EC": _curve, "OKP": _edwards}
