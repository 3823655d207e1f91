"""What is remembered of devices: a repeat is one within its time and with the same content, before and after a replay."""

from __future__ import annotations

import zlib
from typing import cast

import pytest

from headrace.core.ports.owned import Owned
from headrace.core.records.message import FrameMessage
from headrace.core.state import devices
from headrace.core.state.devices import NEVER, REPEAT_WINDOW_US, DeviceRoster, seen_of

NOW_US = 1_700_000_000_000_000


def message(
    sequence: int, payload: bytes = b"x", *, sn: bytes = b"door", at_us: int = NOW_US
) -> FrameMessage:
    return FrameMessage(at_us, sequence, "default", b"default" + sn, 7, b"t", -1, payload)


def noted(roster: DeviceRoster, one: FrameMessage, offset: int) -> None:
    one.offset = offset
    roster.note(seen_of(one))


def found(roster: DeviceRoster, one: FrameMessage) -> int:
    return roster.find(seen_of(one))


def test_a_repeat_is_known_by_device_number_and_content() -> None:
    roster = DeviceRoster()
    noted(roster, message(1), 10)
    assert found(roster, message(1)) == 10
    assert found(roster, message(2)) == NEVER
    assert found(roster, message(1, b"y")) == NEVER
    assert found(roster, message(1, sn=b"other")) == NEVER


def test_a_device_that_was_reset_replaces_what_it_sent_before() -> None:
    roster = DeviceRoster()
    noted(roster, message(1), 10)
    noted(roster, message(1, b"y"), 11)
    assert found(roster, message(1, b"y")) == 11
    assert found(roster, message(1)) == NEVER
    noted(roster, message(1), 10)  # a replay comes by again
    assert found(roster, message(1, b"y")) == 11


def test_what_is_older_than_the_window_is_new_again_and_forgotten() -> None:
    roster = DeviceRoster()
    for sequence in range(10):
        noted(roster, message(sequence), sequence)
    later = NOW_US + REPEAT_WINDOW_US + 1
    assert found(roster, message(3, at_us=later)) == NEVER
    for sequence in range(100, 110):
        noted(roster, message(sequence, at_us=later), sequence)
    assert len(roster) == 10


def test_only_so_many_are_remembered() -> None:
    roster = DeviceRoster()
    for sequence in range(devices.SEEN_MAX + 10):
        noted(roster, message(sequence), sequence)
    assert len(roster) == devices.SEEN_MAX
    assert found(roster, message(devices.SEEN_MAX + 9)) == devices.SEEN_MAX + 9
    assert found(roster, message(0)) == NEVER


def test_a_device_belongs_to_its_first_user() -> None:
    roster = DeviceRoster()
    roster.own("door", "ada")
    roster.own("door", "bob")
    roster.own("gate", "ada")
    assert roster.owners == {"door": "ada", "gate": "ada"}
    assert (roster.owned_by("ada"), roster.owned_by("bob")) == (2, 0)


def test_entries_bring_back_what_is_below_their_position() -> None:
    roster = DeviceRoster()
    roster.own("door", "ada")
    for sequence in range(3000):
        noted(roster, message(sequence), sequence)
    copy = DeviceRoster()
    for owners, seen in cast(
        "list[tuple[list[list[str]], list[tuple[bytes, int, int, int]]]]", list(roster.entries(2000))
    ):
        for client_id, user in owners:
            copy.own(client_id, user)
        for key, offset, content, time_us in seen:
            copy.restore(key, offset, content, time_us)
    assert copy.owners == roster.owners
    assert len(copy) == 2000
    assert found(copy, message(1999)) == 1999
    assert found(copy, message(2000)) == NEVER


def test_where_topic_ends_and_payload_begins_counts() -> None:
    roster = DeviceRoster()
    first = FrameMessage(NOW_US, 1, "default", b"defaultdoor", 7, b"lock/1", -1, b"2on")
    noted(roster, first, 10)
    other = FrameMessage(NOW_US, 1, "default", b"defaultdoor", 7, b"lock/12", -1, b"on")
    assert (found(roster, first), found(roster, other)) == (10, NEVER)


def test_what_came_before_the_clock_was_set_makes_no_later_message_a_repeat() -> None:
    for before_us in (1_000_000_000, NOW_US + 86_400_000_000):  # not set yet, and ahead
        roster = DeviceRoster()
        noted(roster, message(1, at_us=before_us), 10)
        assert found(roster, message(1, at_us=before_us - 1000)) == 10
        assert found(roster, message(1, at_us=NOW_US)) == NEVER
        noted(roster, message(2, at_us=NOW_US), 11)
        assert len(roster) == 1


def test_what_was_replaced_is_no_place_taken_for_ever() -> None:
    roster = DeviceRoster()
    noted(roster, message(0), 0)
    for turn in range(1, 1000):
        noted(roster, message(1, b"%d" % turn), turn)
    assert len(roster) == 2
    later = NOW_US + REPEAT_WINDOW_US + 1
    for sequence in range(2, 200):
        noted(roster, message(sequence, at_us=later), 1000 + sequence)
    assert len(roster) == 198


@pytest.mark.parametrize("size", [0, 1, 4096, 4097, 100_000])
def test_a_repeat_of_any_size_is_known_by_its_checksum(size: int) -> None:
    one = seen_of(message(1, bytes(size)))
    assert one.content == zlib.crc32(b"t\0" + bytes(size))
    assert one.key == b"door\0\0\0\1"
    assert seen_of(message(0xFFFFFFFE)).key == b"door\xff\xff\xff\xfe"


def test_a_user_has_the_devices_of_all_shards() -> None:
    rosters, owned = [DeviceRoster("t"), DeviceRoster("t"), DeviceRoster("t2")], Owned()
    for roster in rosters:
        roster.of_all_shards = owned
    for roster, client_id in zip(rosters, ("a", "b", "c"), strict=True):
        roster.own(client_id, "ada")
        roster.own(client_id, "ada")  # a record of before
    assert [roster.owned_by("ada") for roster in rosters] == [2, 2, 1]
