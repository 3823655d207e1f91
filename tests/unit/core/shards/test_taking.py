"""What the taking side of a stream knows of its copies; `test_neighbours` has both sides."""

from __future__ import annotations

from harness import Harness, message
from headrace.core.records.message import copy_of
from headrace.core.shards.intake import Intake
from headrace.core.shards.stream_settings import StreamSettings
from headrace.core.shards.taking import Taker


def test_what_holds_nothing_before_the_oldest_copy_on_its_way_is_settled() -> None:
    """Whoever asks for retained messages leaves out what is still to come from there on."""
    broker = Harness().broker
    settings = broker.worker.settings
    intake = Intake(broker.worker.clock, settings, StreamSettings(), broker.publishing)
    taker = Taker(0, broker.fold, broker.commit, broker.router, 1 << 20, 1000, settings, intake)
    copies = [copy_of(message(b"a", b"x"), 0, offset) for offset in (3, 7, 8)]
    taker.looked(2)
    assert taker.settled == 2
    taker.copied(copies[0])
    taker.copied(copies[1])
    assert taker.settled == 3
    taker.applies(copies[0])
    assert taker.settled == 7
    taker.copied(copies[2])
    taker.applies(copies[1])
    taker.looked(20)
    assert taker.settled == 8
    taker.applies(copies[2])
    assert taker.settled == 20
