"""The journal in a data directory, as a log of the pipeline."""

from __future__ import annotations

import builtins
from pathlib import Path
from typing import Final

from headrace.core.records.message_id import origin_in
from headrace.journal.consumers import ConsumerPosition
from headrace.journal.disk import DISK, Disk
from headrace.journal.errors import ConsumerTaken, UnknownConsumer
from headrace.journal.reader import DIRECTORY, JournalReader
from headrace.journal.snapshot import first_entries
from headrace_spark.base.errors import LakeConflict
from headrace_spark.source.log_reader import DividedFrom


class LocalConsumers:
    """The positions of registered consumers in a data directory."""

    def __init__(self, data_dir: Path) -> None:
        self._data_dir = data_dir

    def register(self, name: str, uuid: str, epoch: int, offset: int, owner: str = "") -> None:
        try:
            ConsumerPosition.register_at(self._data_dir, name, uuid, epoch, offset, owner=owner)
        except ConsumerTaken as error:
            raise LakeConflict(str(error)) from None

    def commit(self, name: str, uuid: str, epoch: int, offset: int, owner: str = "") -> None:
        try:
            ConsumerPosition.commit_or_register(self._data_dir, name, uuid, epoch, offset, owner=owner)
        except ConsumerTaken as error:
            raise LakeConflict(str(error)) from None

    def read(self, name: str) -> ConsumerPosition | None:
        try:
            return ConsumerPosition.read(self._data_dir, name)
        except UnknownConsumer:
            return None

    def list(self) -> builtins.list[ConsumerPosition]:
        return list(ConsumerPosition.list(self._data_dir))


class LocalJournal(JournalReader):
    """Does what `JournalReader` does, and knows the consumers beside the journal."""

    token: Final = ""
    tenant: Final = ""

    def __init__(self, data_dir: Path | str, disk: Disk = DISK) -> None:
        super().__init__(data_dir, disk)
        self.consumers = LocalConsumers(self.data_dir)

    def location_from(self, start: int) -> str:
        return self.location

    def divided_from(self) -> DividedFrom | None:
        origin = origin_in(first_entries(self.data_dir / DIRECTORY))
        return None if origin is None else DividedFrom(origin.uuid, origin.epoch, origin.end)
