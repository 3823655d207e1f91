"""A few faults of a node with workers under load (`make torture SHARDS=4` goes on for ten minutes)."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from faults.workers.rounds import torture


@pytest.mark.slow
def test_nothing_acknowledged_is_lost_between_workers(tmp_path: Path) -> None:
    assert "none missing" in asyncio.run(torture(tmp_path, workers=2, shards=3, seconds=0, seed=5, rounds=4))
