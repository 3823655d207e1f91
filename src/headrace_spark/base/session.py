"""The SparkSession of all jobs: Delta, our source and sink, settings for small machines, a quiet log."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Mapping
from concurrent.futures import Future
from contextlib import suppress
from importlib.resources import files
from pathlib import Path
from threading import Thread, current_thread, main_thread
from typing import Any, Final

from py4j.protocol import Py4JError
from pyspark import SparkContext
from pyspark.sql import SparkSession

from headrace_spark.base.cluster import LOCAL, check_master, check_workers
from headrace_spark.base.errors import EngineMissing, first_line
from headrace_spark.base.executors import watch_executors
from headrace_spark.base.jars import PACKAGES, SPARK_VERSION, jar_files, missing_jars
from headrace_spark.base.launching import java_as_we_start_it
from headrace_spark.base.scratch import folder_of_process, sweep
from headrace_spark.base.settings import SparkSettings
from headrace_spark.base.stopping import STOPPING, Stopped
from headrace_spark.devices.sink import MqttDataSource
from headrace_spark.lake.table_files import CODEC, CODEC_KEY, MESSAGES_LAYOUT, ZSTD_LEVEL
from headrace_spark.source.file_source import JournalFiles
from headrace_spark.source.source import JournalDataSource

JAVA_VERSION_MIN: Final = 17
_COLLECTOR: Final = re.compile(r"-XX:\+Use\w+GC")
_LISTS: Final = ("spark.jars", "spark.jars.packages")
_JAVA_OPTIONS: Final = "spark.driver.extraJavaOptions"

_SPARK: Final = {
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.python.filterPushdown.enabled": "true",
    "spark.sql.catalogImplementation": "in-memory",
    # Spark's own default is 96 bits: half as much again to write, and without the statistics by which readers skip.
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
}
# Every value of these columns is another one: a dictionary of them is built only to be thrown away.
_PARQUET: Final = {
    CODEC_KEY: CODEC,
    "spark.hadoop.parquet.compression.codec.zstd.level": str(ZSTD_LEVEL),
} | {f"spark.hadoop.parquet.enable.dictionary#{column}": "false" for column in MESSAGES_LAYOUT.unique}
# A journal is one ordered log: a few tasks a batch, not the hundreds that Spark plans for by default.
_SMALL_MACHINE: Final = {
    "spark.sql.shuffle.partitions": "4",
    # Delta rebuilds the state of a table's log with every commit of a stream; more than one task only adds to its cost.
    "spark.databricks.delta.snapshotPartitions": "1",
    # A vacuum lists the files of a table in so many tasks; Spark's own default is 10 000.
    "spark.sql.sources.parallelPartitionDiscovery.parallelism": "16",
    # Few (tenant, date) pairs are written at a time; keeping their files open spares a sort of every batch.
    "spark.sql.maxConcurrentOutputFileWriters": "32",
    "spark.sql.streaming.numRecentProgressUpdates": "20",
    "spark.sql.streaming.stopTimeout": "5s",
}


def open_session(settings: SparkSettings) -> SparkSession:
    """Start Spark, or join the session that this process already has. Raises EngineMissing; Stopped while a cluster has
    no worker for it."""
    check_java()
    check_master(settings.master)
    sweep()
    # Workers must run the interpreter that has pyarrow; the machine's `python3` usually has not.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    builder = SparkSession.builder.master(spark_master(settings)).appName(settings.app_name)
    for key, value in session_configuration(settings).items():
        builder = builder.config(key, value)
    on_interrupt = signal.getsignal(signal.SIGINT)
    try:
        with java_as_we_start_it():
            spark = builder.getOrCreate()
    except Exception as error:
        reason = first_line(error)  # pages of Java follow
        raise EngineMissing(
            f"Spark {SPARK_VERSION} did not start with master {settings.master}: {reason}"
        ) from error
    if on_interrupt is not signal.default_int_handler and current_thread() is main_thread():
        signal.signal(signal.SIGINT, on_interrupt)  # Spark puts its own in the place of ours
    STOPPING.at_once = hush
    if not is_local(settings.master):
        watch_executors(spark, settings.master)
        # Before the source is registered, which takes down what its workers need.
        spark.sparkContext.addPyFile(str(package_archive()))
        await_workers(spark)
    spark.dataSource.register(JournalDataSource)
    spark.dataSource.register(JournalFiles)
    spark.dataSource.register(MqttDataSource)
    return spark


def await_workers(spark: SparkSession) -> None:
    """Wait until workers are there, which need not be soon, and check that they have what they need. Raises
    EngineMissing; Stopped when a stop is asked for meanwhile."""
    found: Future[None] = Future()

    def look() -> None:
        try:
            check_workers(spark)
        except Exception as error:  # noqa: BLE001  (it is raised where it is waited for)
            found.set_exception(error)
        else:
            found.set_result(None)

    # py4j would pass on what ends its waiting as an error of its own, with a traceback in the log.
    Thread(target=look, daemon=True).start()
    with STOPPING.ends():
        if STOPPING.event.is_set():
            raise Stopped
        found.result()


def hush() -> None:
    """Let Spark say nothing more: what a stop cuts off complains, about nothing that anybody can act on.

    Java's own threads do so in a thousand lines, in the log or past it, and Python's, which is told how far tasks are, in
    a traceback.
    """
    context = SparkContext._active_spark_context
    if context is None:
        return
    with suppress(Py4JError, ConnectionError, AttributeError):  # it may be gone already, or just going
        context.setLogLevel("OFF")
        jvm: Any = context._jvm
        to_the_log = jvm.org.apache.spark.util.SparkUncaughtExceptionHandler(False)
        jvm.java.lang.Thread.setDefaultUncaughtExceptionHandler(to_the_log)
    server = context._accumulatorServer
    if server is not None:
        setattr(server, "handle_error", lambda *_: None)  # noqa: B010  (a method, as far as mypy sees)


def close_session(spark: SparkSession) -> None:
    """Stop Spark, which may be gone already."""
    with suppress(Py4JError, ConnectionError):
        hush()
        spark.stop()


def session_configuration(settings: SparkSettings) -> dict[str, str]:
    """Return Spark's configuration for these settings."""
    chosen = _SPARK | _PARQUET | _SMALL_MACHINE | {"spark.driver.memory": settings.driver_memory}
    chosen["spark.sql.warehouse.dir"] = str(Path(tempfile.gettempdir()) / "headrace-warehouse")
    if missing_jars(settings.jars):
        chosen["spark.jars.packages"] = PACKAGES
    else:
        chosen["spark.jars"] = ",".join(str(jar) for jar in jar_files(settings.jars))
    if is_local(settings.master):
        chosen |= {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}
    ours = chosen
    chosen = ours | dict(settings.extra)
    for key in _LISTS:
        chosen |= _joined(key, ours, settings.extra)
    chosen[_JAVA_OPTIONS] = _java_options(settings.extra.get(_JAVA_OPTIONS, ""), settings.json_logs)
    return chosen


def _joined(key: str, ours: Mapping[str, str], theirs: Mapping[str, str]) -> dict[str, str]:
    """Return a list of Spark's, in which what somebody adds stands beside what we need."""
    found = [*ours.get(key, "").split(","), *theirs.get(key, "").split(",")]
    names = dict.fromkeys(name.strip() for name in found if name.strip())
    return {key: ",".join(names)} if names else {}


def _java_options(extra: str, json_logs: bool = False) -> str:
    """Return our log settings, and the collector with the best throughput unless somebody chose one: a JVM takes no
    second."""
    log4j = f"-Dlog4j2.configurationFile=file:{files('headrace_spark') / 'log4j2.properties'}"
    layout = ["-Dheadrace.log=json"] if json_logs else []
    inherited = " ".join(
        os.environ.get(name, "") for name in ("JAVA_TOOL_OPTIONS", "JDK_JAVA_OPTIONS", "SPARK_SUBMIT_OPTS")
    )
    collector = [] if _COLLECTOR.search(f"{inherited} {extra}") else ["-XX:+UseParallelGC"]
    return " ".join([log4j, *layout, *collector, *extra.split()])


def is_local(master: str) -> bool:
    return LOCAL.fullmatch(master) is not None


def spark_master(settings: SparkSettings) -> str:
    """Return the master, with attempts for a local one: Spark gives them one, and a killed Python worker would then end
    the query."""
    match = LOCAL.fullmatch(settings.master)
    if match is None or "," in settings.master:
        return settings.master
    return f"local[{match.group(1) or 1},{settings.task_attempts_max}]"


def check_java() -> None:
    """Raise EngineMissing unless the Java that Spark would start is there and recent enough."""
    home = os.environ.get("JAVA_HOME")
    java = shutil.which(str(Path(home) / "bin" / "java") if home else "java")
    where = f"JAVA_HOME={home}" if home else "PATH"
    if java is None:
        raise EngineMissing(
            f"no java in {where}: Spark needs Java {JAVA_VERSION_MIN} or newer (install a JRE, or set JAVA_HOME)"
        )
    said = subprocess.run([java, "-version"], capture_output=True, text=True, check=False).stderr
    found = re.search(r'version "(\d+)', said)
    if found is None or int(found.group(1)) < JAVA_VERSION_MIN:
        version = found.group(1) if found else "of unknown version"
        raise EngineMissing(
            f"{java} is Java {version}, Spark needs {JAVA_VERSION_MIN} or newer (set JAVA_HOME)"
        )


def package_archive() -> Path:
    """Return an archive of the sources of headrace for the workers of a cluster: compiled modules cannot be imported
    from an archive."""
    archive = folder_of_process("package") / "headrace.zip"
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as out:
        for package in ("headrace", "headrace_spark", "pyspark_headrace"):
            root = Path(str(files(package)))
            for source in sorted(root.rglob("*.py")):
                out.write(source, Path(package) / source.relative_to(root))
    return archive
