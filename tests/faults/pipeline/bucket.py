"""A lake in a bucket under attack: `archive` by the command into S3Proxy, whose objects are in memory.

    python -m faults.pipeline.bucket [SCENARIO ...]

Drivers are killed before and behind their commits and at any moment, doubled, and stopped for longer than their lease;
the server answers 503 for a while; the bucket is put back from an older copy; and a query of one's own does its last
batch again. Each time the table has every row of the journal once, as delta-rs reads it.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from random import Random
from threading import Event, Thread
from time import monotonic, sleep
from typing import Any, Final
from urllib.parse import urlsplit

import pyarrow as pa
from deltalake import DeltaTable, QueryBuilder
from pyarrow import fs

from headrace_spark.base.jars import jar_files, jars_folder, s3_jars
from headrace_spark.base.session import close_session, open_session
from headrace_spark.base.settings import SparkSettings
from spark import quick_java
from spark.conftest import QUICK, Writer
from spark.journals import mixed
from spark.s3_server import BUCKET, client_settings, s3_server, storage_options

WAIT_S: Final = 600
ROUNDS: Final = 4
DRIVER: Final = """
import os, signal, sys
from headrace.commands.main import main
from headrace_spark.archive import by_url
from headrace_spark.lake import url_lake

url_lake.LEASE_S, url_lake.BEAT_S = 6.0, 1.0
commit, batches, moment, left = by_url.append_rows, [], sys.argv[1], int(sys.argv[2])

def killed(*about):
    batches.append(about)
    if moment == "before" and len(batches) == left:
        os.kill(os.getpid(), signal.SIGKILL)
    commit(*about)
    if moment == "behind" and len(batches) == left:
        os.kill(os.getpid(), signal.SIGKILL)

by_url.append_rows = killed
sys.argv[:3] = ["headrace"]
main()
"""


class Ground:
    """One journal, one lake in the bucket, drivers in folders of their own."""

    def __init__(self, name: str, folder: Path, address: str) -> None:
        self.folder = folder / name
        self.folder.mkdir()
        self.lake = f"{BUCKET}/{name}"
        self.address = address
        self.journal = Writer(self.folder / "data")
        self._drivers = 0

    def driver(self, *options: str, moment: str = "never", left: int = 0, at: str = "") -> Driver:
        """Begin one, as on a machine of its own. `at`: another address of the server."""
        self._drivers += 1
        folder = self.folder / f"machine-{self._drivers}"
        folder.mkdir()
        command = [sys.executable, "-c", DRIVER, moment, str(left), "pipeline", "archive"]
        command += ["--data-dir", str(self.journal.data_dir), "--lake", f"s3a://{self.lake}"]
        command += ["--master", "local[2]", *options]
        for key, value in client_settings(at or self.address).items():
            command += ["--conf", f"{key}={value}"]
        return Driver(command, folder)

    def check(self) -> None:
        """The table has every row of the journal once. Raises AssertionError."""
        expected = [row["journal_offset"] for row in self.journal.rows()]
        assert self.offsets() == expected, "the table is not the journal"

    def offsets(self) -> list[int]:
        table = DeltaTable(f"s3://{self.lake}/messages", storage_options=storage_options(self.address))
        query = QueryBuilder().register("rows", table).execute("select journal_offset from rows")
        found: list[int] = pa.table(query.read_all())["journal_offset"].to_pylist()
        return sorted(found)

    def has(self, rows: int) -> bool:
        with suppress(Exception):  # no table yet
            return len(self.offsets()) >= rows
        return False

    def objects(self) -> fs.S3FileSystem:
        place = urlsplit(self.address)
        return fs.S3FileSystem(
            access_key="any",
            secret_key="any",
            endpoint_override=place.netloc,
            scheme="http",
            region="us-east-1",
        )


class Driver:
    def __init__(self, command: list[str], folder: Path) -> None:
        self._said = folder / "said"
        environment = os.environ | quick_java.ENVIRONMENT | {"TMPDIR": str(folder)}
        with self._said.open("w") as said:
            self.process = subprocess.Popen(
                command, cwd=folder, env=environment, stderr=said, stdout=said, start_new_session=True
            )

    def signal(self, number: int) -> None:
        """To Python and Java alike."""
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, number)

    def end(self) -> int:
        try:
            return self.process.wait(WAIT_S)
        finally:
            self.signal(signal.SIGKILL)

    def said(self) -> str:
        return self._said.read_text()

    def require(self, code: int, words: str = "") -> None:
        """Raises AssertionError unless it ends with that code, and says so."""
        found = self.end()
        assert (found, words in self.said()) == (code, True), f"exit {found}\n{self.said()}"


def wait_until(is_so: Callable[[], bool]) -> None:
    deadline = monotonic() + WAIT_S
    while not is_so():
        assert monotonic() < deadline, "it did not come to pass"
        sleep(0.2)


def killed(ground: Ground) -> None:
    """Before a commit, behind one, and at any moment."""
    random = Random(1)
    for turn in range(ROUNDS):
        ground.journal.write(mixed(300, turn))
        moment = ("before", "behind", "any")[turn % 3]
        driver = ground.driver("--max-records", "100", moment=moment, left=2)
        if moment == "any":
            with suppress(subprocess.TimeoutExpired):
                driver.process.wait(random.uniform(15, 40))
            driver.signal(signal.SIGKILL)
        driver.end()
    ground.driver().require(0)


def doubled(ground: Ground) -> None:
    """The second is refused while the first is at work; two that begin together add nothing twice."""
    ground.journal.write(mixed(600, 5))
    first = ground.driver("--follow", "--trigger", "1")
    wait_until(lambda: ground.has(1))
    ground.driver().require(1, "another process is archiving journal")
    first.signal(signal.SIGTERM)
    first.require(0)
    ground.journal.write(mixed(600, 6))
    both = [ground.driver("--max-records", "100") for _ in range(2)]
    assert sorted(driver.end() for driver in both) in ([0, 0], [0, 1]), [driver.said() for driver in both]


def stopped(ground: Ground) -> None:
    """For longer than its lease, and continued when another has taken over."""
    ground.journal.write(mixed(300, 7))
    first = ground.driver("--follow", "--trigger", "1")
    wait_until(lambda: ground.has(1))
    first.signal(signal.SIGSTOP)
    ground.journal.write(mixed(300, 8))
    second = ground.driver("--follow", "--trigger", "1")
    rows = len(ground.journal.rows())
    wait_until(lambda: ground.has(rows))
    ground.journal.write(mixed(300, 9))
    first.signal(signal.SIGCONT)
    first.require(1, "another process is archiving journal")
    rows = len(ground.journal.rows())
    wait_until(lambda: ground.has(rows))
    second.signal(signal.SIGTERM)
    second.require(0)


def unavailable(ground: Ground) -> None:
    """503 to everything for 20 s, in the middle of an archive."""
    ground.journal.write(mixed(900, 10))
    with door(ground.address) as (address, is_shut):
        driver = ground.driver("--max-records", "100", at=address)
        wait_until(lambda: ground.has(1))
        is_shut.set()
        with suppress(subprocess.TimeoutExpired):
            driver.process.wait(20)
        is_shut.clear()
        if driver.end():
            ground.driver(at=address).require(0)  # it gave up: a service manager starts it again


def restored(ground: Ground) -> None:
    """The bucket is put back as it was before the last batches."""
    store, copy = ground.objects(), str(ground.folder / "copy")
    ground.journal.write(mixed(300, 11))
    ground.driver().require(0)
    fs.copy_files(ground.lake, copy, source_filesystem=store)
    ground.journal.write(mixed(300, 12))
    ground.driver("--max-records", "100").require(0)
    store.delete_dir_contents(ground.lake)
    fs.copy_files(copy, ground.lake, destination_filesystem=store)
    ground.driver().require(0)


def by_query(ground: Ground) -> None:
    """A query of one's own, whose last batch is done again as behind a kill -9 between Delta's commit and Spark's."""
    jars = ",".join(map(str, [*jar_files(jars_folder()), *s3_jars(jars_folder())]))
    extra = QUICK | client_settings(ground.address) | {"spark.jars": jars}
    spark = open_session(SparkSettings(master="local[2]", extra=extra))
    checkpoint = f"s3a://{ground.lake}/_checkpoints/messages"

    def read() -> set[int]:
        rows = spark.readStream.format("headrace").option("consumer", "bucket")
        writer = rows.option("maxOffsetsPerTrigger", 500).load(str(ground.journal.data_dir)).writeStream
        query = writer.format("delta").option("checkpointLocation", checkpoint).trigger(availableNow=True)
        running = query.start(f"s3a://{ground.lake}/messages")
        running.awaitTermination()
        return {progress.batchId for progress in running.recentProgress}

    try:
        ground.journal.write(mixed(1200, 13))
        first = read()
        folder = f"{ground.lake}/_checkpoints/messages/commits"
        last = max(first)
        ground.objects().delete_file(f"{folder}/{last}")
        ground.journal.write(mixed(700, 14))
        assert last in read(), "no batch was done again"
    finally:
        close_session(spark)


@contextmanager
def door(address: str) -> Iterator[tuple[str, Event]]:
    """Another address of the server, which answers 503 while the event is set."""
    is_shut = Event()
    behind = urlsplit(address)

    class Door(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def pass_on(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            if is_shut.is_set():
                self.send_response(503)
                self.send_header("Content-Length", "0")
                self.end_headers()
                return
            onward = HTTPConnection(behind.hostname or "", behind.port, timeout=WAIT_S)
            onward.request(self.command, self.path, body, dict(self.headers))
            answer = onward.getresponse()
            content = answer.read()
            self.send_response_only(answer.status)
            for name, value in answer.getheaders():
                if name.lower() not in ("transfer-encoding", "content-length"):
                    self.send_header(name, value)
            length = answer.getheader("Content-Length") if self.command == "HEAD" else str(len(content))
            self.send_header("Content-Length", length or "0")
            self.end_headers()
            self.wfile.write(content)
            onward.close()

        do_GET = do_PUT = do_POST = do_HEAD = do_DELETE = pass_on  # noqa: N815

        def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
            """Nothing: there are thousands."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Door)
    Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", is_shut
    finally:
        server.shutdown()
        server.server_close()


SCENARIOS: Final = (killed, doubled, stopped, unavailable, restored, by_query)


def main(chosen: list[str]) -> None:
    with tempfile.TemporaryDirectory() as name, s3_server(Path(name)) as address:
        for scenario in SCENARIOS:
            if not chosen or scenario.__name__ in chosen:
                began = monotonic()
                ground = Ground(scenario.__name__, Path(name), address)
                scenario(ground)
                ground.check()
                rows = len(ground.journal.rows())
                print(f"{scenario.__name__}: {rows} rows, each once, {monotonic() - began:.0f} s", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
