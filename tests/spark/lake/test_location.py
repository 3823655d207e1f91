"""A lake is a folder, and no folder is made of a URL."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace.cli_pipeline import job_settings
from headrace.config import load
from headrace_spark.base.errors import BadOption
from headrace_spark.lake.location import lake_folder


@pytest.mark.parametrize("written", ["lake", "/data/lake", "a:b/lake", "file:///data/lake"])
def test_folders(written: str) -> None:
    assert lake_folder(written) == Path(written.removeprefix("file://"))
    assert lake_folder(Path(written)) == lake_folder(written)


@pytest.mark.parametrize("url", ["s3://bucket/lake", "s3a://bucket/lake", "abfss://c@a/lake", "hdfs://n:1/x"])
def test_urls_are_refused_and_nothing_is_written(url: str, tmp_path: Path) -> None:
    for written in (url, Path(url)):
        with pytest.raises(BadOption, match=r"pipeline.lake=.*writes no lake behind a URL"):
            lake_folder(written)
    with pytest.raises(BadOption, match=r"pipeline.lake"):
        job_settings("archive", load(None, [f'pipeline.lake="{url}"']))
