"""A lake is a folder or a URL that Spark has a client for; of no URL is a folder made, and jobs that want one say so."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace.commands.pipeline import job_settings
from headrace.config import load
from headrace_spark.base.errors import BadOption
from headrace_spark.base.lake_url import LakeUrl
from headrace_spark.lake.location import lake_location, table_location


@pytest.mark.parametrize("written", ["lake", "/data/lake", "a:b/lake", "file:///data/lake"])
def test_folders(written: str) -> None:
    assert lake_location(written) == Path(written.removeprefix("file://"))
    assert lake_location(Path(written)) == lake_location(written)


@pytest.mark.parametrize(
    ("written", "url"),
    [
        ("s3a://bucket/lake/", "s3a://bucket/lake"),
        ("abfss://c@a.dfs.core.windows.net/lake", "abfss://c@a.dfs.core.windows.net/lake"),
        ("gs://bucket", "gs://bucket"),
        ("hdfs://name:8020/lake", "hdfs://name:8020/lake"),
        ("hdfs:///lake", "hdfs:/lake"),
        ("s3a:/bucket/lake", "s3a://bucket/lake"),  # what a path makes of it
        ("s3a://bucket//a/./x/../lake#1?", "s3a://bucket/a/lake#1?"),
        ("hdfs:///a//x/../lake", "hdfs:/a/lake"),
    ],
)
def test_urls(written: str, url: str) -> None:
    found = lake_location(written)
    assert found == LakeUrl(url)
    assert str(found / "messages") == f"{url}/messages"


@pytest.mark.parametrize("url", ["s3://bucket/lake", "http://bucket/lake"])
def test_other_urls_are_refused(url: str) -> None:
    with pytest.raises(BadOption, match=r"pipeline.lake="):
        lake_location(url)
    with pytest.raises(BadOption, match=r"pipeline.lake"):
        job_settings("archive", load(None, [f'pipeline.lake="{url}"']))


@pytest.mark.parametrize(
    ("lake", "table", "place"),
    [
        ("/lake", "commands", Path("/lake/commands")),
        ("/lake", "/other/commands", Path("/other/commands")),
        ("s3a://b/l", "commands", LakeUrl("s3a://b/l/commands")),
        ("s3a://b/l", "./x/../commands/", LakeUrl("s3a://b/l/commands")),
        ("s3a://b/l", "../l/commands", LakeUrl("s3a://b/l/commands")),
        ("s3a://b/x/../l", "s3a://b//l/commands#1", LakeUrl("s3a://b/l/commands#1")),
        ("s3a://b/l", "/other/commands", Path("/other/commands")),
        ("s3a://b/l", "hdfs://n/t", LakeUrl("hdfs://n/t")),
    ],
)
def test_a_table_is_in_the_lake_or_where_it_says(lake: str, table: str, place: Path | LakeUrl) -> None:
    assert table_location(lake_location(lake), table) == place


def test_a_table_of_a_lake_by_url_is_by_url() -> None:
    assert table_location(LakeUrl("file:/data/lake"), "../x") == LakeUrl("file:/data/x")
