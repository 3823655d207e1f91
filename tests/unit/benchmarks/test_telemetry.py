"""Messages that come again do so after the first of them."""

from __future__ import annotations

from itertools import pairwise

from benchmarks.telemetry import with_copies


def test_each_copy_is_of_a_message_of_the_batch_before() -> None:
    batches = [with_copies(batch, 3000, 1000) for batch in range(1002)]
    assert batches[0] == list(range(3000))
    for before, batch in pairwise(batches):
        assert len(set(batch)) == 3000
        assert len(set(batch) & set(before)) == 3
