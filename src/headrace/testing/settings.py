"""Settings of a broker under test: keys of the configuration, as a mapping or as keyword arguments.

A keyword cannot hold a dot, so two underscores stand for it: `session__inflight_max=10` is `session.inflight_max`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping

# As small and quick as a broker for a few messages can be; everything else is as `headrace serve` has it.
DEFAULTS: Mapping[str, object] = {"journal.reserve_bytes": 0}
OURS = ("data_dir", "listeners")


def assignments(settings: Mapping[str, object] | None, keywords: Mapping[str, object]) -> list[str]:
    """Return `key=value` for each setting, as `--set` takes them. Raises ValueError for what the test's broker
    decides."""
    dotted = {name.replace("__", "."): value for name, value in keywords.items()}
    wanted = {**DEFAULTS, **(settings or {}), **dotted}
    for key in OURS:
        if key in wanted:
            raise ValueError(f"{key} is no setting here: use the arguments folder and listeners")
    return [f"{key}={_toml(value)}" for key, value in wanted.items()]


def _toml(value: object) -> str:
    """Return a value as TOML: numbers, truth values, strings and lists are written alike in JSON and TOML."""
    return json.dumps(list(value) if isinstance(value, tuple) else value, default=str, ensure_ascii=False)
