"""A lease: one holder at a time, taken from who no longer moves, and lost without a clock of somebody else's."""

from __future__ import annotations

import json
from contextlib import suppress
from threading import Event, Thread

import pytest
from py4j.protocol import Py4JNetworkError

from headrace_spark.base.errors import LakeConflict, LakeUnreachable
from headrace_spark.base.lake_url import LakeUrl
from headrace_spark.lake.lease import Lease

URL = LakeUrl("s3a://bucket/lake/_checkpoints/u.lease")
LONG_S = 3600.0


class Store:
    """Files in memory."""

    def __init__(self) -> None:
        self.files: dict[LakeUrl, str] = {}
        self.is_away = False
        self.failure: Exception = LakeUnreachable("503")
        self.written = Event()
        self.looked = Event()
        self.looks = 0

    def read(self, url: LakeUrl) -> str | None:
        self.looks += 1
        self.looked.set()
        self._answer()
        return self.files.get(url)

    def write(self, url: LakeUrl, text: str) -> None:
        self._answer()
        self.files[url] = text
        self.written.set()

    def remove(self, url: LakeUrl) -> None:
        self._answer()
        self.files.pop(url, None)

    def _answer(self) -> None:
        if self.is_away:
            raise self.failure

    def spoil(self, text: str | None) -> None:
        """Put something else in the place of the file; None: remove it."""
        if text is None:
            self.files.pop(URL, None)
        else:
            self.files[URL] = text

    def beat(self) -> int:
        return int(json.loads(self.files[URL])["beat"])


def lease(store: Store, lease_s: float = LONG_S, beat_s: float = 0.01) -> Lease:
    return Lease(store, URL, "archiving", lease_s, beat_s)


def wait_for_beat(store: Store, before: int) -> None:
    """Return as soon as the holder has written again."""
    while store.beat() == before:
        store.written.clear()
        assert store.written.wait(60)


def test_it_is_renewed_while_it_is_held_and_gone_afterwards() -> None:
    store = Store()
    held = lease(store)
    with held.held():
        wait_for_beat(store, store.beat())
        held.require_now()
    assert not store.files


def test_who_moves_is_not_disturbed() -> None:
    store = Store()
    with (
        lease(store).held(),
        pytest.raises(LakeConflict, match=r"another process is archiving: process \d+ on "),
        lease(store).held(),
    ):
        raise AssertionError("it was held")


def test_who_stands_still_for_as_long_as_a_lease_loses_it_and_notices() -> None:
    store = Store()
    still = lease(store, beat_s=LONG_S)
    with still.held():
        with lease(store, lease_s=0.01).held():
            with pytest.raises(LakeConflict, match="its lease was over"):
                still.require_now()
            with pytest.raises(LakeConflict, match="its lease was over"):
                still.require()
        assert not store.files
    assert not store.files


def test_its_loss_is_noticed_between_two_batches() -> None:
    store = Store()
    held = lease(store)
    with held.held():
        store.files[URL] = json.dumps({"holder": "another"})
        assert held.lost.wait(60)
        with pytest.raises(LakeConflict):
            held.require()
    assert json.loads(store.files[URL]) == {"holder": "another"}  # not removed by who lost it


def test_a_file_that_is_just_being_written_is_held() -> None:
    """A store that does not put files in place at once shows it empty for a moment."""

    class Torn(Store):
        def read(self, url: LakeUrl) -> str | None:
            found = super().read(url)
            return "" if self.looks == 1 else found

    store = Torn()
    store.files[URL] = json.dumps({"holder": "another"})
    with pytest.raises(LakeConflict, match="another process is archiving"), lease(store).held():
        raise AssertionError("it was held")


def test_one_that_is_given_back_meanwhile_is_free() -> None:
    store = Store()
    store.files[URL] = "torn {"
    taken = Event()

    def take() -> None:
        with lease(store).held():
            taken.set()

    waiting = Thread(target=take, daemon=True)
    waiting.start()
    store.remove(URL)
    assert taken.wait(60)
    waiting.join(60)


@pytest.mark.parametrize(
    "failure",
    [
        LakeUnreachable("503"),
        OSError(24, "Too many open files"),
        MemoryError(),
        UnicodeDecodeError("utf-8", b"\xff", 0, 1, "torn"),
        Py4JNetworkError("a connection was refused"),
    ],
    ids=lambda failure: type(failure).__name__,
)
def test_whatever_fails_for_a_while_ends_nothing(failure: Exception) -> None:
    store = Store()
    store.failure = failure
    held = lease(store)
    with held.held():
        before, looks = store.beat(), store.looks
        store.is_away = True
        while store.looks < looks + 3:
            assert store.looked.wait(60)
            store.looked.clear()
        held.require()
        store.is_away = False
        wait_for_beat(store, before)
        held.require_now()


@pytest.mark.parametrize("found", [None, "", "torn {", "[]"])
def test_a_file_that_names_nobody_is_written_anew(found: str | None) -> None:
    """Somebody has removed it, or the store was full in the middle of a write."""
    store = Store()
    held = lease(store)
    with held.held():
        store.spoil(found)
        held.require_now()
        while not (store.files.get(URL) or "").startswith('{"holder"'):
            assert store.written.wait(60)
            store.written.clear()
        held.require_now()
        assert not held.lost.is_set()
    assert not store.files


def test_of_two_that_both_found_no_file_one_goes_on() -> None:
    store = Store()
    first, second = lease(store), lease(store)
    with first.held():
        store.spoil(None)
        with suppress(LakeConflict), second.held():  # the first one may have been faster
            while not (first.lost.is_set() or second.lost.is_set()):
                assert store.written.wait(60)
                store.written.clear()
            assert first.lost.is_set() != second.lost.is_set()


def test_a_store_that_is_gone_at_the_end_hides_no_error() -> None:
    store = Store()
    store.failure = Py4JNetworkError("a connection was refused")

    def fail() -> None:
        with lease(store, beat_s=LONG_S).held():
            store.is_away = True
            raise LakeConflict("of the job")

    with pytest.raises(LakeConflict, match="of the job"):
        fail()
