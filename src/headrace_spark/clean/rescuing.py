"""What an object has beside the fields that its topic schema names, as JSON in the very text that was sent.

A number of any size and precision, a name that comes twice and half of a surrogate pair are so what they were, which no
type of a column could hold. Runs on Python workers, for topic schemas with `rescue`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection
from typing import Final

_DECODER: Final = json.JSONDecoder(
    parse_int=str, parse_float=str
)  # nobody asks for the values, only where they end
_SPACE: Final = re.compile(r"[ \t\n\r]*")


def others_of(text: str, named: Collection[str]) -> str | None:
    """Return the object of these members of a JSON object that are not named, None where there are none, or where the
    text is no object."""
    try:
        members = list(_members(text))
    except (ValueError, IndexError, RecursionError):
        return None
    others = [member for name, member in members if name not in named]
    return "{" + ",".join(others) + "}" if others else None


def _members(text: str) -> list[tuple[str, str]]:
    """Return name and text of each member. Raises ValueError, IndexError, RecursionError for what is no object."""
    found: list[tuple[str, str]] = []
    at = _past_space(text, 0)
    if text[at] != "{":
        raise ValueError("no object")
    at = _past_space(text, at + 1)
    while text[at] != "}":
        name, name_end = _DECODER.raw_decode(text, at)
        value_at = _past_space(text, _past_space(text, name_end) + 1)  # behind the colon
        _, end = _DECODER.raw_decode(text, value_at)
        found.append((name, f"{text[at:name_end]}:{text[value_at:end]}"))
        at = _past_space(text, end)
        if text[at] == ",":
            at = _past_space(text, at + 1)
    return found


def _past_space(text: str, at: int) -> int:
    space = _SPACE.match(text, at)
    return at if space is None else space.end()
