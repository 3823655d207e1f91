"""Files behind a URL, by Hadoop's file systems in Spark's Java: the few calls that a lake needs beside Delta's.

Hadoop's clients try again by themselves what a store refuses for a moment (`fs.s3a.retry.*` and its like). What they give
up is LakeUnreachable here, with their own words.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from time import time
from typing import Any, Final

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from headrace_spark.base.errors import LakeUnreachable
from headrace_spark.base.lake_url import LakeUrl

_LOOKS: Final = 3
_REFUSED: Final = "Status Code: 412"
_CLASS_MISSING: Final = "ClassNotFoundException"


class HadoopFiles:
    def __init__(self, spark: SparkSession) -> None:
        self._jvm: Any = spark._jvm
        context: Any = spark.sparkContext
        self._configuration = context._jsc.hadoopConfiguration()

    def read(self, url: LakeUrl) -> str | None:
        """Return the text of a file, None where there is none. Raises LakeUnreachable."""
        found = self.read_bytes(url)
        return None if found is None else found.decode()

    def read_bytes(self, url: LakeUrl) -> bytes | None:
        """Return what a file holds, None where there is none. Raises LakeUnreachable."""
        with said_plainly(url):
            for _ in range(_LOOKS - 1):
                with suppress(Py4JJavaError):  # it was written anew, or removed, between two looks at it
                    return self._read(url)
            return self._read(url)

    def _read(self, url: LakeUrl) -> bytes | None:
        files, path = self._at(url)
        if not files.exists(path):
            return None
        opened = files.open(path)
        try:
            return bytes(self._jvm.org.apache.commons.io.IOUtils.toByteArray(opened))
        finally:
            opened.close()

    def write(self, url: LakeUrl, text: str) -> None:
        """Put a file in the place of what is there. Raises LakeUnreachable."""
        self.write_bytes(url, text.encode())

    def write_bytes(self, url: LakeUrl, data: bytes) -> None:
        """Put a file in the place of what is there. Raises LakeUnreachable."""
        with said_plainly(url):
            files, path = self._at(url)
            out = files.create(path, True)
            out.write(bytearray(data))
            out.close()

    def remove(self, url: LakeUrl) -> None:
        """Remove a file. Raises LakeUnreachable."""
        with said_plainly(url):
            files, path = self._at(url)
            files.delete(path, False)

    def names(self, folder: LakeUrl) -> list[str]:
        """Return the names in a folder, none where there is no such folder. Raises LakeUnreachable."""
        with said_plainly(folder):
            files, path = self._at(folder)
            found = files.listStatus(path) if files.exists(path) else []
            return sorted(str(each.getPath().getName()) for each in found)

    def fetch(self, url: LakeUrl, to: Path) -> None:
        """Copy a file to this machine. Raises LakeUnreachable."""
        with said_plainly(url):
            files, path = self._at(url)
            files.copyToLocalFile(False, path, self._jvm.org.apache.hadoop.fs.Path(f"file:{to}"), True)

    def put(self, file: Path, url: LakeUrl) -> None:
        """Copy a file of this machine to the place of what is there. Raises LakeUnreachable."""
        with said_plainly(url):
            files, path = self._at(url)
            files.copyFromLocalFile(False, True, self._jvm.org.apache.hadoop.fs.Path(f"file:{file}"), path)

    def age_s(self, url: LakeUrl) -> float | None:
        """Return how long ago a file was written, None where there is none. Raises LakeUnreachable."""
        with said_plainly(url):
            files, path = self._at(url)
            if not files.exists(path):
                return None
            return time() - float(files.getFileStatus(path).getModificationTime()) / 1000

    def keeps_the_first(self, url: LakeUrl) -> bool:
        """Return whether the store refuses a second object of one name when it is told to, by trying it.

        For stores that our log store commits to. Raises LakeUnreachable.
        """
        with said_plainly(url):
            files, path = self._at(url)
            store = self._jvm.headrace.ConditionalPutLogStore
            both = [store.create(files, path) for _ in range(2)]
            try:
                both[0].close()
                try:
                    both[1].close()
                except Py4JJavaError as refusal:
                    if _REFUSED not in str(refusal.java_exception.toString()):
                        raise
                    return True
                return False
            finally:
                files.delete(path, False)

    def _at(self, url: LakeUrl) -> tuple[Any, Any]:
        path = self._jvm.org.apache.hadoop.fs.Path(str(url))
        return path.getFileSystem(self._configuration), path


@contextmanager
def said_plainly(url: object) -> Iterator[None]:
    """Turn what Java says of a store into one line. Raises LakeUnreachable."""
    try:
        yield
    except (Py4JJavaError, PySparkException) as error:
        raise LakeUnreachable(f"{url}: {_reason(error)}") from None


def _reason(error: Exception) -> str:
    text = str(error.java_exception.toString()) if isinstance(error, Py4JJavaError) else str(error)
    first = text.partition("\n")[0] or type(error).__name__
    if _CLASS_MISSING in first or "No FileSystem for scheme" in first:
        return f"{first}. Spark has no client for such a URL: see docs/how-to/archive-to-a-bucket.md for how it gets one"
    return first
