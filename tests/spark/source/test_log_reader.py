"""Whatever a log is read from, it has all that the pipeline asks of one."""

from __future__ import annotations

import pytest

from headrace_spark.source.local import LocalConsumers, LocalJournal
from headrace_spark.source.log_reader import Consumers, LogReader
from headrace_spark.source.remote import RemoteConsumers, RemoteJournal
from spark.conftest import Writer
from spark.journals import mixed


def asked(protocol: type) -> set[str]:
    return {name for name in vars(protocol) if not name.startswith("_")}


@pytest.mark.parametrize("kind", [LocalConsumers, RemoteConsumers])
def test_consumers_have_what_is_asked(kind: type) -> None:
    assert asked(Consumers) == {"register", "commit", "read", "list"}
    assert asked(Consumers) <= set(dir(kind))


def test_journals_have_what_is_asked(journal: Writer) -> None:
    journal.write(mixed(5))
    log: LogReader = LocalJournal(journal.data_dir)
    assert all(hasattr(log, name) for name in asked(LogReader))
    far = RemoteJournal("headrace://127.0.0.1:1", "")
    missing = asked(LogReader) - {name for kind in type(far).__mro__ for name in vars(kind)}
    assert missing == {"location", "token", "consumers"}  # each one's own
    assert missing <= set(vars(far))
