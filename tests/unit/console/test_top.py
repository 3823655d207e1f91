"""What `headrace top` draws, on a console that nobody looks at."""

from __future__ import annotations

import io
from typing import Any

import pytest

from headrace.console.admin import AdminClient, AdminRefused, Unreachable

rich_console = pytest.importorskip("rich.console")
top = pytest.importorskip("headrace.console.top")

METRICS = """\
# TYPE headrace_publishes_received_total counter
headrace_publishes_received_total{{tenant="default"}} {received}
# TYPE headrace_puback_latency_seconds histogram
headrace_puback_latency_seconds_bucket{{le="0.001"}} {received}
headrace_puback_latency_seconds_bucket{{le="+Inf"}} {received}
# TYPE headrace_consumer_offset gauge
headrace_consumer_offset{{consumer="archive"}} 7
# TYPE headrace_consumer_lag_records gauge
headrace_consumer_lag_records{{consumer="archive"}} 1500
"""
CLIENT = {
    "client_id": "dev\x1b[2Jice",
    "address": "192.0.2.1:5",
    "connected": True,
    "slow": True,
    "in_flight": 20,
    "messages": 1500,
    "bytes": 3 << 20,
}


class Fake(AdminClient):
    """Answers as a broker would; `answers` are taken from it one by one."""

    def __init__(self, clients: list[dict[str, Any]] | int) -> None:
        super().__init__("h", 1)
        self.scrapes = 0
        self.clients = clients
        self.away_at = -1

    def text(self, path: str) -> str:
        if path != "/metrics":
            return "ready"
        self.scrapes += 1
        if self.scrapes == self.away_at:
            raise Unreachable("no broker answers at http://h:1: gone")
        return METRICS.format(received=self.scrapes * 1000)

    def get(self, path: str) -> Any:
        assert path == "/v1/clients/behind?limit=10"
        if isinstance(self.clients, int):
            raise AdminRefused(self.clients, "no")
        return {"clients": self.clients}


def drawn(admin: Fake, rounds: int = 1) -> str:
    file = io.StringIO()
    console = rich_console.Console(file=file, force_terminal=True, width=140, height=50, color_system=None)
    top.watch(admin, 1.0, rounds, console, pause=lambda _: None)
    return file.getvalue()


def test_rates_latencies_clients_and_consumers() -> None:
    text = drawn(Fake([CLIENT]))
    assert "PUBLISH in" in text
    assert "0.50 ms" in text
    for cell in ("192.0.2.1:5", "slow", "1.50 k", "3.00 MiB", "archive", "good"):
        assert cell in text, cell


def test_a_client_id_moves_no_cursor() -> None:
    text = drawn(Fake([CLIENT]))
    assert "dev\x1b[2Jice" not in text
    assert "dev\\x1b[2Jice" in text


def test_nobody_is_behind() -> None:
    assert "nobody" in drawn(Fake([]))


@pytest.mark.parametrize("status", [401, 403])
def test_without_a_token_all_but_the_clients(status: int) -> None:
    text = drawn(Fake(status))
    assert "--token-file" in text
    assert "archive" in text


def test_a_broker_that_is_away_is_waited_for() -> None:
    admin = Fake([])
    admin.away_at = 3
    text = drawn(admin, rounds=3)
    assert "no broker answers at http://h:1: gone" in text
    assert admin.scrapes == 4


def test_one_that_never_was_is_an_error() -> None:
    admin = Fake([])
    admin.away_at = 1
    with pytest.raises(Unreachable):
        drawn(admin)


def test_a_signal_that_comes_just_before_a_sleep_is_not_seen_much_later(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    slept: list[float] = []

    def sleep(seconds: float) -> None:
        slept.append(seconds)

    monkeypatch.setattr(top.time, "monotonic", lambda: sum(slept))
    monkeypatch.setattr(top.time, "sleep", sleep)
    top.rest(60.25)
    assert sum(slept) == 60.25
    assert max(slept) == top.SLEEP_S_MAX < 1.0
