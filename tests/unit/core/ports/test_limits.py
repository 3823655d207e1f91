"""The limits of a tenant: each tenant has its own, and nobody reads one from the settings of the worker."""

from __future__ import annotations

import re
from pathlib import Path

from headrace.core.ports.limits import NAMES, Limits
from headrace.core.ports.settings import BrokerSettings

SOURCE = Path(__file__).parents[4] / "src/headrace"
FROM_SETTINGS = re.compile(rf"settings\.({'|'.join(NAMES)})\b")


def names(limits: Limits) -> set[str]:
    return {name for name in dir(limits) if not name.startswith("_") and not callable(getattr(limits, name))}


def another(value: object, number: int) -> object:
    """Another value of the same type: compiled classes take no other."""
    if isinstance(value, str):
        return f"{value} {number}"
    return not value if isinstance(value, bool) else number


def test_all_of_them_are_named() -> None:
    assert names(Limits()) == set(NAMES)


def test_limits_that_take_others_equal_them() -> None:
    settings, limits = BrokerSettings(), Limits()
    for at, name in enumerate(NAMES):
        setattr(settings, name, another(getattr(settings, name), at))
    limits.take(settings)
    assert [getattr(limits, name) for name in NAMES] == [getattr(settings, name) for name in NAMES]


def test_the_core_reads_no_limit_from_the_settings() -> None:
    found = [
        f"{file.relative_to(SOURCE)}: {match[0]}"
        for folder in ("core", "bridge", "net", "workers")
        for file in sorted((SOURCE / folder).rglob("*.py"))
        for match in FROM_SETTINGS.finditer(file.read_text())
        if not match[0].startswith("settings.inflight_max")
        or folder == "core"  # those of a bridge are its own
    ]
    assert found == []
