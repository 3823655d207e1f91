"""What the sessions of this shard want is said to the shards that are followed, and when they want it no more.

Runs on the loop.
"""

from __future__ import annotations

from headrace.core.ports.link import WorkerPort
from headrace.core.shards import peer
from headrace.core.shards.holding import Holding
from headrace.core.shards.stream_settings import StreamSettings
from headrace.core.shards.taking import Taker
from headrace.core.shards.withdrawing import Withdrawing
from headrace.core.state.wanted import WantedListener


class Announcing(WantedListener):
    """Announces filters, and withdraws them later."""

    def __init__(
        self, takers: dict[int, Taker], holding: Holding, worker: WorkerPort, settings: StreamSettings
    ) -> None:
        self.withdrawing = Withdrawing()
        self._takers = takers
        self._holding = holding
        self._worker = worker
        self._settings = settings

    def wanted(self, tenant: str, topic_filter: str) -> None:
        """Announce a filter, unless it was not withdrawn yet."""
        if self.withdrawing.take((tenant, topic_filter)):
            return  # it is announced
        self._holding.number += 1
        frame = peer.Wanted(self._holding.number, tenant, topic_filter)
        for taker in self._takers.values():
            taker.ask(frame, self._worker.clock.mono_ms)

    def unwanted(self, tenant: str, topic_filter: str) -> None:
        """Withdraw a filter later."""
        until_ms = self._worker.clock.mono_ms + self._settings.withdraw_after_ms
        self.withdraw(self.withdrawing.put((tenant, topic_filter), until_ms))

    def withdraw(self, filters: list[tuple[str, str]]) -> None:
        """Tell all shards that are followed of filters that nobody wants."""
        for tenant, topic_filter in filters:
            frame = peer.Unwanted(tenant, topic_filter)
            for taker in self._takers.values():
                taker.withdraw(frame)
