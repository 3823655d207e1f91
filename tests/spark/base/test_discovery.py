"""Spark finds the source by itself; where it cannot run, it says why and harms no other source."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from headrace_spark.base.discovery import RefusedSource, load_source
from pyspark_headrace import DefaultSource

# What an older Spark, or a Spark without PyArrow, is for the modules that ask.
OLDER = "import pyspark; pyspark.__version__ = '4.0.1'"
WITHOUT = "import sys; sys.modules['pyarrow'] = None"
HALF = "import sys, types; name = 'headrace_spark.records.schema'; sys.modules[name] = types.ModuleType(name)"
ASK = """
{setting}
from pyspark_headrace import DefaultSource
assert DefaultSource.name() == "headrace"
try:
    DefaultSource({{"path": "d"}}).schema()
except Exception as error:
    print(type(error).__name__, error)
"""


def test_the_source_is_found_under_its_name() -> None:
    assert DefaultSource is load_source()
    assert DefaultSource.name() == "headrace" == RefusedSource.name()


@pytest.mark.parametrize(
    ("setting", "reason"),
    [
        (OLDER, "this is Spark 4.0.1, and headrace needs 4.2"),
        (WITHOUT, "pyarrow is not installed: pip install 'headrace[spark]'"),
        (HALF, "cannot import name '"),
    ],
)
def test_what_cannot_run_is_still_found_and_says_why(setting: str, reason: str, tmp_path: Path) -> None:
    asked = [sys.executable, "-c", ASK.format(setting=setting)]
    said = subprocess.run(asked, capture_output=True, text=True, check=True, timeout=400)
    assert said.stdout.startswith(f"EngineMissing {reason}")
