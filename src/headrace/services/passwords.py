"""The password file: `user:hash` lines, written by `headrace passwd`, and those of mosquitto_passwd.

Hashes::

    $argon2id$v=19$m=19456,t=2,p=1$<salt>$<hash>     ours: 19 MiB, two passes, one lane
    $7$<iterations>$<salt>$<hash>                    Mosquitto 2: PBKDF2 with SHA-512, base64
    $6$<salt>$<hash>                                 Mosquitto 1: SHA-512 of password and salt, base64

`verify` takes tens of milliseconds on purpose and runs on threads; `remembered` answers for a password that was
verified before, by a keyed digest that never leaves this process.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import hmac
import os
import tempfile
from pathlib import Path

from argon2 import PasswordHasher
from argon2.exceptions import Argon2Error, InvalidHashError

from headrace.errors import ConfigError

REMEMBERED_MAX = 100_000
_hasher = PasswordHasher(time_cost=2, memory_cost=19 * 1024, parallelism=1)


class InvalidPasswordFile(ConfigError):
    """A line of the password file cannot be understood. The message has its number, never the line."""


class PasswordFile:
    """One reading of the file."""

    def __init__(self, hashes: dict[str, str]) -> None:
        self._hashes = hashes
        self._secret = os.urandom(32)
        self._remembered: dict[str, bytes] = {}

    def remembered(self, user: str, password: bytes) -> bool:
        """True if this very password was verified before. Fast."""
        known = self._remembered.get(user)
        return known is not None and hmac.compare_digest(known, self._digest(password))

    def verify(self, user: str, password: bytes) -> bool:
        """Slow; releases the interpreter lock. An unknown user takes as long as a known one."""
        found = self._hashes.get(user)
        if found is None:
            matches_hash(_NOBODY, password)
            return False
        if not matches_hash(found, password):
            return False
        if len(self._remembered) >= REMEMBERED_MAX:
            self._remembered.clear()
        self._remembered[user] = self._digest(password)
        return True

    def _digest(self, password: bytes) -> bytes:
        return hashlib.blake2b(password, key=self._secret).digest()


def hash_password(password: bytes) -> str:
    return _hasher.hash(password)


_NOBODY = hash_password(os.urandom(16))


def matches_hash(hashed: str, password: bytes) -> bool:
    """Raises nothing: what cannot be understood matches nothing."""
    try:
        if hashed.startswith("$argon2"):
            return _hasher.verify(hashed, password)
        if hashed.startswith("$7$"):
            _, _, iterations, salt, wanted = hashed.split("$")
            found = hashlib.pbkdf2_hmac("sha512", password, _decode(salt), int(iterations))
        elif hashed.startswith("$6$"):
            _, _, salt, wanted = hashed.split("$")
            found = hashlib.sha512(password + _decode(salt)).digest()
        else:
            return False
        return hmac.compare_digest(found, _decode(wanted))
    except (Argon2Error, InvalidHashError, ValueError):
        return False


def _decode(text: str) -> bytes:
    return base64.b64decode(text, validate=True)


def read_hashes(file: Path) -> dict[str, str]:
    """User -> hash. Raises InvalidPasswordFile, OSError."""
    hashes: dict[str, str] = {}
    for number, line in enumerate(file.read_text(encoding="utf-8").splitlines(), 1):
        if not line.strip() or line.startswith("#"):
            continue
        user, colon, hashed = line.strip().partition(":")
        if not user or not colon or not hashed.startswith(("$argon2", "$7$", "$6$")):
            raise InvalidPasswordFile(f"{file}, line {number}: not of the form user:hash with a known hash")
        hashes[user] = hashed
    return hashes


def write_hashes(file: Path, hashes: dict[str, str]) -> None:
    """Replace the file at once; it keeps its mode, a new one is readable by its owner only."""
    mode = file.stat().st_mode & 0o777 if file.exists() else 0o600
    handle, fresh = tempfile.mkstemp(dir=file.parent, prefix=f".{file.name}.")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as out:
            out.writelines(f"{user}:{hashed}\n" for user, hashed in hashes.items())
            out.flush()
            os.fsync(out.fileno())
        os.chmod(fresh, mode)
        os.replace(fresh, file)
    except OSError:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(fresh)
        raise
