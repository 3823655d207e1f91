"""Loans at QoS 2 are a fold: whatever is replayed again changes nothing, and they end with their session."""

from __future__ import annotations

from typing import NoReturn

from hypothesis import given
from hypothesis import strategies as st

from harness import Harness
from headrace.core.homes import Homes
from headrace.core.records.stream_record import (
    LENT,
    LENT_COMPLETED,
    LENT_RECEIVED,
    LENT_SETTLED,
    StreamRecord,
    stream_record_of,
)
from headrace.core.state.away import AllAtHome, Away, Key, Loan, borrowing_of
from headrace.core.state.session import Session

GROUP, SERIAL, PACKET_ID = 70, 5, 49_160


def record(subkind: int, incarnation: int = 3) -> StreamRecord:
    numbers = [1, GROUP, SERIAL, 0]
    if subkind == LENT:
        numbers = [1, GROUP, SERIAL, PACKET_ID | 2 << 16, incarnation, 0]
    return stream_record_of(subkind, 0, numbers)


LIFE = [LENT, LENT_RECEIVED, LENT_COMPLETED, LENT_SETTLED]


def session() -> Session:
    harness = Harness()
    harness.client("c", version=5)
    [found] = harness.broker.fold.by_incarnation.values()
    return found


def replayed(subkinds: list[int]) -> Away:
    away = Away(Homes(2), 0)
    for subkind in subkinds:
        away.replay(record(subkind))
    return away


def test_a_loan_goes_through_its_states() -> None:
    states = [replayed(LIFE[:count]).rows() for count in range(5)]
    row = [1, GROUP, SERIAL, 3, PACKET_ID]
    assert states == [[], [[*row, 0]], [[*row, 1]], [[*row, 2]], []]


@given(st.integers(0, 4), st.integers(0, 4))
def test_records_behind_a_snapshot_that_knows_them_already_change_nothing(position: int, seen: int) -> None:
    """A snapshot may be written further on than its position."""
    away = Away(Homes(2), 0)
    away.restore(replayed(LIFE[: max(position, seen)]).rows())
    for subkind in LIFE[position:]:
        away.replay(record(subkind))
    assert away.rows() == []


def test_what_a_later_version_writes_is_passed_over() -> None:
    away = replayed([LENT])
    away.replay(StreamRecord(99, 0, bytes(64)))
    away.replay(StreamRecord(LENT, 0, bytes(16)))
    assert len(away.loans) == 1


def test_a_shard_alone_has_no_loans_and_members_of_no_other_shard() -> None:
    harness = Harness()
    client = harness.client("c", version=5)
    client.subscribe("$share/g/a", 1)
    fold = harness.broker.fold
    assert type(fold.away) is AllAtHome
    for subkind in LIFE[:3]:
        fold.away.replay(record(subkind))
    fold.away.restore(replayed([LENT]).rows())
    assert fold.away.rows() == []
    assert [list(group.members) for group in fold.groups.by_id.values()] == [
        list(fold.by_incarnation.values())
    ]


def test_after_a_start_a_loan_has_its_packet_id_in_its_session() -> None:
    found = session()
    for count in (1, 2, 3):
        away = replayed(LIFE[:count])
        away.loans[1, GROUP, SERIAL].incarnation = found.incarnation
        found.shared = None
        away.started({found.incarnation: found})
        borrowing = borrowing_of(found)
        assert borrowing is not None
        assert list(borrowing.loans) == ([PACKET_ID] if count < 3 else [])
        assert borrowing.has_id(PACKET_ID) == (count < 3)
        assert len(away.loans) == 1  # its home has to hear of it


def test_a_loan_ends_with_its_session() -> None:
    away = replayed([LENT])
    away.started({})
    assert away.rows() == []
    found = session()
    away = replayed([LENT])
    away.loans[1, GROUP, SERIAL].incarnation = found.incarnation
    away.started({found.incarnation: found})
    away.ended(found)
    assert away.rows() == []


class Loans(dict[Key, Loan]):
    """Loans of which nobody may look at all."""

    def values(self) -> NoReturn:
        raise AssertionError("a walk over the loans of all sessions")


def test_the_end_of_a_session_looks_at_its_own_loans_alone() -> None:
    found = session()
    away = replayed([LENT])
    away.loans[1, GROUP, SERIAL].incarnation = found.incarnation
    away.replay(stream_record_of(LENT, 0, [1, GROUP, SERIAL + 1, PACKET_ID | 2 << 16, found.incarnation, 0]))
    away.started({found.incarnation: found})
    borrowing = borrowing_of(found)
    assert borrowing is not None
    away.loans = Loans(away.loans)
    away.settle(away.loans[1, GROUP, SERIAL])
    assert list(borrowing.unsettled) == list(away.loans) == [(1, GROUP, SERIAL + 1)]
    away.ended(found)
    assert not away.loans


def test_a_group_is_at_home_where_its_names_say() -> None:
    away = Away(Homes(3), 0)
    found = session()
    homes = {share: away.home_of("default", share) for share in ("$share/a/x", "$share/b/x", "$share/c/x")}
    assert {away.join(found, share) for share, home in homes.items() if home < 0} <= {False}
    elsewhere = [share for share, home in homes.items() if home >= 0]
    assert elsewhere
    assert all(away.join(found, share) for share in elsewhere)
    borrowing = borrowing_of(found)
    assert borrowing is not None
    assert list(borrowing.filters) == elsewhere
    assert all(away.leave(found, share) for share in elsewhere)
    assert not any(away.leave(found, share) for share in homes)
