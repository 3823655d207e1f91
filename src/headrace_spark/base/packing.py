"""What the jobs import, in one archive for machines that have only Python and Spark: `headrace pipeline pack`.

The distributions are those that are installed here, as `headrace[spark,kafka]` names them and they name each other,
without PySpark, which every machine of a cluster has; and the sources of headrace itself, without what was compiled for
this machine. Spark unpacks the archive beside each executor (`spark.archives`), where PYTHONPATH names it.
"""

from __future__ import annotations

import fcntl
import os
import re
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from importlib.resources import files
from pathlib import Path, PurePosixPath
from typing import BinaryIO, Final

from headrace_spark.base.errors import BadOption, EngineMissing

UNPACKED: Final = "headrace_packages"
"""The folder that it is unpacked into, beside each executor."""
OURS: Final = ("headrace", "headrace_spark", "pyspark_headrace")
_EXTRA: Final = re.compile(r"""extra\s*==\s*['"]([^'"]+)['"]""")
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_LEFT_OUT: Final = frozenset({"headrace", "pyspark", "py4j"})
_SOURCES: Final = frozenset({".py", ".properties", ".java", ".css", ".js", ".html", ".typed"})
_LEVEL: Final = 1  # most of it is compiled, and compresses badly however long one tries


def pack(target: Path) -> list[str]:
    """Write the archive; returns the names of the distributions in it. What one that was killed has left is written
    over. Raises BadOption, EngineMissing, OSError."""
    found = _distributions()
    part = target.with_name(f".{target.name}.part")
    with _held(part) as opened:
        with tarfile.open(mode="w:gz", fileobj=opened, compresslevel=_LEVEL) as archive:
            for one in found.values():
                for path in _files_of(one):
                    archive.add(str(one.locate_file(path)), arcname=str(path), recursive=False)
            for package in OURS:
                for source, name in _sources_of(package):
                    archive.add(source, arcname=name, recursive=False)
        opened.flush()
        part.replace(target)
    return sorted(found)


@contextmanager
def _held(part: Path) -> Iterator[BinaryIO]:
    """Hold an empty file that no other process writes; it is gone afterwards, unless it has another name by then. Raises
    BadOption, OSError."""
    while True:
        with part.open("ab") as opened:
            try:
                fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise BadOption("TARGET", str(part), "another `pipeline pack` writes it now") from None
            if not _is_at(opened, part):  # another one has finished it meanwhile
                continue
            try:
                opened.truncate(0)
                yield opened
            finally:
                if _is_at(opened, part):
                    part.unlink()
            return


def _is_at(opened: BinaryIO, path: Path) -> bool:
    """Return whether an open file has that name."""
    try:
        return os.path.samestat(os.fstat(opened.fileno()), path.stat())
    except FileNotFoundError:
        return False


def _distributions() -> dict[str, Distribution]:
    """Return what the jobs need, by name. Raises EngineMissing."""
    try:
        wanted = _required(distribution("headrace"), {"spark", "kafka", "progress"})
    except PackageNotFoundError:
        raise EngineMissing(
            "headrace is not installed here as a package: pip install 'headrace[spark]'"
        ) from None
    found: dict[str, Distribution] = {}
    while wanted:
        name = wanted.pop()
        if name in found or name in _LEFT_OUT:
            continue
        try:
            found[name] = distribution(name)
        except PackageNotFoundError:
            continue  # of another platform, or of another Python
        wanted |= _required(found[name], set())
    return found


def _required(of: Distribution, extras: set[str]) -> set[str]:
    """Return the names of what a distribution requires, with these extras of it."""
    names = set()
    for requirement in of.requires or ():
        name = _NAME.match(requirement)
        extra = _EXTRA.search(requirement)
        if name and (extra is None or extra[1] in extras):
            names.add(re.sub(r"[-_.]+", "-", name[0]).lower())
    return names


def _files_of(of: Distribution) -> Iterator[PurePosixPath]:
    """Yield the files of a distribution that lie where modules are looked for."""
    for path in of.files or ():
        if ".." not in path.parts and path.suffix != ".pyc" and Path(str(of.locate_file(path))).is_file():
            yield path


def _sources_of(package: str) -> Iterator[tuple[Path, str]]:
    root = Path(str(files(package)))
    for path in sorted(root.rglob("*")):
        if path.suffix in _SOURCES and path.is_file():
            yield path, f"{package}/{path.relative_to(root)}"
