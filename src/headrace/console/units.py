"""Numbers as a person reads them at a terminal."""

from __future__ import annotations

_PREFIXES = ("", "k", "M", "G", "T")


def count(number: float) -> str:
    """Return a number for people: 1234567 -> "1.23 M"."""
    return _scaled(number, 1000.0, _PREFIXES).rstrip()


def size(number: float) -> str:
    """Return bytes for people: 1536 -> "1.50 KiB"."""
    return _scaled(number, 1024.0, ("B", "KiB", "MiB", "GiB", "TiB"))


def _scaled(number: float, step: float, prefixes: tuple[str, ...]) -> str:
    at = 0
    while abs(number) >= step and at < len(prefixes) - 1:
        number /= step
        at += 1
    digits = 0 if at == 0 and number == int(number) else 2 if abs(number) < 100 else 0
    return f"{number:.{digits}f} {prefixes[at]}"


def duration(seconds: float) -> str:
    """Return the duration of a process or of silence: the two largest units, as "3 d 4 h"."""
    whole = int(seconds)
    parts = [(whole // 86400, "d"), (whole // 3600 % 24, "h"), (whole // 60 % 60, "min"), (whole % 60, "s")]
    first = next((at for at, (number, _) in enumerate(parts) if number), len(parts) - 1)
    return " ".join(f"{number} {unit}" for number, unit in parts[first : first + 2])


def latency(seconds: float | None) -> str:
    """Return a latency in milliseconds, or "-" where nothing was observed."""
    return "-" if seconds is None else f"{seconds * 1000:.2f} ms"
