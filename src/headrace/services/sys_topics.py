"""`$SYS/broker/...`: the broker's numbers under the names that Mosquitto's users know.

    publisher = SystemPublisher(worker, version, time.monotonic(), doors.accepted)
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

from headrace.core.state.tenant import Tenant
from headrace.core.worker import Worker

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
    """Reads the counters of the default tenant, of all shards together, and hands the sums to `Broker.system` of each.
    `accepted` says how many connections the listeners have let in."""

    def __init__(
        self, worker: Worker, version: str, now_s: float, accepted: Callable[[], int] = lambda: 0
    ) -> None:
        self._worker = worker
        self._version = version
        self._accepted = accepted
        self._started_s = self._last_s = now_s
        self._most_connected = 0
        self._loads: dict[str, Load] = {}

    def publish(self, now_s: float) -> None:
        """Publish every value that changed."""
        name = self._worker.anyone.tenant
        tenants = [broker.fold.tenant(name) for broker in self._worker.brokers]
        elapsed_s, self._last_s = now_s - self._last_s, now_s
        values = self._state(tenants) | heap()
        counters = self._counters(tenants)
        values |= {name: str(count) for name, count in counters.items()}
        if elapsed_s > 0:
            counters |= {load: counters[name] for name, load in LOADS.items()} | {"sockets": self._accepted()}
            for name, count in counters.items():
                values |= self._load(name, count, elapsed_s)
        values["version"] = f"headrace version {self._version}"
        values["uptime"] = f"{int(now_s - self._started_s)} seconds"
        for broker, tenant in zip(self._worker.brokers, tenants, strict=True):
            for name, value in values.items():
                broker.system.publish(tenant, f"$SYS/broker/{name}", value.encode("ascii"))

    def _load(self, name: str, count: int, elapsed_s: float) -> dict[str, str]:
        load = self._loads.setdefault(name, Load())
        load.update(count, elapsed_s)
        return {f"load/{name}/{minutes}min": f"{load.averages[minutes]:.2f}" for minutes in MINUTES}

    def _state(self, tenants: list[Tenant]) -> dict[str, str]:
        brokers = self._worker.brokers
        connected = sum(broker.sessions.connected for broker in brokers)
        self._most_connected = max(self._most_connected, connected)
        total = sum(len(tenant.sessions) for tenant in tenants)
        away = str(max(0, total - connected))
        retained = sum(len(tenant.retained) for tenant in tenants)
        stored = str(retained + sum(tenant.space.count for tenant in tenants))
        return {
            "clients/total": str(total),
            "clients/connected": str(connected),
            "clients/active": str(connected),
            "clients/disconnected": away,
            "clients/inactive": away,
            "clients/maximum": str(self._most_connected),
            "clients/expired": str(sum(broker.sessions.expired for broker in brokers)),
            "subscriptions/count": str(sum(tenant.tree.count for tenant in tenants)),
            "shared_subscriptions/count": str(sum(len(tenant.groups) for tenant in tenants)),
            "retained messages/count": str(retained),
            "messages/stored": stored,
            "store/messages/count": stored,
            "store/messages/bytes": str(sum(t.retained.bytes + t.space.bytes for t in tenants)),
        }

    def _counters(self, tenants: list[Tenant]) -> dict[str, int]:
        counters = [tenant.counters for tenant in tenants]
        received = sum(part.publishes_received for part in counters)
        sent = sum(part.publishes_sent for part in counters)
        return {
            "messages/received": received,
            "messages/sent": sent,
            "publish/messages/received": received,
            "publish/messages/sent": sent,
            "publish/messages/dropped": sum(sum(part.dropped.values()) for part in counters),
            "publish/bytes/received": sum(part.bytes_received for part in counters),
            "publish/bytes/sent": sum(part.bytes_sent for part in counters),
            "bytes/received": self._worker.bytes_received,
            "bytes/sent": self._worker.bytes_sent,
            "connections": sum(part.connects for part in counters),
        }


def heap() -> dict[str, str]:
    """Return the memory of the process, in bytes: resident now, and the most so far. Nothing where /proc is not
    there."""
    try:
        pages = int(STATM.read_text("ascii").split()[1])
    except OSError:
        return {}
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10
    current = pages * os.sysconf("SC_PAGE_SIZE")
    return {"heap/current": str(current), "heap/maximum": str(max(current, most))}
