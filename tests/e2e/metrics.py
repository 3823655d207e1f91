"""What /metrics tells of lost messages."""

from __future__ import annotations

import re

from broker_process import BrokerProcess


def dropped(broker: BrokerProcess) -> dict[str, float]:
    """DropReason -> messages, those that have any."""
    found: dict[str, float] = {}
    for name, value in broker.metrics().items():
        if name.split("{")[0] == "headrace_dropped_messages_total" and value:
            match = re.search(r'reason="([^"]*)"', name)
            assert match is not None, name
            found[match[1]] = found.get(match[1], 0) + value
    return found


def newly_dropped(broker: BrokerProcess, before: dict[str, float]) -> dict[str, float]:
    now = dropped(broker)
    return {
        reason: now[reason] - before.get(reason, 0) for reason in now if now[reason] != before.get(reason)
    }
