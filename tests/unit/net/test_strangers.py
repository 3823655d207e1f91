"""Who makes room: the one that has been a stranger for longest, and nobody who was let in."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest

from headrace.net.strangers import CROWDED_OUT, Strangers


class Caller:
    """As much of a connection as is asked."""

    def __init__(self, accepted: socket.socket, made: bool) -> None:
        self.accepted, self.made = accepted, made
        self.session: object | None = None
        self.closed = False
        self.reasons: list[str] = []

    def is_stranger(self) -> bool:
        return self.session is None

    def turn_away(self, reason: str) -> None:
        self.reasons.append(reason)


class Street:
    """Callers in the order they came, each with the far end of its socket."""

    def __init__(self) -> None:
        self.strangers = Strangers()
        self._far: list[socket.socket] = []

    def come(self, made: bool = True) -> Caller:
        near, far = socket.socketpair()
        far.settimeout(10)
        self._far += [near, far]
        caller = Caller(near, made)
        self.strangers.came(caller, near)  # type: ignore[arg-type]
        return caller

    def hears(self, number: int) -> bytes:
        return self._far[2 * number + 1].recv(1)

    def close(self) -> None:
        for one in self._far:
            one.close()


@pytest.fixture
def street() -> Iterator[Street]:
    made = Street()
    yield made
    made.close()


def test_the_oldest_stranger_goes_and_nobody_who_was_let_in(street: Street) -> None:
    callers = [street.come() for _ in range(5)]
    callers[0].session = object()
    callers[1].closed = True
    street.strangers.gone(callers[2])  # type: ignore[arg-type]
    assert street.strangers.give_up_oldest()
    assert street.strangers.give_up_oldest()
    assert not street.strangers.give_up_oldest()
    assert [caller.reasons for caller in callers] == [[], [], [], [CROWDED_OUT], [CROWDED_OUT]]


def test_who_still_shakes_hands_sees_the_end(street: Street) -> None:
    caller = street.come(made=False)
    assert street.strangers.give_up_oldest()
    assert caller.reasons == [CROWDED_OUT]
    assert street.hears(0) == b""


def test_a_peer_that_has_reset_meanwhile_makes_room_as_well(street: Street) -> None:
    caller = street.come(made=False)
    caller.accepted.close()
    assert street.strangers.give_up_oldest()


def test_who_was_let_in_is_not_remembered_for_long(street: Street) -> None:
    for _ in range(200):
        street.come().session = object()
    assert len(street.strangers) <= 3
