"""How far a table has a journal, checked against the journal as it is now."""

from __future__ import annotations

from headrace_spark.base.errors import LakeConflict
from headrace_spark.base.lake_url import Location
from headrace_spark.lake.applications import another_copy
from headrace_spark.lake.messages import JournalEnd, MessagesTable
from headrace_spark.source.journal import holds_last, reaches
from headrace_spark.source.log_reader import LogReader


def ends_of(journal: LogReader, table: MessagesTable) -> tuple[JournalEnd | None, JournalEnd | None]:
    """Return how far the table has the journal: by its rows, and by what batches have said. Raises LakeConflict where
    the journal no longer has that, or never had it, as another copy has."""
    table.require_unrestored()
    table.require_own_epochs(journal.uuid, journal.epoch)
    state = table.state()
    last = None if state is None else state.end(journal.uuid)
    if last is not None and last.epoch > journal.epoch:  # whatever the journal has let go of
        raise another_copy(table.location, journal.uuid, journal.epoch, last.epoch, last.offset)
    if last is not None and not holds_last(journal, last.offset, last.epoch):
        raise _cut_back(table.location, journal, last)
    said = table.archived(journal.uuid, journal.epoch)
    if said is not None and not reaches(journal, said.offset, said.epoch):
        raise _cut_back(table.location, journal, said)
    return last, said


def _cut_back(table: Location, journal: LogReader, end: JournalEnd) -> LakeConflict:
    return LakeConflict(
        f"table {table} has messages up to offset {end.offset}, epoch {end.epoch}, which journal "
        f"{journal.uuid} (epoch {journal.epoch}) no longer has: it was cut back since. Archive it into another lake"
    )
