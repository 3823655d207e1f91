"""Who of a server and its replicas is believed, without a server."""

from __future__ import annotations

from headrace.stores.redis.replies import Server
from headrace.stores.redis.succession import DOUBT_S, Standing, Succession

A, B, C = ("a", 1), ("b", 2), ("c", 3)


def standing(
    place: tuple[str, int], line: str = "", before: str = "", *, primary: bool = True, since_s: float = 0.0
) -> Standing:
    """A server with a line of replication; without one it is away."""
    if not line:
        return Standing(place, None, -1.0)
    server = Server(
        history=f"{place} {line}",
        line=line,
        line_before=before,
        is_primary=primary,
        is_loading=False,
        is_cluster=False,
        policy="noeviction",
        appends=True,
        replicas=0,
        slots=[],
        is_moving=False,
    )
    return Standing(place, server, since_s if primary else -1.0)


def test_at_a_start_a_primary_is_believed_that_all_others_follow() -> None:
    succession = Succession()
    primary = standing(A, "x")
    assert succession.doubt(primary, [standing(B)], 1.0) == "unknown primary"
    assert succession.doubt(primary, [standing(B, "other", primary=False)], 1.0) == "unknown primary"
    assert succession.doubt(primary, [standing(B, "x", primary=False), standing(C)], 1.0) == "unknown primary"
    assert succession.doubt(primary, [standing(B, "x", primary=False)], 1.0) == ""
    assert succession.doubt(primary, [standing(B)], 2.0) == "", "it stays what it was"


def test_a_server_that_was_the_only_primary_for_long_enough_is_believed() -> None:
    succession = Succession()
    assert succession.doubt(standing(A, "x", since_s=5.0), [standing(B)], 4.9 + DOUBT_S) != ""
    assert succession.doubt(standing(A, "x", since_s=5.0), [standing(B)], 5.0 + DOUBT_S) == ""


def test_a_primary_that_was_replaced_is_not_believed_when_it_is_back_and_its_successor_is_away() -> None:
    succession = Succession()
    assert succession.doubt(standing(A, "x"), [standing(B, "x", primary=False)], 1.0) == ""
    promoted = standing(B, "y", "x", since_s=10.0)
    assert succession.doubt(promoted, [standing(A)], 10.0) == ""
    for line, before in (("x", ""), ("z", "x"), ("z", "")):  # as it was, or started again
        assert succession.doubt(standing(A, line, before, since_s=20.0), [standing(B)], 21.0) != ""
    assert succession.doubt(standing(B, "w", since_s=30.0), [standing(A)], 30.0) == "", (
        "started again where it was"
    )


def test_while_there_are_two_primaries_the_successor_is_asked_and_believed() -> None:
    succession = Succession()
    before, after = standing(A, "x"), standing(B, "y", "x")
    assert succession.choose([before]) == A
    assert succession.doubt(before, [standing(B, "x", primary=False)], 1.0) == ""
    assert succession.choose([before, after]) == B
    assert succession.doubt(before, [after], 2.0) == "two primaries"
    assert succession.doubt(after, [before], 2.0) == ""
    assert succession.choose([after, before]) == B


def test_of_two_primaries_that_nothing_ties_together_neither_is_believed_however_long_it_takes() -> None:
    succession = Succession()
    one, other = standing(A, "x"), standing(B, "y")
    assert succession.choose([one, other]) == A
    for server, rival in ((one, other), (other, one)):
        assert succession.doubt(server, [rival], 10 * DOUBT_S) == "two primaries"


def test_one_server_under_two_names_is_one() -> None:
    succession = Succession()
    one = standing(A, "x")
    same = Standing(B, one.server, 0.0)
    assert succession.doubt(one, [same], 1.0) == ""


def test_without_a_primary_nobody_is_asked() -> None:
    assert Succession().choose([standing(A), standing(B, "x", primary=False)]) is None
