"""What may be deleted of a shard in Kafka, and where one begins to read it."""

from __future__ import annotations

from headrace.storage.kafka.chains import FULL, Manifest, Whole
from headrace.storage.kafka.entry import FloorEntry
from headrace.storage.kafka.envelope import NO_OWNER, Floor, Mark
from headrace.storage.kafka.keeping import BEGINNING, Keeping, Place, Release, newest_chain, place_to_begin


def kept(*places: Place) -> Keeping:
    keeping = Keeping()
    for place in places:
        keeping.on_mark(*place)
    return keeping


def test_nothing_goes_before_there_are_two_full_snapshots() -> None:
    keeping = kept((10, 5), (20, 9))
    assert keeping.on_full(15, 0) is None
    assert keeping.on_full(20, 3) == Release(FloorEntry(15, 5), 0, 10)


def test_what_the_older_one_needs_stays() -> None:
    keeping = kept((10, 5), (20, 9), (30, 14))
    keeping.on_full(30, 0)
    assert keeping.on_full(12, 3) == Release(FloorEntry(30, 14), 0, 30)
    assert keeping.on_full(30, 6) == Release(FloorEntry(12, 5), 3, 10)


def test_without_a_mark_below_what_is_needed_only_snapshots_go() -> None:
    keeping = kept((10, 5), (20, 9))
    keeping.on_full(3, 0)
    assert keeping.on_full(20, 4) == Release(None, 0)


def test_what_a_registered_consumer_has_not_read_stays() -> None:
    keeping = kept((10, 5), (20, 9), (30, 14))
    keeping.on_full(30, 0)
    assert keeping.on_full(30, 3, consumed=9) == Release(None, 0)
    assert keeping.on_full(30, 6, consumed=25) == Release(FloorEntry(25, 9), 3, 20)
    assert keeping.on_full(30, 8, consumed=99) == Release(FloorEntry(30, 14), 6, 30)


def test_places_go_when_a_floor_is_confirmed() -> None:
    keeping = kept((10, 5), (20, 9))
    assert keeping.on_floor(5) == 10
    assert keeping.places == [(10, 5), (20, 9)]
    assert keeping.on_floor(9) == 20
    assert keeping.places == [(20, 9)]


def test_places_behind_where_a_reading_begins_count_once_they_are_read() -> None:
    keeping = kept((10, 5), (20, 9))
    keeping.begin_with([(10, 5), (20, 9)])
    keeping.read_from(6)
    assert (keeping.places, keeping.is_witnessed) == ([(10, 5)], False)
    keeping.on_passed(9, Mark(20, 0, -1))
    keeping.on_passed(9, Mark(20, 0, -1))  # the reading began anew
    assert (keeping.places, keeping.is_witnessed) == ([(10, 5), (20, 9)], True)


def test_a_floor_that_was_read_takes_places_away_and_its_mark_is_one() -> None:
    keeping = kept((10, 5), (20, 9))
    keeping.on_passed(12, Floor(25, 15, 5))
    assert keeping.places == [(10, 5), (20, 9)]
    keeping.on_passed(14, Floor(25, 22, 11))  # the MARK there was before what was read
    assert keeping.places == [(22, 11)]
    keeping.begin_with([(20, 9)])
    keeping.on_passed(14, Floor(25, 22, 11))
    assert (keeping.places, keeping.is_witnessed) == ([(22, 11)], True)  # deleted, and not lost


def test_a_reader_begins_at_the_oldest_place_that_stands() -> None:
    places = [BEGINNING, (10, 5), (20, 9)]
    assert place_to_begin(places, 0, 20) == BEGINNING
    assert place_to_begin(places, 1, 20) == (10, 5)
    assert place_to_begin(places, 9, 20) == (20, 9)
    assert place_to_begin(places, 10, 20) is None


def test_a_place_behind_the_snapshot_is_none() -> None:
    assert place_to_begin([(10, 5), (20, 9)], 6, 19) is None


def chain(position: int, *places: Place) -> list[Whole]:
    manifest = Manifest(bytes(16), FULL, position, position, places[-1][1], 0, 0, 0, 0, places)
    return [Whole(manifest, NO_OWNER, 0, 0)]


def test_a_chain_of_which_no_place_stands_is_passed_over() -> None:
    late, early = chain(30, (10, 5)), chain(20, (10, 5), (20, 9))
    assert newest_chain([late, early], 5) == late
    assert newest_chain([late, early], 6) == early
    assert newest_chain([late, early], 10) == []
