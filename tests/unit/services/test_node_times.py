"""Moments and rates of a whole node: several workers of one file."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace.net.gate import Allowance, Gate, GateSettings
from headrace.services.node_times import NodeTimes


class Time:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Time:
    return Time()


def crew(folder: Path, clock: Time, count: int = 3) -> list[NodeTimes]:
    return [NodeTimes(folder / "times", worker, count, clock) for worker in range(count)]


def test_the_latest_moment_counts_for_all(tmp_path: Path, clock: Time) -> None:
    workers = crew(tmp_path, clock)
    workers[0].hold(1010.5, "ban", "a")
    workers[2].hold(1009.0, "ban", "a")
    assert [one.latest("ban", "a") for one in workers] == [1010.5] * 3
    assert workers[1].latest("ban", "b") == 0.0
    assert NodeTimes(tmp_path / "times", 0, 3, clock).latest("ban", "a") == 1010.5  # it was killed meanwhile


@pytest.mark.parametrize("ban_s", [1e11, float("inf")])
def test_a_ban_for_ever_holds_at_all_workers(tmp_path: Path, clock: Time, ban_s: float) -> None:
    settings = GateSettings(ban_after_failures=1, ban_s=ban_s)
    gates = [Gate(settings, clock, times) for times in crew(tmp_path, clock)]
    assert gates[0].failed("192.0.2.1:1")
    clock.now += 1e9
    assert [gate.bans("192.0.2.1:1") for gate in gates] == [True] * 3


def test_a_rate_is_of_the_node_wherever_one_comes(tmp_path: Path, clock: Time) -> None:
    gates = [Gate(GateSettings(connections_per_s=20.0), clock, times) for times in crew(tmp_path, clock)]
    came = [gates[turn % 3].refusal("192.0.2.1:1") for turn in range(60)]
    assert came.count("") == 20
    for _ in range(100):  # ten seconds, each time at all three
        clock.now += 0.1
        came += [gate.refusal("192.0.2.1:1") for gate in gates]
    assert 218 <= came.count("") <= 220
    assert [gate.refusal("192.0.2.2:1") for gate in gates] == [""] * 3


def test_a_burst_is_spent_once_also_by_those_who_never_saw_the_address(tmp_path: Path, clock: Time) -> None:
    first, second, third = (Allowance(1.0, 10.0, clock, times, "x") for times in crew(tmp_path, clock))
    assert [first.take("a") for _ in range(11)] == [True] * 10 + [False]
    assert not second.take("a")
    assert second.wait_s("a") == pytest.approx(1.0)
    clock.now += 5.0
    assert [second.take("a") for _ in range(6)] == [True] * 5 + [False]
    assert third.wait_s("a") == pytest.approx(1.0)
    third.draw("a")  # it is accepted already
    assert first.wait_s("a") == pytest.approx(2.0)


def test_failed_logins_add_up_and_a_ban_is_everywhere(tmp_path: Path, clock: Time) -> None:
    settings = GateSettings(ban_after_failures=3, ban_window_s=60.0, ban_s=600.0)
    gates = [Gate(settings, clock, times) for times in crew(tmp_path, clock)]
    assert [gate.failed("192.0.2.1:1") for gate in gates] == [False, False, True]
    assert [gate.refusal("192.0.2.1:9") for gate in gates] == ["banned"] * 3
    assert Gate(settings, clock, NodeTimes(tmp_path / "times", 2, 3, clock)).bans(
        "192.0.2.1:1"
    )  # started again
    clock.now += 600.0
    assert [gate.bans("192.0.2.1:9") for gate in gates] == [False] * 3


def test_what_has_gone_by_makes_room(tmp_path: Path, clock: Time) -> None:
    first, second = crew(tmp_path, clock, 2)
    first._table.full = 10
    for number in range(10):
        first.hold(clock.now + (1 if number < 5 else 100), str(number))
    first.hold(clock.now + 50, "late")
    assert second.latest("late") == 0.0  # no room: it counts alone
    clock.now += 2
    first.hold(clock.now + 50, "late")
    assert second.latest("late") == clock.now + 50
    assert [second.latest(str(number)) > 0 for number in range(10)] == [False] * 5 + [True] * 5
