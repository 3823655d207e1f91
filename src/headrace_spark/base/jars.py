"""The jars that PySpark needs beside its own, and the folder they lie in.

They are fetched once by Maven from `jars/pom.xml`, which names the same artifacts and versions::

    JARS=$(python -m headrace_spark.base.jars)
    mvn -B -q -U -f jars/pom.xml dependency:copy-dependencies -DincludeScope=runtime -DoutputDirectory="$JARS"

and for lakes in S3 the client, from `jars/s3a.xml`, into its folder `s3a`::

    mvn -B -q -U -f jars/s3a.xml dependency:copy-dependencies -DincludeScope=runtime -DoutputDirectory="$JARS/s3a"

`python -m headrace_spark.base.jars` prints the folder and, with `--check`, exits 1 while a jar is missing there.
Where the folder does not exist (a wheel installed away from a checkout), Spark resolves `PACKAGES` by itself
at its first start. This module uses the standard library only, so that the set-up can ask it before anything
is installed.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Final

SPARK_VERSION: Final = "4.2.0"
DELTA_VERSION: Final = "4.4.0"
UNITYCATALOG_VERSION: Final = "0.6.0"

ARTIFACTS: Final = (
    ("io.delta", "delta-spark_4.2_2.13", DELTA_VERSION),
    ("io.delta", "delta-storage", DELTA_VERSION),
    ("io.delta", "delta-kernel-api", DELTA_VERSION),
    ("io.delta", "delta-kernel-defaults", DELTA_VERSION),
    ("io.delta", "delta-kernel-unitycatalog", DELTA_VERSION),
    ("io.unitycatalog", "unitycatalog-client", UNITYCATALOG_VERSION),
    ("io.unitycatalog", "unitycatalog-hadoop", UNITYCATALOG_VERSION),
)
HADOOP_VERSION: Final = "3.5.0"
AWS_VERSION: Final = "2.35.4"
# Hadoop's client for S3, in the folder `s3a` beside the others: the parts of Amazon's SDK that it uses, 15 MB of 650.
S3_ARTIFACTS: Final = (
    ("org.apache.hadoop", "hadoop-aws", HADOOP_VERSION),
    ("software.amazon.s3.analyticsaccelerator", "analyticsaccelerator-s3", "1.3.1"),
    ("software.amazon.awssdk", "s3-transfer-manager", AWS_VERSION),
    ("software.amazon.awssdk", "sts", AWS_VERSION),
)
S3_PACKAGES: Final = tuple(map(":".join, S3_ARTIFACTS))
# What Spark has itself, and the whole SDK in one file.
S3_PACKAGES_LEFT_OUT: Final = (
    "software.amazon.awssdk:bundle",
    "org.apache.hadoop:hadoop-client-api",
    "org.apache.hadoop:hadoop-client-runtime",
    *(f"io.netty:netty-{part}" for part in ("buffer", "codec", "codec-http", "codec-http2", "common")),
    *(f"io.netty:netty-{part}" for part in ("handler", "resolver", "transport")),
    *(f"io.netty:netty-transport-{part}" for part in ("classes-epoll", "native-unix-common")),
    "org.apache.httpcomponents:httpclient",
    "org.apache.httpcomponents:httpcore",
    "commons-codec:commons-codec",
    "commons-logging:commons-logging",
    "org.slf4j:slf4j-api",
)
# What Spark itself would resolve; it finds the rest of ARTIFACTS as dependencies of this one.
PACKAGES: Final = ":".join(ARTIFACTS[0])


def jars_folder() -> Path:
    """Return `$HEADRACE_JARS`, else a folder of the user's cache named after the versions."""
    chosen = os.environ.get("HEADRACE_JARS")
    if chosen:
        return Path(chosen).expanduser()
    cache = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(cache).expanduser() / "headrace" / "jars" / f"delta-{DELTA_VERSION}-spark-{SPARK_VERSION}"


def jar_files(folder: Path) -> list[Path]:
    """Return every artifact's path in `folder`, there or not."""
    return [folder / f"{artifact}-{version}.jar" for _, artifact, version in ARTIFACTS]


def missing_jars(folder: Path) -> list[Path]:
    return [jar for jar in jar_files(folder) if not jar.is_file()]


def s3_jars(folder: Path) -> list[Path]:
    """Return the jars of Hadoop's client for S3 with what it needs, from the folder beside `folder`'s jars; empty if it
    was not fetched."""
    return sorted((folder / "s3a").glob("*.jar"))


def main(arguments: list[str]) -> int:
    folder = jars_folder()
    if arguments not in ([], ["--check"]):
        print("usage: python -m headrace_spark.base.jars [--check]", file=sys.stderr)
        return 2
    print(folder)
    return 1 if arguments and missing_jars(folder) else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
