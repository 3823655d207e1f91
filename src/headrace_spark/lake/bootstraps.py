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
    """The files of one lake, while it is held. `folder`: where they are written."""

    def __init__(self, lake: AnyLake) -> None:
        self._lake = lake
        self.folder = (lake.root if isinstance(lake, Lake) else lake.scratch) / _FOLDER

    def at(self, file: Path) -> Location:
        """Return where others find a file."""
        return self._lake.root / _FOLDER / file.name

    def is_whole(self, file: Path) -> bool:
        """Return whether a broker could start from the file. Raises LakeUnreachable."""
        if not isinstance(self._lake, Lake) and not file.exists():
            if file.name not in self._lake.files.names(self._lake.root / _FOLDER):
                return False
            file.parent.mkdir(parents=True, exist_ok=True)
            self._lake.files.fetch(self._lake.root / _FOLDER / file.name, file)
        try:
            BootstrapFile(file)
        except (CorruptFile, FileNotFoundError):
            return False
        return True

    def show(self, file: Path) -> None:
        """Put a file that was written where others find it, of which the newest two are kept. Raises LakeUnreachable."""
        if isinstance(self._lake, Lake):
            return
        place: LakeUrl = self._lake.root / _FOLDER
        self._lake.files.put(file, place / file.name)
        for name in self._lake.files.names(place)[:-_KEPT]:
            self._lake.files.remove(place / name)
