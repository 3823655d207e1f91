"""What a tenant's messages, bytes and clients are counted in."""

from __future__ import annotations


class Counters:
    """Plain integers, read when /metrics is scraped."""

    def __init__(self) -> None:
        self.publishes_received = 0
        self.publishes_repeated = 0
        self.publishes_sent = 0
        self.bytes_received = 0
        self.bytes_sent = 0
        self.connects = 0
        self.connects_refused = 0
        self.disconnects = 0
        self.protocol_errors = 0
        self.dropped: dict[int, int] = {}
        self.refused: dict[
            tuple[str, int], int
        ] = {}  # (connect, publish or subscribe; reason code) -> packets

    def refuse(self, what: str, reason_code: int) -> None:
        key = (what, reason_code)
        self.refused[key] = self.refused.get(key, 0) + 1
