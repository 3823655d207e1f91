"""A real S3 server: S3Proxy of Maven Central, with its objects in memory; for tests and, by `make s3`, for a try.

python -m spark.s3_server [PORT]
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Event
from time import monotonic, sleep
from typing import Final
from urllib.error import URLError
from urllib.request import Request, urlopen

from benchmarks.kafka_broker import Artifacts, fetch
from headrace.testing.ports import free_port
from headrace_spark.base.jars import jars_folder
from spark import quick_java

BUCKET: Final = "lake"
# The second is what the first needs, newer than what Maven would take.
SERVER: Final[Artifacts] = (
    ("org.gaul", "s3proxy", "4.1.0"),
    ("com.fasterxml.jackson.core", "jackson-annotations", "2.22"),
)
# It does not know conditional writes: what a lake must not be put behind.
OLDER: Final[Artifacts] = (("org.gaul", "s3proxy", "2.6.0"),)
_BACKEND: Final = {SERVER: "transient-nio2", OLDER: "transient"}
_QUIET: Final = '<configuration><root level="WARN"/></configuration>'
START_S: Final = 120
# Short-lived and small; a measurement has it as a machine of its own would.
QUICK: Final = ("-Xmx512m", *quick_java.OPTIONS.split())


@contextmanager
def s3_server(
    folder: Path,
    server: Artifacts = SERVER,
    bucket: str = BUCKET,
    port: int = 0,
    java: Sequence[str] = QUICK,
) -> Iterator[str]:
    """S3Proxy with an empty bucket until the block ends; its address. `port`: 0: any that is free. `java`: options."""
    jars = fetch(jars_folder().parent / f"s3proxy-{server[0][2]}", server)
    address = f"http://127.0.0.1:{port or free_port()}"
    said = {"s3proxy.endpoint": address, "s3proxy.authorization": "none"}
    said |= {"jclouds.provider": _BACKEND[server], "jclouds.identity": "any", "jclouds.credential": "any"}
    (folder / "s3proxy.conf").write_text("".join(f"{key}={value}\n" for key, value in said.items()))
    (folder / "logback.xml").write_text(_QUIET)
    options = [*java, f"-Dlogback.configurationFile={folder / 'logback.xml'}"]
    command = ["java", *options, "-cp", f"{jars}/*", "org.gaul.s3proxy.Main"]
    running = subprocess.Popen([*command, "--properties", str(folder / "s3proxy.conf")])
    try:
        make_bucket(address, bucket, running)
        yield address
    finally:
        running.terminate()
        running.wait(START_S)


def make_bucket(address: str, bucket: str, server: subprocess.Popen[bytes]) -> None:
    """As soon as the server answers."""
    deadline = monotonic() + START_S
    while True:
        try:
            urlopen(Request(f"{address}/{bucket}", method="PUT"), timeout=START_S).close()
            return
        except (URLError, ConnectionError):
            if server.poll() is not None or monotonic() > deadline:
                raise
            sleep(0.2)


def client_settings(address: str) -> dict[str, str]:
    """Of Hadoop's client, by the names that they have in Spark's configuration."""
    said = {
        "endpoint": address,
        "endpoint.region": "us-east-1",
        "path.style.access": "true",
        "connection.ssl.enabled": "false",
        "access.key": "any",
        "secret.key": "any",
    }
    return {f"spark.hadoop.fs.s3a.{key}": value for key, value in said.items()}


def storage_options(address: str) -> dict[str, str]:
    """The same for delta-rs."""
    about = {"endpoint": address, "allow_http": "true", "region": "us-east-1"}
    return about | {"access_key_id": "any", "secret_access_key": "any"}


def main(arguments: list[str]) -> None:
    port = int(arguments[0]) if arguments else 9090
    with (
        suppress(KeyboardInterrupt),
        tempfile.TemporaryDirectory() as name,
        s3_server(Path(name), port=port) as at,
    ):
        print(f"S3 at {at}, bucket {BUCKET}, any keys; Ctrl-C ends it and what it holds", flush=True)
        Event().wait()


if __name__ == "__main__":
    main(sys.argv[1:])
