"""The verdict of the demo: what it excuses, and what it must not let pass."""

from __future__ import annotations

from pathlib import Path

import pytest

from demo.evidence import Evidence, LogFollower, judge

TWO = [("a", 1), ("a", 2)]


def evidence(*lines: str) -> Evidence:
    found = Evidence()
    for line in lines:
        found.take(line.replace(" ", "\t"))
    return found


PUBLISHED = ("U 0 0.5", "S a 1 1.0", "A a 1 1.1", "S a 2 2.0", "A a 2 2.1")
DELIVERED = ("D a 1 0 1.2", "D a 2 0 2.2")


def test_everything_arrived() -> None:
    verdict = judge(evidence(*PUBLISHED, *DELIVERED), TWO)
    assert str(verdict) == "demo: published=2 delivered=2 archived=2 lost=0 repeated=0 reordered=0"
    assert not verdict.complaints


def test_a_reading_that_never_arrived_is_lost() -> None:
    verdict = judge(evidence(*PUBLISHED, DELIVERED[0]), TWO)
    assert (verdict.delivered, verdict.lost) == (1, 1)
    assert verdict.complaints == ["not delivered: 1, such as a#2"]


def test_a_reading_that_is_not_in_the_table_is_lost() -> None:
    verdict = judge(evidence(*PUBLISHED, *DELIVERED), [("a", 1)])
    assert (verdict.archived, verdict.lost) == (1, 1)


def test_one_missing_at_both_ends_is_lost_once() -> None:
    assert judge(evidence(*PUBLISHED), []).lost == 2


@pytest.mark.parametrize("excuse", [("D a 1 1 3.0",), ("C a 1 1.05", "D a 1 0 3.0")], ids=["dup", "cut"])
def test_a_repeat_with_dup_or_a_cut_is_excused(excuse: tuple[str, ...]) -> None:
    verdict = judge(evidence(*PUBLISHED, *DELIVERED, *excuse), TWO)
    assert (verdict.repeated, verdict.reordered, verdict.complaints) == (1, 0, [])


def test_one_cut_excuses_one_repeat() -> None:
    verdict = judge(evidence(*PUBLISHED, *DELIVERED, "C a 1 1.05", "D a 1 0 3.0", "D a 1 0 4.0"), TWO)
    assert verdict.complaints == ["repeated without DUP or a cut: 1, such as a#1"]


def test_a_plain_repeat_is_not_excused() -> None:
    assert judge(evidence(*PUBLISHED, *DELIVERED, "D a 2 0 3.0"), TWO).complaints


def test_order_counts_first_arrivals_of_each_device() -> None:
    swapped = judge(evidence(*PUBLISHED, *reversed(DELIVERED)), TWO)
    assert swapped.reordered == 1
    assert swapped.complaints == ["1 readings out of order"]
    assert judge(evidence(*PUBLISHED, *DELIVERED), [("a", 1), ("a", 2), ("a", 1)]).reordered == 0
    assert judge(evidence(*PUBLISHED, *DELIVERED), [("a", 2), ("a", 1)]).reordered == 1


def test_what_was_never_acknowledged_must_not_count() -> None:
    verdict = judge(evidence("S a 1 1.0", "D a 1 0 1.2"), [("a", 1)])
    assert verdict.published == 0
    assert len(verdict.complaints) == 2


def test_a_refusal_is_a_complaint() -> None:
    assert judge(evidence(*PUBLISHED, *DELIVERED, "R a 3 Quota"), TWO).complaints


def test_the_follower_waits_for_whole_lines(tmp_path: Path) -> None:
    log = tmp_path / "log"
    follower = LogFollower(log)
    assert follower.lines() == []
    log.write_bytes(b"one\ntw")
    assert follower.lines() == ["one"]
    log.write_bytes(b"one\ntwo\n")
    assert follower.lines() == ["two"]
    assert follower.lines() == []
