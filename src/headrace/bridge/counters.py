"""What a bridge has done since the broker started: plain integers, read when /metrics is scraped."""

from __future__ import annotations


class BridgeCounters:
    def __init__(self) -> None:
        self.connects = 0
        self.failures = 0  # attempts that did not get as far as sending messages
        self.sent = 0  # PUBLISH packets to the remote broker
        self.received = 0  # PUBLISH packets from it
        self.loops = 0  # of them: had been here before
        self.unmatched = 0  # of them: no rule lets them in
        self.odd = 0  # of them: with a topic that has characters no topic should have
