"""The journal as the pipeline meets it: opened, checked against offsets of the past, and a position kept in it.

What goes wrong here is said with what to do about it, because a person reads it behind pages of Spark.
"""

from __future__ import annotations

from pathlib import Path

from headrace.journal.consumers import ConsumerPosition
from headrace.journal.errors import EpochMismatch, NoJournal, OffsetOutOfRange, UnknownConsumer
from headrace.journal.reader import JournalReader
from headrace_spark.errors import DataLoss, ForeignOffset, JournalMissing
from headrace_spark.ranges import JournalOffset


def open_journal(data_dir: Path) -> JournalReader:
    """Raises JournalMissing. The broker may be running or not; nothing is locked."""
    journal = JournalReader(data_dir)
    try:
        journal.high_watermark()
        journal.start_offset()
    except NoJournal:
        raise JournalMissing(
            f"{data_dir} holds no journal: give the data directory of a broker that has been started once"
        ) from None
    return journal


def require_history(journal: JournalReader, position: JournalOffset) -> None:
    """Raise ForeignOffset unless `position` was taken from this journal as it is now."""
    try:
        journal.check(position.uuid, position.epoch)
    except EpochMismatch as error:
        raise ForeignOffset(
            f"{error}. {journal.data_dir} is not the journal that the checkpoint was made with, or it was cut "
            "back since: use the right data directory, or a new checkpoint and consumer"
        ) from None


def readable_from(journal: JournalReader, offset: int, fail_on_data_loss: bool) -> int:
    """`offset`, or where the journal begins by now if retention has passed it and that may be. Raises DataLoss."""
    start = journal.start_offset()
    if offset >= start:
        return offset
    if fail_on_data_loss:
        raise DataLoss(
            f"offsets {offset} to {start} are gone: retention has passed them before they were read. To go on "
            "behind them: failOnDataLoss=false, or `archive --no-fail-on-data-loss`"
        )
    return start


def holds_last(journal: JournalReader, end: int, epoch: int) -> bool:
    """Whether the record before `end` is still the one written in `epoch`. True too if retention has taken it."""
    try:
        batch = next(journal.scan(end - 1, end), None)
    except OffsetOutOfRange as error:
        return end <= error.start_offset
    return batch is not None and batch.epoch == epoch


def register(journal: JournalReader, consumer: str, offset: int) -> None:
    """Make retention wait for `consumer` at `offset` or below. A position that is ahead, or foreign, is replaced."""
    uuid, epoch = journal.uuid, journal.epoch
    found = ConsumerPosition.register(journal.data_dir, consumer, uuid, epoch, offset)
    if (found.uuid, found.epoch) != (uuid, epoch) or found.offset > offset:
        ConsumerPosition.remove(journal.data_dir, consumer)
        ConsumerPosition.register(journal.data_dir, consumer, uuid, epoch, offset)


def registered_offset(journal: JournalReader, consumer: str) -> int | None:
    """The committed offset of `consumer` in this journal, None if it has none."""
    try:
        found = ConsumerPosition.read(journal.data_dir, consumer)
    except UnknownConsumer:
        return None
    return found.offset if (found.uuid, found.epoch) == (journal.uuid, journal.epoch) else None


def commit(data_dir: Path, consumer: str, position: JournalOffset) -> None:
    """Everything below `position` is processed: retention may have it. Registers again a consumer that was dropped."""
    try:
        ConsumerPosition.commit(data_dir, consumer, position.uuid, position.epoch, position.offset)
    except UnknownConsumer:
        ConsumerPosition.register(data_dir, consumer, position.uuid, position.epoch, position.offset)
