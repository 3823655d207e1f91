"""Who may connect at all: addresses that are banned, by a file or after failed logins, and how often one may come.

Asked for each connection once its address is known, before TLS: at accept, or behind a PROXY header for the client's
own; bans are asked again when it signs in. An IPv6 /64 counts as one address. Unix sockets are never turned away.
Whatever is remembered of addresses is bounded. Pure, but for the file.
"""

from __future__ import annotations

import ipaddress
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from headrace.core.ports.access import Guard
from headrace.errors import ConfigError
from headrace.net.remote import UNIX, host_of, source_of

REMEMBERED_MAX = 20_000  # addresses, or whatever else comes too often

BANNED, TOO_OFTEN = "banned", "address_rate"


class InvalidBans(ConfigError):
    """The ban file cannot be read, or a line of it is no address or network. The message has its number."""


@dataclass(frozen=True, slots=True)
class GateSettings:
    """What the gate bounds; 0: not at all. `ban_after_failures` failed logins within `ban_window_s` ban an address for
    `ban_s`."""

    ban_file: str = ""
    ban_after_failures: int = 0
    ban_window_s: float = 60.0
    ban_s: float = 600.0
    connections_per_s: float = 0.0  # of one address


class Allowance:
    """Allows so much for each key in a second, and `burst` at once: a bucket of tokens each, which fills as time
    passes."""

    def __init__(self, per_s: float, burst: float, clock: Callable[[], float]) -> None:
        self._per_s = per_s
        self._burst = burst
        self._clock = clock
        self._left: dict[str, tuple[float, float]] = {}  # tokens, and when that was

    def wait_s(self, key: str) -> float:
        """Return how long until there is one; 0.0 if there is."""
        tokens, at = self._left.get(key, (self._burst, 0.0))
        return max(0.0, (1.0 - tokens) / self._per_s - (self._clock() - at)) if tokens < 1.0 else 0.0

    def take(self, key: str) -> bool:
        """Return whether there was one left."""
        now = self._clock()
        tokens, at = self._left.pop(key, (self._burst, now))
        tokens = min(self._burst, tokens + (now - at) * self._per_s)
        if len(self._left) >= REMEMBERED_MAX:
            del self._left[next(iter(self._left))]  # of all, this one was asked about longest ago
        self._left[key] = max(0.0, tokens - 1.0) if tokens >= 1.0 else tokens, now
        return tokens >= 1.0


class Networks:
    """A set of addresses and networks."""

    def __init__(self, networks: list[ipaddress.IPv4Network | ipaddress.IPv6Network]) -> None:
        self._by_length: dict[tuple[int, int], set[int]] = {}
        for network in networks:
            key = network.version, network.max_prefixlen - network.prefixlen
            self._by_length.setdefault(key, set()).add(int(network.network_address) >> key[1])

    def holds(self, host: str) -> bool:
        try:
            address = ipaddress.ip_address(host)
        except ValueError:
            return False
        number = int(address)
        return any(
            version == address.version and number >> shift in networks
            for (version, shift), networks in self._by_length.items()
        )


class Gate(Guard):
    """Says whether a new connection may come in; it is told of failed logins."""

    def __init__(self, settings: GateSettings, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._settings = settings
        self._clock = clock
        self._banned = Networks([])
        self._until: dict[str, float] = {}
        self._coming: Allowance | None = None
        self._failing: Allowance | None = None
        self._failures = (0, 0.0)
        self.limit(settings)
        self.reload()

    def limit(self, settings: GateSettings) -> None:
        """Keep these limits from now on, and the ban file that there is. Bans stay as long as they were meant to."""
        rate, failures, before = settings.connections_per_s, settings.ban_after_failures, self._settings
        if self._coming is None or rate != before.connections_per_s:
            self._coming = Allowance(rate, max(10.0, rate), self._clock) if rate else None
        per_s = failures / settings.ban_window_s
        if self._failing is None or (failures, per_s) != self._failures:
            self._failing = Allowance(per_s, failures - 1, self._clock) if failures else None
        self._failures = failures, per_s
        self._settings = replace(settings, ban_file=before.ban_file)

    def reload(self) -> None:
        """Read the ban file. Raises InvalidBans, which names the key."""
        if not self._settings.ban_file:
            return
        file = Path(self._settings.ban_file)
        try:
            self._banned = read_bans(file)
        except InvalidBans as error:
            raise InvalidBans(f"access.ban_file: {error}") from None
        except OSError as error:
            raise InvalidBans(f"access.ban_file: {file}: {error.strerror}") from None

    def refusal(self, peer: str) -> str:
        """Return why a new connection is turned away, "" if it may come in."""
        if not peer or peer == UNIX:
            return ""
        if self.bans(peer):
            return BANNED
        return TOO_OFTEN if self._coming is not None and not self._coming.take(source_of(peer)) else ""

    def bans(self, peer: str) -> bool:
        """Return whether nobody from there may come in or sign in: by the file, or after failed logins."""
        return self._banned.holds(host_of(peer)) or self._is_out(source_of(peer))

    def is_banned(self, peer: str) -> bool:
        """Return whether the ban file names it."""
        return self._banned.holds(host_of(peer))

    def failed(self, peer: str) -> bool:
        """Note that a login failed at that address. Returns True if that was one too many, and the address is banned
        now."""
        source = source_of(peer)
        if self._failing is None or not peer or peer == UNIX or self._failing.take(source):
            return False
        if len(self._until) >= REMEMBERED_MAX:
            del self._until[next(iter(self._until))]  # the oldest ban, which ends first
        self._until[source] = self._clock() + self._settings.ban_s
        return True

    def _is_out(self, source: str) -> bool:
        until = self._until.get(source)
        if until is None:
            return False
        if self._clock() < until:
            return True
        del self._until[source]
        return False


def read_bans(file: Path) -> Networks:
    """Read addresses and networks, one a line; what follows a # is skipped. Raises InvalidBans, OSError."""
    found = []
    for number, line in enumerate(file.read_bytes().decode("utf-8", "replace").split("\n"), 1):
        text = line.partition("#")[0].strip()
        try:
            if text:
                found.append(ipaddress.ip_network(text, strict=False))
        except ValueError:
            raise InvalidBans(f"{file}, line {number}: {text!r} is no address or network") from None
    return Networks(found)
