"""Who may use a data directory, and how many workers with how many shards it is to be."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from headrace.data.layout import NAME as SHARDS
from headrace.data.layout import Layout, check_is_whole, is_new
from headrace.errors import ConfigError
from headrace.journal.disk import DISK, Disk
from headrace.journal.errors import JournalLocked
from headrace.journal.lock import lock_data_dir
from headrace.journal.writer import FSYNC

AUTO: Final = "auto"
PATIENCE_S: Final = 30.0  # with the workers of before
INTERVAL_S: Final = 0.02


def cores() -> int:
    """Return how many processors this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@dataclass(frozen=True, slots=True)
class Wish:
    """What the configuration says. `workers`: a number or AUTO, which is one for each of `cores` as far as there are
    shards. `shards` 0: what the directory has, in a new one the number of workers. `durability` is what an
    acknowledgement means: several shards need `fsync`."""

    workers: int | str = 1
    shards: int = 0
    cores: int = 1
    durability: str = FSYNC

    def of_new(self) -> tuple[int, int]:
        """Return workers and shards for a directory without data. Raises ConfigError, with the key."""
        if self.workers == AUTO:
            shards = self.shards or self.cores
            self._check_durability(shards)
            return min(self.cores, shards), shards
        workers = int(self.workers)
        shards = self.shards or workers
        if workers > shards:
            raise ConfigError(
                f"workers: {workers} workers for {shards} shards, and each owns one at least: leave out `shards`, or set "
                f"it to {workers} or more"
            )
        self._check_durability(shards)
        return workers, shards

    def of(self, layout: Layout) -> int:
        """Return the workers for a directory with data. Raises ConfigError, with the key and what to do."""
        self._check_durability(layout.shards)
        if self.shards and self.shards != layout.shards:
            raise ConfigError(
                f"shards: {self.shards}, but {layout.path} was made with {layout.shards}, for good: leave out the key"
                f"{_or_reshard(layout, self.shards)}"
            )
        if self.workers == AUTO:
            return min(self.cores, layout.shards)
        if int(self.workers) > layout.shards:
            raise ConfigError(
                f"workers: {self.workers}, but {layout.path} has {layout.shards} "
                f"{'shard' if layout.shards == 1 else 'shards'}, and each worker owns one at least: start with "
                f"{layout.shards}{_or_reshard(layout, int(self.workers))}"
            )
        return int(self.workers)

    def _check_durability(self, shards: int) -> None:
        """Refuse a journal that a power cut may shorten where others follow it by offsets (ADR 0016)."""
        if shards > 1 and self.durability != FSYNC:
            raise ConfigError(
                f"durability: {self.durability!r} with {shards} shards: after a power cut one would give new messages "
                f"the offsets of lost ones, and the others would pass them over; set {FSYNC!r}, or have one shard"
            )


def _or_reshard(layout: Layout, shards: int) -> str:
    """Return the other way out, where there is one: a directory of several shards stays what it is."""
    if layout.shards > 1:
        return ""
    return f", or make another directory of it by `headrace reshard --data-dir {layout.path} --to NEW --shards {shards}`"


class Claim:
    """A data directory that is ours: of several shards under the lock of the whole, of one under that of its journal,
    which whoever opens it takes. `workers` and `layout` are what came of a wish."""

    def __init__(self, path: Path, wish: Wish, disk: Disk = DISK) -> None:
        """Open the directory; make its shards if it has no data yet. Raises ConfigError with the key, JournalLocked,
        NotOurs, OSError."""
        self._disk = disk
        self._fd = -1
        self.workers_fd = -1  # for the workers to inherit: it tells whether there are any
        check_is_whole(path, disk)
        shards = wish.of_new()[1] if is_new(path, disk) else Layout.open(path, disk).shards
        if shards > 1:
            disk.make_directory(path)
            self._fd = lock_data_dir(disk, path)
        try:
            self.workers, self.layout = self._settle(path, wish)
        except BaseException:
            self.close()
            raise

    def _settle(self, path: Path, wish: Wish) -> tuple[int, Layout]:
        if is_new(path, self._disk):  # now that nobody else makes it
            workers, shards = wish.of_new()
            return workers, Layout.make(path, shards, self._disk)
        layout = Layout.open(path, self._disk)
        return wish.of(layout), layout

    def wait_for_workers(self, patience_s: float = PATIENCE_S) -> None:
        """Wait until workers whose supervisor was killed have ended: they hold the shards, and the ports. One that had
        only just begun has no shard yet, but what it has inherited, as `workers_fd` will be. Raises JournalLocked,
        NotOurs, OSError."""
        until = time.monotonic() + patience_s
        if self.workers_fd < 0:
            self.workers_fd = self._disk.open_or_create(self.layout.path / SHARDS)
        while not self._disk.lock(self.workers_fd):
            if time.monotonic() >= until:
                raise JournalLocked(f"{self.layout.path}: workers of a supervisor that has ended still run")
            time.sleep(INTERVAL_S)
        for directory in self.layout.directories():
            while True:
                try:
                    self._disk.close(lock_data_dir(self._disk, directory))
                    break
                except JournalLocked:
                    if time.monotonic() >= until:
                        raise
                time.sleep(INTERVAL_S)

    def close(self) -> None:
        """Let others have the directory."""
        for descriptor in (self.workers_fd, self._fd):
            if descriptor >= 0:
                self._disk.close(descriptor)
        self.workers_fd = self._fd = -1
