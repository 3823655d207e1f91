"""A few of the cases of `make torture-spark`, in which something of the archive's lake is not what it was."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from faults.pipeline.leftovers import Scene

pytestmark = pytest.mark.spark

CASES = (
    ("refused", "_checkpoints/archive-archive/offsets/1 deleted"),
    ("whole", "_checkpoints/archive-archive put back"),
    ("refused", "data/consumers/archive emptied"),
    ("refused", "messages/_delta_log/00000000000000000002.json emptied"),
    ("refused", "lake/messages put back"),
    ("refused", "lake/messages restored"),
)


def test_the_archive_is_whole_or_says_what_to_do(spark: SparkSession, tmp_path: Path) -> None:
    scene = Scene(spark, tmp_path, "archive")
    cases = {str(case): case for case in scene.cases()}
    for outcome, name in CASES:
        [case] = [case for said, case in cases.items() if said.endswith(name)]
        assert outcome in scene.outcome(case)
