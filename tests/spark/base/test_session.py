"""Configuration of sessions, and a clear word where Java is missing."""

from __future__ import annotations

import os
import signal
import zipfile
from collections.abc import Iterable
from pathlib import Path
from threading import Event, Thread

import pytest
from pyspark.sql import SparkSession

from broker_process import wait_until
from headrace_spark.base import session as of_sessions
from headrace_spark.base.errors import EngineMissing
from headrace_spark.base.jars import PACKAGES, jar_files
from headrace_spark.base.session import (
    await_workers,
    check_java,
    is_local,
    package_archive,
    session_configuration,
    spark_master,
)
from headrace_spark.base.settings import SparkSettings
from headrace_spark.base.stopping import STOPPING, Stopped


@pytest.mark.parametrize(
    ("master", "expected"),
    [
        ("local", "local[1,4]"),
        ("local[2]", "local[2,4]"),
        ("local[*]", "local[*,4]"),
        ("local[2,7]", "local[2,7]"),
        ("spark://host:7077", "spark://host:7077"),
    ],
)
def test_local_masters_get_attempts(master: str, expected: str) -> None:
    assert spark_master(SparkSettings(master=master)) == expected
    assert is_local(master) == master.startswith("local")


def test_jars_of_the_folder_or_packages(tmp_path: Path) -> None:
    settings = SparkSettings(jars=tmp_path)
    assert session_configuration(settings)["spark.jars.packages"] == PACKAGES
    for jar in jar_files(tmp_path):
        jar.touch()
    assert session_configuration(settings)["spark.jars"].count(str(tmp_path)) == 7


def test_extra_settings_win_but_the_log_stays_quiet() -> None:
    extra = {"spark.sql.shuffle.partitions": "9", "spark.driver.extraJavaOptions": "-XX:+UseSerialGC"}
    found = session_configuration(SparkSettings(extra=extra))
    assert found["spark.sql.shuffle.partitions"] == "9"
    assert found["spark.driver.extraJavaOptions"].endswith("log4j2.properties -XX:+UseSerialGC")
    assert Path(found["spark.driver.extraJavaOptions"].split("file:")[1].split()[0]).is_file()
    as_json = session_configuration(SparkSettings(json_logs=True))["spark.driver.extraJavaOptions"]
    assert "-Dheadrace.log=json" in as_json.split()


def test_a_collector_is_chosen_once(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "-XX:+UseParallelGC" in session_configuration(SparkSettings())["spark.driver.extraJavaOptions"]
    monkeypatch.setenv("JAVA_TOOL_OPTIONS", "-Xss1m -XX:+UseSerialGC")
    assert "-XX:+Use" not in session_configuration(SparkSettings())["spark.driver.extraJavaOptions"]


def test_a_cluster_is_not_bound_to_loopback() -> None:
    assert "spark.driver.host" not in session_configuration(SparkSettings(master="spark://host:7077"))


def _java(folder: Path, says: str) -> None:
    (folder / "bin").mkdir()
    (folder / "bin" / "java").write_text(f"#!/bin/sh\necho '{says}' >&2\n")
    (folder / "bin" / "java").chmod(0o755)


def test_missing_java_is_said(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(EngineMissing, match="no java in JAVA_HOME="):
        check_java()
    monkeypatch.delenv("JAVA_HOME")
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(EngineMissing, match="no java in PATH: Spark needs Java 17"):
        check_java()


def test_old_java_is_said(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    _java(tmp_path, 'openjdk version "11.0.2" 2019-01-15')
    with pytest.raises(EngineMissing, match="is Java 11, Spark needs 17"):
        check_java()


def test_recent_java_passes(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    _java(tmp_path, 'openjdk version "21.0.1" 2023-10-17')
    check_java()


def test_workers_of_a_cluster_get_the_sources() -> None:
    names = zipfile.ZipFile(package_archive()).namelist()
    assert {
        "headrace_spark/source/source.py",
        "headrace/core/records/record.py",
        "headrace/journal/reader.py",
    } <= set(names)
    assert all(name.endswith(".py") for name in names)


@pytest.mark.spark
def test_who_waits_for_workers_can_be_stopped(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They may come when another job of the cluster has ended, if ever."""
    begun, handler = tmp_path / "begun", signal.getsignal(signal.SIGUSR1)

    def endless(numbers: Iterable[int]) -> Iterable[int]:
        begun.touch()
        Event().wait(600)
        return numbers

    def wait_for_workers(session: SparkSession) -> None:
        session.sparkContext.parallelize([0], 1).mapPartitions(endless).collect()

    def stop() -> None:
        wait_until(begun.exists, "a task", 400)
        os.kill(os.getpid(), signal.SIGUSR1)

    monkeypatch.setattr(of_sessions, "check_workers", wait_for_workers)
    monkeypatch.setattr(STOPPING, "at_once", None)
    signal.signal(signal.SIGUSR1, lambda _number, _frame: STOPPING.ask())
    stopper = Thread(target=stop)
    stopper.start()
    try:
        with pytest.raises(Stopped):
            await_workers(spark)
        with pytest.raises(Stopped):  # it may have been told before
            await_workers(spark)
    finally:
        stopper.join()
        signal.signal(signal.SIGUSR1, handler)
        STOPPING.event.clear()
        spark.sparkContext.cancelAllJobs()
