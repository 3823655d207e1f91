"""The password file: `user:hash` lines, written by `headrace passwd`, and those of mosquitto_passwd.

Hashes::

    $argon2id$v=19$m=19456,t=2,p=1$<salt>$<hash>     ours: 19 MiB, two passes, one lane
    $7$<iterations>$<salt>$<hash>                    Mosquitto 2: PBKDF2 with SHA-512, base64
    $6$<salt>$<hash>                                 Mosquitto 1: SHA-512 of password and salt, base64

`verify` takes tens of milliseconds on purpose and runs on threads; `remembered` answers for a password that was
verified before, by a keyed digest that never leaves this process.

How long `verify` takes does not tell which users there are: whoever asks, it does one hash of each cost that the file has
and one of ours, and only one of them, if any, is the user's own.
"""

from __future__ import annotations

import base64
import fcntl
import hashlib
import hmac
import os
import time
import unicodedata
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from argon2 import PasswordHasher
from argon2.exceptions import Argon2Error, InvalidHashError

from headrace.core.ports.directory import Secrets
from headrace.errors import ConfigError
from headrace.ownership import replace_secret

REMEMBER_S = 3600.0
COSTS_MAX = 3  # of a file, beside our own: the most frequent ones
_hasher = PasswordHasher(time_cost=2, memory_cost=19 * 1024, parallelism=1)
_OUR_COST = f"$argon2id$v=19$m={_hasher.memory_cost},t={_hasher.time_cost},p={_hasher.parallelism}"


class InvalidPasswordFile(ConfigError):
    """A line of the password file cannot be understood. The message has its number, never the line."""


class PasswordFile(Secrets):
    """One reading of the password file. A verified password is remembered for `remember_s`, and over a new reading of
    the file if the user's line is the same."""

    def __init__(
        self,
        hashes: dict[str, str],
        remember_s: float = REMEMBER_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__()
        self._hashes = hashes
        self._remember_s = remember_s
        self._clock = clock
        self._secret = os.urandom(32)
        self._remembered: dict[str, tuple[bytes, float]] = {}  # of users in the file alone, which bounds it
        self._costs = {_OUR_COST: _nobody(_OUR_COST)}
        others = Counter(map(_cost, hashes.values()))
        del others[_OUR_COST]
        for cost, _ in others.most_common(COSTS_MAX):
            self._costs[cost] = _nobody(cost)

    def knows(self, user: str) -> bool:
        return user in self._hashes

    def line(self, user: str) -> str | None:
        """Return the user's hash, which is another one for every change of the password."""
        return self._hashes.get(user)

    def same_line(self, user: str, other: PasswordFile) -> bool:
        """Return whether both readings have the same hash for the user."""
        return self._hashes.get(user) == other._hashes.get(user)

    def take_over(self, before: PasswordFile) -> None:
        """Take over what an earlier reading remembered of users whose line is the same."""
        self._secret = before._secret
        self._remembered = {
            user: known for user, known in before._remembered.items() if self.same_line(user, before)
        }

    def remembered(self, user: str, password: bytes) -> bool:
        """Return True if this very password was verified lately. Fast, and as fast for users that there are not."""
        digest = self._digest(password)
        known, at = self._remembered.get(user, (b"", 0.0))
        return hmac.compare_digest(known, digest) and self._clock() - at < self._remember_s

    def remember(self, user: str, password: bytes) -> None:
        """Note that a password was verified just now."""
        if user in self._hashes and self._remember_s:
            self._remembered[user] = self._digest(password), self._clock()

    def verify(self, user: str, password: bytes) -> bool:
        """Return whether the password is the user's. Slow; releases the interpreter lock. It takes as long for every
        user, known or not."""
        own = self._hashes.get(user)
        own_cost = "" if own is None else _cost(own)
        right = False
        for cost, nobody in self._costs.items():
            if own is not None and cost == own_cost:
                right = matches_hash(own, password)
            else:
                matches_hash(nobody, password)
        if own is not None and own_cost not in self._costs:
            right = matches_hash(own, password)
        return right

    def _digest(self, password: bytes) -> bytes:
        return hashlib.blake2b(password, key=self._secret).digest()


def _cost(hashed: str) -> str:
    """Return scheme and parameters of a hash: what is in front of salt and digest."""
    return hashed.rsplit("$", 2)[0]


def _nobody(cost: str) -> str:
    """Return a hash of this cost that no password has."""
    salt, digest = (base64.b64encode(os.urandom(count)).decode() for count in (16, 64))
    if cost.startswith("$argon2"):
        salt, digest = salt.rstrip("="), digest.rstrip("=")
    return f"{cost}${salt}${digest}"


def hash_password(password: bytes) -> str:
    return _hasher.hash(password)


def matches_hash(hashed: str, password: bytes) -> bool:
    """Return whether a password has this hash. Raises nothing: what cannot be understood matches nothing."""
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


def is_user_name(name: str) -> bool:
    """Return whether a line of the file can hold it, for every reader of such files."""
    if not name or ":" in name or name != name.strip() or name.startswith("#"):
        return False
    return not any(unicodedata.category(character) in ("Cc", "Cs", "Zl", "Zp") for character in name)


def read_hashes(file: Path) -> dict[str, str]:
    """Return the hash of each user. Raises InvalidPasswordFile, OSError."""
    hashes: dict[str, str] = {}
    for number, line in enumerate(_lines(file), 1):
        line = line.strip(" \t\r")
        if not line or line.startswith("#"):
            continue
        user, colon, hashed = line.partition(":")
        if not user or not colon or not hashed.startswith(("$argon2", "$7$", "$6$")):
            raise InvalidPasswordFile(f"{file}, line {number}: not of the form user:hash with a known hash")
        hashes[user] = hashed
    return hashes


def set_hash(file: Path, user: str, hashed: str | None) -> bool:
    """Give `user` this hash, or none: then the line goes. All other lines stay as they are and where they are. Whether
    anything was to be done.

    One process after the other; the file is replaced at once, behind a symbolic link too, and keeps its owner and
    mode. Raises InvalidPasswordFile, OSError.
    """
    file = Path(os.path.realpath(file))
    folder = os.open(file.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(folder, fcntl.LOCK_EX)
        found = read_hashes(file) if file.exists() else {}
        if hashed is None and user not in found:
            return False
        kept = _lines(file) if file.exists() else []
        places = [i for i, line in enumerate(kept) if _user_of(line) == user]
        if hashed is not None:
            line = f"{user}:{hashed}"
            kept = [*kept, line] if not places else [*kept[: places[0]], line, *kept[places[0] + 1 :]]
            places = places[1:]  # of repeats, of which the last one counted
        _replace(file, [line for i, line in enumerate(kept) if i not in places])
        os.fsync(folder)
    finally:
        os.close(folder)
    return True


def write_hashes(file: Path, hashes: dict[str, str]) -> None:
    """Replace the file at once; it keeps its owner and mode. A new one is readable by its owner only, and where root
    makes it by the service to whose group or user its directory belongs."""
    _replace(file, [f"{user}:{hashed}" for user, hashed in hashes.items()])


def _user_of(line: str) -> str:
    return "" if line.startswith("#") else line.strip().partition(":")[0]


def _lines(file: Path) -> list[str]:
    """Return the lines of a password file. Raises InvalidPasswordFile, OSError."""
    try:
        lines = file.read_bytes().decode("utf-8").split("\n")
    except UnicodeDecodeError as error:
        number = error.object.count(b"\n", 0, error.start) + 1
        raise InvalidPasswordFile(f"{file}, line {number}: not UTF-8") from None
    return lines if lines[-1] else lines[:-1]


def _replace(file: Path, lines: list[str]) -> None:
    replace_secret(file, "".join(f"{line}\n" for line in lines))
