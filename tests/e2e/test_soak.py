"""Everything at once: publishers that never stop, subscribers without manners, a broker that dies and stops at random.

A few seconds in the suite; HEADRACE_AUDIT_SOAK_S and HEADRACE_AUDIT_SEED make it as long, and as different, as wanted.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable

import pytest

from broker_process import BrokerProcess
from e2e.producer import Producer
from e2e.wanderer import Wanderer

SECONDS = float(os.environ.get("HEADRACE_AUDIT_SOAK_S", "6"))
SEED = int(os.environ.get("HEADRACE_AUDIT_SEED", "1"))


@pytest.mark.slow
def test_nothing_is_lost_reordered_or_doubled(brokers: Callable[..., BrokerProcess]) -> None:
    chance = random.Random(SEED)
    broker = brokers(
        {
            "session.backlog_messages_max": 65_535,
            "journal.segment_bytes_max": chance.choice((65_536, 1 << 20)),
            "journal.snapshot_interval_bytes": chance.choice((4_096, 65_536, 1 << 20)),
            "session.page_messages": chance.choice((1, 7, 256)),
        }
    ).start()
    wanderers = [Wanderer(broker, f"w{number}", "load/#", SEED) for number in range(4)]
    rate = min(300.0, 40_000 / SECONDS / 4)
    producers = [
        Producer(broker, f"p{number}", f"load/{number}", qos=1 + number % 2, window=window, rate=rate)
        for number, window in enumerate((1, 4, 16, 64))
    ]
    for thread in (*wanderers, *producers):
        thread.start()
    until = time.monotonic() + SECONDS
    while time.monotonic() < until:
        goal = [len(producer.acked) + chance.randrange(1, 200) for producer in producers[:1]]
        producers[0].wait_acked(goal[0])
        if chance.random() < 0.7:
            broker.crash()
        else:
            broker.restart()
    for producer in producers:
        producer.finish()
    for producer in producers:
        producer.join_finished()
    for wanderer in wanderers:
        wanderer.settle()
    for wanderer in wanderers:
        wanderer.finish(producers)
    for wanderer in wanderers:
        assert wanderer.faults == [], wanderer.name
        assert wanderer.ledger.missing(producers) == {}, wanderer.name
        assert wanderer.ledger.faults(producers) == [], wanderer.name
        doubled = {
            producer.name: wanderer.ledger.repeated(producer.name)
            for producer in producers
            if producer.qos == 2
        }
        assert not any(doubled.values()), f"{wanderer.name}: QoS 2 twice: {doubled}"
