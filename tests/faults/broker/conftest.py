"""A broker as a process on a disk that fails: a small tmpfs, or a preloaded library that fails calls on demand."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from broker_process import BrokerProcess, make_broker
from e2e.raw import RawClient

MIB = 1 << 20


class Faults:
    """`Faults.set("fdatasync", errno.EIO)`: from now on that call fails in the broker. `clear` ends it."""

    def __init__(self, folder: Path, library: Path) -> None:
        self._folder = self.folder = folder
        self.environment = {"LD_PRELOAD": str(library), "FAULTS": str(folder)}

    def set(self, call: str, code: int) -> None:
        (self._folder / f"{call}.new").write_text(str(code))
        os.rename(self._folder / f"{call}.new", self._folder / call)

    def clear(self) -> None:
        for path in self._folder.iterdir():
            path.unlink()


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("preload") / "failing_calls.so"
    source = Path(__file__).with_name("failing_calls.c")
    try:
        subprocess.run(["cc", "-shared", "-fPIC", "-o", target, source, "-ldl"], check=True)
    except FileNotFoundError:
        pytest.skip("needs a C compiler")
    return target


@pytest.fixture
def faults(tmp_path: Path, library: Path) -> Faults:
    folder = tmp_path / "faults"
    folder.mkdir()
    return Faults(folder, library)


@pytest.fixture
def brokers(tmp_path: Path) -> Iterator[Callable[..., BrokerProcess]]:
    """Makes brokers that are killed at the end; a traceback on their stderr fails the test."""
    made: list[BrokerProcess] = []

    def make(settings: dict[str, object], folder: Path = tmp_path, **more: Any) -> BrokerProcess:
        made.append(make_broker(folder, settings, **more))
        return made[-1]

    yield make
    for broker in made:
        broker.end()
        assert not broker.trouble, broker.trouble


@pytest.fixture
def clients() -> Iterator[Callable[..., RawClient]]:
    opened: list[RawClient] = []

    def open_client(to: BrokerProcess, client_id: str, version: int = 4, **fields: Any) -> RawClient:
        client = RawClient(to.address, client_id, version)
        opened.append(client)
        client.connect(**fields)
        return client

    yield open_client
    for client in opened:
        client.close()


class SmallDisk:
    """A tmpfs. `fill` leaves so many bytes free, `free` gives everything back."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._ballast = folder / "ballast"

    def fill(self, left: int) -> None:
        found = os.statvfs(self.folder)
        size = found.f_bavail * found.f_frsize - left
        fd = os.open(self._ballast, os.O_RDWR | os.O_CREAT)
        try:
            os.posix_fallocate(fd, 0, size)
        finally:
            os.close(fd)

    def free(self) -> None:
        self._ballast.unlink()


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[SmallDisk]:
    folder = tmp_path / "disk"
    folder.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={96 * MIB}", "tmpfs", folder], capture_output=True
    )
    if mounted.returncode:
        pytest.skip("may not mount a tmpfs here")
    try:
        yield SmallDisk(folder)
    finally:
        with suppress(FileNotFoundError):
            (folder / "ballast").unlink()
        subprocess.run(["umount", "-l", folder], check=True)
