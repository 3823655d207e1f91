"""Which bridges of a node are up, as all of its workers tell it."""

from __future__ import annotations

from collections.abc import Mapping

from headrace.workers.bridge_states import BridgeStates
from headrace.workers.control import MESSAGE_BYTES_MAX, pack_values


class Member:
    def __init__(self, index: int) -> None:
        self.index = index
        self.serves = True
        self.bridges: Mapping[str, int] = {}
        self.reads = True
        self.told: list[dict[str, str]] = []

    def tell(self, values: Mapping[str, str]) -> bool:
        assert len(pack_values(values)) < MESSAGE_BYTES_MAX
        if self.reads:
            self.told.append(dict(values))
        return self.reads

    def take(self) -> list[dict[str, str]]:
        told, self.told = self.told, []
        return told


def test_what_one_worker_says_all_tell_once() -> None:
    members = [Member(index) for index in range(3)]
    states = BridgeStates(members)
    states.look()
    assert [member.take() for member in members] == [[], [], []]
    members[1].bridges = {"b": 0, "c": 1}
    for _ in range(2):
        states.look()
    told = [{"connection/b/state": "0", "connection/c/state": "1"}]
    assert [member.take() for member in members] == [told] * 3
    members[1].bridges = {"b": 1, "c": 1}
    states.look()
    assert [member.take() for member in members] == [[{"connection/b/state": "1"}]] * 3


def test_a_worker_that_does_not_read_or_does_not_serve_yet_is_told_later() -> None:
    members = [Member(index) for index in range(3)]
    states = BridgeStates(members)
    members[0].bridges = {"b": 1}
    members[1].reads = members[2].serves = False
    states.look()
    members[1].reads = members[2].serves = True
    states.look()
    assert [member.take() for member in members] == [[{"connection/b/state": "1"}]] * 3


def test_the_bridges_of_a_worker_that_has_ended_are_down_and_its_next_process_is_told_all() -> None:
    members = [Member(index) for index in range(2)]
    states = BridgeStates(members)
    members[0].bridges, members[1].bridges = {"a": 1}, {"b": 1}
    states.look()
    members[0].take(), members[1].take()
    members[1].bridges, members[1].serves = {"b": 0}, False
    states.look()
    assert members[0].take() == [{"connection/b/state": "0"}]
    members[1].bridges, members[1].serves = {}, True  # it has said nothing of bridges yet
    states.look()
    assert members[1].take() == [{"connection/a/state": "1", "connection/b/state": "0"}]
    assert members[0].take() == []


def test_many_bridges_are_told_in_several_messages() -> None:
    member = Member(0)
    states = BridgeStates([member])
    member.bridges = {f"{'long' * 20}{number}": 1 for number in range(600)}
    states.look()
    told = member.take()
    assert len(told) > 1
    assert sum(len(part) for part in told) == 600
