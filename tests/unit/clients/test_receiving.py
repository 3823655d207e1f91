"""Which messages `sub` writes, and when it has enough."""

from __future__ import annotations

import pytest

from headrace.clients.receiving import Selection, Verdict
from headrace.mqtt.packets import NO_EXPIRY, Publish


def message(topic: str, retain: bool) -> Publish:
    return Publish(topic.encode(), 0, retain, False, 0, b"", NO_EXPIRY, b"x")


@pytest.mark.parametrize(
    ("options", "topic", "retain", "verdict"),
    [
        ({}, "a", False, Verdict.WRITE),
        ({"left_out": ["b", "a/+"]}, "a/x", True, Verdict.SKIP),
        ({"left_out": ["b", "a/+"]}, "a", False, Verdict.WRITE),
        ({"no_retained": True}, "a", True, Verdict.SKIP),
        ({"no_retained": True}, "a", False, Verdict.WRITE),
        ({"retained_only": True}, "a", True, Verdict.WRITE),
        ({"retained_only": True}, "a", False, Verdict.END),
        ({"retained_only": True, "left_out": ["a"]}, "a", False, Verdict.END),
    ],
)
def test_verdicts(options: dict[str, object], topic: str, retain: bool, verdict: Verdict) -> None:
    given = {"left_out": [], "no_retained": False, "retained_only": False, "remove_retained": False}
    wanted = Selection(None, **given | options)  # type: ignore[arg-type]
    assert wanted.judge(message(topic, retain)) is verdict
    assert not wanted.satisfied


def test_enough() -> None:
    wanted = Selection(2, [], False, False, False, written=1)
    assert not wanted.satisfied
    wanted.written = 2
    assert wanted.satisfied
