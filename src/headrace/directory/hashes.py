"""Hashes of passwords: ours, Mosquitto's, and those that other brokers and their plug-ins leave behind.

    $argon2id$v=19$m=19456,t=2,p=1$SALT$HASH         ours; other parameters come in by an import
    $7$ITERATIONS$SALT$HASH, $6$SALT$HASH            of mosquitto_passwd
    $2a$, $2b$, $2y$ COST$SALT-AND-HASH              bcrypt; of a password its first 72 bytes count
    $pbkdf2-sha256$ROUNDS$SALT$HASH                  passlib's, sha512 and sha1 too
    PBKDF2$sha512$ROUNDS$SALT$HASH                   of mosquitto-go-auth and mosquitto-auth-plug

The *cost* of a hash is its scheme with its parameters: two hashes of one cost take the same time. Costs are bounded, so
that no import makes a login take minutes.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import os
import re
from typing import Final

from headrace.directory.errors import InvalidField
from headrace.directory.names import HASH_BYTES_MAX
from headrace.services.passwords import hash_password, matches_hash

ROUNDS_MAX: Final = 2_000_000
BCRYPT_COST_MAX: Final = 15
ARGON_KIB_MAX: Final = 256 * 1024
ARGON_PASSES_MAX: Final = 16
_BCRYPT: Final = re.compile(r"\$2[aby]\$(\d\d)\$[./A-Za-z0-9]{53}")
_BCRYPT_BYTES: Final = 72
_PBKDF2: Final = re.compile(
    r"(?:\$pbkdf2(?:-(sha256|sha512))?|PBKDF2\$(sha1|sha256|sha512))\$([0-9]{1,8})\$([^$]+)\$([^$]+)"
)
_ARGON: Final = re.compile(
    r"\$argon2(?:id|i|d)\$v=19\$m=([0-9]{1,8}),t=([0-9]{1,4}),p=([0-9]{1,3})\$[A-Za-z0-9+/]{8,}\$[A-Za-z0-9+/]{8,}"
)
_MOSQUITTO: Final = re.compile(r"\$(?:7\$([0-9]{1,8})|6)\$[A-Za-z0-9+/=]+\$[A-Za-z0-9+/=]+")
OURS: Final = "$argon2id$v=19$m=19456,t=2,p=1"


def hashed(password: bytes) -> str:
    """Return our hash of a password. Slow; releases the interpreter lock."""
    return hash_password(password)


def cost_of(hashed: str) -> str:
    """Return scheme and parameters of a hash: what is in front of salt and digest."""
    return hashed[:7] if _is_bcrypt(hashed) else hashed.rsplit("$", 2)[0]


def nobody_of(cost: str) -> str:
    """Return a hash of this cost that no password has."""
    if _is_bcrypt(cost):
        return f"{cost}{'.' * 22}{_letters(31)}"
    if cost.startswith(("$pbkdf2", "PBKDF2")):
        ours = cost.startswith("PBKDF2")
        salt, digest = (_encoded(os.urandom(count), padded=ours) for count in (16, _digest_bytes(cost)))
        return f"{cost}${salt}${digest}"
    padded = not cost.startswith("$argon2")
    return f"{cost}${_encoded(os.urandom(16), padded)}${_encoded(os.urandom(64), padded)}"


def checked_hash(text: str, field: str = "hash") -> str:
    """Return a hash that is known and not too dear as it is. Raises InvalidField, which has no part of it."""
    if len(text) > HASH_BYTES_MAX or not text.isascii():
        raise InvalidField(field, "is of no known form")
    if bcrypt := _BCRYPT.fullmatch(text):
        _bound(field, 4, int(bcrypt[1]), BCRYPT_COST_MAX)
    elif pbkdf2 := _PBKDF2.fullmatch(text):
        _bound(field, 1, int(pbkdf2[3]), ROUNDS_MAX)
        try:
            _parts(text)
        except ValueError:
            raise InvalidField(field, "is of no known form") from None
    elif argon := _ARGON.fullmatch(text):
        memory, passes, lanes = (int(part) for part in argon.groups())
        _bound(field, 8 * lanes, memory, ARGON_KIB_MAX)
        _bound(field, 1, passes, ARGON_PASSES_MAX)
        _bound(field, 1, lanes, 64)
    elif mosquitto := _MOSQUITTO.fullmatch(text):
        _bound(field, 1, int(mosquitto[1] or 1), ROUNDS_MAX)
    else:
        raise InvalidField(field, "is of no known form")
    return text


def matches(hashed: str, password: bytes) -> bool:
    """Return whether a password has this hash. Slow; raises nothing: what cannot be understood matches nothing."""
    try:
        if _is_bcrypt(hashed):
            import bcrypt  # of the extra, like the database

            return bcrypt.checkpw(password[:_BCRYPT_BYTES], hashed.encode())
        if hashed.startswith(("$pbkdf2", "PBKDF2$")):
            name, rounds, salt, wanted = _parts(hashed)
            found = hashlib.pbkdf2_hmac(name, password, salt, rounds, len(wanted))
            return hmac.compare_digest(found, wanted)
    except ValueError:
        return False
    return matches_hash(hashed, password)


def _bound(field: str, least: int, value: int, most: int) -> None:
    if not least <= value <= most:
        raise InvalidField(field, f"has a cost of {value}, and {least} to {most} is accepted")


def _is_bcrypt(hashed: str) -> bool:
    return hashed.startswith(("$2a$", "$2b$", "$2y$"))


def _parts(hashed: str) -> tuple[str, int, bytes, bytes]:
    """Return algorithm, rounds, salt and digest of a PBKDF2 hash. Raises ValueError."""
    found = _PBKDF2.fullmatch(hashed)
    if found is None:
        raise ValueError("no PBKDF2 hash")
    name = found[1] or found[2] or "sha1"
    if not hashed.startswith("PBKDF2"):
        return name, int(found[3]), _decoded(found[4]), _decoded(found[5])
    return name, int(found[3]), found[4].encode(), base64.b64decode(found[5], validate=True)


def _decoded(text: str) -> bytes:
    """Return the bytes of passlib's base64: a dot for a plus, no padding. Raises ValueError."""
    return base64.b64decode(text.replace(".", "+") + "=" * (-len(text) % 4), validate=True)


def _encoded(raw: bytes, padded: bool) -> str:
    found = base64.b64encode(raw).decode("ascii")
    return found if padded else found.rstrip("=")


def _digest_bytes(cost: str) -> int:
    return 64 if "sha512" in cost else 32 if "sha256" in cost else 20


def _letters(count: int) -> str:
    return "".join("./0123456789abcdefghijklmnopqrstuvwxyz"[one % 38] for one in os.urandom(count))
