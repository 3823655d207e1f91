"""A lake is a folder or a URL that Spark has a client for; of no URL is a folder made, and jobs that want one say so."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from click.testing import CliRunner

from headrace.commands.pipeline import job_settings, pipeline, problems
from headrace.config import load
from headrace_spark.base.errors import BadOption
from headrace_spark.base.lake_url import LakeUrl
from headrace_spark.jobs import JOBS
from headrace_spark.lake.location import check_lake, lake_location, table_location
from spark.conftest import Writer
from spark.journals import mixed


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


def unusable(folder: Path) -> list[Path]:
    """Lakes that cannot be: a file, in a file, and names that lead nowhere."""
    (folder / "file").write_text("no folder")
    (folder / "link").symlink_to(folder / "nowhere")
    (folder / "chain").symlink_to(folder / "file")
    return [folder / name for name in ("file", "file/lake", "file/a/b", "link", "chain", "chain/lake")]


def test_a_lake_that_is_no_folder_is_said_before_spark_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By every job, the commands that look at a lake, and `config check`."""
    monkeypatch.setattr(
        "headrace_spark.base.runner.open_session", lambda _settings: pytest.fail("Spark starts")
    )
    lakes = unusable(tmp_path)
    (tmp_path / "data").mkdir()
    for lake in lakes:
        for command in [*(["run", job, "--data-dir", str(tmp_path / "data")] for job in JOBS), ["report"]]:
            found = CliRunner().invoke(pipeline, [*command, "--lake", str(lake)])
            assert (found.exit_code, found.stdout) == (2, ""), (command, lake, found.stderr)
            assert f"pipeline.lake='{lake}'" in found.stderr
            assert "is no folder" in found.stderr
        [said] = [
            line
            for line in problems(load(None, [f'pipeline.lake="{lake}"']))
            if line.startswith("pipeline.lake")
        ]
        assert str(lake) in said
        assert "is no folder" in said


def test_status_says_it_too(journal: Writer, tmp_path: Path) -> None:
    journal.write(mixed(5))
    for lake in unusable(tmp_path):
        found = CliRunner().invoke(
            pipeline, ["status", "--data-dir", str(journal.data_dir), "--lake", str(lake)]
        )
        assert found.exit_code == 2, found.output
        assert f"pipeline.lake='{lake}'" in found.stderr


def test_a_lake_without_rights_is_said_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who is root may do everything: the system's answer is played."""
    (tmp_path / "lake").mkdir()
    check_lake(tmp_path / "lake")
    check_lake(tmp_path / "new" / "lake")
    check_lake(LakeUrl("s3a://bucket/lake"))
    access = os.access

    def may(path: Path, mode: int) -> bool:
        asked.append(mode)
        return not mode & forbidden and access(path, mode)

    monkeypatch.setattr(os, "access", may)
    for lake in (tmp_path / "lake", tmp_path / "new" / "lake"):
        asked, forbidden = list[int](), os.W_OK
        there = lake if lake.exists() else tmp_path
        with pytest.raises(
            BadOption, match=rf"pipeline.lake='{lake}': this user may not write in {there}$"
        ) as refused:
            check_lake(lake)
        assert refused.value.exit_code == 2
        check_lake(lake, writes=False)
        forbidden = os.X_OK
        with pytest.raises(BadOption, match=f"may not read in {there}$"):
            check_lake(lake, writes=False)
        assert len(asked) == 3
