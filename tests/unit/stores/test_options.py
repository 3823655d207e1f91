"""Options of the addresses of stores: each once, with a value, and known."""

from __future__ import annotations

import pytest

from headrace.stores.options import options_of

KNOWN = ("name", "regions")


def test_options_are_found_by_name() -> None:
    assert options_of("", KNOWN) == {}
    assert options_of("regions=4&name=a%26b", KNOWN) == {"regions": "4", "name": "a&b"}


@pytest.mark.parametrize(
    ("query", "said"),
    [
        ("other=1", "option other is not one of name, regions"),
        ("name=", "option name has no value, or more than one"),
        ("name", "option name has no value, or more than one"),
        ("name=a&name=b", "option name has no value, or more than one"),
    ],
)
def test_what_is_wrong_is_said(query: str, said: str) -> None:
    with pytest.raises(ValueError) as found:
        options_of(query, KNOWN)
    assert str(found.value) == said
