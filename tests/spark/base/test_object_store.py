"""What a session gets for a lake in S3: a client, and commits that nobody overwrites, unless somebody chose others."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace_spark.base.lake_url import LakeUrl
from headrace_spark.base.object_store import LOG_STORE, LOG_STORE_KEY, for_lake
from headrace_spark.base.session import session_configuration
from headrace_spark.base.settings import SparkSettings

BUCKET = LakeUrl("s3a://bucket/lake")


@pytest.mark.parametrize("lake", [Path("lake"), LakeUrl("gs://bucket/lake"), LakeUrl("hdfs:/lake")])
def test_elsewhere_nothing_is_added(lake: Path | LakeUrl) -> None:
    settings = SparkSettings(extra={"a": "b"})
    assert for_lake(settings, lake) is settings


def test_the_client_that_was_fetched_stands_beside_other_jars(tmp_path: Path) -> None:
    (tmp_path / "s3a").mkdir()
    (tmp_path / "s3a" / "hadoop-aws-1.jar").touch()
    settings = SparkSettings(jars=tmp_path, extra={"spark.jars": "/my/own.jar"})
    found = for_lake(settings, BUCKET).extra
    assert found[LOG_STORE_KEY] == LOG_STORE
    assert found["spark.jars"] == f"{tmp_path}/s3a/hadoop-aws-1.jar,/my/own.jar"
    assert "spark.jars.packages" not in found


def test_without_it_spark_fetches_it_beside_delta(tmp_path: Path) -> None:
    found = session_configuration(for_lake(SparkSettings(jars=tmp_path), BUCKET))
    packages = found["spark.jars.packages"].split(",")
    assert [package.split(":")[1] for package in packages[:2]] == ["delta-spark_4.2_2.13", "hadoop-aws"]
    assert "software.amazon.awssdk:bundle" in found["spark.jars.excludes"]


def test_what_somebody_chose_wins(tmp_path: Path) -> None:
    theirs = {LOG_STORE_KEY: "io.delta.storage.S3DynamoDBLogStore", "spark.jars": "/x/hadoop-aws-3.5.0.jar"}
    assert for_lake(SparkSettings(jars=tmp_path, extra=theirs), BUCKET).extra.items() >= theirs.items()
