"""The upper packet ids: every one of them can be had, none twice, none is 0."""

from __future__ import annotations

from headrace.core.records.record import UPPER_ID_FIRST, UPPER_ID_LAST, UPPER_IDS
from headrace.core.state.free_ids import free_bound_id, free_draw_id, has_free_id
from headrace.core.state.groups import Draw, Group, membership_in
from headrace.core.state.packet_ids import Bound, PacketIds
from headrace.core.state.session import Session
from headrace.core.state.tenant import Tenant
from headrace.storage.memory import MemoryJournal


def session_with(ids: PacketIds) -> tuple[Session, Bound, Group]:
    tenant = Tenant("default", MemoryJournal(), ids)
    session = Session(tenant, "c", 1, 0, 60)
    bound = Bound()
    session.outbound().bound = bound
    return session, bound, Group(tenant, "g", "t", 2)


def test_draws_and_bound_entries_share_all_of_them() -> None:
    session, bound, group = session_with(PacketIds())
    draws = membership_in(session).draws
    for number in range(UPPER_IDS):
        assert has_free_id(session)
        if number % 3:
            packet_id = free_draw_id(session)
            draws[packet_id] = Draw(group, number, 1, session, packet_id)
        else:
            packet_id = free_bound_id(session, bound)
            bound.bind(number, packet_id)
        assert UPPER_ID_FIRST <= packet_id <= UPPER_ID_LAST
    assert len(draws) + len(bound.serials) == UPPER_IDS
    assert not draws.keys() & bound.serials.keys()
    assert (has_free_id(session), free_draw_id(session), free_bound_id(session, bound)) == (False, 0, 0)
    freed = next(iter(draws))
    del draws[freed]
    assert free_bound_id(session, bound) == freed


def test_no_more_than_so_many_are_in_use() -> None:
    session, bound, _ = session_with(PacketIds(10, 2))
    for serial in (1, 2):
        bound.bind(serial, free_bound_id(session, bound))
    assert free_draw_id(session) == 0
    bound.release(1)
    assert free_draw_id(session)


def test_a_freed_id_is_not_the_next_one() -> None:
    session, _, _ = session_with(PacketIds())
    assert free_draw_id(session) != free_draw_id(session)
