"""The audit log: what is told, how often, and how it is written."""

from __future__ import annotations

from typing import Any

import pytest
import structlog
from prometheus_client import CollectorRegistry, generate_latest

from headrace.services.audit import INTERVAL_S, LINES_MAX, Audit, AuditCollector, clean


class Lines:
    def __init__(self) -> None:
        self.told: list[tuple[str, dict[str, Any]]] = []
        self.now = 0.0

    def __call__(self, event: str, **more: Any) -> None:
        self.told.append((event, more))

    def audit(self, level: str = "all") -> Audit:
        return Audit(self, level, lambda: self.now)


@pytest.fixture
def lines() -> Lines:
    return Lines()


@pytest.mark.parametrize(
    ("level", "told"), [("off", []), ("failures", ["login failed"]), ("all", ["login failed", "login"])]
)
def test_levels_and_counters_that_do_not_depend_on_them(lines: Lines, level: str, told: list[str]) -> None:
    audit = lines.audit(level)
    audit.failure("login failed", "unknown_user", "192.0.2.1", user="eve", client="")
    audit.success("login", "password", "192.0.2.1", user="ada")
    assert [event for event, _ in lines.told] == told
    assert audit.counts == {("login failed", "unknown_user"): 1, ("login", "password"): 1}
    if told:
        assert lines.told[0][1] == {"reason": "unknown_user", "source": "192.0.2.1", "user": "eve"}


def test_one_line_for_a_source_and_then_how_many_there_were(lines: Lines) -> None:
    audit = lines.audit()
    for source in ("a", "b"):
        for number in range(100):
            audit.failure("denied", "publish", source, topic=f"t/{number}")
    assert [more["topic"] for _, more in lines.told] == ["t/0", "t/0"]
    audit.flush()
    assert len(lines.told) == 2
    lines.now += INTERVAL_S
    audit.flush()
    assert lines.told[2:] == [
        ("denied", {"source": "a", "suppressed": 99}),
        ("denied", {"source": "b", "suppressed": 99}),
    ]
    audit.failure("denied", "publish", "a", topic="again")
    assert lines.told[-1][1]["topic"] == "again"
    assert audit.counts == {("denied", "publish"): 201}


def test_ten_thousand_sources_write_a_bounded_number_of_lines(lines: Lines) -> None:
    audit = lines.audit()
    for _ in range(2):
        for number in range(10_000):
            audit.failure("login failed", "unknown_user", f"192.0.{number >> 8}.{number & 255}")
    assert len(lines.told) == LINES_MAX
    lines.now += INTERVAL_S
    audit.flush()
    assert len(lines.told) == 2 * LINES_MAX + 1
    assert lines.told[-1] == ("login failed", {"source": "others", "suppressed": 2 * (10_000 - LINES_MAX)})


@pytest.mark.parametrize(
    "text",
    [
        "",
        "ada",
        "sensors/7/up",
        "a b",
        "x reason=none",
        'say "no"',
        "a\nb",
        "\x1b[31mred",
        "\u2028",
        "a\\nb",
        "é",
        "\u202eabc",
    ],
)
def test_what_a_client_chose_stays_one_word_on_one_line(text: str) -> None:
    written = clean(text)
    assert written.isprintable()
    assert written == text or written.encode("latin-1").decode("unicode_escape") == text


@pytest.mark.parametrize("text", ["a b", "x reason=none", 'say "no"', "user='eve'"])
def test_the_log_s_text_form_puts_more_than_a_word_in_quotes(text: str) -> None:
    line = structlog.dev.ConsoleRenderer(colors=False)(None, "info", {"event": "login", "user": clean(text)})
    assert line.partition("user=")[2] == repr(text)


def test_long_names_are_cut() -> None:
    assert clean("x" * 70_000) == "x" * 128 + "..."


def test_metrics(lines: Lines) -> None:
    class Queue:
        waiting = 3
        dropped = 4

    audit = lines.audit("off")
    audit.failure("denied", "subscribe", "a")
    registry = CollectorRegistry()
    registry.register(AuditCollector(audit, Queue()))
    text = generate_latest(registry).decode()
    assert 'headrace_security_events_total{event="denied",reason="subscribe"} 1.0' in text
    assert "headrace_passwords_waiting 3.0" in text
    assert "headrace_passwords_abandoned_total 4.0" in text
