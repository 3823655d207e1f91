"""Time spent on TLS messages that carry nothing: counted, forgiven, and too much of it."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from headrace.net.key_updates import FORGIVEN_S, SPENT_MAX_S, WatchedLoop


class Loop:
    """Calls a reader when told to."""

    def __init__(self) -> None:
        self.ready: Callable[[], None] = lambda: None

    def add_reader(self, fd: int, callback: Callable[..., None], *args: object) -> None:
        assert fd == 7
        self.ready = lambda: callback(*args)

    def time(self) -> float:
        return 5.0


class Connection:
    """One whose reads cost as much as they are told, and bring as many bytes."""

    def __init__(self) -> None:
        self.heard: int | None = 0
        self.spent = self.now = 0.0
        self.cuts = 0
        self.loop = Loop()
        self.watched = WatchedLoop(
            self.loop,  # type: ignore[arg-type]
            lambda: self.heard,
            self._cut,
            lambda: self.spent,
            lambda: self.now,
        )

    def _cut(self) -> None:
        self.cuts += 1

    def read(self, seconds: float, count: int | None = 0) -> None:
        def callback() -> None:
            self.spent += seconds
            if self.heard is not None and count is not None:
                self.heard += count

        self.watched.add_reader(7, callback)
        self.loop.ready()


@pytest.fixture
def connection() -> Connection:
    return Connection()


def test_who_costs_much_and_says_nothing_is_cut(connection: Connection) -> None:
    for _ in range(4):
        connection.read(SPENT_MAX_S / 4)
    assert connection.cuts == 0
    connection.read(SPENT_MAX_S / 4)
    assert connection.cuts == 1


def test_whatever_it_says_is_worth_its_time(connection: Connection) -> None:
    for _ in range(10):
        connection.read(SPENT_MAX_S * 0.9)
        connection.read(SPENT_MAX_S * 9, count=1)
    assert connection.cuts == 0


def test_now_and_then_is_forgiven(connection: Connection) -> None:
    for _ in range(10):
        connection.read(SPENT_MAX_S * 0.9)
        connection.now += FORGIVEN_S * 1.1
    assert connection.cuts == 0


def test_a_handshake_may_cost_what_it_does(connection: Connection) -> None:
    connection.heard = None
    connection.read(SPENT_MAX_S * 50)
    connection.heard = 0
    connection.read(SPENT_MAX_S * 0.9)
    assert connection.cuts == 0


def test_everything_else_is_the_loop_s_own(connection: Connection) -> None:
    assert connection.watched.time() == 5.0
