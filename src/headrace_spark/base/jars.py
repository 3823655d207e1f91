"""The jars that PySpark needs beside its own, and the folder they lie in.

They are fetched once by Maven from `jars/pom.xml`, which names the same artifacts and versions::

    JARS=$(python -m headrace_spark.base.jars)
    mvn -B -q -U -f jars/pom.xml dependency:copy-dependencies -DincludeScope=runtime -DoutputDirectory="$JARS"

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
# What Spark itself would resolve; it finds the rest of ARTIFACTS as dependencies of this one.
PACKAGES: Final = ":".join(ARTIFACTS[0])


def jars_folder() -> Path:
    """`$HEADRACE_JARS`, else a folder of the user's cache named after the versions."""
    chosen = os.environ.get("HEADRACE_JARS")
    if chosen:
        return Path(chosen).expanduser()
    cache = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(cache).expanduser() / "headrace" / "jars" / f"delta-{DELTA_VERSION}-spark-{SPARK_VERSION}"


def jar_files(folder: Path) -> list[Path]:
    """Every artifact's path in `folder`, there or not."""
    return [folder / f"{artifact}-{version}.jar" for _, artifact, version in ARTIFACTS]


def missing_jars(folder: Path) -> list[Path]:
    return [jar for jar in jar_files(folder) if not jar.is_file()]


def main(arguments: list[str]) -> int:
    folder = jars_folder()
    if arguments not in ([], ["--check"]):
        print("usage: python -m headrace_spark.base.jars [--check]", file=sys.stderr)
        return 2
    print(folder)
    return 1 if arguments and missing_jars(folder) else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
