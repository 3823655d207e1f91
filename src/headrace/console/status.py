"""`headrace status`: one screen about a running broker, and whether it is well.

What makes it unwell is a problem, and the exit status says so: it is not ready, or somebody waits for a disk that does
not answer. What an operator should look at before it becomes one is a warning.
"""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass

from headrace.console.admin import AdminClient, AdminRefused
from headrace.console.scrape import Scrape
from headrace.console.units import count, duration, size
from headrace.services.audit import clean

FREE_LEAST = 0.1  # of the disk
LAG_MOST = 0.8  # of what the journal keeps for a consumer: the log warns there, too


@dataclass(frozen=True, slots=True)
class ConsumerLag:
    name: str
    offset: int
    lag_records: int
    lag_bytes: int
    silent_s: float


@dataclass(frozen=True, slots=True)
class Status:
    """The figures of one screen: totals over all tenants, since the start where they count."""

    address: str
    ready: bool
    problems: list[str]
    warnings: list[str]
    version: str
    build: str
    uptime_s: float
    memory_bytes: int
    connections: int
    sessions: int
    subscriptions: int
    retained_messages: int
    backlog_messages: int
    backlog_bytes: int
    publishes_received: int
    publishes_sent: int
    dropped_messages: int
    refused_packets: int
    journal_bytes: int
    disk_free_bytes: int
    disk_size_bytes: int
    consumers: list[ConsumerLag]

    @property
    def healthy(self) -> bool:
        return not self.problems

    def as_dict(self) -> dict[str, object]:
        return {"healthy": self.healthy, **asdict(self)}


def look(admin: AdminClient) -> Status:
    """Ask a broker. Raises Unreachable, AdminRefused."""
    reason = why_not_ready(admin)
    scrape = Scrape(admin.text("/metrics"), time.monotonic())
    return summary(admin.address, reason, scrape, time.time())


def why_not_ready(admin: AdminClient) -> str:
    """Return why the node is not ready, "" when it is. Raises Unreachable, AdminRefused when it says something else than
    that."""
    try:
        admin.text("/readyz")
    except AdminRefused as error:
        if error.status != 503:
            raise
        return error.detail or str(error)
    return ""


def summary(address: str, reason: str, scrape: Scrape, now_s: float) -> Status:
    """Return the figures of a node; `reason` says why it is not ready; `now_s` is the time of day."""

    def total(name: str) -> int:
        return int(scrape.total(f"headrace_{name}"))

    built = scrape.labels("headrace_build_info")
    free, whole = disk(scrape)
    started = scrape.least("process_start_time_seconds")  # 0: no worker of the node has told yet
    return Status(
        address=address,
        ready=not reason,
        problems=problems(reason, scrape),
        warnings=warnings(scrape),
        version=built.get("version", ""),
        build=built.get("build", ""),
        uptime_s=max(0.0, now_s - started) if started else 0.0,
        memory_bytes=int(scrape.total("process_resident_memory_bytes")),
        connections=total("connections"),
        sessions=total("sessions"),
        subscriptions=total("subscriptions"),
        retained_messages=total("retained_messages"),
        backlog_messages=total("backlog_messages"),
        backlog_bytes=total("backlog_bytes"),
        publishes_received=total("publishes_received_total"),
        publishes_sent=total("publishes_sent_total"),
        dropped_messages=total("dropped_messages_total"),
        refused_packets=total("refused_packets_total"),
        journal_bytes=total("journal_size_bytes"),
        disk_free_bytes=int(free),
        disk_size_bytes=int(whole),
        consumers=consumers(scrape),
    )


def disk(scrape: Scrape) -> tuple[float, float]:
    """Return (free, size) in bytes of the file system of the data; of several shards, which may all lie on one, that of
    the shard with the least room."""
    free = scrape.by("headrace_disk_free_bytes", "shard")
    if not free:
        return 0.0, 0.0
    shard = min(free, key=lambda one: free[one])
    return free[shard], scrape.by("headrace_disk_size_bytes", "shard").get(shard, 0.0)


def consumers(scrape: Scrape) -> list[ConsumerLag]:
    """Return the consumers that are registered, the one that is most behind first."""
    offsets, records, sizes = (
        scrape.by(f"headrace_consumer_{name}", "consumer") for name in ("offset", "lag_records", "lag_bytes")
    )
    silences = scrape.most_by("headrace_consumer_silent_seconds", "consumer")
    found = [
        ConsumerLag(
            name, int(offset), int(records.get(name, 0)), int(sizes.get(name, 0)), silences.get(name, 0.0)
        )
        for name, offset in offsets.items()
    ]
    return sorted(found, key=lambda one: (-one.lag_records, one.name))


def problems(reason: str, scrape: Scrape) -> list[str]:
    """Return what has to be mended now."""
    found = [f"not ready: {reason}"] if reason else []
    unread = int(scrape.total("headrace_paused_connections", reason="disk_read"))
    if unread:
        found.append(f"{unread} sessions wait for messages that cannot be read from the disk")
    return found


def warnings(scrape: Scrape) -> list[str]:
    """Return what becomes a problem, or was one."""
    found = []
    free, whole = disk(scrape)
    if whole and free < FREE_LEAST * whole:
        found.append(f"the disk has {size(free)} left of {size(whole)}")
    limit = scrape.total("headrace_journal_consumer_retention_limit_bytes")
    found += [
        f"consumer {clean(one.name)} is {size(one.lag_bytes)} behind; beyond {size(limit)} its records are dropped"
        for one in consumers(scrape)
        if one.lag_bytes > LAG_MOST * limit
    ]
    found += [
        f"bridge {clean(name)} is down"
        for name, up in scrape.by("headrace_bridge_up", "bridge").items()
        if not up
    ]
    found += _of_sinks(scrape)
    lost = int(scrape.total("headrace_journal_damaged_reads_total"))
    if lost:
        found.append(f"{lost} messages or pages could not be read from the journal: it is damaged")
    failures = int(scrape.total("headrace_failures_total"))
    if failures:
        found.append(f"{failures} failures were contained since the start: the log has them")
    return found


def _of_sinks(scrape: Scrape) -> list[str]:
    """Return which sinks and sources stand still, and which have lost something."""
    lags = scrape.by("headrace_sink_lag_records", "sink")
    found = [
        f"sink {clean(name)} does not write to Kafka, {count(int(lags.get(name, 0)))} records behind"
        for name, up in scrape.least_by("headrace_sink_up", "sink").items()
        if not up
    ]
    found += [
        f"source {clean(name)} does not read from Kafka"
        for name, up in scrape.least_by("headrace_source_up", "source").items()
        if not up
    ]
    return found + [
        f"sink {clean(name)} lost {count(int(lost))} offsets of the journal before they were sent"
        for name, lost in scrape.by("headrace_sink_lost_total", "sink").items()
        if lost
    ]


def lines(status: Status) -> list[str]:
    """Return the status in lines, one screen of them."""
    free = "" if not status.disk_size_bytes else f", disk {size(status.disk_free_bytes)} free"
    rows = [
        ("health", "good" if status.healthy else "bad"),
        *(("problem", text) for text in status.problems),
        *(("warning", text) for text in status.warnings),
        (
            "broker",
            status.address + (f", headrace {status.version} ({status.build})" if status.version else ""),
        ),
        ("running", f"{duration(status.uptime_s)}, {size(status.memory_bytes)} of memory"),
        ("clients", f"{status.connections} connected, {status.sessions} sessions"),
        ("topics", f"{status.subscriptions} subscriptions, {status.retained_messages} retained messages"),
        ("messages", f"{count(status.publishes_received)} in, {count(status.publishes_sent)} out"),
        ("lost", f"{status.dropped_messages} dropped, {status.refused_packets} packets refused"),
        ("waiting", f"{count(status.backlog_messages)} messages, {size(status.backlog_bytes)}"),
        ("journal", f"{size(status.journal_bytes)}{free}"),
        *(("consumer", _consumer(one)) for one in status.consumers),
    ]
    return [f"{name:9} {text}" for name, text in rows]


def _consumer(one: ConsumerLag) -> str:
    behind = f"{count(one.lag_records)} records, {size(one.lag_bytes)} behind"
    return f"{clean(one.name)}: offset {one.offset}, {behind}, moved {duration(one.silent_s)} ago"
