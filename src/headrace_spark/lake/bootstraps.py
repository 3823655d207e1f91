"""Where the files for `headrace serve --bootstrap` are: a folder of the lake, or behind its URL, made in one of this
process."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from headrace.journal.bootstrap_file import BootstrapFile
from headrace.journal.errors import CorruptFile
from headrace_spark.base.lake_url import LakeUrl, Location
from headrace_spark.lake.lake import Lake
from headrace_spark.lake.lake_of import AnyLake

_FOLDER: Final = "bootstrap"
_KEPT: Final = 2


class Bootstraps:
    """The files of one journal in a lake, while it is held. `folder`: where they are written. `below`: the folder in that
    of all files that is the journal's own, where a lake has several."""

    def __init__(self, lake: AnyLake, below: str = "") -> None:
        self._lake = lake
        self._within = f"{_FOLDER}/{below}".rstrip("/")
        self.folder = (lake.root if isinstance(lake, Lake) else lake.scratch) / self._within

    def at(self, file: Path) -> Location:
        """Return where others find a file."""
        return self._lake.root / self._within / file.name

    def is_whole(self, file: Path) -> bool:
        """Return whether a broker could start from the file. Raises LakeUnreachable."""
        if not isinstance(self._lake, Lake) and not file.exists():
            place: LakeUrl = self._lake.root / self._within
            if file.name not in self._lake.files.names(place):
                return False
            file.parent.mkdir(parents=True, exist_ok=True)
            self._lake.files.fetch(place / file.name, file)
        try:
            BootstrapFile(file)
        except (CorruptFile, FileNotFoundError):
            return False
        return True

    def show(self, file: Path) -> None:
        """Put a file that was written where others find it, of which the newest two are kept. Raises LakeUnreachable."""
        if isinstance(self._lake, Lake):
            return
        place: LakeUrl = self._lake.root / self._within
        self._lake.files.put(file, place / file.name)
        names = [name for name in self._lake.files.names(place) if name.endswith(file.suffix)]
        for name in names[:-_KEPT]:
            self._lake.files.remove(place / name)
