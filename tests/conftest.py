"""Fixtures shared by every kind of test.  What only the audits need is in `e2e/conftest.py`."""

from __future__ import annotations

import gc
import os
import threading
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest
from hypothesis import settings

from broker_process import BUILD
from time_limit import expect_signals, limit_of, limited

if TYPE_CHECKING:
    from hbase_server import HBaseServer

# How long an example takes says more about the neighbours on this machine than about the code.
settings.register_profile("headrace", deadline=None)
settings.load_profile("headrace")


WRITER_ENDS_S = 5.0
LOG_COLUMNS = 240
HBASE: pytest.StashKey[HBaseServer] = pytest.StashKey()
LAST_OF_HBASE: pytest.StashKey[str] = pytest.StashKey()

expect_signals()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup(item: pytest.Item) -> Iterator[None]:
    with limited(limit_of(item)):
        return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    with limited(limit_of(item)):
        return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> Iterator[None]:
    with limited(limit_of(item)):
        yield
    if item.nodeid == item.config.stash.get(LAST_OF_HBASE, "") and HBASE in item.config.stash:
        item.config.stash[HBASE].stop()
    if nextitem is None or nextitem.path != item.path:
        end_journals()
        leave_alone()


def end_journals() -> None:
    """End the writers of journals that tests have left open, as if power had gone: each would keep its disk, which may be
    simulated and lie in memory, to the end of the run."""
    for thread in threading.enumerate():
        if thread.name == "journal-writer":
            run = getattr(thread, "_target", None)  # a thread that has just ended has none
            if run is not None:
                run.__self__.queue.put(None)
            thread.join(WRITER_ENDS_S)


def leave_alone() -> None:
    """Have the collector take what is garbage, and look at nothing again that is not."""
    gc.collect()
    gc.freeze()


def pytest_collection_finish(session: pytest.Session) -> None:
    """Have the collector leave the tests themselves alone, all sixteen thousand of them: beside so many objects it would
    hardly ever look at everything, and what one test leaves in a cycle, a disk of 64 MB, would lie there to the end.

    What a file of tests leaves is left alone behind it too: to look through all of that once more behind each of four
    hundred files took a third of the compiled suite's CPU time.
    """
    with_hbase = [item.nodeid for item in session.items if item.get_closest_marker("hbase")]
    session.config.stash[LAST_OF_HBASE] = with_hbase[-1] if with_hbase else ""
    leave_alone()


@pytest.hookimpl(trylast=True)
def pytest_configure(config: pytest.Config) -> None:
    """Have the summary say in full why each test has failed where the gate reads it: a log has no width."""
    if "HEADRACE_SUITE" in os.environ:
        config.get_terminal_writer().fullwidth = LOG_COLUMNS


def pytest_report_header(config: pytest.Config) -> str:
    return f"headrace build: {BUILD}"


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Tests that only mean something in the other build are left out, and said so."""
    other = "compiled" if BUILD == "interpreted" else "interpreted"
    for item in items:
        if item.get_closest_marker(other) is not None:
            item.add_marker(pytest.mark.skip(reason=f"only for the {other} build"))


@pytest.fixture
def others_left_nothing() -> None:
    """Leave out of every census of objects what other tests have left, which goes when it likes.

    It stays out: given back, the collector would look through all that there is, of all tests, from then on.
    """
    leave_alone()


@pytest.fixture(scope="session")
def hbase(request: pytest.FixtureRequest) -> Iterator[HBaseServer]:
    """HBase with its gateway: it takes a while to start, so there is one a run, which ends with the last test that needs
    it; a test that kills it starts it again."""
    from hbase_server import hbase_server  # what it imports is of an extra, and most runs need none of it

    with hbase_server() as server:
        request.config.stash[HBASE] = server
        yield server
