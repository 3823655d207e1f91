"""What the jobs import, in one archive: enough for a Python that has nothing else; no Spark, nothing compiled of ours."""

from __future__ import annotations

import errno
import signal
import subprocess
import sys
import tarfile
import time
from importlib.metadata import PackageNotFoundError
from pathlib import Path

import pytest

from headrace_spark.base import packing
from headrace_spark.base.cluster import REQUIRED
from headrace_spark.base.errors import BadOption, EngineMissing


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("packed")
    archive = folder / "packages.tar.gz"
    names = packing.pack(archive)
    assert {"pyarrow", "numpy", "librt", "msgspec", "mypy-extensions", "deltalake", "delta-spark"} <= set(
        names
    )
    assert not {"pyspark", "py4j", "headrace"} & set(names)
    assert [path.name for path in folder.iterdir()] == ["packages.tar.gz"]
    return archive


def test_the_archive_has_our_sources_and_nothing_compiled_of_ours(packed: Path) -> None:
    with tarfile.open(packed) as archive:
        names = archive.getnames()
    ours = [name for name in names if name.startswith(tuple(f"{package}/" for package in packing.OURS))]
    assert {
        "headrace/commands/main.py",
        "headrace_spark/jobs/archive.py",
        "headrace_spark/log4j2.properties",
    } <= set(ours)
    assert not [name for name in ours if name.endswith((".so", ".pyc"))]
    assert not [name for name in names if name.startswith(("/", "..", "pyspark/"))]


@pytest.mark.spark
def test_a_python_without_packages_can_run_our_code_with_it(packed: Path, tmp_path: Path) -> None:
    with tarfile.open(packed) as archive:
        archive.extractall(tmp_path, filter="data")
    python = Path(sys.base_prefix) / "bin" / f"python{sys.version_info.major}.{sys.version_info.minor}"
    look = (
        f"import sys; sys.path[:0] = [{str(tmp_path)!r}]; import {', '.join(REQUIRED)}; print(numpy.__file__)"
    )
    done = subprocess.run([python, "-I", "-c", look], check=True, capture_output=True, text=True, timeout=400)
    assert done.stdout.startswith(str(tmp_path))


def test_one_that_is_stopped_or_killed_leaves_no_part_for_ever(tmp_path: Path) -> None:
    """A signal that can be caught clears away; what SIGKILL leaves the next one writes over."""
    target, part = tmp_path / "p.tar.gz", tmp_path / ".p.tar.gz.part"
    command = [sys.executable, "-m", "headrace", "pipeline", "pack", str(target)]

    def stopped_by(number: int) -> int:
        with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE) as process:
            until = time.monotonic() + 60
            while not part.exists() or not part.stat().st_size:
                assert time.monotonic() < until, "it writes"
                assert process.poll() is None
                time.sleep(0.01)
            process.send_signal(number)
            return process.wait(60)

    assert stopped_by(signal.SIGTERM) == 128 + signal.SIGTERM
    assert list(tmp_path.iterdir()) == []
    assert stopped_by(signal.SIGKILL) == -signal.SIGKILL
    assert list(tmp_path.iterdir()) == [part]
    packing.pack(target)
    assert list(tmp_path.iterdir()) == [target]
    with tarfile.open(target) as archive:
        assert archive.getnames()


def test_one_that_fails_leaves_no_part_and_what_was_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(self: tarfile.TarFile, *_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    target = tmp_path / "p.tar.gz"
    target.write_bytes(b"of before")
    monkeypatch.setattr(tarfile.TarFile, "add", full)
    with pytest.raises(OSError, match="No space left"):
        packing.pack(target)
    assert list(tmp_path.iterdir()) == [target]
    assert target.read_bytes() == b"of before"


def test_two_at_a_time_do_not_write_into_each_other(tmp_path: Path) -> None:
    with packing._held(tmp_path / ".p.tar.gz.part"), pytest.raises(BadOption, match="writes it now"):
        packing.pack(tmp_path / "p.tar.gz")
    assert list(tmp_path.iterdir()) == []


def test_without_an_installation_it_says_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def nothing(name: str) -> None:
        raise PackageNotFoundError(name)

    monkeypatch.setattr(packing, "distribution", nothing)
    with pytest.raises(EngineMissing, match=r"pip install 'headrace\[spark\]'"):
        packing.pack(tmp_path / "x.tar.gz")
    assert list(tmp_path.iterdir()) == []
