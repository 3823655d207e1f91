"""What was published, delivered and archived, and the verdict over it. No I/O beyond reading log lines.

A reading is (device, sequence number). Published means acknowledged to the device. A repeat is excused when
it carries DUP, because the subscriber's acknowledgement was cut off; or when the device's own copy was in
flight at a cut, because the broker may have had it already and the device sent it again: once for each cut.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

Reading = tuple[str, int]


class Delivery(NamedTuple):
    """One arrival at the subscriber."""

    reading: Reading
    dup: bool
    time: float


@dataclass
class Evidence:
    """Everything that the two logs say, in the order in which it happened."""

    sent: dict[Reading, float] = field(default_factory=dict)
    acknowledged: dict[Reading, float] = field(default_factory=dict)
    cut: Counter[Reading] = field(default_factory=Counter)
    refused: list[str] = field(default_factory=list)
    deliveries: list[Delivery] = field(default_factory=list)
    delivered: set[Reading] = field(default_factory=set)
    resumed: list[bool] = field(default_factory=list)

    def take(self, line: str) -> None:
        """One line of the fleet's log or the subscriber's."""
        kind, *rest = line.split("\t")
        if kind == "U":
            self.resumed.append(rest[0] == "1")
            return
        reading = (rest[0], int(rest[1]))
        if kind == "S":
            self.sent[reading] = float(rest[2])
        elif kind == "A":
            self.acknowledged[reading] = float(rest[2])
        elif kind == "C":
            self.cut[reading] += 1
        elif kind == "R":
            self.refused.append(line)
        elif kind == "D":
            self.deliveries.append(Delivery(reading, rest[2] == "1", float(rest[3])))
            self.delivered.add(reading)


class LogFollower:
    """Reads the complete lines that a log has grown by since the last call."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.position = 0

    def lines(self) -> list[str]:
        if not self.path.exists():
            return []
        with self.path.open("rb") as file:
            file.seek(self.position)
            data = file.read()
        whole = data[: data.rfind(b"\n") + 1]
        self.position += len(whole)
        return whole.decode().splitlines()


@dataclass(frozen=True)
class Verdict:
    """The counts of the demo's last line, and what is wrong, if anything."""

    published: int
    delivered: int
    archived: int
    lost: int
    repeated: int
    reordered: int
    complaints: list[str]

    def __str__(self) -> str:
        return (
            f"demo: published={self.published} delivered={self.delivered} archived={self.archived}"
            f" lost={self.lost} repeated={self.repeated} reordered={self.reordered}"
        )


def judge(evidence: Evidence, archived: Iterable[Reading]) -> Verdict:
    """Compare the three. `archived` are the readings of the table in journal order, repeats included."""
    table = list(archived)
    published, in_table = set(evidence.acknowledged), set(table)
    missing_there, missing_in_table = published - evidence.delivered, published - in_table
    arrivals = [delivery.reading for delivery in evidence.deliveries]
    reordered = _reordered(arrivals) + _reordered(table)
    unexcused = _unexcused(evidence)
    complaints = [f"refused: {line}" for line in evidence.refused]
    complaints += _some("not delivered", missing_there) + _some("not archived", missing_in_table)
    complaints += _some("delivered but never published", evidence.delivered - published)
    complaints += _some("archived but never published", in_table - published)
    complaints += _some("repeated without DUP or a cut", unexcused)
    if reordered:
        complaints.append(f"{reordered} readings out of order")
    return Verdict(
        published=len(published),
        delivered=len(evidence.delivered),
        archived=len(in_table),
        lost=len(missing_there | missing_in_table),
        repeated=len(arrivals) - len(evidence.delivered),
        reordered=reordered,
        complaints=complaints,
    )


def _reordered(arrivals: Iterable[Reading]) -> int:
    """First arrivals of a device that come after a later one of the same device."""
    highest: dict[str, int] = {}
    seen: set[Reading] = set()
    count = 0
    for device, seq in arrivals:
        if (device, seq) in seen:
            continue
        seen.add((device, seq))
        count += seq < highest.get(device, 0)
        highest[device] = max(seq, highest.get(device, 0))
    return count


def _unexcused(evidence: Evidence) -> set[Reading]:
    """Readings that came again without DUP more often than they were in flight at a cut."""
    seen: set[Reading] = set()
    plain_repeats: Counter[Reading] = Counter()
    for reading, dup, _ in evidence.deliveries:
        if reading in seen and not dup:
            plain_repeats[reading] += 1
        seen.add(reading)
    return {reading for reading, count in plain_repeats.items() if count > evidence.cut[reading]}


def _some(what: str, readings: set[Reading]) -> list[str]:
    if not readings:
        return []
    named = ", ".join(f"{device}#{seq}" for device, seq in sorted(readings)[:5])
    return [f"{what}: {len(readings)}, such as {named}"]
