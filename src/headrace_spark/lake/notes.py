"""Small files that jobs keep beside the tables of a lake: each is written in one step, and read whole."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Protocol

from headrace_spark.base.lake_url import LakeUrl, Location
from headrace_spark.lake.durable import make_within, sync_path
from headrace_spark.lake.hadoop_files import HadoopFiles


class NoteFiles(Protocol):
    """Keeps files by their names in one place."""

    def read(self, name: str) -> bytes | None:
        """Return what a file holds, None where there is none."""

    def write(self, name: str, data: bytes) -> None:
        """Put a file in the place of what is there."""

    def names(self) -> list[str]:
        """Return the names of all."""

    def at(self, name: str) -> Location:
        """Return where a file is, for people."""


class FolderNotes:
    """Keeps files in a folder of a lake, on disk before `write` returns."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def read(self, name: str) -> bytes | None:
        with suppress(FileNotFoundError):
            return self.at(name).read_bytes()
        return None

    def write(self, name: str, data: bytes) -> None:
        path = self.at(name)
        make_within(self._folder.parent, path.parent, f"{path.name} was")
        new = path.with_name(f".{path.name}.new")
        new.write_bytes(data)
        sync_path(new)
        new.replace(path)

    def names(self) -> list[str]:
        return sorted(path.name for path in self._folder.glob("[!.]*"))

    def at(self, name: str) -> Path:
        return self._folder / name


class UrlNotes:
    """Keeps files behind a URL. Its methods raise LakeUnreachable."""

    def __init__(self, files: HadoopFiles, folder: LakeUrl) -> None:
        self._files = files
        self._folder = folder

    def read(self, name: str) -> bytes | None:
        return self._files.read_bytes(self.at(name))

    def write(self, name: str, data: bytes) -> None:
        self._files.write_bytes(self.at(name), data)

    def names(self) -> list[str]:
        return self._files.names(self._folder)

    def at(self, name: str) -> LakeUrl:
        return self._folder / name
