"""The walk over all sessions: whoever stays is met once, while others come and go."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from headrace.core.state.roster import Roster
from headrace.core.state.session import Session
from headrace.core.state.tenant import Tenant
from headrace.storage.memory import MemoryJournal

CHANGES = st.lists(st.one_of(st.none(), st.integers(0, 30)))  # add one, or remove one of these


def session(tenant: Tenant, number: int) -> Session:
    return Session(tenant, f"c{number}", number, 0, 0)


@given(st.integers(0, 20), CHANGES, CHANGES)
def test_whoever_stays_is_met_once(start: int, before: list[int | None], during: list[int | None]) -> None:
    tenant, roster = Tenant("default", MemoryJournal()), Roster()
    there = {number: session(tenant, number) for number in range(start)}
    for number in range(start):
        roster.add(there[number])

    def change(what: int | None) -> None:
        if what is None:
            number = len(there) + 100 + sum(there)
            there[number] = session(tenant, number)
            roster.add(there[number])
        elif what in there:
            roster.remove(there.pop(what))

    for what in before:
        change(what)
    at_start, changes = set(there), iter(during)
    met = []
    for one in roster.walk():
        if one is not None:
            met.append(one.incarnation)
        change(next(changes, -1))
    assert len(met) == len(set(met))
    assert at_start & set(there) <= set(met)


def test_places_are_used_again() -> None:
    tenant, roster = Tenant("default", MemoryJournal()), Roster()
    for number in range(100):
        one = session(tenant, number)
        roster.add(one)
        roster.remove(one)
    assert list(roster.walk()) == [None]
