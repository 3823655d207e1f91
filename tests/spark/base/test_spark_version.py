"""An older Spark is refused by its name."""

from __future__ import annotations

import pyspark
import pytest

from headrace_spark.base.errors import EngineMissing
from headrace_spark.base.spark_version import require_spark


@pytest.mark.parametrize("version", ["3.5.7", "4.0.1", "4.1.0.dev0"])
def test_an_older_spark_is_refused(version: str) -> None:
    with pytest.raises(EngineMissing, match=f"this is Spark {version}, and headrace needs 4.2"):
        require_spark(version)


@pytest.mark.parametrize("version", [pyspark.__version__, "4.2.0.dev1", "4.10.0", "5.0.0"])
def test_this_one_and_newer_ones_are_taken(version: str) -> None:
    require_spark(version)
