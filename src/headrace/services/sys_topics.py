"""`$SYS/broker/...`: the broker's numbers under the names that Mosquitto's users know.

    values = SystemValues(version, time.monotonic())
    tell(worker, values.of(numbers(worker, doors.accepted()), time.monotonic()))     every `sys_interval_s`, on the loop

Of several workers each has `numbers` of its own, and their supervisor makes the values of the sums, which all tell.
Values are decimal text. Loads are per minute, smoothed over 1, 5 and 15 minutes. `messages/...` count PUBLISH packets. A
test subscribes to Mosquitto's own and compares.
"""

from __future__ import annotations

import json
import math
import os
import resource
from collections.abc import Mapping
from pathlib import Path
from typing import Final
from urllib.parse import quote

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
COUNTERS: Final = (
    "messages/received",
    "messages/sent",
    *LOADS,
    "publish/bytes/received",
    "publish/bytes/sent",
    "bytes/received",
    "bytes/sent",
    "connections",
)
EXPIRED: Final = "clients/expired"  # a counter without a load
SOCKETS: Final = "sockets"  # that listeners have let in; of it there is a load alone
CONNECTED: Final = "clients/connected"
HEAP: Final = ("heap/current", "heap/maximum")


def state_of_bridge(name: str) -> str:
    """Return the name of the topic that says whether a bridge is up."""
    return f"connection/{name}/state"


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


class SystemValues:
    """Makes the values of the topics of a broker's numbers, and remembers what they were: loads, and the most clients
    at a time."""

    def __init__(self, version: str, now_s: float) -> None:
        self._version = version
        self._started_s = self._last_s = now_s
        self._most_connected = 0
        self._loads: dict[str, Load] = {}

    def of(self, found: Mapping[str, int], now_s: float) -> dict[str, str]:
        """Return the value of each topic, by its name behind `$SYS/broker/`, for numbers as `numbers` gives them."""
        elapsed_s, self._last_s = now_s - self._last_s, now_s
        connected, total = found[CONNECTED], found["clients/total"]
        self._most_connected = max(self._most_connected, connected)
        away = str(max(0, total - connected))
        values = {name: str(number) for name, number in found.items() if name != SOCKETS}
        values |= {
            "clients/active": str(connected),
            "clients/disconnected": away,
            "clients/inactive": away,
            "clients/maximum": str(self._most_connected),
            "store/messages/count": values["messages/stored"],
            "version": f"headrace version {self._version}",
            "uptime": f"{int(now_s - self._started_s)} seconds",
        }
        if elapsed_s > 0:
            for name in (*COUNTERS, SOCKETS):
                values |= self._load(name, found[name], elapsed_s)
            for name, load in LOADS.items():
                values |= self._load(load, found[name], elapsed_s)
        return values

    def _load(self, name: str, count: int, elapsed_s: float) -> dict[str, str]:
        load = self._loads.setdefault(name, Load())
        load.update(count, elapsed_s)
        return {f"load/{name}/{minutes}min": f"{load.averages[minutes]:.2f}" for minutes in MINUTES}


def numbers(worker: Worker, accepted: int) -> dict[str, int]:
    """Return the numbers of the default tenant, of all shards of a worker together. `accepted`: how many connections
    the listeners have let in."""
    name = worker.anyone.tenant
    tenants = [broker.fold.tenant(name) for broker in worker.brokers]
    return _state(worker, tenants) | _counters(worker, tenants) | heap() | {SOCKETS: accepted}


def tell(worker: Worker, values: Mapping[str, str]) -> None:
    """Tell the subscribers in all shards of a worker every value that has changed."""
    for broker in worker.brokers:
        tenant = broker.fold.tenant(worker.anyone.tenant)
        for name, value in values.items():
            broker.system.publish(tenant, f"$SYS/broker/{name}", value.encode("ascii"))


def tell_of_member(worker: Worker, name: str, said: Mapping[str, object]) -> None:
    """Tell the subscribers in all shards of a worker how a node of its cluster is: on `$events/cluster/members/NODE`,
    percent-encoded."""
    topic, payload = f"$events/cluster/members/{quote(name, safe='')}", json.dumps(said).encode()
    for broker in worker.brokers:
        tenant = broker.fold.tenant(worker.anyone.tenant)
        broker.system.publish(tenant, topic, payload)


def _state(worker: Worker, tenants: list[Tenant]) -> dict[str, int]:
    retained = sum(len(tenant.retained) for tenant in tenants)
    return {
        "clients/total": sum(len(tenant.sessions) for tenant in tenants),
        CONNECTED: sum(broker.sessions.connected for broker in worker.brokers),
        EXPIRED: worker.expired_before + sum(broker.sessions.absences.expired for broker in worker.brokers),
        "subscriptions/count": sum(tenant.tree.count for tenant in tenants),
        "shared_subscriptions/count": sum(len(tenant.groups) for tenant in tenants),
        "retained messages/count": retained,
        "messages/stored": retained + sum(tenant.space.count for tenant in tenants),
        "store/messages/bytes": sum(t.retained.bytes + t.space.bytes for t in tenants),
    }


def _counters(worker: Worker, tenants: list[Tenant]) -> dict[str, int]:
    counters = [tenant.counters for tenant in tenants]
    before = worker.counters_before.get(worker.anyone.tenant)
    if before is not None:
        counters.append(before)
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
        "bytes/received": worker.bytes_received,
        "bytes/sent": worker.bytes_sent,
        "connections": sum(part.connects for part in counters),
    }


def heap() -> dict[str, int]:
    """Return the memory of the process, in bytes: resident now, and the most so far. Nothing where /proc is not
    there."""
    try:
        pages = int(STATM.read_text("ascii").split()[1])
    except OSError:
        return {}
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10
    current = pages * os.sysconf("SC_PAGE_SIZE")
    return {"heap/current": current, "heap/maximum": max(current, most)}
