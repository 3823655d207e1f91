"""What the parts are told: the configuration's defaults and theirs are the same numbers, and every key arrives."""

from __future__ import annotations

import msgspec
import pytest

from headrace.config import Config, LimitsConfig, SessionConfig
from headrace.core.ports.settings import BrokerSettings
from headrace.journal.log import LogSettings
from headrace.node import wiring

CONFIG = Config()
PARTS = {
    "core": (wiring.broker_settings(CONFIG), BrokerSettings()),
    "journal": (wiring.log_settings(CONFIG), LogSettings()),
}


def fields(settings: object) -> dict[str, object]:
    """Name and value of each field, whatever kind of class it is."""
    names = [name for name in dir(settings) if not name.startswith("_")]
    return {name: getattr(settings, name) for name in names if not callable(getattr(settings, name))}


@pytest.mark.parametrize("part", PARTS)
def test_a_part_alone_has_the_defaults_of_the_configuration(part: str) -> None:
    told, own = PARTS[part]
    assert fields(told)
    assert fields(told) == fields(own)


def other(value: object) -> object:
    """A value that differs from this one and is of its kind."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, int | float):
        return value + 7
    if isinstance(value, tuple):
        return ("archive-*",)
    return None


CORE = [
    (table, name)
    for table, kind in (("session", SessionConfig), ("limits", LimitsConfig))
    for name in kind.__struct_fields__
    if hasattr(BrokerSettings(), name) and other(getattr(kind(), name)) is not None
]


@pytest.mark.parametrize(("table", "name"), CORE)
def test_a_key_arrives_in_the_core_under_its_name(table: str, name: str) -> None:
    before = getattr(CONFIG, table)
    wanted = other(getattr(before, name))
    changed = msgspec.structs.replace(before, **{name: wanted})
    told = getattr(wiring.broker_settings(msgspec.structs.replace(CONFIG, **{table: changed})), name)
    assert told == (list(wanted) if isinstance(wanted, tuple) else wanted)
