"""A few SIGKILLs of the real process under load (`make torture` does hundreds)."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from faults.model.kill_rounds import torture


@pytest.mark.slow
def test_nothing_acknowledged_is_lost(tmp_path: Path) -> None:
    assert asyncio.run(torture(tmp_path, rounds=3, seed=7, longest_s=0.5)) > 0
