"""The journal as the pipeline meets it: opened, checked against offsets of the past, and a position kept in it.

What goes wrong here is said with what to do about it, because a person reads it behind pages of Spark.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Final

from headrace.data.layout import Layout, UnusableLayout
from headrace.journal.consumers import ConsumerPosition
from headrace.journal.errors import EpochMismatch, NoJournal, OffsetOutOfRange
from headrace.journal.segment import void_records
from headrace.journal.selective import TimeRange
from headrace_spark.base.errors import (
    BadOption,
    DataLoss,
    EngineMissing,
    ForeignOffset,
    JournalMissing,
    JournalRefused,
)
from headrace_spark.base.settings import RunSettings
from headrace_spark.records.chunk import chunks
from headrace_spark.source.kafka_address import FORM, KafkaAddress, is_kafka
from headrace_spark.source.local import LocalJournal
from headrace_spark.source.log_reader import LogReader
from headrace_spark.source.options import TOKEN_VARIABLE
from headrace_spark.source.ranges import JournalOffset
from headrace_spark.source.remote import PATIENT, Address, Patience, RemoteJournal, is_remote, log_locations
from headrace_spark.source.selection import EVER


def open_journals(location: Path | str, token: str = "", patience: Patience = PATIENT) -> list[LogReader]:
    """Open all journals of a broker, one for each of its shards: of a data directory, of `headrace://HOST:PORT`, or of a
    cluster, `kafka://HOST:PORT/NAME`.

    The broker may be running or not; nothing is locked. Raises JournalMissing, JournalUnreachable, JournalError.
    """
    if is_kafka(str(location)):
        return _in_kafka(str(location), patience)
    if is_remote(str(location)):
        return [_opened(each, token, patience) for each in log_locations(str(location), token, patience)]
    with _readable(location):
        found = Layout.open(Path(location)).directories()
    return [_opened(str(each), token, patience) for each in found]


def _in_kafka(location: str, patience: Patience) -> list[LogReader]:
    """Open the journals of a cluster, by a client that an extra brings. Raises EngineMissing, and what `open_journals`
    does."""
    try:
        from headrace_spark.source.kafka import kafka_journals
    except ModuleNotFoundError as error:
        raise EngineMissing(
            f"{location}: {error.name} is not installed here: pip install 'headrace[spark,kafka]'"
        ) from None
    return list(kafka_journals(location, patience.timeout_s))


def open_journal(location: Path | str, token: str = "", patience: Patience = PATIENT) -> LogReader:
    """Open the only journal at a location. Raises BadOption where there are several, and what `open_journals` does."""
    found = open_journals(location, token, patience)
    if len(found) > 1:
        raise BadOption("path", str(location), f"{len(found)} shards lie there, and one journal is wanted")
    return found[0]


def _opened(location: str, token: str, patience: Patience) -> LogReader:
    journal: LogReader
    journal = RemoteJournal(location, token, patience) if is_remote(location) else LocalJournal(location)
    with _readable(location):
        journal.high_watermark()
        journal.start_offset()
    return journal


@contextmanager
def _readable(location: Path | str) -> Iterator[None]:
    """Say what to do where a data directory cannot be read. Raises JournalMissing."""
    try:
        yield
    except NoJournal:
        raise JournalMissing(
            f"{location} holds no journal: give the data directory of a broker that has been started once"
        ) from None
    except UnusableLayout as error:
        raise JournalMissing(str(error)) from None
    except PermissionError as error:
        raise JournalMissing(
            f"{error.filename or location} may not be read by this user: give it the right to read the data "
            "directory, or read from the running broker with headrace://"
        ) from None


def journals_of(settings: RunSettings, patience: Patience = PATIENT) -> list[LogReader]:
    """Return the journals that a job was told to read, one for each shard. Raises BadOption, JournalMissing,
    JournalUnreachable."""
    if not settings.journal:
        with _by_key("data_dir"):
            return open_journals(settings.data_dir.absolute())
    check_broker(settings.journal)
    if is_kafka(settings.journal):
        with _by_key("pipeline.journal"):
            return open_journals(settings.journal, "", patience)
    return open_journals(settings.journal, _token(settings.token_file), patience)


@contextmanager
def _by_key(key: str) -> Iterator[None]:
    """Name the key that says where the journal lies, where there is none. Raises JournalMissing."""
    try:
        yield
    except JournalMissing as error:
        raise JournalMissing(f"{key}: {error}") from None


def check_broker(location: str) -> None:
    """Raise BadOption, by the key pipeline.journal, unless this is how a broker is given."""
    if not (is_remote(location) or is_kafka(location)):
        raise BadOption("pipeline.journal", location, f"a broker is given as headrace://HOST:PORT; {FORM}")
    try:
        (KafkaAddress if is_kafka(location) else Address).parse(location)
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


def require_all_tenants(journal: LogReader, what: str) -> None:
    """Raise JournalRefused where a token shows one tenant's messages alone."""
    if journal.tenant:
        raise JournalRefused(
            f"{journal.location}: the token shows the messages of tenant {journal.tenant} alone, and {what} needs "
            "everything"
        )


def source_options(journals: Sequence[LogReader]) -> dict[str, str]:
    """Return the options with which the source `headrace` reads these very journals, which are one broker's."""
    found = {"path": ",".join(journal.location for journal in journals)}
    return found | ({"token": journals[0].token} if journals[0].token else {})


def open_all(locations: Sequence[str], token: str = "") -> dict[str, LogReader]:
    """Open the journals of a query, of all shards; return them by uuid. Raises BadOption where two are the same one."""
    found: dict[str, LogReader] = {}
    for location in locations:
        for journal in open_journals(location, token):
            other = found.setdefault(journal.uuid, journal)
            if other is not journal:
                raise BadOption(
                    "path", ",".join(locations), f"two of them are the same journal, {journal.uuid}"
                )
    return found


def offset_at(journal: LogReader, at_us: int) -> int:
    """Return the offset of the first record of that time or later; the high watermark if there is none."""
    start, end = journal.complete_offset(), journal.high_watermark()
    since = TimeRange(at_us, EVER.until_us)
    for chunk in chunks(journal.scan(start, end, times=since), journal.uuid, start, end):
        late = chunk.offsets[chunk.timestamps_us >= at_us]
        if len(late):
            return int(late[0])
    return end


def first_time_us(journal: LogReader, offset: int) -> int | None:
    """Return the time of the first record from `offset` on, of those that the journal still has; None if there is
    none."""
    start, end = max(offset, journal.start_offset()), journal.high_watermark()
    for until in (start + 1, end):  # compaction may have taken the very first
        if start < end and (batch := next(journal.scan(start, until), None)) is not None:
            return batch.first_timestamp_us
    return None


def require_history(journal: LogReader, position: JournalOffset) -> JournalOffset:
    """Return a position as the journal has it now: at the same offset, in the journal's epoch. That may have risen since
    (a backup was restored) while all that was read is still there.

    Raises ForeignOffset unless what was read below it is what the journal has below it. One that the journal does not
    reach is of records that it no longer has: its high watermark never falls within an epoch.
    """
    try:
        journal.check(position.uuid, position.epoch)
        if position.offset <= (end := journal.high_watermark()):
            return position
        how = "its files were put back as they were before, without `headrace restore`"
        if is_kafka(journal.location):
            how = "Kafka has lost records that it had acknowledged"
        raise ForeignOffset(
            f"the checkpoint has read journal {journal.uuid} up to offset {position.offset}, and that of "
            f"{journal.location} ends at {end}: {how}. "
            "What is written from here on has the offsets of records that were read, and would be passed over: use the "
            "right data directory, or a new checkpoint and consumer"
        )
    except EpochMismatch as error:
        if position.uuid == journal.uuid and _still_has(journal, position):
            return replace(position, epoch=journal.epoch)
        raise ForeignOffset(
            f"{error}. {journal.location} is not the journal that the checkpoint was made with, or it was cut "
            "back since: use the right data directory, or a new checkpoint and consumer"
        ) from None


def time_before(journal: LogReader, offset: int) -> int | None:
    """Return the time of the record before `offset`, microseconds since 1970; None where it is gone (by retention,
    compaction or a repair), or is not for this token to see."""
    if journal.tenant or offset <= journal.complete_offset():
        return None
    try:
        for chunk in chunks(journal.scan(offset - 1, offset), journal.uuid, offset - 1, offset):
            if len(chunk.offsets):
                time_us, at = int(chunk.timestamps_us[-1]), int(chunk.at[-1])
                return None if chunk.body.startswith(void_records(1, time_us), at) else time_us
    except OffsetOutOfRange:  # retention was faster
        pass
    return None


def require_same(journal: LogReader, position: JournalOffset) -> None:
    """Raise ForeignOffset if the record before a position is another one than that which was read: the files were put
    back as they were before, with the epoch of before, and have grown past the position."""
    if position.time_us is None:
        return
    found = time_before(journal, position.offset)
    if found not in (None, position.time_us):
        raise ForeignOffset(
            f"the checkpoint has read journal {journal.uuid} up to offset {position.offset}, and the record before it is "
            f"another one in that of {journal.location}: its files were put back as they were before, without `headrace "
            "restore`, and others were written since. Use the right data directory, or a new checkpoint and consumer"
        )


def _still_has(journal: LogReader, position: JournalOffset) -> bool:
    """Return whether the record before an older epoch's position is one that was there then: what comes in the place of
    records that were cut is of a newer epoch. False too where the journal has let go of it, since nobody can tell."""
    if position.epoch >= journal.epoch or position.offset > journal.high_watermark():
        return False
    found = _epoch_before(journal, position.offset)
    return found is not None and 0 <= found <= position.epoch


GO_ON: Final = "failOnDataLoss=false, or `archive --no-fail-on-data-loss`"
"""How the source goes on where records are gone."""


def readable_from(journal: LogReader, offset: int, fail_on_data_loss: bool, go_on: str = GO_ON) -> int:
    """Return `offset`, or from where the journal is complete by now if retention or compaction has passed it and that
    may be. `go_on`: how who reads is told to do so.

    Raises DataLoss.
    """
    start = journal.complete_offset()
    if offset >= start:
        return offset
    if fail_on_data_loss:
        raise DataLoss(
            f"offsets {offset} to {start} are gone, or not complete: retention or compaction has passed them before they "
            f"were read. To go on behind them: {go_on}"
        )
    return start


def holds_last(journal: LogReader, end: int, epoch: int) -> bool:
    """Return whether the record before `end` is still the one written in `epoch`. True too if the journal has let go
    of it."""
    found = _epoch_before(journal, end)
    return found is None or found == epoch


def reaches(journal: LogReader, end: int, epoch: int) -> bool:
    """Return whether what was read up to `end` in `epoch` is still what the journal has, or had before it let go of
    it."""
    if end > journal.high_watermark():
        return False
    found = _epoch_before(journal, end)
    return found is None or 0 <= found <= epoch


def _epoch_before(journal: LogReader, end: int) -> int | None:
    """Return the epoch of the record before `end`, -1 if there is none, None if the journal has let go of it."""
    if end <= journal.complete_offset():
        return None
    try:
        batch = next(journal.scan(end - 1, end), None)
    except OffsetOutOfRange as error:
        return None if end <= error.start_offset else -1
    return -1 if batch is None else batch.epoch


def register(journal: LogReader, consumer: str, offset: int, owner: str = "") -> None:
    """Make retention wait for `consumer` at `offset` or below. A position that is ahead, or foreign, is replaced.

    Raises LakeConflict if the consumer belongs to another owner.
    """
    journal.consumers.register(consumer, journal.uuid, journal.epoch, offset, owner)


def registered_offset(journal: LogReader, consumer: str) -> int | None:
    """Return the committed offset of `consumer` in this journal, None if it has none, or one that the journal does not
    reach."""
    found = journal.consumers.read(consumer)
    if found is None or (found.uuid, found.epoch) != (journal.uuid, journal.epoch):
        return None
    return found.offset if found.offset <= journal.high_watermark() else None


def consumers_of(journal: LogReader) -> list[ConsumerPosition]:
    """Return the registered consumers, by name: of a remote journal those that the token names."""
    return journal.consumers.list()


def commit(journal: LogReader, consumer: str, position: JournalOffset, owner: str = "") -> None:
    """Note that everything below `position` is processed: retention may have it. Registers again a consumer that was
    dropped.

    Raises LakeConflict if the consumer belongs to another owner, ForeignOffset where the journal has others below.
    """
    if position.epoch != journal.epoch:
        position = require_history(journal, position)
    journal.consumers.commit(consumer, position.uuid, position.epoch, position.offset, owner)
