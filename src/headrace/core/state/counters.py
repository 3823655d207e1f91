"""What a tenant's messages, bytes and clients are counted in."""

from __future__ import annotations

from mypy_extensions import i64


class Counters:
    """Plain integers, read when /metrics is scraped."""

    def __init__(self) -> None:
        self.publishes_received: i64 = 0
        self.publishes_repeated: i64 = 0
        self.publishes_sent: i64 = 0
        self.bytes_received: i64 = 0
        self.bytes_sent: i64 = 0
        self.connects: i64 = 0
        self.connects_refused: i64 = 0
        self.disconnects: i64 = 0
        self.protocol_errors: i64 = 0
        self.dropped: dict[int, int] = {}
        self.refused: dict[
            tuple[str, int], int
        ] = {}  # (connect, publish or subscribe; reason code) -> packets

    def add(self, other: Counters) -> None:
        """Count with these what others were counted as."""
        self.publishes_received += other.publishes_received
        self.publishes_repeated += other.publishes_repeated
        self.publishes_sent += other.publishes_sent
        self.bytes_received += other.bytes_received
        self.bytes_sent += other.bytes_sent
        self.connects += other.connects
        self.connects_refused += other.connects_refused
        self.disconnects += other.disconnects
        self.protocol_errors += other.protocol_errors
        for reason, count in other.dropped.items():
            self.dropped[reason] = self.dropped.get(reason, 0) + count
        for key, count in other.refused.items():
            self.refused[key] = self.refused.get(key, 0) + count

    def refuse(self, what: str, reason_code: int) -> None:
        key = (what, reason_code)
        self.refused[key] = self.refused.get(key, 0) + 1
