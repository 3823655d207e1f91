"""Who may connect at all: addresses that are banned, by a file, by a directory or after failed logins, and how often one
may come.

Asked for each connection once its address is known, before TLS: at accept, or behind a PROXY header for the client's
own; bans are asked again when it signs in. An IPv6 /64 counts as one address. Unix sockets are never turned away.
Whatever is remembered of addresses is bounded. Pure, but for the file.
"""

from __future__ import annotations

import ipaddress
import math
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from headrace.core.ports.access import Guard
from headrace.errors import ConfigError
from headrace.net.remote import UNIX, host_of, source_of

REMEMBERED_MAX = 20_000  # addresses, or whatever else comes too often
_ROUNDING_S = 1e-6  # sums of seconds since the machine was started are no finer

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


class Moments:
    """Tells all workers of a node until when something holds, by its names (`services.node_times`). A worker alone has
    none."""

    def latest(self, *names: str) -> float:
        """Return the latest moment that any worker has written, in seconds of `time.monotonic`; 0.0: none has."""
        raise NotImplementedError

    def hold(self, moment_s: float, *names: str) -> None:
        """Write a moment for all to read."""
        raise NotImplementedError


class Allowance:
    """Allows so much for each key in a second, and `burst` at once: a bucket of tokens each, which fills as time
    passes. With `moments` it is one allowance with those of the same name in other workers."""

    def __init__(
        self,
        per_s: float,
        burst: float,
        clock: Callable[[], float],
        moments: Moments | None = None,
        name: str = "",
    ) -> None:
        self._each_s = 1 / per_s
        # There is one left while the bucket is full again within this: at once, where any number is allowed.
        self._spare_s = 0.0 if math.isinf(per_s) else (burst - 1) / per_s
        self._clock = clock
        self._moments = moments
        self._name = name
        self._full: dict[str, float] = {}  # when the bucket is full again

    def wait_s(self, key: str) -> float:
        """Return how long until there is one; 0.0 if there is."""
        now = self._clock()
        wait_s = self._full_at(key, now) - now - self._spare_s
        return wait_s if wait_s > _ROUNDING_S else 0.0

    def take(self, key: str) -> bool:
        """Return whether there was one left."""
        now = self._clock()
        full = self._full_at(key, now)
        is_left = full - now <= self._spare_s + _ROUNDING_S
        self._note(key, full + self._each_s if is_left else full)
        return is_left

    def draw(self, key: str) -> None:
        """Take one, also where there is none left: it is of those to come."""
        self._note(key, self._full_at(key, self._clock()) + self._each_s)

    def _full_at(self, key: str, now: float) -> float:
        full = max(now, self._full.get(key, now))
        return full if self._moments is None else max(full, self._moments.latest(self._name, key))

    def _note(self, key: str, full: float) -> None:
        self._full.pop(key, None)
        if len(self._full) >= REMEMBERED_MAX:
            del self._full[next(iter(self._full))]  # of all, this one was asked about longest ago
        self._full[key] = full
        if self._moments is not None:
            self._moments.hold(full, self._name, key)


class Networks:
    """A set of addresses and networks."""

    def __init__(self, networks: list[ipaddress.IPv4Network | ipaddress.IPv6Network]) -> None:
        self._by_length: dict[tuple[int, int], set[int]] = {}
        for network in networks:
            key = network.version, network.max_prefixlen - network.prefixlen
            self._by_length.setdefault(key, set()).add(int(network.network_address) >> key[1])

    def __bool__(self) -> bool:
        return bool(self._by_length)

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

    def __init__(
        self,
        settings: GateSettings,
        clock: Callable[[], float] = time.monotonic,
        moments: Moments | None = None,
    ) -> None:
        super().__init__()
        self._settings = settings
        self._clock = clock
        self._moments = moments
        self._banned = Networks([])
        self._banned_too = Networks([])  # by the directory
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
            self._coming = self._allowance(rate, max(10.0, rate), "coming")
        per_s = failures / settings.ban_window_s
        if self._failing is None or (failures, per_s) != self._failures:
            self._failing = self._allowance(per_s, failures - 1, "failing")
        self._failures = failures, per_s
        self._settings = replace(settings, ban_file=before.ban_file)

    def _allowance(self, per_s: float, burst: float, name: str) -> Allowance | None:
        return Allowance(per_s, burst, self._clock, self._moments, name) if per_s else None

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
        """Return whether nobody from there may come in or sign in: by the file, by the directory, or after failed
        logins."""
        return self.is_banned(peer) or self._is_out(source_of(peer))

    def is_banned(self, peer: str) -> bool:
        """Return whether the ban file names it, or the directory."""
        host = host_of(peer)
        return self._banned.holds(host) or (bool(self._banned_too) and self._banned_too.holds(host))

    def ban(self, networks: Networks) -> None:
        """Turn these away from now on, beside those of the ban file, instead of those that were given before."""
        self._banned_too = networks

    def failed(self, peer: str) -> bool:
        """Note that a login failed at that address. Returns True if that was one too many, and the address is banned
        now."""
        source = source_of(peer)
        if self._failing is None or not peer or peer == UNIX or self._failing.take(source):
            return False
        if len(self._until) >= REMEMBERED_MAX:
            del self._until[next(iter(self._until))]  # the oldest ban, which ends first
        until = self._until[source] = self._clock() + self._settings.ban_s
        if self._moments is not None:
            self._moments.hold(until, BANNED, source)
        return True

    def _is_out(self, source: str) -> bool:
        now = self._clock()
        until = self._until.get(source)
        if until is not None and now < until:
            return True
        if until is not None:
            del self._until[source]
        return self._moments is not None and now < self._moments.latest(BANNED, source)


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
