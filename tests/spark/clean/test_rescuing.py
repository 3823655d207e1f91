"""What is kept of an object beside its named fields: the very text, whatever it holds, or nothing at all."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace_spark.clean.rescuing import others_of

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=6,
)


@given(st.lists(st.tuples(st.text(max_size=3), VALUES)), st.sets(st.text(max_size=2)), st.booleans())
def test_each_member_that_is_not_named_is_there_as_it_was_sent(
    members: list[tuple[str, object]], named: set[str], ascii_only: bool
) -> None:
    texts = [(name, json.dumps(name), json.dumps(value, ensure_ascii=ascii_only)) for name, value in members]
    sent = " {" + " ,\n".join(f"\t{name} :{value} " for _, name, value in texts) + "} "
    kept = [f"{quoted}:{value}" for name, quoted, value in texts if name not in named]
    assert others_of(sent, named) == ("{" + ",".join(kept) + "}" if kept else None)


@pytest.mark.parametrize(
    "value", ["1e400", "1.10", "-0", "9" * 5000, '"\\ud800"', '"\\u00e9\\/"', "[1.0, 2]"]
)
def test_what_no_column_could_hold_is_kept(value: str) -> None:
    assert others_of(f'{{"n":1,"x":{value}}}', {"n"}) == f'{{"x":{value}}}'


@pytest.mark.parametrize(
    "text", ["", " ", "[]", "7", "{", '{"a"', '{"a":', '{"a":1', "[" * 10_000, '{"a":' * 10_000]
)
def test_what_is_no_object_has_no_members(text: str) -> None:
    assert others_of(text, set()) is None
