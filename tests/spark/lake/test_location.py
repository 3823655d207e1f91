"""A lake is a folder or a URL that Spark has a client for; of no URL is a folder made, and jobs that want one say so."""

from __future__ import annotations

from pathlib import Path
from threading import Event

import pytest

from headrace.cli_pipeline import job_settings
from headrace.config import load
from headrace_spark.base.errors import BadOption
from headrace_spark.base.lake_url import LakeUrl
from headrace_spark.base.runner import run_job
from headrace_spark.jobs import BY_URL, JOBS
from headrace_spark.lake.location import lake_folder, lake_location


@pytest.mark.parametrize("written", ["lake", "/data/lake", "a:b/lake", "file:///data/lake"])
def test_folders(written: str) -> None:
    assert lake_folder(written) == Path(written.removeprefix("file://"))
    assert lake_location(Path(written)) == lake_folder(written)


@pytest.mark.parametrize(
    ("written", "url"),
    [
        ("s3a://bucket/lake/", "s3a://bucket/lake"),
        ("abfss://c@a.dfs.core.windows.net/lake", "abfss://c@a.dfs.core.windows.net/lake"),
        ("gs://bucket", "gs://bucket"),
        ("hdfs://name:8020/lake", "hdfs://name:8020/lake"),
        ("hdfs:///lake", "hdfs:/lake"),
        ("s3a:/bucket/lake", "s3a://bucket/lake"),  # what a path makes of it
    ],
)
def test_urls(written: str, url: str) -> None:
    found = lake_location(written)
    assert found == LakeUrl(url)
    assert str(found / "messages") == f"{url}/messages"
    with pytest.raises(BadOption, match=r"pipeline.lake=.*a folder is needed"):
        lake_folder(written)


@pytest.mark.parametrize("url", ["s3://bucket/lake", "http://bucket/lake"])
def test_other_urls_are_refused(url: str) -> None:
    with pytest.raises(BadOption, match=r"pipeline.lake="):
        lake_location(url)
    with pytest.raises(BadOption, match=r"pipeline.lake"):
        job_settings("archive", load(None, [f'pipeline.lake="{url}"']))


@pytest.mark.parametrize("job", sorted(JOBS.keys() - BY_URL))
def test_jobs_that_work_on_files_refuse_a_url_before_spark_starts(job: str, tmp_path: Path) -> None:
    sets = [f'data_dir="{tmp_path}"', 'pipeline.lake="s3a://bucket/lake"']
    with pytest.raises(BadOption, match="this job writes no lake behind a URL yet") as refused:
        run_job(job, job_settings(job, load(None, sets)), Event(), lambda _: None)
    assert refused.value.exit_code == 2
