"""Hashes on threads: who gets one, in which turn, and who does not."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from headrace.services.passwords import PasswordFile
from headrace.services.verifying import LOOK_S, STRANGERS_HASHED, THREADS, WAITING_MAX, Attempt, Verifying


class Loop:
    """Runs what threads and timers hand to it, until nothing is under way."""

    def __init__(self) -> None:
        self.calls: list[tuple[Callable[..., object], tuple[Any, ...]]] = []
        self.delays: list[float] = []
        self._ready = threading.Semaphore(0)

    def call_soon_threadsafe(self, callback: Callable[..., object], *args: Any) -> None:
        self.calls.append((callback, args))
        self._ready.release()

    call_soon = call_soon_threadsafe

    def call_later(self, delay: float, callback: Callable[..., object], *args: Any) -> None:
        self.delays.append(delay)
        self.call_soon_threadsafe(callback, *args)

    def run(self) -> None:
        assert self._ready.acquire(timeout=10)
        callback, args = self.calls.pop(0)
        callback(*args)


class Passwords(PasswordFile):
    """Everybody's password is "right". `gate` holds the threads; `hashed` is who got one, in order."""

    def __init__(self, *users: str) -> None:
        super().__init__(dict.fromkeys(users, "$6$a$b"))
        self.hashed: list[str] = []
        self.gate = threading.Event()

    def verify(self, user: str, password: bytes) -> bool:
        assert self.gate.wait(10)
        self.hashed.append(user)
        return self.knows(user) and password == b"right"


class Crowd:
    """Attempts and their answers."""

    def __init__(self, passwords: Passwords) -> None:
        self.loop = Loop()
        self.passwords = passwords
        self.now = 0.0
        self.queue = Verifying(self.loop, 8.0, lambda: self.now)
        self.answers: list[tuple[str, bool | None]] = []
        self.gone: set[str] = set()
        self.forgotten: list[str] = []  # whose connections were ended

    def knock(
        self, user: str, source: str = "192.0.2.1", password: bytes = b"right", size: int = 100
    ) -> bool:
        return self.queue.submit(
            Attempt(
                self.passwords,
                user,
                password,
                source,
                size,
                lambda right: self.answers.append((user, right)),
                lambda: user in self.gone,
                lambda: self.forgotten.append(user),
            )
        )

    def open(self, answers: int) -> None:
        """Let the threads go on until so many answers are there."""
        self.passwords.gate.set()
        while len(self.answers) < answers:
            self.loop.run()


@pytest.fixture
def crowd() -> Iterator[Crowd]:
    made = Crowd(Passwords("ada", "bob", "admin"))
    yield made
    made.passwords.gate.set()
    made.queue.close()


def test_right_and_wrong(crowd: Crowd) -> None:
    for user, password in (("ada", b"right"), ("bob", b"wrong"), ("eve", b"right")):
        crowd.knock(user, password=password)
    crowd.open(3)
    assert sorted(crowd.answers) == [("ada", True), ("bob", False), ("eve", False)]
    assert sorted(crowd.passwords.hashed) == ["ada", "bob", "eve"]  # a stranger costs one, too


def test_ten_thousand_strangers_cost_a_few_hashes_and_a_login_waits_for_a_few(crowd: Crowd) -> None:
    """They come from one address, with a name of their own each: the worst case for turns by source and user."""
    known = 0
    while crowd.knock(f"stranger {known}"):
        known += 1
    assert known >= WAITING_MAX // 2
    assert crowd.knock("ada", source="198.51.100.7")
    crowd.knock("bob", source="198.51.100.8")
    crowd.open(known + 2)
    assert len(crowd.answers) == known + 2
    assert {right for user, right in crowd.answers if user.startswith("stranger")} == {False}
    hashed = [user for user in crowd.passwords.hashed if user.startswith("stranger")]
    assert len(hashed) == THREADS + STRANGERS_HASHED  # those that came while nobody waited, and the last ones
    assert len([delay for delay in crowd.loop.delays if delay != LOOK_S]) == known - len(hashed)
    assert {"ada", "bob"} <= set(crowd.passwords.hashed[: THREADS + 4])


@pytest.mark.parametrize("user", ["bob", "ada"])
def test_strangers_from_as_many_addresses_delay_a_login_by_a_few_hashes(crowd: Crowd, user: str) -> None:
    """More than the queue takes guess at a known name, each from an address of its own: every guess would be hashed.
    Whoever comes then is neither refused nor behind them, be it at that very name."""
    for number in range(WAITING_MAX + 500):
        assert crowd.knock("ada", source=f"10.0.{number >> 8}.{number & 255}", password=b"wrong")
    assert len(crowd.answers) == 500 - THREADS  # those that made room were told at once
    assert {right for _, right in crowd.answers} == {None}
    assert crowd.knock(user, source="198.51.100.7")
    while (user, True) not in crowd.answers:
        crowd.open(len(crowd.answers) + 1)
    assert len(crowd.passwords.hashed) <= 2 * THREADS + 4


def test_a_login_from_the_strangers_own_address_waits_for_their_few_hashes_only(crowd: Crowd) -> None:
    for number in range(3000):
        assert crowd.knock(f"stranger {number}")
    assert crowd.knock("ada")
    crowd.open(3001)
    assert crowd.passwords.hashed.index("ada") <= STRANGERS_HASHED


def test_an_unknown_name_that_is_tried_many_times_is_hashed_as_often_as_a_known_one(crowd: Crowd) -> None:
    for number in range(100):
        crowd.knock(f"stranger {number}")
    for _ in range(20):
        crowd.knock("eve")
        crowd.knock("bob", password=b"wrong")
    crowd.open(140)
    assert crowd.passwords.hashed.count("bob") == 20
    assert crowd.passwords.hashed.count("eve") >= 19
    assert len(crowd.passwords.hashed) <= 40 + STRANGERS_HASHED


def test_guesses_at_one_name_do_not_delay_another(crowd: Crowd) -> None:
    for number in range(1000):
        crowd.knock("admin", password=b"%d" % number)
    crowd.knock("ada")
    crowd.open(1001)
    assert crowd.passwords.hashed.index("ada") <= THREADS + 2


def test_who_has_hung_up_costs_no_hash(crowd: Crowd) -> None:
    for number in range(2300):
        crowd.knock("admin", password=b"%d" % number)
    crowd.knock("ada")
    crowd.gone.add("admin")
    crowd.open(THREADS + 1)
    while crowd.queue.waiting:
        crowd.loop.run()
    assert crowd.passwords.hashed.count("admin") == THREADS
    assert ("ada", True) in crowd.answers
    assert crowd.queue.dropped == 2300 - THREADS


def test_strangers_that_keep_coming_are_passed_over_as_fast_as_they_come(crowd: Crowd) -> None:
    """A hundred more for each hash: however many there are, what waits does not grow, nor do connections with it."""
    crowd.passwords.gate.set()
    number = 0
    for _ in range(50):
        for _ in range(100):
            assert crowd.knock(f"stranger {number}", source=f"10.0.{number >> 8}.{number & 255}")
            number += 1
        done = len(crowd.passwords.hashed)
        while crowd.queue.waiting > STRANGERS_HASHED or len(crowd.passwords.hashed) == done:
            crowd.loop.run()
    crowd.open(number)
    assert {right for _, right in crowd.answers} == {False}
    assert len(crowd.passwords.hashed) <= 50 * (THREADS + STRANGERS_HASHED)


def test_the_connections_of_who_has_hung_up_end_while_others_come(crowd: Crowd) -> None:
    """Guesses at a known name have to be hashed, and those who wait for that would be here for seconds."""
    for number in range(3000):
        crowd.knock("admin", source=f"10.0.{number >> 8}.{number & 255}", password=b"guess")
    crowd.gone.add("admin")
    for number in range(1500):
        crowd.knock("ada", source=f"10.1.{number >> 8}.{number & 255}", password=b"guess")
    assert crowd.forgotten == ["admin"] * (3000 - THREADS)
    assert crowd.answers == []


def test_guesses_at_a_user_that_keep_coming_do_not_delay_it_where_it_is_at_home(crowd: Crowd) -> None:
    crowd.queue.was_let_in("ada", "198.51.100.7")
    guesses = 0

    def guess(count: int) -> None:
        nonlocal guesses
        for _ in range(count):
            crowd.knock(
                "ada", source=f"10.{guesses >> 16}.{guesses >> 8 & 255}.{guesses & 255}", password=b"wrong"
            )
            guesses += 1

    guess(1000)
    crowd.knock("ada", source="198.51.100.7")
    crowd.passwords.gate.set()
    while ("ada", True) not in crowd.answers:
        guess(100)
        crowd.loop.run()
    assert len(crowd.passwords.hashed) <= 2 * THREADS + 5


def test_a_source_without_room_gets_that_of_its_own_who_have_gone(crowd: Crowd) -> None:
    number = 0
    while crowd.knock(f"stranger {number}"):
        number += 1
    crowd.gone.update(f"stranger {one}" for one in range(number))
    assert crowd.knock("ada")
    assert crowd.queue.dropped > 0


def test_what_waits_is_bounded_in_bytes(crowd: Crowd) -> None:
    taken = 0
    while crowd.knock("ada", size=1 << 20):
        taken += 1
    assert taken <= 32


def test_who_has_waited_too_long_is_told_so_and_costs_no_hash(crowd: Crowd) -> None:
    for _ in range(THREADS + 5):
        crowd.knock("admin", password=b"guess")
    crowd.now = 5.0
    crowd.knock("ada")
    crowd.now = 8.0
    while len(crowd.answers) < 5:
        crowd.loop.run()
    assert crowd.answers == [("admin", None)] * 5
    crowd.open(5 + THREADS + 1)
    assert ("ada", True) in crowd.answers
    assert crowd.passwords.hashed.count("admin") == THREADS


def test_a_hash_that_fails_is_no_answer_and_stops_nobody(
    crowd: Crowd, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(user: str, password: bytes) -> bool:
        raise MemoryError

    monkeypatch.setattr(crowd.passwords, "verify", broken)
    for _ in range(5):
        crowd.knock("ada")
    crowd.open(5)
    assert crowd.answers == [("ada", None)] * 5
