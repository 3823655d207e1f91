"""Java as the tests run it: most Sparks here live for seconds, which are spent on checking, compiling and collecting.

The last of the first options spares the collections of everything by which Java finds that it loads twenty thousand
classes. Most of these need not be parsed at all where `python -m spark.quick_java make` has written an archive of them
(`make setup` does): a Spark then starts with a quarter less CPU time. Java itself checks that an archive fits its version
and class path, and goes on without one that does not.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

from headrace_spark.base.jars import jars_folder

_PLAIN: Final = (
    "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:+UnlockDiagnosticVMOptions -XX:-BytecodeVerificationRemote"
    " -XX:ReservedCodeCacheSize=256m -XX:-UseCodeCacheFlushing -XX:MetaspaceSize=192m"
)
_QUIETLY: Final = "-Xlog:cds=off -Xlog:cds+dynamic=off"


def archive() -> Path:
    """Return where the archive of this Java and this Spark lies, there or not."""
    java = Path(shutil.which("java") or "java").resolve()
    made = java.stat().st_mtime_ns if java.exists() else 0
    name = hashlib.sha256(f"{java} {made} {_PLAIN} {sys.prefix}".encode()).hexdigest()[:16]
    return jars_folder() / f"classes-{name}.jsa"


def make_archive() -> None:
    """Let a Spark do what most tests do, and Java write down what it loaded for that. Raises CalledProcessError."""
    wanted = archive()
    with tempfile.TemporaryDirectory(prefix="classes-", dir=wanted.parent) as folder:
        written = Path(folder) / "written.jsa"
        options = f"{_PLAIN} {_QUIETLY} -XX:ArchiveClassesAtExit={written}"
        environment = os.environ | {"JDK_JAVA_OPTIONS": options, "TMPDIR": folder}
        command = [sys.executable, "-m", "spark.quick_java", "work"]
        done = subprocess.run(
            command, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True
        )
        if done.returncode or not written.exists():
            sys.stderr.write(done.stderr[-4000:])
            raise SystemExit("java wrote no archive of its classes: the tests of Spark take longer")
        written.rename(wanted)


def _work(folder: Path) -> None:
    """Write and merge a table, and follow it."""
    from headrace_spark.base.session import close_session, open_session
    from headrace_spark.base.settings import SparkSettings

    spark = open_session(SparkSettings())
    rows = spark.range(100).selectExpr("id", "id % 7 as part", "cast(id as string) as word")
    table, copy = str(folder / "table"), str(folder / "copy")
    for mode in ("overwrite", "append"):
        rows.write.format("delta").mode(mode).partitionBy("part").save(table)
    rows.createOrReplaceTempView("rows")
    spark.sql(
        f"MERGE INTO delta.`{table}` AS old USING rows ON old.id = rows.id AND old.id < 50"
        " WHEN MATCHED THEN UPDATE SET word = 'new' WHEN NOT MATCHED THEN INSERT *"
    )
    followed = spark.readStream.format("delta").option("ignoreChanges", "true").load(table)
    stream = followed.mapInArrow(lambda batches: batches, followed.schema).writeStream.format("delta")
    stream.option("checkpointLocation", str(folder / "checkpoint")).trigger(availableNow=True).start(
        copy
    ).awaitTermination()
    spark.read.format("delta").load(copy).groupBy("part").count().orderBy("part").toPandas()
    close_session(spark)


OPTIONS: Final = f"{_PLAIN} {_QUIETLY} -XX:SharedArchiveFile={archive()}" if archive().exists() else _PLAIN
ENVIRONMENT: Final = {"JDK_JAVA_OPTIONS": OPTIONS}
"""For what a test starts."""

if __name__ == "__main__":
    what = sys.argv[1]
    if what == "make" and not archive().exists():
        make_archive()
    elif what == "work":
        _work(Path(tempfile.mkdtemp()))
