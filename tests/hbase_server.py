"""HBase 2.6.1 for tests: one process that is master, region server and ZooKeeper, and its Thrift2 gateway, which are
started once a run and stopped by their pids.

What is missing is a failure: the jars are fetched by Maven the first time, and kept beside headrace's own.
"""

from __future__ import annotations

import contextlib
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from broker_process import free_port
from engine_jars import engine_jars
from headrace.stores.hbase.address import parse
from headrace.stores.hbase.gateway import TYPES, Gateway, HBaseError
from headrace.stores.hbase.table import Table

VERSION: Final = "2.6.1"
READY_S, STOP_S = 220, 30
_OPENED: Final = (
    "lang",
    "lang.reflect",
    "io",
    "net",
    "nio",
    "util",
    "util.concurrent",
    "util.concurrent.atomic",
)
# Small ones, that compile nothing which they do not run for long.
JAVA: Final = (
    *("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xshare:auto", "-Djava.net.preferIPv4Stack=true"),
    *(f"--add-opens=java.base/java.{name}=ALL-UNNAMED" for name in _OPENED),
    *(f"--add-opens=java.base/{name}=ALL-UNNAMED" for name in ("sun.nio.ch", "jdk.internal.ref")),
    "--add-exports=java.base/jdk.internal.misc=ALL-UNNAMED",
    "--add-exports=java.security.jgss/sun.security.krb5=ALL-UNNAMED",
    "-Dorg.apache.hbase.thirdparty.io.netty.tryReflectionSetAccessible=true",
)
ENGINE: Final = ("-Xms192m", "-Xmx384m", "org.apache.hadoop.hbase.master.HMaster", "start")
GATEWAY: Final = ("-Xms64m", "-Xmx192m", "org.apache.hadoop.hbase.thrift2.ThriftServer", "start")
LOGGING: Final = """log4j.rootLogger=WARN,console
log4j.appender.console=org.apache.log4j.ConsoleAppender
log4j.appender.console.target=System.err
log4j.appender.console.layout=org.apache.log4j.PatternLayout
log4j.appender.console.layout.ConversionPattern=%d{ISO8601} %p %c: %m%n
"""


def jars() -> Path:
    """The folder with HBase's jars; fetched the first time."""
    return engine_jars("hbase", VERSION)


class HBaseServer:
    """HBase and its gateway. `address` is HOST:PORT of the gateway."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._conf = folder / "conf"
        self._conf.mkdir()
        self._conf.joinpath("log4j.properties").write_text(LOGGING, encoding="utf-8")
        self.port = free_port()
        self.address = f"127.0.0.1:{self.port}"
        self._conf.joinpath("hbase-site.xml").write_text(_site(self._settings()), encoding="utf-8")
        self._engine: subprocess.Popen[bytes] | None = None
        self._gateway: subprocess.Popen[bytes] | None = None

    def _settings(self) -> dict[str, str]:
        here = "127.0.0.1"
        return {
            "hbase.rootdir": f"file://{self._folder}/root",
            "hbase.tmp.dir": f"{self._folder}/tmp",
            "hbase.cluster.distributed": "false",
            "hbase.zookeeper.property.dataDir": f"{self._folder}/zookeeper",
            "hbase.zookeeper.property.clientPort": str(free_port()),
            "hbase.zookeeper.property.clientPortAddress": here,
            "hbase.zookeeper.property.tickTime": "500",
            "hbase.zookeeper.quorum": here,
            "hbase.unsafe.stream.capability.enforce": "false",
            "hbase.wal.provider": "filesystem",
            "fs.file.impl": "org.apache.hadoop.fs.RawLocalFileSystem",
            "hbase.master.hostname": "localhost",
            "hbase.regionserver.hostname": "localhost",
            "hbase.master.ipc.address": here,
            "hbase.regionserver.ipc.address": here,
            "hbase.master.port": str(free_port()),
            "hbase.regionserver.port": str(free_port()),
            "hbase.master.info.port": "-1",
            "hbase.regionserver.info.port": "-1",
            "hbase.regionserver.thrift.port": str(self.port),
            "hbase.regionserver.thrift.ipaddress": here,
            "hbase.thrift.info.port": "-1",
            "hbase.localcluster.assign.random.ports": "false",
            "hbase.regionserver.handler.count": "8",
            "hbase.client.retries.number": "4",
        }

    def _java(self, log: str, *command: str) -> subprocess.Popen[bytes]:
        with (self._folder / log).open("ab") as out:
            return subprocess.Popen(
                ["nice", "-n", "5", "java", *JAVA, "-cp", f"{self._conf}:{jars()}/*", *command],
                stdout=out,
                stderr=out,
                stdin=subprocess.DEVNULL,
                cwd=self._folder,
            )

    def start(self) -> None:
        """Start what does not run, and wait until tables can be asked for."""
        if self._engine is None:
            self._engine = self._java("engine.log", *ENGINE)
        if self._gateway is None:
            self._gateway = self._java("gateway.log", *GATEWAY)
        deadline = time.monotonic() + READY_S
        while not self._answers():
            assert self._engine.poll() is None, self.log()
            assert self._gateway.poll() is None, self.log()
            assert time.monotonic() < deadline, self.log()
            time.sleep(0.2)

    def _answers(self) -> bool:
        """Whether tables can be made, and asked: a gateway answers sooner than that."""
        gateway = Gateway([("127.0.0.1", self.port)], 60.0)
        table = Table(parse(f"hbase://{self.address}/warm?regions=1"))
        try:
            if not table.is_there(gateway):
                table.make(gateway)
            table.reach(gateway)
        except HBaseError:
            return False
        else:
            return True
        finally:
            gateway.close()

    def ask(self, method: str, *arguments: Any) -> Any:
        """The answer of the gateway to a call, over a connection of its own."""
        gateway = Gateway([("127.0.0.1", self.port)], 60.0)
        try:
            return gateway.call(method, *arguments)
        finally:
            gateway.close()

    def drop(self, table: str) -> None:
        """Delete a table, as anybody may."""
        self.ask("disableTable", table_name(table))
        self.ask("deleteTable", table_name(table))

    def log(self) -> str:
        names = ("engine.log", "gateway.log")
        found = [self._folder.joinpath(name) for name in names if self._folder.joinpath(name).exists()]
        return "\n".join(path.read_text(errors="replace")[-3000:] for path in found)

    def kill_gateway(self) -> None:
        """Kill the gateway as kill -9 does; `start` has it back."""
        _kill(self._gateway)
        self._gateway = None

    def kill_engine(self) -> None:
        """Kill HBase as kill -9 does; `start` has it back with what it had."""
        _kill(self._engine)
        self._engine = None

    @contextlib.contextmanager
    def stopped(self) -> Iterator[None]:
        """Let HBase stand still until the block ends: it answers nobody, and its connections stay."""
        engine = self._engine
        assert engine is not None
        engine.send_signal(signal.SIGSTOP)
        try:
            yield
        finally:
            engine.send_signal(signal.SIGCONT)  # nothing, where it was killed meanwhile

    def stop(self) -> None:
        """End both: nobody needs their data any more."""
        self.kill_gateway()
        self.kill_engine()


def table_name(name: str) -> Any:
    """What the gateway takes for the name of a table, `namespace:name` or the name alone."""
    namespace, _, qualifier = name.rpartition(":")
    return TYPES.TTableName(ns=(namespace or "default").encode(), qualifier=qualifier.encode())


def _kill(process: subprocess.Popen[bytes] | None) -> None:
    if process is not None:
        process.kill()
        process.wait(STOP_S)


def _site(settings: dict[str, str]) -> str:
    lines = [
        f"<property><name>{name}</name><value>{value}</value></property>" for name, value in settings.items()
    ]
    return "\n".join(["<configuration>", *lines, "</configuration>", ""])


@contextlib.contextmanager
def hbase_server() -> Iterator[HBaseServer]:
    """HBase that is ready, until the block ends."""
    folder = Path(tempfile.mkdtemp(prefix="headrace-hbase-"))
    server = HBaseServer(folder)
    try:
        server.start()
        yield server
    finally:
        server.stop()
        shutil.rmtree(folder, ignore_errors=True)
