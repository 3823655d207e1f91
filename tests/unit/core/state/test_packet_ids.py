"""The ids that records gave to direct entries."""

from __future__ import annotations

from headrace.core.state.packet_ids import Bound


def test_an_id_has_one_entry_and_an_entry_one_id() -> None:
    bound = Bound()
    bound.bind(1, 50_000)
    bound.bind(2, 50_000)
    bound.bind(2, 50_001)
    assert (bound.ids, bound.serials) == ({2: 50_001}, {50_001: 2})
    bound.release_between(0, 1 << 62)
    assert bound.rows() == []
