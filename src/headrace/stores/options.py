"""The options behind the `?` in the address of a store: `name=value`, each once, of those that the kind of store has."""

from __future__ import annotations

from collections.abc import Collection
from urllib.parse import parse_qsl


def options_of(query: str, known: Collection[str]) -> dict[str, str]:
    """Return the options by name. ValueError names one that is not known, is there twice, or has no value."""
    options: dict[str, str] = {}
    for name, value in parse_qsl(query, keep_blank_values=True):
        if name not in known:
            raise ValueError(f"option {name} is not one of {', '.join(known)}")
        if not value or name in options:
            raise ValueError(f"option {name} has no value, or more than one")
        options[name] = value
    return options
