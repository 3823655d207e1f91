"""How many may wait for the directory: what one source can make grow, and what makes room."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from headrace.core.ports.directory import Account
from headrace.services import waiting
from headrace.services.waiting import LOOK_S, Asked, Waiting


class Loop:
    """Keeps what is to be called later."""

    def __init__(self) -> None:
        self.later: list[Callable[..., object]] = []

    def call_soon_threadsafe(self, callback: Callable[..., object], *args: Any) -> None:
        raise AssertionError("nothing comes from a thread")

    def call_soon(self, callback: Callable[..., object], *args: Any) -> None:
        raise AssertionError("nothing is to be called soon")

    def call_later(self, delay: float, callback: Callable[..., object], *args: Any) -> None:
        assert delay == LOOK_S
        self.later.append(callback)


class Someone(Asked):
    """Waits, and notes how that ended."""

    def __init__(self, source: str, size: int = 10) -> None:
        super().__init__("default", "ada", size, source)
        self.gone = False
        self.ends: list[str] = []

    def abandoned(self) -> bool:
        return self.gone

    def answer(self, account: Account | None) -> None:
        raise AssertionError("the directory does not answer")

    def give_up(self) -> None:
        self.ends.append("given up")

    def forget(self) -> None:
        self.ends.append("forgotten")


class Room:
    """A place to wait, with a clock that is set by hand."""

    def __init__(self) -> None:
        self.loop, self.now_s = Loop(), 100.0
        self.waiting = Waiting(self.loop, 8.0, lambda: self.now_s)

    def comes(self, source: str, size: int = 10) -> Someone | None:
        if not self.waiting.has_room(source, size):
            return None
        someone = Someone(source, size)
        self.waiting.enter(someone)
        return someone

    def look(self) -> None:
        callbacks, self.loop.later = self.loop.later, []
        for callback in callbacks:
            callback()


def test_one_source_leaves_room_for_all_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waiting, "WAITING_MAX", 8)
    room = Room()
    assert [room.comes("a") is not None for _ in range(6)] == [True] * 4 + [False] * 2
    assert [room.comes("b") is not None for _ in range(3)] == [True] * 2 + [False]
    assert len(room.waiting) == 6


def test_bytes_are_bounded_as_entries_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waiting, "WAITING_BYTES_MAX", 1000)
    room = Room()
    assert room.comes("a", 400) is not None
    assert room.comes("a", 300) is None
    assert room.comes("b", 500) is not None


def test_who_has_waited_longest_makes_room_for_a_new_source(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waiting, "WAITING_MAX", 3)
    room = Room()
    first, second, third = (room.comes(source) for source in "abc")
    assert first is not None
    assert second is not None
    assert third is not None
    assert room.comes("d") is not None
    assert (first.ends, second.ends, third.ends) == (["given up"], [], [])
    assert not first.is_open
    assert room.comes("b") is None  # it has something here
    assert len(room.waiting) == 3


def test_who_waits_for_too_long_is_given_up() -> None:
    room = Room()
    first = room.comes("a")
    assert first is not None
    room.now_s += 5.0
    second = room.comes("a")
    assert second is not None
    room.now_s += 4.0
    room.look()
    assert (first.ends, second.ends) == (["given up"], [])
    room.now_s += 4.0
    room.look()
    assert second.ends == ["given up"]
    assert (len(room.waiting), room.loop.later, room.waiting.dropped) == (0, [], 2)


def test_who_has_hung_up_is_found_as_others_come() -> None:
    room = Room()
    waiters = [room.comes("a") for _ in range(10)]
    for someone in waiters:
        assert someone is not None
        someone.gone = True
    for _ in range(5):
        room.comes("b")
    assert [someone.ends for someone in waiters if someone is not None] == [["forgotten"]] * 10
    assert len(room.waiting) == 5


def test_nothing_of_who_has_left_is_held() -> None:
    room = Room()
    for number in range(50):
        someone = room.comes(f"source {number}")
        assert someone is not None
        room.waiting.leave(someone)
        room.waiting.leave(someone)
    assert len(room.waiting) == 0
    assert not room.waiting._entries
    assert not room.waiting._bytes
    assert room.waiting._total == 0
