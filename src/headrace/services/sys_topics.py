"""`$SYS/broker/...`: the broker's numbers under the names that Mosquitto's users know.

    publisher = SystemPublisher(broker, version, time.monotonic(), doors.accepted)
    publisher.publish(time.monotonic())        every `sys_interval_s` seconds, on the loop

Values are decimal text. Loads are per minute, smoothed over 1, 5 and 15 minutes. `messages/...` count PUBLISH packets. A
test subscribes to Mosquitto's own and compares.
"""

from __future__ import annotations

import math
import os
import resource
from collections.abc import Callable
from pathlib import Path

from headrace.core.broker import Broker
from headrace.core.state.tenant import Tenant

MINUTES = (1, 5, 15)
STATM = Path("/proc/self/statm")
# Counter -> the name of its load in Mosquitto, where that is not its own.
LOADS = {
    "publish/messages/received": "publish/received",
    "publish/messages/sent": "publish/sent",
    "publish/messages/dropped": "publish/dropped",
}


class Load:
    """A counter's growth per minute, smoothed like the load average of Unix."""

    def __init__(self) -> None:
        self._last = 0
        self.averages = dict.fromkeys(MINUTES, 0.0)

    def update(self, count: int, elapsed_s: float) -> None:
        rate = (count - self._last) * 60 / elapsed_s
        self._last = count
        for minutes in MINUTES:
            weight = math.exp(-elapsed_s / (60 * minutes))
            self.averages[minutes] = rate + weight * (self.averages[minutes] - rate)


class SystemPublisher:
    """Reads the counters of the default tenant and hands them to `Broker.system`. `accepted` says how many connections
    the listeners have let in."""

    def __init__(
        self, broker: Broker, version: str, now_s: float, accepted: Callable[[], int] = lambda: 0
    ) -> None:
        self._broker = broker
        self._version = version
        self._accepted = accepted
        self._started_s = self._last_s = now_s
        self._most_connected = 0
        self._loads: dict[str, Load] = {}

    def publish(self, now_s: float) -> None:
        """Send every value that changed."""
        tenant = self._broker.fold.tenant(self._broker.worker.anyone.tenant)
        elapsed_s, self._last_s = now_s - self._last_s, now_s
        values = self._state(tenant) | heap()
        counters = self._counters(tenant)
        values |= {name: str(count) for name, count in counters.items()}
        if elapsed_s > 0:
            counters |= {load: counters[name] for name, load in LOADS.items()} | {"sockets": self._accepted()}
            for name, count in counters.items():
                values |= self._load(name, count, elapsed_s)
        values["version"] = f"headrace version {self._version}"
        values["uptime"] = f"{int(now_s - self._started_s)} seconds"
        for name, value in values.items():
            self._broker.system.publish(tenant, f"$SYS/broker/{name}", value.encode("ascii"))

    def _load(self, name: str, count: int, elapsed_s: float) -> dict[str, str]:
        load = self._loads.setdefault(name, Load())
        load.update(count, elapsed_s)
        return {f"load/{name}/{minutes}min": f"{load.averages[minutes]:.2f}" for minutes in MINUTES}

    def _state(self, tenant: Tenant) -> dict[str, str]:
        connected = self._broker.sessions.connected
        self._most_connected = max(self._most_connected, connected)
        total = len(tenant.sessions)
        away = str(max(0, total - connected))
        retained, waiting = tenant.retained, tenant.space
        stored = str(len(retained) + waiting.count)
        return {
            "clients/total": str(total),
            "clients/connected": str(connected),
            "clients/active": str(connected),
            "clients/disconnected": away,
            "clients/inactive": away,
            "clients/maximum": str(self._most_connected),
            "clients/expired": str(self._broker.sessions.expired),
            "subscriptions/count": str(tenant.tree.count),
            "shared_subscriptions/count": str(len(tenant.groups)),
            "retained messages/count": str(len(retained)),
            "messages/stored": stored,
            "store/messages/count": stored,
            "store/messages/bytes": str(retained.bytes + waiting.bytes),
        }

    def _counters(self, tenant: Tenant) -> dict[str, int]:
        counters = tenant.counters
        return {
            "messages/received": counters.publishes_received,
            "messages/sent": counters.publishes_sent,
            "publish/messages/received": counters.publishes_received,
            "publish/messages/sent": counters.publishes_sent,
            "publish/messages/dropped": sum(counters.dropped.values()),
            "publish/bytes/received": counters.bytes_received,
            "publish/bytes/sent": counters.bytes_sent,
            "bytes/received": self._broker.worker.bytes_received,
            "bytes/sent": self._broker.worker.bytes_sent,
            "connections": counters.connects,
        }


def heap() -> dict[str, str]:
    """Memory of the process, in bytes: resident now, and the most so far. Nothing where /proc is not there."""
    try:
        pages = int(STATM.read_text("ascii").split()[1])
    except OSError:
        return {}
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10
    current = pages * os.sysconf("SC_PAGE_SIZE")
    return {"heap/current": str(current), "heap/maximum": str(max(current, most))}
