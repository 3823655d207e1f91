"""Files for `headrace serve --bootstrap` are found behind a URL by another process, whole, and two of them are kept."""

from __future__ import annotations

from pathlib import Path
from uuid import uuid4

import pytest
from pyspark.sql import SparkSession

from headrace.journal.bootstrap_file import bootstrap_path, write_bootstrap
from headrace_spark.base.lake_url import LakeUrl
from headrace_spark.lake.bootstraps import Bootstraps
from headrace_spark.lake.url_lake import UrlLake

pytestmark = pytest.mark.spark


@pytest.mark.parametrize("below", ["", "of-a-journal"])
def test_another_process_finds_what_was_shown(spark: SparkSession, tmp_path: Path, below: str) -> None:
    uuid, kept = str(uuid4()), tmp_path / "bootstrap" / below
    (tmp_path / "bootstrap" / "of-another").mkdir(parents=True)
    for end in (10, 20, 30):
        lake = UrlLake(spark, LakeUrl(f"file:{tmp_path}"))
        with lake.holding("test"):
            files = Bootstraps(lake, below)
            file = bootstrap_path(files.folder, end)
            assert not files.is_whole(file)
            write_bootstrap(files.folder, uuid, 0, end, [(1, b"record")])
            files.show(file)
            assert str(files.at(file)) == f"file:{kept}/{file.name}"
    lake = UrlLake(spark, LakeUrl(f"file:{tmp_path}"))
    with lake.holding("test"):
        files = Bootstraps(lake, below)
        assert [files.is_whole(bootstrap_path(files.folder, end)) for end in (10, 20, 30)] == [
            False,
            True,
            True,
        ]
    with lake.holding("test"):
        bootstrap_path(kept, 30).write_bytes(b"cut off")
        files = Bootstraps(lake, below)
        for checksum in kept.glob(".*.crc"):
            checksum.unlink()
        assert not files.is_whole(bootstrap_path(files.folder, 30))
