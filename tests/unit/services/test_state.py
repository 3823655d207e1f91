"""A state in words: the same words for the same state, other words for another."""

from __future__ import annotations

import json

from harness import Harness
from headrace.mqtt.packets import Will
from headrace.services.state import lines


def test_everything_that_makes_a_difference_is_said() -> None:
    harness = Harness()
    client = harness.client("c", version=5, will=Will("w", b"x", 1, False, b"", 3, 60))
    seen = [lines(harness.broker.fold)]
    client.subscribe("a/#")
    seen.append(lines(harness.broker.fold))
    client.subscribe("a/#", qos=2)
    seen.append(lines(harness.broker.fold))
    client.publish("r", b"1", retain=True)
    seen.append(lines(harness.broker.fold))
    client.publish("r", b"2", retain=True)
    seen.append(lines(harness.broker.fold))
    client.lose()
    seen.append(lines(harness.broker.fold))
    assert len({tuple(found) for found in seen}) == len(seen)
    rows = [json.loads(line) for line in seen[-1]]
    assert rows[0]["retained"] == "default/r"
    assert (rows[1]["session"], rows[1]["will"]["delay_s"]) == ("default/c", 3)


def test_a_backlog_makes_none() -> None:
    harness = Harness()
    client = harness.client("c")
    client.subscribe("a")
    before = lines(harness.broker.fold)
    client.publish("a", b"x")
    assert lines(harness.broker.fold) == before
