"""What a Spark session needs for a lake behind a URL: a client of the store, and commits that nobody overwrites.

Delta leaves it to its log store that a version is written once. For `abfss://`, `gs://` and `hdfs://` its own do so. For
`s3a://` Delta's own is for one driver alone; ours (`ConditionalPutLogStore.java`) asks S3 for it. Who sets
`spark.delta.logStore.s3a.impl` chooses another one, such as Delta's with DynamoDB.
"""

from __future__ import annotations

import zipfile
from collections.abc import Mapping
from dataclasses import replace
from importlib.resources import files
from pathlib import Path
from typing import Any, Final

from pyspark.sql import SparkSession

from headrace_spark.base.jars import S3_PACKAGES, S3_PACKAGES_LEFT_OUT, s3_jars
from headrace_spark.base.lake_url import LakeUrl, Location
from headrace_spark.base.scratch import folder_of_process
from headrace_spark.base.settings import SparkSettings

LOG_STORE_KEY: Final = "spark.delta.logStore.s3a.impl"
LOG_STORE: Final = "headrace.ConditionalPutLogStore"
# What Hadoop 3.5 takes instead, Amazon's accelerator, writes pages into the log when a file changes between two looks.
_STREAM_KEY: Final = "spark.hadoop.fs.s3a.input.stream.type"
_CLIENT: Final = "hadoop-aws"
_JARS, _PACKAGES, _LEFT_OUT = "spark.jars", "spark.jars.packages", "spark.jars.excludes"


def for_lake(settings: SparkSettings, lake: Location) -> SparkSettings:
    """Return the settings with what a session needs for that lake. What somebody has set wins."""
    if not isinstance(lake, LakeUrl) or lake.scheme != "s3a":
        return settings
    added = {LOG_STORE_KEY: LOG_STORE, _STREAM_KEY: "classic"}
    if not any(_CLIENT in settings.extra.get(key, "") for key in (_JARS, _PACKAGES)):
        added |= _s3_client(settings)
    return replace(settings, extra=added | dict(settings.extra) | _joined(added, settings.extra))


def _s3_client(settings: SparkSettings) -> dict[str, str]:
    """Return the settings for Hadoop's client for S3: jars beside Delta's, or what Spark fetches."""
    jars = s3_jars(settings.jars)
    if jars:
        return {_JARS: ",".join(map(str, jars))}
    return {_PACKAGES: ",".join(S3_PACKAGES), _LEFT_OUT: ",".join(S3_PACKAGES_LEFT_OUT)}


def _joined(ours: Mapping[str, str], theirs: Mapping[str, str]) -> dict[str, str]:
    """Return the lists of both, joined, where there are two."""
    both = [key for key in (_JARS, _PACKAGES, _LEFT_OUT) if ours.get(key) and theirs.get(key)]
    return {key: f"{ours[key]},{theirs[key]}" for key in both}


def add_log_store(spark: SparkSession) -> None:
    """Make our log store known to Spark's Java, where the session is to use it and none is there yet."""
    if spark.conf.get(LOG_STORE_KEY, "") == LOG_STORE and not _is_known(spark):
        _compile(spark)


def _compile(spark: SparkSession) -> None:
    jvm: Any = spark._jvm
    folder = folder_of_process("log-store")
    source = Path(str(files("headrace_spark"))) / "base" / "ConditionalPutLogStore.java"
    loader = _loader(jvm)
    compiler = jvm.org.codehaus.janino.Compiler()
    compiler.setIClassLoader(jvm.org.codehaus.janino.ClassLoaderIClassLoader(loader))
    compiler.setDestinationDirectory(jvm.java.io.File(str(folder)), False)
    gateway: Any = spark.sparkContext._gateway
    sources = gateway.new_array(jvm.java.io.File, 1)
    sources[0] = jvm.java.io.File(str(source))
    compiler.compile(sources)
    jar = folder / "headrace-log-store.jar"
    with zipfile.ZipFile(jar, "w") as out:
        for compiled in folder.rglob("*.class"):
            out.write(compiled, compiled.relative_to(folder))
    loader.addURL(jvm.java.io.File(str(jar)).toURI().toURL())
    context: Any = spark.sparkContext
    context._jsc.addJar(str(jar))  # a vacuum lists files by it on the workers


def _loader(jvm: Any) -> Any:
    """Return Spark's class loader, which has the jars that were added."""
    return jvm.org.apache.spark.util.Utils.getContextOrSparkClassLoader()


def _is_known(spark: SparkSession) -> bool:
    jvm: Any = spark._jvm
    return _loader(jvm).getResource(f"{LOG_STORE.replace('.', '/')}.class") is not None
