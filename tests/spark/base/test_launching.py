"""Spark's Java is deaf to stops and says nothing of its configuration in its command line."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any, Final

import pytest
from pyspark.sql import SparkSession

from headrace_spark.base.launching import conf_in_a_file
from spark import quick_java

pytestmark = pytest.mark.spark
KEY: Final = "spark.hadoop.fs.s3a.secret.key"
ODD: Final = {KEY: "a=b c\\d#!:\tü", "spark.odd key": "1", "spark.none": "", "spark.lines": "one\ntwo"}
JOB: Final = f"""
import os, signal
from contextlib import suppress
import psutil
from headrace_spark.base.session import open_session
from headrace_spark.base.settings import SparkSettings

spark = open_session(SparkSettings(master="local[1]", driver_memory="512m", extra={{"{KEY}": "not to be seen"}}))
children, commands = psutil.Process().children(recursive=True), []
for each in children:
    with suppress(psutil.NoSuchProcess):  # it has ended: those of the start do
        commands.append(" ".join(each.cmdline()))
assert [command for command in commands if "java" in command], commands
assert not [command for command in commands if "not to be seen" in command]
assert spark.sparkContext._jsc.hadoopConfiguration().get("fs.s3a.secret.key") == "not to be seen"
for each in children:
    with suppress(psutil.NoSuchProcess):
        each.send_signal(signal.SIGTERM)
assert spark.range(7).count() == 7
spark.stop()
"""


def test_what_conf_says_is_in_a_file_for_its_owner(spark: SparkSession, tmp_path: Path) -> None:
    file = tmp_path / "said"
    given = [part for key, value in ODD.items() for part in ("--conf", f"{key}={value}")]
    command = conf_in_a_file(["spark-submit", *given, "--name", "n", "pyspark-shell"], file)
    options = ["--properties-file", str(file), "--load-spark-defaults"]
    assert command == ["spark-submit", *options, "--name", "n", "pyspark-shell"]
    assert file.stat().st_mode & 0o777 == 0o600
    jvm: Any = spark._jvm
    read = jvm.java.util.Properties()
    read.load(jvm.java.io.InputStreamReader(jvm.java.io.FileInputStream(str(file)), "UTF-8"))
    assert {key: read.getProperty(key) for key in read.stringPropertyNames()} == ODD


def test_no_process_shows_a_secret_and_a_stop_is_for_the_job_alone() -> None:
    environment = os.environ | quick_java.ENVIRONMENT
    done = subprocess.run(
        [sys.executable, "-c", JOB], env=environment, capture_output=True, text=True, timeout=240, check=False
    )
    assert done.returncode == 0, done.stderr
