"""A Spark cluster as the pipeline needs it: a master that answers, and workers that can run our code.

Workers get the sources of headrace from the driver. What they must have themselves, in the environment that
`PYSPARK_PYTHON` names there: the driver's Python minor version and the packages of `REQUIRED`, unless these are sent with
the job (`packing`); and they must see the data directory and the lake under the driver's paths, unless both are remote.
"""

from __future__ import annotations

import re
import socket
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from secrets import token_hex
from time import monotonic, sleep, time
from typing import Final
from urllib.parse import urlsplit

from pyspark.sql import SparkSession

from headrace_spark.base.errors import BadOption, EngineMissing

YARN: Final = "yarn"
_KUBERNETES: Final = re.compile(r"k8s://(?:https?://)?[^/\s]+(?:/\S*)?")
REQUIRED: Final = ("librt", "msgspec", "mypy_extensions", "numpy", "pyarrow")
LOCAL: Final = re.compile(r"local(?:\[(\*|[1-9]\d*)(?:,[1-9]\d*)?\])?")
_CONNECT_TIMEOUT_S: Final = 5.0
_VERSIONS: Final = re.compile(r"Python in worker has different version.*")
_MARK: Final = ".seen-"
_SEEN_WITHIN_S: Final = 5.0
"""So long may a shared file system take until another machine sees a new file."""
_LEFT_S: Final = 3600.0
"""Nobody looks at a mark any more that is as old as this."""


def check_master(master: str) -> None:
    """Check that the master of a cluster answers: Spark itself tries for a minute, or fails with a page of Java. Raises
    BadOption, EngineMissing."""
    if LOCAL.fullmatch(master) or master == YARN or _KUBERNETES.fullmatch(master):
        return  # what is wrong with the latter Spark says itself
    if not master.startswith("spark://"):
        raise BadOption(
            "master",
            master,
            "local[N], local[*], spark://host:port, yarn or k8s://https://host:port is needed",
        )
    problems = []
    for address in master.removeprefix("spark://").split(","):
        try:
            parts = urlsplit(f"spark://{address}")
            host, port = parts.hostname, parts.port
        except ValueError:
            host, port = None, None
        if not host or port is None:
            raise BadOption("master", master, "spark://host:port is needed")
        try:
            socket.create_connection((host, port), _CONNECT_TIMEOUT_S).close()
        except OSError as error:
            problems.append(f"{address}: {error.strerror or error}")
        else:
            return
    raise EngineMissing(f"no Spark master answers at {master} ({'; '.join(problems)})")


def check_workers(spark: SparkSession, modules: Sequence[str] = REQUIRED) -> None:
    """Ask the workers whether they have what they need. Raises EngineMissing."""
    tasks = spark.sparkContext.defaultParallelism
    look = Missing(tuple(modules))
    try:
        missing = set(spark.sparkContext.parallelize(range(tasks), tasks).mapPartitions(look).collect())
    except Exception as error:
        found = _VERSIONS.search(str(error))
        if found is None:
            raise
        raise EngineMissing(f"{found.group()} Set PYSPARK_PYTHON to the same version there") from None
    if missing:
        names = ", ".join(sorted(missing))
        raise EngineMissing(
            f"Spark workers lack {names}: install them into the Python that PYSPARK_PYTHON names on every worker"
        )


def check_folders(
    spark: SparkSession, lake: Path | None, data_dir: Path | None, journals: Sequence[Path]
) -> None:
    """Check that the workers have the folders that a job was told under the driver's paths, as far as they are there yet:
    what is written into another folder of that name is no part of any table. Raises BadOption.

    `journals`: of `data_dir`. None: that job has none.
    """
    if data_dir is not None:
        problem = (
            "does not see it; the journal of a running broker needs no shared disk: headrace://HOST:PORT"
        )
        require_seen(spark, "data_dir", data_dir, journals, problem)
    if lake is None:
        return
    mark = lake.absolute() / "_checkpoints" / f"{_MARK}{token_hex(8)}"
    try:
        mark.parent.mkdir(parents=True, exist_ok=True)
        mark.touch()
        _sweep(mark.parent)
    except OSError:
        return  # the job says what there is to say
    try:
        problem = "does not see it: give a folder that all machines share, or a URL (s3a://BUCKET/...)"
        require_seen(spark, "pipeline.lake", lake, [mark], problem)
    finally:
        with suppress(OSError):
            mark.unlink()


def _sweep(folder: Path) -> None:
    """Remove the marks that processes have left which were killed while workers looked at them. Raises OSError."""
    for left in folder.glob(f"{_MARK}*"):
        if time() - left.stat().st_mtime > _LEFT_S:
            left.unlink(missing_ok=True)


def require_seen(spark: SparkSession, option: str, value: Path, paths: Sequence[Path], problem: str) -> None:
    """Raise BadOption unless the workers see all of the paths."""
    look = Look(tuple(map(str, paths)), _SEEN_WITHIN_S)
    tasks = spark.sparkContext.defaultParallelism
    hosts = set(spark.sparkContext.parallelize(range(tasks), tasks).mapPartitions(look).collect())
    if hosts:
        raise BadOption(option, str(value), f"the worker on {min(hosts)} {problem}")


@dataclass(frozen=True)
class Look:
    """A look at paths. Runs on a worker."""

    paths: tuple[str, ...]
    within_s: float

    def __call__(self, _numbers: Iterable[int]) -> Iterator[str]:
        """Yield the name of this machine if one of the paths is not there in time."""
        until = monotonic() + self.within_s
        while not all(Path(path).exists() for path in self.paths):
            if monotonic() >= until:
                yield socket.gethostname()
                return
            sleep(0.5)


@dataclass(frozen=True)
class Missing:
    """A look for modules. Runs on a worker."""

    modules: tuple[str, ...]

    def __call__(self, _numbers: Iterable[int]) -> Iterator[str]:
        """Yield the names of those that a worker lacks."""
        return (name for name in self.modules if not _is_installed(name))


def _is_installed(name: str) -> bool:
    try:
        return find_spec(name) is not None
    except ModuleNotFoundError:  # nor is the package that it is in
        return False
