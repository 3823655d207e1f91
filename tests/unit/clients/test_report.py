"""What is wrong with a run is named with its count."""

from __future__ import annotations

from headrace.clients.plan import Plan
from headrace.clients.report import Result, faults
from headrace.clients.tally import Tally


def plan(qos: int, mode: str = "p2p") -> Plan:
    return Plan("tcp://127.0.0.1:1883", mode, 2, qos, 1, 0.0, 64, 1.0, 0.0, 1, False, 4, "x")


def test_a_failed_run_says_which_count_was_wrong() -> None:
    assert faults(Result(lost=3, closed=1_200), plan(1)) == "lost 3, connections closed 1,200"
    assert faults(Result(lost=3, reordered=2), plan(0)) == "out of order 2"
    assert faults(Result(repeats=5), plan(1)) == ""
    assert faults(Result(repeats=5), plan(2)) == "repeated at QoS 2 5"
    assert faults(Result(sent=7, acked=5), plan(0, "connect")) == "not acknowledged 2"


def test_lost_is_what_never_came_whatever_came_twice() -> None:
    tally = Tally(1)
    tally.sent, tally.received, tally.repeats, tally.reordered = 10, 11, 2, 1
    result = Result()
    result.take_counts(tally, 1)
    assert result.lost == 2


def test_a_broker_that_nobody_measured_has_no_cpu_lines() -> None:
    result = Result(sent=1)
    result.take_load(100, 2.0, None)
    assert not [line for line in result.lines() if "cpu" in line]
    result.take_load(100, 2.0, 0.5)
    assert (result.broker_cpu_cores, result.messages_per_cpu_second) == (0.25, 200)
