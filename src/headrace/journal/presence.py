"""Whether the files of an open journal still have the names by which the next start will look for them.

A directory that is removed, moved, unmounted or replaced under a running broker takes nothing from it: what is open can
be written, synced and read, and what is acknowledged then is gone with the last descriptor, or lies where nobody looks.
So whoever has the journal open looks again and again. A name that leads nowhere for a moment says nothing; a reason
counts once it is found LOOKS times in a row. Where the system cannot say (EIO, ESTALE, no permission) nothing is known.

A journal that was lost is never begun anew in its own place: `check_is_there` refuses that before anything is made.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from threading import Event, Thread
from typing import Final, Protocol
from uuid import UUID

from headrace.journal.active import SegmentFile
from headrace.journal.catalog import Catalog
from headrace.journal.disk import Disk, Identity
from headrace.journal.errors import JournalMoved, reason_of
from headrace.journal.sealed import read_header
from headrace.journal.segment import base_offset_of, file_name

INTERVAL_S: Final = 0.5
LOOKS: Final = 4
LOOK_AGAIN_S: Final = 0.25
WHILE_IT_RUNS: Final = "while the broker runs"

Wait = Callable[[float], bool | None]  # for so many seconds; True where nobody wants to know any more


class Writing(Protocol):
    """Whoever writes the newest segment, which is another file after each roll."""

    file: SegmentFile


class Presence:
    """The names of the files that a journal has open, and of the segments that it counts on. `kept`: files that have
    their name for as long as it is open, each with its identity. Runs on any thread."""

    def __init__(self, disk: Disk, kept: dict[Path, Identity], writer: Writing, catalog: Catalog) -> None:
        self._disk = disk
        self._kept = kept
        self._writer = writer
        self._catalog = catalog
        # A file system may number the same file anew each time that it is asked by name: there only names count.
        self._tells_apart = all(disk.identity(path) == identity for path, identity in kept.items())

    def look(self) -> str:
        """Return which file is not in its place just now, and how; "" if all are. Raises OSError where that is not
        known."""
        file = self._writer.file
        segments = self._catalog.segments
        wanted = {**self._kept, file.segment.path: file.identity}
        for path, identity in wanted.items():
            found = self._disk.identity(path)
            if found is None:
                return f"{path} was removed or moved {WHILE_IT_RUNS}"
            if found != identity and self._tells_apart:
                return f"another file was put in the place of {path} {WHILE_IT_RUNS}"
        names = set(self._disk.names(file.segment.path.parent))
        for segment in segments:
            if segment.path.name not in names and self._catalog.needs(segment):
                return f"{segment.path} was removed or moved {WHILE_IT_RUNS}"
        return ""

    def verdict(self, wait: Wait) -> str:
        """Return which file is not in its place, if several looks in a row agree on it; "" otherwise. Raises OSError."""
        found = self.look()
        for _ in range(1, LOOKS):
            if not found or wait(LOOK_AGAIN_S):
                return ""
            again = self.look()
            if again != found:
                return ""
        return found


class Watch:
    """Looks on a thread of its own, since a file system may take its time, and says once what is not in its place."""

    def __init__(
        self, presence: Presence, displaced: Callable[[JournalMoved], None], report: Callable[[str], None]
    ) -> None:
        self._presence = presence
        self._displaced = displaced
        self._report = report
        self._ended = Event()
        self._unknown = ""

    def start(self) -> None:
        """Look every INTERVAL_S from now on."""
        Thread(target=self._run, name="journal-watch", daemon=True).start()

    def end(self) -> None:
        """Say nothing any more; waits for nobody."""
        self._ended.set()

    def _run(self) -> None:
        while not self._ended.wait(INTERVAL_S):
            if self.look():
                return

    def look(self) -> bool:
        """Look now, and again where something is not in its place. True: it was said."""
        try:
            found = self._presence.verdict(self._ended.wait)
        except (OSError, MemoryError) as error:
            self._note_unknown(reason_of(error))
            return False
        self._note_unknown("")
        if not found or self._ended.is_set():
            return False
        self._displaced(JournalMoved(found))
        return True

    def _note_unknown(self, reason: str) -> None:
        if reason and not self._unknown:
            self._report(f"whether the journal's files are in their place cannot be told now: {reason}")
        self._unknown = reason


@dataclass(slots=True)
class Known:
    """What is known of a journal before it is opened: `is_begun` whether there must be one, `uuid` which ("" any),
    `newest` the base offset of the newest segment that it had."""

    is_begun: bool = False
    uuid: str = ""
    newest: int = 0


def check_is_there(disk: Disk, directory: Path, known: Known) -> None:
    """Refuse to begin a journal anew where one has been, before anything is made. `directory`: of its segments. Raises
    JournalMoved, CorruptFile, OSError."""
    if not known.is_begun:
        return
    bases = [base for name in disk.names(directory) if (base := base_offset_of(name)) is not None]
    if not bases:
        raise JournalMoved(
            f"{directory} holds no journal any more: was it moved, or its disk unmounted? Put it back: none is begun "
            "anew in its place"
        )
    newest = max(bases)
    if newest < known.newest:
        raise JournalMoved(f"{directory / file_name(known.newest)} was removed or moved: put it back")
    found = str(UUID(bytes=read_header(disk, directory, newest).uuid))
    if known.uuid not in ("", found):
        raise JournalMoved(
            f"{directory} holds journal {found}, and not {known.uuid}, which was written here: put that one back"
        )
