"""The list of who was refused is what is described."""

from __future__ import annotations

import msgspec

from headrace.api.refusals import REFUSALS, of_refusals
from headrace.services.refusals import Refusals


def test_what_is_answered_is_what_is_described() -> None:
    refusals = Refusals(0)
    refusals.note("refused", "banned", "192.0.2.1", {"client": "c"})
    content = of_refusals(refusals)[REFUSALS]({"pattern": "", "limit": 9})
    assert msgspec.to_builtins(msgspec.convert(content, REFUSALS.answer, strict=True)) == content
    assert of_refusals(refusals)[REFUSALS]({"pattern": "d", "limit": 9}) == {"rows": []}
