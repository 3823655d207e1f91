"""An archive into a bucket of a real S3 server, by the command: killed, gone on with from another folder, read back by
Spark and by delta-rs; and what a server must know to have a lake."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from headrace.journal.consumers import ConsumerPosition
from headrace_spark.base.errors import LakeUnreachable
from headrace_spark.base.lake_url import LakeUrl
from headrace_spark.base.object_store import LOG_STORE, LOG_STORE_KEY
from headrace_spark.lake.hadoop_files import HadoopFiles
from headrace_spark.lake.url_lake import UrlLake
from spark import quick_java
from spark.conftest import Writer
from spark.journals import mixed
from spark.s3_server import BUCKET, OLDER, client_settings, s3_server, storage_options

pytestmark = pytest.mark.spark

WAIT_S = 400
KILLED_BEHIND_ITS_SECOND_COMMIT = """
import os, signal, sys
from headrace.commands.main import main
from headrace_spark.archive import by_url

commit, done = by_url.append_rows, []

def killed(*about):
    commit(*about)
    done.append(about)
    if len(done) == 2:
        os.kill(os.getpid(), signal.SIGKILL)

by_url.append_rows = killed
sys.argv[0] = "headrace"
main()
"""
SHORT_LEASE = """
import sys
from headrace.commands.main import main
from headrace_spark.lake import url_lake

url_lake.LEASE_S, url_lake.BEAT_S = 6.0, 1.0
sys.argv[0] = "headrace"
main()
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with s3_server(tmp_path_factory.mktemp("s3")) as address:
        yield address


def archive(
    code: str, folder: Path, journal: Writer, server: str, *more: str
) -> subprocess.CompletedProcess[str]:
    """The command in a folder of its own, as on a machine of its own."""
    folder.mkdir()
    command = [sys.executable, "-c", code, "pipeline", "archive", "--data-dir", str(journal.data_dir)]
    command += ["--lake", f"s3a://{BUCKET}/factory", "--master", "local[2]", *more]
    for key, value in client_settings(server).items():
        if "key" not in key:
            command += ["--conf", f"{key}={value}"]
    environment = os.environ | quick_java.ENVIRONMENT | {"TMPDIR": str(folder)}
    environment |= {"AWS_ACCESS_KEY_ID": "any", "AWS_SECRET_ACCESS_KEY": "any"}
    return subprocess.run(
        command, cwd=folder, env=environment, stderr=subprocess.PIPE, text=True, timeout=WAIT_S
    )


def test_kill_9_and_another_machine_goes_on(journal: Writer, server: str, tmp_path: Path) -> None:
    journal.write(mixed(600, 1))
    first = archive(
        KILLED_BEHIND_ITS_SECOND_COMMIT, tmp_path / "first", journal, server, "--max-records", "200"
    )
    assert first.returncode == -signal.SIGKILL, first.stderr
    journal.write(mixed(200, 2))
    second = archive(SHORT_LEASE, tmp_path / "second", journal, server)
    assert second.returncode == 0, second.stderr
    rows = DeltaTable(f"s3://{BUCKET}/factory/messages", storage_options=storage_options(server))
    offsets = rows.to_pyarrow_table(columns=["journal_offset"])["journal_offset"].to_pylist()
    assert sorted(offsets) == [row["journal_offset"] for row in journal.rows()]
    assert ConsumerPosition.read(journal.data_dir, "archive").offset == 800
    assert not list(tmp_path.rglob("s3a*"))  # no folder was made of the URL


@pytest.fixture
def in_bucket(spark: SparkSession, server: str) -> SparkSession:
    """The session of all tests as a client of the server."""
    return client_of(spark, server)


def client_of(spark: SparkSession, address: str) -> SparkSession:
    context: Any = spark.sparkContext
    for key, value in client_settings(address).items():
        context._jsc.hadoopConfiguration().set(key.removeprefix("spark.hadoop."), value)
    return spark


def test_a_server_that_overwrites_what_it_must_not_has_no_lake(
    in_bucket: SparkSession, tmp_path: Path
) -> None:
    assert in_bucket.conf.get(LOG_STORE_KEY) == LOG_STORE
    UrlLake(in_bucket, LakeUrl(f"s3a://{BUCKET}/any")).require_safe()
    with s3_server(tmp_path, OLDER, "old") as address:
        client_of(in_bucket, address)
        with pytest.raises(LakeUnreachable, match="overwrites an object although it is told not to"):
            UrlLake(in_bucket, LakeUrl("s3a://old/lake")).require_safe()


def test_what_is_not_there_or_lets_nobody_in_is_named(in_bucket: SparkSession) -> None:
    with pytest.raises(LakeUnreachable, match=r"s3a://nowhere/lake/.*does not exist"):
        UrlLake(in_bucket, LakeUrl("s3a://nowhere/lake")).require_safe()
    with pytest.raises(LakeUnreachable, match=r"no client for such a URL: see docs/how-to"):
        HadoopFiles(in_bucket).read(LakeUrl("gs://bucket/lake"))
