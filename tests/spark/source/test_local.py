"""The journal in a data directory as a log: its consumers stand beside it, and belong to who came first."""

from __future__ import annotations

import pytest

from headrace.journal.consumers import ConsumerPosition
from headrace_spark.base.errors import LakeConflict
from headrace_spark.source.local import LocalJournal
from spark.conftest import Writer
from spark.journals import mixed


def test_consumers_stand_beside_the_journal(journal: Writer) -> None:
    journal.write(mixed(10))
    log = LocalJournal(journal.data_dir)
    assert (log.location, log.token, log.tenant) == (str(journal.data_dir), "", "")
    assert log.consumers.read("c") is None
    log.consumers.register("c", log.uuid, log.epoch, 4, "a")
    log.consumers.commit("c", log.uuid, log.epoch, 7, "a")
    assert log.consumers.list() == [ConsumerPosition.read(journal.data_dir, "c")]
    assert ConsumerPosition.read(journal.data_dir, "c").offset == 7


def test_what_belongs_to_another_owner_is_refused(journal: Writer) -> None:
    journal.write(mixed(10))
    log = LocalJournal(journal.data_dir)
    log.consumers.register("c", log.uuid, log.epoch, 4, "a")
    for move in (log.consumers.register, log.consumers.commit):
        with pytest.raises(LakeConflict, match="belongs to a"):
            move("c", log.uuid, log.epoch, 9, "b")
    found = log.consumers.read("c")
    assert found is not None
    assert (found.offset, found.owner) == (4, "a")
