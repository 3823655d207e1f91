"""Nodes come up, are not heard, and go down: what is told of it, once."""

from __future__ import annotations

from headrace.node.members import MISSED_S, Members


class Told:
    """What is told of the nodes since it was asked last."""

    def __init__(self) -> None:
        self.events: list[tuple[str, str]] = []
        self.members = Members(lambda event, name: self.events.append((event, name)))

    def look(self, now_s: float, *owning: str, **heard: bool) -> list[tuple[str, str]]:
        self.members.look(now_s, heard, owning)
        found, self.events[:] = list(self.events), []
        return found


def test_a_node_is_up_when_it_is_heard_and_down_when_it_leaves() -> None:
    told = Told()
    assert told.look(0.0, n1=False) == [], "it has just joined"
    assert told.look(1.0, "n1", n1=True) == [("MemberUp", "n1")]
    assert told.look(2.0, "n1", n1=True) == []
    assert told.look(3.0) == [("MemberDown", "n1")]
    assert told.look(4.0) == []
    assert told.look(5.0, n1=True) == [("MemberUp", "n1")]


def test_a_node_that_is_not_heard_is_unreachable_until_others_have_its_shards() -> None:
    told = Told()
    told.look(0.0, "n1", n1=True)
    assert told.look(3.0, "n1", n1=False) == [("MemberUnreachable", "n1")]
    assert told.look(MISSED_S + 1, "n1", n1=False) == []
    assert told.look(MISSED_S + 2, n1=False) == [("MemberDown", "n1")]
    assert told.look(MISSED_S + 3, "n1", n1=False) == []
    assert told.look(MISSED_S + 4, n1=True) == [("MemberUp", "n1")]


def test_a_node_without_shards_is_not_down_for_a_moment_of_silence() -> None:
    told = Told()
    told.look(0.0, n1=True)
    assert told.look(1.0, n1=False) == [("MemberUnreachable", "n1")]
    assert told.look(2.0, n1=True) == [("MemberUp", "n1")]
    assert told.look(3.0, n1=False) == [("MemberUnreachable", "n1")]
    assert told.look(2.0 + MISSED_S, n1=False) == [("MemberDown", "n1")]
