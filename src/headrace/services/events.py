"""What was changed over the admin HTTP: what, by whom, when and from where. It is on the disk before it is answered.

    D/events-<worker>.jsonl      an event as a JSON object a line, the oldest first; fields may be added to one
    D/events-<worker>.old.jsonl  those before, once the file was full; those before these are gone

A line that a crash has cut off is no event. Nobody else reads these files, and a broker starts without them. Events are
listed from the newest one on; a page begins behind an event, so what is added meanwhile is in no page twice.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import msgspec

from headrace.ownership import open_new
from headrace.services.paging import is_number

FILE_BYTES_MAX: Final = 4 << 20
DETAIL_BYTES_MAX: Final = 8 << 10
_PARTS: Final = 3

_Given = tuple[str, str, Mapping[str, str], Mapping[str, object]]
Key = tuple[int, int, int]  # by which events of all workers are listed: time, worker, number
_LOG: Final = logging.getLogger(__name__)


class Event(msgspec.Struct, frozen=True):
    """A change: `event` says what was done, `detail` what was answered, or asked where there is no answer. `who` is whose
    token it was, `role` what that may, `came_from` the address that asked. `tenant` is "" for what is of none."""

    id: str
    at_us: int
    event: str
    tenant: str
    who: str
    role: str
    came_from: str
    worker: int
    number: int
    detail: dict[str, Any]

    @property
    def key(self) -> Key:
        return self.at_us, self.worker, self.number


def key_of(text: str) -> Key:
    """Return the key of the event with this id. Raises ValueError."""
    parts = text.split(".")
    if len(parts) != _PARTS or not all(map(is_number, parts)):
        raise ValueError(f"{text} is not the `next` of a page")
    at_us, worker, number = map(int, parts)
    return at_us, worker, number


class EventLog:
    """The events of one worker in a folder. `now_us` tells the time in microseconds since 1970. Methods run on the loop,
    and files are left to a thread."""

    def __init__(
        self, folder: Path, worker: int, now_us: Callable[[], int] = lambda: time.time_ns() // 1000
    ) -> None:
        self._file = folder / f"events-{worker}.jsonl"
        self._old = folder / f"events-{worker}.old.jsonl"
        self._worker = worker
        self._now_us = now_us
        self._thread = ThreadPoolExecutor(1, "events")
        self._waiting: deque[_Given] = deque()
        self._number: int | None = None  # of the newest event, once it was looked for

    async def add(self, event: str, tenant: str, by: Mapping[str, str], detail: Mapping[str, object]) -> None:
        """Write an event that has happened; `by` has its `who`, `role` and `came_from`. Returns when it is durable. Where
        it cannot be written the log says so: what was done is done."""
        self._waiting.append((event, tenant, by, detail))
        await asyncio.get_running_loop().run_in_executor(self._thread, self._write)

    async def page(self, tenant: str, limit: int, behind: Key | None) -> tuple[list[Event], str | None]:
        """Return (at most `limit` events that are older than the one with this key, of a tenant, "": any; where the next
        page goes on or None), the newest first."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._thread, self._page, tenant, limit, behind)

    def close(self) -> None:
        """End the thread once it has written what there is."""
        self._thread.shutdown(wait=True)

    # On the thread

    def _write(self) -> None:
        """Write all that waits at once: what comes together is synced together."""
        given = []
        with suppress(IndexError):
            while True:
                given.append(self._waiting.popleft())
        if not given:
            return  # with those before
        try:
            self._append(given)
        except OSError as error:
            _LOG.error(
                "events not written", extra={"fields": {"events": len(given), "error": error.strerror}}
            )

    def _append(self, given: list[_Given]) -> None:
        if self._number is None:
            self._number = max((one.number for one in self._all()), default=0)
        with suppress(FileNotFoundError):
            if self._file.stat().st_size >= FILE_BYTES_MAX:
                self._file.replace(self._old)
        lines = [msgspec.json.encode(self._event(*one)) for one in given]
        # A line end in front ends what a crash has cut off.
        is_new = not self._file.exists()
        descriptor = open_new(self._file, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC, 0o600)
        try:
            _write_all(descriptor, b"\n" + b"\n".join(lines) + b"\n")
            os.fdatasync(descriptor)
        finally:
            os.close(descriptor)
        if is_new:
            _sync_folder(self._file.parent)

    def _event(self, event: str, tenant: str, by: Mapping[str, str], detail: Mapping[str, object]) -> Event:
        """Return the next event, with the time of now."""
        assert self._number is not None
        self._number += 1
        now_us, number = self._now_us(), self._number
        return Event(
            f"{now_us}.{self._worker}.{number}",
            now_us,
            event,
            tenant,
            by["who"],
            by["role"],
            by["came_from"],
            self._worker,
            number,
            _bounded(detail),
        )

    def _page(self, tenant: str, limit: int, behind: Key | None) -> tuple[list[Event], str | None]:
        wanted = [
            one
            for one in self._all()
            if (not tenant or one.tenant == tenant) and (behind is None or one.key < behind)
        ]
        wanted.sort(key=lambda one: one.key, reverse=True)
        rows = wanted[:limit]
        return rows, rows[-1].id if len(wanted) > limit else None

    def _all(self) -> Iterator[Event]:
        """Yield all events that there are, the oldest first."""
        for file in (self._old, self._file):
            with suppress(FileNotFoundError):
                for line in file.read_bytes().splitlines():
                    with suppress(msgspec.MsgspecError):
                        yield _DECODER.decode(line)


_DECODER: Final = msgspec.json.Decoder(Event)


def _bounded(detail: Mapping[str, object]) -> dict[str, Any]:
    """Return the details of an event, as far as a line has room for them."""
    found = {name: value for name, value in detail.items() if value is not None}
    while found and len(msgspec.json.encode(found)) > DETAIL_BYTES_MAX:
        del found[max(found, key=lambda name: len(msgspec.json.encode(found[name])))]
    return found


def _write_all(descriptor: int, content: bytes) -> None:
    rest = memoryview(content)
    while rest:
        rest = rest[os.write(descriptor, rest) :]


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
