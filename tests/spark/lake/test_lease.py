"""A lease: one holder at a time, taken from who no longer moves, and lost without a clock of somebody else's."""

from __future__ import annotations

import json
from threading import Event, Thread

import pytest

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
        self.written = Event()

    def read(self, url: LakeUrl) -> str | None:
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
            raise LakeUnreachable("503")

    def beat(self) -> int:
        return int(json.loads(self.files[URL])["beat"])


def lease(store: Store, lease_s: float = LONG_S, beat_s: float = 0.01) -> Lease:
    return Lease(store, URL, "archiving", lease_s, beat_s)


def test_it_is_renewed_while_it_is_held_and_gone_afterwards() -> None:
    store = Store()
    held = lease(store)
    with held.held():
        first = store.beat()
        while store.beat() == first:
            store.written.clear()
            assert store.written.wait(60)
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
        looks = 0

        def read(self, url: LakeUrl) -> str | None:
            self.looks += 1
            return "" if self.looks == 1 else super().read(url)

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


def test_a_store_that_is_away_for_a_while_ends_nothing() -> None:
    store = Store()
    held = lease(store)
    with held.held():
        store.is_away = True
        held.require()
        store.is_away = False
        before = store.beat()
        while store.beat() == before:
            store.written.clear()
            assert store.written.wait(60)
