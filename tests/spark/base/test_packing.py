"""What the jobs import, in one archive: enough for a Python that has nothing else; no Spark, nothing compiled of ours."""

from __future__ import annotations

import subprocess
import sys
import tarfile
from importlib.metadata import PackageNotFoundError
from pathlib import Path

import pytest

from headrace_spark.base import packing
from headrace_spark.base.cluster import REQUIRED
from headrace_spark.base.errors import EngineMissing


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


def test_without_an_installation_it_says_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def nothing(name: str) -> None:
        raise PackageNotFoundError(name)

    monkeypatch.setattr(packing, "distribution", nothing)
    with pytest.raises(EngineMissing, match=r"pip install 'headrace\[spark\]'"):
        packing.pack(tmp_path / "x.tar.gz")
    assert list(tmp_path.iterdir()) == []
