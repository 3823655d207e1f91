"""Numbers as a person reads them."""

from __future__ import annotations

import pytest

from headrace.console.units import count, duration, latency, size


@pytest.mark.parametrize(
    ("number", "said"),
    [
        (0, "0"),
        (7, "7"),
        (0.5, "0.50"),
        (999, "999"),
        (1234, "1.23 k"),
        (1_234_567, "1.23 M"),
        (2e15, "2000 T"),
    ],
)
def test_counts(number: float, said: str) -> None:
    assert count(number) == said


@pytest.mark.parametrize(
    ("number", "said"),
    [(0, "0 B"), (1023, "1023 B"), (1536, "1.50 KiB"), (300 << 20, "300 MiB"), (1 << 40, "1.00 TiB")],
)
def test_sizes(number: float, said: str) -> None:
    assert size(number) == said


@pytest.mark.parametrize(
    ("seconds", "said"),
    [(0, "0 s"), (59.9, "59 s"), (61, "1 min 1 s"), (3600, "1 h 0 min"), (90061, "1 d 1 h")],
)
def test_durations(seconds: float, said: str) -> None:
    assert duration(seconds) == said


def test_latencies() -> None:
    assert (latency(0.00123), latency(None)) == ("1.23 ms", "-")
