"""Who is at work on a lake that no lock of a file system guards: a file that its holder writes anew every few seconds.

    {"holder": "...", "host": "lake-1", "process": 4711, "beat": 17}

It keeps a second driver from beginning, and makes nothing safe: a holder that stands still for longer than the lease
loses it, goes on, and only then notices. What is safe is the commit: it names the offset that it goes on from, and the
table takes it only where it stands there (`headrace_spark.lake.delta_commit.append_rows`).

A file that is gone, empty or torn names nobody: somebody has removed it, or the store was full in the middle of a write.
Its holder writes it anew; were there another one meanwhile, that one's name would be in it.

No clock is compared with another machine's: a lease is over when its file has not changed for as long, by the clock of
who waits.
"""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from threading import Event, Thread
from time import monotonic
from typing import Any, Final, Protocol
from uuid import uuid4

from headrace_spark.base.errors import LakeConflict
from headrace_spark.base.lake_url import LakeUrl
from headrace_spark.base.logs import LOG

LEASE_S: Final = 30.0
BEAT_S: Final = 5.0
_LOOK_S: Final = 1.0


class Files(Protocol):
    """What a lease needs of a store."""

    def read(self, url: LakeUrl) -> str | None: ...

    def write(self, url: LakeUrl, text: str) -> None: ...

    def remove(self, url: LakeUrl) -> None: ...


class Lease:
    """The lease of one lake. `doing`: what only one may do, for the error."""

    def __init__(
        self, files: Files, url: LakeUrl, doing: str, lease_s: float = LEASE_S, beat_s: float = BEAT_S
    ) -> None:
        self._files = files
        self.url = url
        self._doing = doing
        self._lease_s = lease_s
        self._beat_s = beat_s
        self._holder = str(uuid4())
        self._beat = 0
        self._ended = Event()
        self.lost = Event()
        """Somebody else has it by now."""

    @contextmanager
    def held(self) -> Iterator[None]:
        """Hold the lease until the block ends, as soon as nobody else does. Raises LakeConflict, LakeUnreachable."""
        self._wait()
        self._write()
        renewing = Thread(target=self._renew, name="lease", daemon=True)
        renewing.start()
        try:
            yield
        finally:
            self._ended.set()
            renewing.join(self._beat_s)
            with suppress(Exception):  # then it is over in a while, and what ended the block is what is told
                if self._is_ours():
                    self._files.remove(self.url)

    def require(self) -> None:
        """Raise LakeConflict if somebody else has it by now."""
        if self.lost.is_set():
            raise LakeConflict(
                f"another process is {self._doing}: this one stood still for so long that its lease was over"
            )

    def require_now(self) -> None:
        """Check that the lease is held, after a look. Raises LakeConflict, LakeUnreachable."""
        if self._holder_now() not in (None, self._holder):
            self.lost.set()
        self.require()

    def _wait(self) -> None:
        """Return as soon as nobody has it, or who has it has not moved for as long as a lease."""
        first = self._files.read(self.url)
        until = monotonic() + self._lease_s
        if first is not None:
            LOG.info("%s was %s; waiting whether it still does", _holder(first), self._doing)
        while first is not None:  # an empty file is one that is just being written
            now = self._files.read(self.url)
            if now != first and now:
                raise LakeConflict(f"another process is {self._doing}: {_holder(now)}")
            if now is None or monotonic() >= until:
                return
            self._ended.wait(_LOOK_S)

    def _renew(self) -> None:
        while not self._ended.wait(self._beat_s):
            # Nobody else can take it while the store is away; if somebody could, the table says so. And whatever else
            # fails for a moment, for want of memory or of descriptors: who no longer renews loses it unnoticed.
            with suppress(Exception):
                if self._holder_now() not in (None, self._holder):
                    self.lost.set()
                    return
                self._write()

    def _is_ours(self) -> bool:
        return self._holder_now() == self._holder

    def _holder_now(self) -> object:
        """Return whom the file names; None where it names nobody."""
        return _parsed(self._files.read(self.url)).get("holder")

    def _write(self) -> None:
        self._beat += 1
        about = {
            "holder": self._holder,
            "host": socket.gethostname(),
            "process": os.getpid(),
            "beat": self._beat,
        }
        self._files.write(self.url, json.dumps(about))


def _holder(text: str) -> str:
    found = _parsed(text)
    return f"process {found.get('process', '?')} on {found.get('host', '?')}"


def _parsed(text: str | None) -> dict[str, Any]:
    try:
        found = json.loads(text or "{}")
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}
