"""The journal as the pipeline meets it: opened, checked against offsets of the past, and a position kept in it.

What goes wrong here is said with what to do about it, because a person reads it behind pages of Spark.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from headrace.journal.consumers import ConsumerPosition
from headrace.journal.errors import ConsumerTaken, EpochMismatch, NoJournal, OffsetOutOfRange, UnknownConsumer
from headrace.journal.reader import JournalReader
from headrace.journal.selective import TimeRange
from headrace_spark.base.errors import (
    BadOption,
    DataLoss,
    ForeignOffset,
    JournalMissing,
    JournalRefused,
    LakeConflict,
)
from headrace_spark.base.settings import RunSettings
from headrace_spark.records.chunk import chunks
from headrace_spark.source.options import TOKEN_VARIABLE
from headrace_spark.source.ranges import JournalOffset
from headrace_spark.source.remote import PATIENT, Address, Patience, RemoteJournal, is_remote
from headrace_spark.source.selection import EVER


def open_journal(location: Path | str, token: str = "", patience: Patience = PATIENT) -> JournalReader:
    """Open a data directory, or `headrace://HOST:PORT` of a running broker. Raises JournalMissing, JournalUnreachable.

    The broker may be running or not; nothing is locked.
    """
    journal: JournalReader
    if is_remote(str(location)):
        journal = RemoteJournal(str(location), token, patience)
    else:
        journal = JournalReader(location)
    try:
        journal.high_watermark()
        journal.start_offset()
    except NoJournal:
        raise JournalMissing(
            f"{location} holds no journal: give the data directory of a broker that has been started once"
        ) from None
    except PermissionError as error:
        raise JournalMissing(
            f"{error.filename or location} may not be read by this user: give it the right to read the data "
            "directory, or read from the running broker with headrace://"
        ) from None
    return journal


def journal_of(settings: RunSettings, patience: Patience = PATIENT) -> JournalReader:
    """Return the journal that a job was told to read. Raises BadOption, JournalMissing, JournalUnreachable."""
    if not settings.journal:
        return open_journal(settings.data_dir.absolute())
    check_broker(settings.journal)
    return open_journal(settings.journal, _token(settings.token_file), patience)


def check_broker(location: str) -> None:
    """Raise BadOption, by the key pipeline.journal, unless this is how a broker is given."""
    if not is_remote(location):
        raise BadOption("pipeline.journal", location, "a broker is given as headrace://HOST:PORT")
    try:
        Address.parse(location)
    except BadOption as error:
        raise BadOption("pipeline.journal", location, error.problem) from None


def _token(file: str) -> str:
    """Return the content of a token file; without one, what the environment says. Raises BadOption."""
    if not file:
        return os.environ.get(TOKEN_VARIABLE, "")
    try:
        return Path(file).read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        problem = getattr(error, "strerror", None) or "it is no text"
        raise BadOption("pipeline.token_file", file, problem) from None


def tenant_shown(journal: JournalReader) -> str:
    """Return the tenant whose messages alone the token of a remote journal shows; "" if it shows everything."""
    return journal.tenant if isinstance(journal, RemoteJournal) else ""


def require_all_tenants(journal: JournalReader, what: str) -> None:
    """Raise JournalRefused where a token shows one tenant's messages alone."""
    if tenant := tenant_shown(journal):
        raise JournalRefused(
            f"{journal.location}: the token shows the messages of tenant {tenant} alone, and {what} needs everything"
        )


def source_options(journal: JournalReader) -> dict[str, str]:
    """Return the options with which the source `headrace` reads this very journal."""
    if isinstance(journal, RemoteJournal):
        return {"path": journal.location, "token": journal.token}
    return {"path": journal.location}


def open_all(locations: Sequence[str], token: str = "") -> dict[str, JournalReader]:
    """Open the journals of a query; return them by uuid. Raises BadOption where two locations are the same one."""
    found: dict[str, JournalReader] = {}
    for location in locations:
        journal = open_journal(location, token)
        other = found.setdefault(journal.uuid, journal)
        if other is not journal:
            raise BadOption("path", ",".join(locations), f"two of them are the same journal, {journal.uuid}")
    return found


def offset_at(journal: JournalReader, at_us: int) -> int:
    """Return the offset of the first record of that time or later; the high watermark if there is none."""
    start, end = journal.complete_offset(), journal.high_watermark()
    since = TimeRange(at_us, EVER.until_us)
    for chunk in chunks(journal.scan(start, end, times=since), journal.uuid, start, end):
        late = chunk.offsets[chunk.timestamps_us >= at_us]
        if len(late):
            return int(late[0])
    return end


def require_history(journal: JournalReader, position: JournalOffset) -> None:
    """Raise ForeignOffset unless `position` was taken from this journal as it is now."""
    try:
        journal.check(position.uuid, position.epoch)
    except EpochMismatch as error:
        raise ForeignOffset(
            f"{error}. {journal.location} is not the journal that the checkpoint was made with, or it was cut "
            "back since: use the right data directory, or a new checkpoint and consumer"
        ) from None


def readable_from(journal: JournalReader, offset: int, fail_on_data_loss: bool) -> int:
    """Return `offset`, or from where the journal is complete by now if retention or compaction has passed it and that
    may be.

    Raises DataLoss.
    """
    start = journal.complete_offset()
    if offset >= start:
        return offset
    if fail_on_data_loss:
        raise DataLoss(
            f"offsets {offset} to {start} are gone, or not complete: retention or compaction has passed them before they "
            "were read. To go on behind them: failOnDataLoss=false, or `archive --no-fail-on-data-loss`"
        )
    return start


def holds_last(journal: JournalReader, end: int, epoch: int) -> bool:
    """Return whether the record before `end` is still the one written in `epoch`. True too if the journal has let go
    of it."""
    found = _epoch_before(journal, end)
    return found is None or found == epoch


def reaches(journal: JournalReader, end: int, epoch: int) -> bool:
    """Return whether what was read up to `end` in `epoch` is still what the journal has, or had before it let go of
    it."""
    if end > journal.high_watermark():
        return False
    found = _epoch_before(journal, end)
    return found is None or 0 <= found <= epoch


def _epoch_before(journal: JournalReader, end: int) -> int | None:
    """Return the epoch of the record before `end`, -1 if there is none, None if the journal has let go of it."""
    if end <= journal.complete_offset():
        return None
    try:
        batch = next(journal.scan(end - 1, end), None)
    except OffsetOutOfRange as error:
        return None if end <= error.start_offset else -1
    return -1 if batch is None else batch.epoch


def register(journal: JournalReader, consumer: str, offset: int, owner: str = "") -> None:
    """Make retention wait for `consumer` at `offset` or below. A position that is ahead, or foreign, is replaced.

    Raises LakeConflict if the consumer belongs to another owner.
    """
    uuid, epoch = journal.uuid, journal.epoch
    if isinstance(journal, RemoteJournal):
        journal.consumers.register(consumer, uuid, epoch, offset, owner)
        return
    try:
        ConsumerPosition.register_at(journal.data_dir, consumer, uuid, epoch, offset, owner=owner)
    except ConsumerTaken as error:
        raise LakeConflict(str(error)) from None


def registered_offset(journal: JournalReader, consumer: str) -> int | None:
    """Return the committed offset of `consumer` in this journal, None if it has none."""
    if isinstance(journal, RemoteJournal):
        found = journal.consumers.read(consumer)
        if found is None:
            return None
    else:
        try:
            found = ConsumerPosition.read(journal.data_dir, consumer)
        except UnknownConsumer:
            return None
    return found.offset if (found.uuid, found.epoch) == (journal.uuid, journal.epoch) else None


def consumers_of(journal: JournalReader) -> list[ConsumerPosition]:
    """Return the registered consumers, by name: of a remote journal those that the token names."""
    if isinstance(journal, RemoteJournal):
        return journal.consumers.list()
    return list(ConsumerPosition.list(journal.data_dir))


def commit(journal: JournalReader, consumer: str, position: JournalOffset, owner: str = "") -> None:
    """Note that everything below `position` is processed: retention may have it. Registers again a consumer that was
    dropped.

    Raises LakeConflict if the consumer belongs to another owner.
    """
    uuid, epoch, offset = position.uuid, position.epoch, position.offset
    if isinstance(journal, RemoteJournal):
        journal.consumers.commit(consumer, uuid, epoch, offset, owner)
        return
    try:
        ConsumerPosition.commit_or_register(journal.data_dir, consumer, uuid, epoch, offset, owner=owner)
    except ConsumerTaken as error:
        raise LakeConflict(str(error)) from None
