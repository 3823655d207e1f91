"""The source into a Delta table in a bucket: Spark writes table and checkpoint through `s3a://` to a real S3 server.

    python -m faults.pipeline.bucket

Some batches, a second start, and a start that does the last batch again, as one behind a kill -9 between Delta's commit
and Spark's: the table must have every row of the journal once, for Spark and for delta-rs. The server is S3Proxy, with
its objects in memory; jars come by Maven, 700 MB of them Amazon's SDK, and are kept beside headrace's own.
"""

from __future__ import annotations

import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from time import monotonic, sleep
from typing import Final
from urllib.error import URLError
from urllib.request import Request, urlopen

from deltalake import DeltaTable
from pyspark.sql import SparkSession

from benchmarks.kafka_broker import Artifacts, fetch
from headrace.testing.ports import free_port
from headrace_spark.base.jars import jar_files, jars_folder
from headrace_spark.base.session import close_session, open_session
from headrace_spark.base.settings import SparkSettings
from spark.conftest import QUICK, Writer
from spark.journals import mixed

SERVER: Final[Artifacts] = (("org.gaul", "s3proxy", "2.6.0"),)
CLIENT: Final[Artifacts] = (("org.apache.hadoop", "hadoop-aws", "3.5.0"),)
# The rest of what comes with the client Spark has itself.
CLIENT_JARS: Final = ("hadoop-aws", "bundle", "analyticsaccelerator", "wildfly-openssl")
BUCKET: Final = "lake"
TABLE: Final = f"s3a://{BUCKET}/messages"
CHECKPOINT: Final = f"s3a://{BUCKET}/_checkpoints/messages"
START_S: Final = 120
QUIET: Final = '<configuration><root level="WARN"/></configuration>'


@contextmanager
def s3_server(folder: Path) -> Iterator[str]:
    """S3Proxy with an empty bucket until the block ends; its address."""
    jars = fetch(jars_folder().parent / "s3proxy-2.6.0", SERVER)
    address = f"http://127.0.0.1:{free_port()}"
    said = {"s3proxy.endpoint": address, "s3proxy.authorization": "none", "jclouds.provider": "transient"}
    said |= {"jclouds.identity": "any", "jclouds.credential": "any"}
    (folder / "s3proxy.conf").write_text("".join(f"{key}={value}\n" for key, value in said.items()))
    (folder / "logback.xml").write_text(QUIET)
    options = [f"-Dlogback.configurationFile={folder / 'logback.xml'}", "-cp", f"{jars}/*"]
    command = ["java", *options, "org.gaul.s3proxy.Main", "--properties", str(folder / "s3proxy.conf")]
    server = subprocess.Popen(command)
    try:
        make_bucket(address, server)
        yield address
    finally:
        server.terminate()
        server.wait(START_S)


def make_bucket(address: str, server: subprocess.Popen[bytes]) -> None:
    """As soon as the server answers."""
    deadline = monotonic() + START_S
    while True:
        try:
            urlopen(Request(f"{address}/{BUCKET}", method="PUT"), timeout=START_S).close()
            return
        except (URLError, ConnectionError):
            if server.poll() is not None or monotonic() > deadline:
                raise
            sleep(0.2)


def session(address: str) -> SparkSession:
    """Spark with Hadoop's client for S3."""
    aws = fetch(jars_folder().parent / "hadoop-aws-3.5.0", CLIENT)
    jars = [
        *jar_files(jars_folder()),
        *(jar for jar in aws.glob("*.jar") if jar.name.startswith(CLIENT_JARS)),
    ]
    s3a = {
        "endpoint": address,
        "endpoint.region": "us-east-1",
        "path.style.access": "true",
        "connection.ssl.enabled": "false",
        "access.key": "any",
        "secret.key": "any",
    }
    extra = QUICK | {f"spark.hadoop.fs.s3a.{key}": value for key, value in s3a.items()}
    extra["spark.jars"] = ",".join(map(str, jars))
    return open_session(SparkSettings(master="local[2]", extra=extra))


def archive(spark: SparkSession, journal: Writer) -> list[int]:
    """Read what is there now, some hundred records a batch; return the numbers of the batches."""
    query = (
        spark.readStream.format("headrace")
        .option("consumer", "bucket")
        .option("maxOffsetsPerTrigger", 500)
        .load(str(journal.data_dir))
        .writeStream.format("delta")
        .option("checkpointLocation", CHECKPOINT)
        .trigger(availableNow=True)
        .start(TABLE)
    )
    query.awaitTermination()
    return [progress.batchId for progress in query.recentProgress]


def forget_last_commit(spark: SparkSession) -> None:
    """Leave the checkpoint as a kill -9 between Delta's commit and Spark's does."""
    jvm = spark._jvm  # Spark's own way to Hadoop's file systems
    assert jvm is not None
    folder = jvm.org.apache.hadoop.fs.Path(f"{CHECKPOINT}/commits")
    files = folder.getFileSystem(spark.sparkContext._jsc.hadoopConfiguration())
    numbers = [int(file.getPath().getName()) for file in files.listStatus(folder)]
    assert files.delete(jvm.org.apache.hadoop.fs.Path(folder, str(max(numbers))), False)


def check(spark: SparkSession, journal: Writer, address: str) -> None:
    """Both readers find every row of the journal once."""
    expected = [row["journal_offset"] for row in journal.rows()]
    rows = spark.read.format("delta").load(TABLE).select("journal_offset").collect()
    assert sorted(row.journal_offset for row in rows) == expected
    options = {"endpoint": address, "allow_http": "true", "region": "us-east-1"}
    options |= {"access_key_id": "any", "secret_access_key": "any"}
    found = DeltaTable(f"s3://{BUCKET}/messages", storage_options=options).to_pyarrow_table()
    assert sorted(found["journal_offset"].to_pylist()) == expected


def main() -> None:
    with tempfile.TemporaryDirectory() as name, s3_server(Path(name)) as address:
        spark = session(address)
        try:
            journal = Writer(Path(name) / "data")
            journal.write(mixed(1200))
            first = archive(spark, journal)
            check(spark, journal, address)
            forget_last_commit(spark)
            journal.write(mixed(700, 2))
            again = archive(spark, journal)
            check(spark, journal, address)
            assert set(first) & set(again), f"no batch was done again: {first}, then {again}"
        finally:
            close_session(spark)
    print(f"{len(journal.rows())} rows in the bucket, each once; batches {first}, then {again}")


if __name__ == "__main__":
    main()
