"""A real Trino: the server's archive of Maven Central with Delta's plugin alone, one node, and a client for its protocol.

It needs a newer Java than Spark, at `JAVA_HOME`. Of the archive, 821 MB, the 330 that a catalog of Delta tables needs are
kept beside headrace's own jars.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from time import monotonic, sleep
from typing import Any, Final
from urllib.error import HTTPError, URLError
from urllib.request import Request, urlopen

from headrace.testing.ports import free_port
from headrace_spark.base.jars import jars_folder

VERSION: Final = "476"
JAVA_MIN: Final = 24
_ARCHIVE: Final = f"io.trino:trino-server:{VERSION}:tar.gz"
_KEPT: Final = tuple(f"trino-server-{VERSION}/{name}" for name in ("lib/", "plugin/delta-lake/"))
_FETCH_S, _START_S, _ANSWER_S, _END_S = 3600, 600, 600, 60
_JAVA: Final = (
    *("-Xmx1g", "-XX:TieredStopAtLevel=1", "-Duser.timezone=UTC", "--add-modules=jdk.incubator.vector"),
    *("--enable-native-access=ALL-UNNAMED", "--sun-misc-unsafe-memory-access=allow"),
)
_SAID: Final = re.compile(r'^JAVA_VERSION="(\d+)', re.MULTILINE)


class TrinoError(Exception):
    """A statement failed, as Trino says it."""


def java_for_trino() -> Path | None:
    """`java` of `JAVA_HOME`, None if there is none or it is too old for Trino."""
    home = os.environ.get("JAVA_HOME")
    release = Path(home) / "release" if home else None
    if release is None or not release.is_file():
        return None
    found = _SAID.search(release.read_text())
    return release.parent / "bin" / "java" if found and int(found[1]) >= JAVA_MIN else None


def fetch_trino() -> Path:
    """The folder with what is needed of Trino; downloaded the first time."""
    folder = jars_folder().parent / f"trino-{VERSION}"
    if not folder.exists():
        part = folder.with_name(f"{folder.name}.part")
        shutil.rmtree(part, ignore_errors=True)
        part.mkdir(parents=True)
        # A repository of its own: nobody else needs the archive.
        command = ["mvn", "-B", "-q", "-U", f"-Dmaven.repo.local={part / 'repository'}"]
        command += ["dependency:copy", f"-Dartifact={_ARCHIVE}", f"-DoutputDirectory={part}"]
        subprocess.run(command, check=True, timeout=_FETCH_S, cwd=part)
        unpack(part / f"trino-server-{VERSION}.tar.gz", part)
        shutil.rmtree(part / "repository")
        part.rename(folder)
    return folder


def unpack(archive: Path, folder: Path) -> None:
    """What is kept of the archive, which is removed. What several plugins need is in it once, and links to that."""
    with tarfile.open(archive) as tar:
        kept = [member for member in tar if member.name.startswith(_KEPT)]
        sources = {member.linkname for member in kept if member.islnk()}
        names = sources | {member.name for member in kept}
        tar.extractall(folder, [each for each in tar.getmembers() if each.name in names], filter="data")
    archive.unlink()
    top = folder / f"trino-server-{VERSION}"
    for plugin in (top / "plugin").iterdir():
        if plugin.name != "delta-lake":
            shutil.rmtree(plugin)
    for name in ("lib", "plugin"):
        (top / name).rename(folder / name)
    top.rmdir()


class Trino:
    """A client of one server: statements one after the other, in UTC."""

    def __init__(self, address: str) -> None:
        self._address = address

    def ask(self, statement: str) -> tuple[list[dict[str, Any]], list[list[Any]]]:
        """The columns of what is asked, each with its type, and the rows as JSON has them. Raises TrinoError."""
        about = {"X-Trino-User": "readers", "X-Trino-Time-Zone": "UTC", "X-Trino-Source": "headrace"}
        request = Request(f"{self._address}/v1/statement", statement.encode(), about)
        columns: list[dict[str, Any]] = []
        rows: list[list[Any]] = []
        while True:
            with urlopen(request, timeout=_ANSWER_S) as answer:
                page = json.load(answer)
            if "error" in page:
                raise TrinoError(f"{page['error']['message']}: {statement}")
            columns = page.get("columns", columns)
            rows += page.get("data", [])
            if "nextUri" not in page:
                return columns, rows
            request = Request(page["nextUri"], headers=about)


@contextmanager
def trino_server(folder: Path, java: Path, tables: Path) -> Iterator[Trino]:
    """Trino with a catalog `delta` until the block ends; `tables` is `local:///` there."""
    home = fetch_trino()
    port = free_port()
    address = f"http://127.0.0.1:{port}"
    catalog = {"connector.name": "delta_lake", "delta.register-table-procedure.enabled": "true"}
    catalog |= {"fs.native-local.enabled": "true", "local.location": f"{tables}"}
    catalog |= {"hive.metastore": "file", "hive.metastore.catalog.dir": "local:///_metastore"}
    _write(folder / "catalog" / "delta.properties", catalog)
    server = {"coordinator": "true", "node-scheduler.include-coordinator": "true", "discovery.uri": address}
    server |= {"http-server.http.port": f"{port}", "plugin.dir": f"{home / 'plugin'}"}
    server |= {"node.environment": "readers", "node.bind-ip": "127.0.0.1"}
    server |= {"node.internal-address": "127.0.0.1", "catalog.config-dir": f"{folder / 'catalog'}"}
    _write(folder / "config.properties", server)
    command = [f"{java}", *_JAVA, "-cp", f"{home / 'lib'}/*", f"-Dconfig={folder / 'config.properties'}"]
    with (folder / "log").open("w") as log:
        running = subprocess.Popen(
            [*command, "io.trino.server.TrinoServer"], cwd=folder, stdout=log, stderr=log
        )
    try:
        trino = Trino(address)
        _await(trino, running, folder / "log")
        yield trino
    finally:
        running.terminate()
        running.wait(_END_S)


def _write(file: Path, said: dict[str, str]) -> None:
    file.parent.mkdir(exist_ok=True)
    file.write_text("".join(f"{key}={value}\n" for key, value in said.items()))


def _await(trino: Trino, server: subprocess.Popen[bytes], log: Path) -> None:
    """Until it answers a statement. Raises RuntimeError with the end of its log."""
    deadline = monotonic() + _START_S
    while True:
        try:
            trino.ask("SELECT 1")
            return
        except (URLError, HTTPError, ConnectionError, TrinoError) as error:
            if server.poll() is not None or monotonic() > deadline:
                raise RuntimeError(f"Trino does not answer:\n{log.read_text()[-3000:]}") from error
            sleep(0.2)
