"""A trace counts what was left out, and is ended once."""

from __future__ import annotations

from typing import Any, cast

from headrace.clients.admin import Trace, Unreachable
from headrace.clients.admin.connection import AdminConnection


class Broker:
    """Answers what is asked of a trace."""

    def __init__(self, *answers: Any) -> None:
        self.answers = list(answers)
        self.asked: list[str] = []

    def ask(self, method: str, target: str) -> Any:
        self.asked.append(f"{method} {target}")
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer


def trace(broker: Broker) -> Trace:
    return Trace(cast(AdminConnection, broker), "1.2")


def test_what_came_and_the_end() -> None:
    rows = [{"packet": "CONNECT"}]
    broker = Broker(
        {"rows": rows, "left_out": 2, "over": False}, {"rows": [], "left_out": 3, "over": False}, None
    )
    with trace(broker) as found:
        assert (found.take(), found.left_out, found.is_over) == (rows, 2, False)
        assert (found.take(), found.left_out) == ([], 5)
    found.end()
    assert broker.asked == ["GET /v1/traces/1.2"] * 2 + ["DELETE /v1/traces/1.2"]


def test_one_that_is_over_is_not_ended_and_a_broker_that_is_gone_does_not_hide_an_error() -> None:
    broker = Broker({"rows": [], "left_out": 0, "over": True})
    with trace(broker) as found:
        found.take()
    assert broker.asked == ["GET /v1/traces/1.2"]
    with trace(Broker(Unreachable("gone"))):
        pass
