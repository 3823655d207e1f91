"""Access control by files, below the broker."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from headrace.core.broker import Broker
from headrace.core.ports.access import PENDING, SignIn
from headrace.core.ports.clock import Clock
from headrace.core.ports.identity import Identity
from headrace.core.ports.settings import BrokerSettings
from headrace.core.records.event import SessionOpened
from headrace.core.worker import Worker
from headrace.errors import ConfigError
from headrace.mqtt import reason_codes as rc
from headrace.mqtt.packets import Connect
from headrace.mqtt.properties import Properties
from headrace.net.gate import Gate, GateSettings
from headrace.services import verifying
from headrace.services.access import REFUSAL_STEP_S, REFUSALS_PER_S, AccessSettings, FileAccess
from headrace.services.audit import Audit
from headrace.services.passwords import hash_password, read_hashes, write_hashes
from headrace.storage.memory import ManualScheduler, MemoryJournal, MemoryLink


class Loop:
    """Collects what threads hand to the loop; `run` waits for one and calls it."""

    def __init__(self) -> None:
        self._calls: list[tuple[Callable[..., object], tuple[Any, ...]]] = []
        self._ready = threading.Semaphore(0)
        self.delays: list[float] = []

    def call_soon_threadsafe(self, callback: Callable[..., object], *args: Any) -> None:
        self._calls.append((callback, args))
        self._ready.release()

    def call_soon(self, callback: Callable[..., object], *args: Any) -> None:
        self.call_soon_threadsafe(callback, *args)

    def call_later(self, delay: float, callback: Callable[..., object], *args: Any) -> None:
        self.delays.append(delay)
        self.call_soon_threadsafe(callback, *args)

    def run(self) -> None:
        assert self._ready.acquire(timeout=10)
        callback, args = self._calls.pop(0)
        callback(*args)


class Request(SignIn):
    """Keeps the late answer."""

    code = PENDING  # 0: it is let in

    def answer(self, answer: Identity | int) -> None:
        if isinstance(answer, Identity):
            self.link.identity, self.code = answer, 0
        else:
            self.code = answer


class Told:
    """Lines of the audit log."""

    def __init__(self) -> None:
        self.lines: list[tuple[str, dict[str, Any]]] = []

    def __call__(self, event: str, **more: Any) -> None:
        self.lines.append((event, more))

    def reasons(self) -> list[tuple[str, str]]:
        return [(event, more["reason"]) for event, more in self.lines]


@pytest.fixture
def told() -> Told:
    return Told()


@pytest.fixture
def loop() -> Loop:
    return Loop()


@pytest.fixture
def broker() -> Broker:
    return Worker(ManualScheduler(), Clock(), BrokerSettings()).own(0, MemoryJournal())


@pytest.fixture
def make(told: Told, loop: Loop) -> Iterator[Callable[..., FileAccess]]:
    made: list[FileAccess] = []
    ticks = count(step=100)  # each event in an interval of its own

    def make(**settings: Any) -> FileAccess:
        audit = Audit(told, "all", lambda: float(next(ticks)))
        made.append(FileAccess(AccessSettings(**settings), audit, loop))
        return made[-1]

    yield make
    for access in made:
        access.close()


class Door:
    """CONNECTs of clients of `broker`, answered by `access`."""

    peer = "memory"

    def __init__(self, broker: Broker, access: FileAccess, loop: Loop) -> None:
        self.broker, self.access, self._loop = broker, access, loop

    def ask(
        self, user: str | None, password: str | None, identity: str | None = "", client_id: str = "c"
    ) -> Request:
        link = MemoryLink(self.broker.worker)
        link.certificate_name = identity
        link.version = 4
        secret = None if password is None else password.encode()
        packet = Connect(4, client_id, True, 0, user, secret, None, Properties())
        request = Request(self.broker.sessions, link, packet)
        request.peer = self.peer
        request.answer(self.access.authenticate(request))
        return request

    def answer(self, user: str | None, password: str | None, **more: Any) -> int:
        """The answer, when it is there."""
        request = self.ask(user, password, **more)
        while request.code == PENDING:
            self._loop.run()
        return request.code


def passwords(tmp_path: Path, **users: str) -> str:
    write_hashes(tmp_path / "p", {user: hash_password(password.encode()) for user, password in users.items()})
    return str(tmp_path / "p")


def acl(tmp_path: Path, text: str) -> str:
    (tmp_path / "acl").write_text(text)
    return str(tmp_path / "acl")


Make = Callable[..., FileAccess]


def test_passwords(tmp_path: Path, broker: Broker, loop: Loop, make: Make, told: Told) -> None:
    access = make(password_file=passwords(tmp_path, ada="right"), allow_anonymous=False)
    door = Door(broker, access, loop)
    assert door.ask(None, None).code == rc.NOT_AUTHORIZED
    tries = [("ada", "wrong"), ("eve", "right"), ("ada", None), ("ada", "right")]
    assert [door.ask(user, password).code for user, password in tries] == [PENDING] * 4
    assert [door.answer(user, password) for user, password in tries] == [rc.NOT_AUTHORIZED] * 3 + [0]
    assert door.ask("ada", "right").code == 0  # remembered
    assert door.ask("ada", "wrong").code == PENDING
    assert {reason for _, reason in told.reasons()} == {
        "anonymous", "wrong_password", "unknown_user", "password"
    }  # fmt: skip
    event, more = told.lines[0]
    assert (event, more["client"], more["address"]) == ("login failed", "c", "memory")


def test_a_refusal_leaves_at_a_fixed_step_of_time(
    tmp_path: Path, broker: Broker, loop: Loop, make: Make
) -> None:
    door = Door(broker, make(password_file=passwords(tmp_path, ada="right")), loop)
    began = time.monotonic()
    for user, password in (("ada", "wrong"), ("eve", "right"), ("ada", "right")):
        door.answer(user, password)
    took = time.monotonic() - began
    delays = [delay for delay in loop.delays if delay != verifying.LOOK_S]
    assert len(delays) == 2  # who is right does not wait
    assert all(max(0.0, REFUSAL_STEP_S - took) <= delay < REFUSAL_STEP_S for delay in delays)


@pytest.mark.parametrize("user", ["ada", "nobody"])
def test_so_many_refusals_leave_in_a_second_unless_too_many_wait(
    tmp_path: Path, broker: Broker, loop: Loop, make: Make, user: str
) -> None:
    access = make(password_file=passwords(tmp_path, ada="right"), patience_s=8.0)
    door = Door(broker, access, loop)

    def refused(taken_until_s: float) -> tuple[float, float]:
        """How long the answer waits, and how long it took in all, when others have the next seconds."""
        began = time.monotonic()
        access.accounts.refusals_free_at = free_at = began + taken_until_s
        loop.delays.clear()
        assert door.answer(user, "wrong") == rc.NOT_AUTHORIZED
        (delay,) = [delay for delay in loop.delays if delay != verifying.LOOK_S]
        assert access.accounts.refusals_free_at in (free_at, pytest.approx(free_at + 1 / REFUSALS_PER_S))
        return delay, delay + time.monotonic() - began

    assert refused(5.0)[1] >= 5.0
    assert refused(100.0)[0] <= REFUSAL_STEP_S
    assert door.answer("ada", "right") == 0


def test_what_was_verified_is_hashed_again_after_its_time(
    tmp_path: Path, broker: Broker, loop: Loop, make: Make
) -> None:
    door = Door(broker, make(password_file=passwords(tmp_path, ada="right"), remember_s=0.0), loop)
    assert door.answer("ada", "right") == 0
    assert door.ask("ada", "right").code == PENDING


def test_a_certificate_needs_no_password_and_must_have_a_name(
    broker: Broker, loop: Loop, make: Make, told: Told
) -> None:
    door = Door(broker, make(allow_anonymous=False), loop)
    assert door.ask(None, None, identity="pump 7").code == 0
    assert door.ask("ada", "x").code == rc.NOT_AUTHORIZED
    assert door.ask("ada", "x", identity=None).code == rc.NOT_AUTHORIZED
    assert told.reasons()[-1] == ("login failed", "certificate_without_name")
    assert Door(broker, make(), loop).ask("ada", "x", identity=None).code == rc.NOT_AUTHORIZED


def test_anonymous_clients_where_they_are_allowed(
    tmp_path: Path, broker: Broker, loop: Loop, make: Make
) -> None:
    access = make(acl_file=acl(tmp_path, "topic read a\nuser ada\ntopic write b\n"))
    door = Door(broker, access, loop)
    assert door.ask(None, None).code == 0
    assert door.ask("ada", None).code == 0
    link = MemoryLink(broker.worker)
    assert access.may_receive(link, b"a")
    assert not access.may_publish(link, b"b")
    assert access.may_subscribe(link, "a")
    link.identity, link.grants = broker.fold.tenant("default").identity_of("ada"), None
    assert access.may_publish(link, b"b")


def test_a_user_may_have_client_ids_of_her_own(
    tmp_path: Path, broker: Broker, loop: Loop, make: Make, told: Told
) -> None:
    door = Door(broker, make(acl_file=acl(tmp_path, "user ada\nclient-id ada-*\n")), loop)
    assert door.ask("ada", None, client_id="ada-1").code == 0
    assert door.ask("ada", None, client_id="").code == 0  # it gets one of ours
    assert door.ask("ada", None, client_id="bob-1").code == rc.CLIENT_IDENTIFIER_NOT_VALID
    assert door.ask("bob", None, client_id="bob-1").code == 0
    assert ("login failed", "client_id") in told.reasons()


def test_denials_are_told_with_who_and_what(
    tmp_path: Path, broker: Broker, loop: Loop, make: Make, told: Told
) -> None:
    access = make(acl_file=acl(tmp_path, "user ada\ntopic read a\n"))
    request = Door(broker, access, loop).ask("ada", None)
    link = request.link
    link.client_id = "c"
    told.lines.clear()
    assert access.may_subscribe(link, "a")
    assert not access.may_subscribe(link, "b\n/#")
    assert not access.may_publish(link, b"a")
    access.note_denied(link, "publish", b"a")
    assert not access.may_leave_will("default", "ada", "c", b"w")
    assert told.reasons() == [("denied", "subscribe"), ("denied", "publish"), ("denied", "will_due")]
    assert told.lines[0][1]["topic"] == "b\\n/#"
    assert [(more["user"], more["client"]) for _, more in told.lines] == [("ada", "c")] * 3


def test_a_source_that_fills_the_queue_is_told_to_come_later(
    tmp_path: Path, broker: Broker, loop: Loop, make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(verifying, "WAITING_MAX", 4)
    door = Door(broker, make(password_file=passwords(tmp_path, ada="right")), loop)
    codes = [door.ask("ada", "wrong").code for _ in range(verifying.THREADS + 3)]
    assert codes == [PENDING] * (verifying.THREADS + 2) + [rc.SERVER_BUSY]
    assert door.answer("ada", "right") in (0, rc.SERVER_BUSY)
    while door.access.verifying.waiting:
        loop.run()
    assert door.answer("ada", "right") == 0


def test_the_connection_of_an_abandoned_connect_ends(
    tmp_path: Path, broker: Broker, loop: Loop, make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    access = make(password_file=passwords(tmp_path, ada="right"))
    attempts: list[verifying.Attempt] = []

    def submit(attempt: verifying.Attempt) -> bool:
        attempts.append(attempt)
        return True

    monkeypatch.setattr(access.verifying, "submit", submit)
    request = Door(broker, access, loop).ask("ada", "wrong")
    assert not request.link.closed
    attempts[0].forget()
    assert request.link.closed


def test_what_is_verified_while_the_password_changes_is_not_let_in(
    tmp_path: Path, broker: Broker, loop: Loop, make: Make
) -> None:
    access = make(password_file=passwords(tmp_path, ada="old", bob="same"))
    door = Door(broker, access, loop)
    ada, bob = door.ask("ada", "old"), door.ask("bob", "same")
    lines = read_hashes(tmp_path / "p")
    write_hashes(tmp_path / "p", {"ada": hash_password(b"new"), "bob": lines["bob"]})
    access.reload()
    while PENDING in (ada.code, bob.code):
        loop.run()
    assert (ada.code, bob.code) == (rc.SERVER_UNAVAILABLE, 0)
    assert door.answer("ada", "old") == rc.NOT_AUTHORIZED
    assert door.answer("ada", "new") == 0


def test_who_must_go_after_a_reload(tmp_path: Path, broker: Broker, loop: Loop, make: Make) -> None:
    access = make(
        password_file=passwords(tmp_path, gone="1", changed="2", stays="3"),
        acl_file=acl(tmp_path, "topic read #\n"),
    )
    door = Door(broker, access, loop)
    links = {}
    for user, password in (("gone", "1"), ("changed", "2"), ("stays", "3"), (None, None)):
        request = door.ask(user, password, client_id=f"of {user}")
        while request.code == PENDING:
            loop.run()
        assert request.code == 0
        request.link.client_id = request.client_id
        links[user] = request.link
    links["by certificate"] = door.ask(None, None, identity="gone").link
    assert {access.must_go(link) for link in links.values()} == {""}
    lines = read_hashes(tmp_path / "p")
    write_hashes(tmp_path / "p", {"changed": hash_password(b"2"), "stays": lines["stays"]})
    access.reload()
    assert {user: access.must_go(link) for user, link in links.items()} == {
        "gone": "user_deleted",
        "changed": "password_changed",
        "stays": "",
        None: "",
        "by certificate": "",
    }
    assert door.ask("stays", "3").code == 0  # still remembered: her line is the same
    assert door.ask("changed", "2").code == PENDING
    acl(tmp_path, "client-id x\nuser stays\nclient-id y\n")
    access.reload()
    assert (access.must_go(links["stays"]), access.must_go(links[None])) == ("client_id", "client_id")


def test_a_client_that_comes_again_and_again_is_told_to_wait(
    broker: Broker, loop: Loop, make: Make, told: Told
) -> None:
    door = Door(broker, make(connects_per_minute=3.0), loop)
    assert [door.ask(None, None).code for _ in range(4)] == [0, 0, 0, rc.CONNECTION_RATE_EXCEEDED]
    assert door.ask(None, None, client_id="another").code == 0
    assert door.ask(None, None, client_id="").code == 0
    assert ("login failed", "flapping") in told.reasons()


def test_failed_logins_ban_where_they_come_from(
    tmp_path: Path, broker: Broker, loop: Loop, make: Make, told: Told
) -> None:
    access = make(password_file=passwords(tmp_path, ada="right"), allow_anonymous=False)
    access.guard = gate = Gate(GateSettings(ban_after_failures=3))
    door = Door(broker, access, loop)
    door.peer = "192.0.2.1:5"
    for _ in range(5):
        door.answer(None, None)  # no guess at a password
    for number, user in enumerate(("ada", "eve", "ada")):
        assert gate.refusal("192.0.2.1:6") == ""
        assert door.answer(user, f"{number}") == rc.NOT_AUTHORIZED
    assert gate.refusal("192.0.2.1:6") == "banned"
    assert gate.refusal("192.0.2.2:6") == ""
    assert told.reasons()[-1] == ("banned", "failed_logins")


def test_a_ban_holds_for_whoever_had_come_before_it(
    tmp_path: Path, broker: Broker, loop: Loop, make: Make, told: Told
) -> None:
    """Connections that were opened first give no more guesses than one; nor do CONNECTs that wait already."""
    access = make(password_file=passwords(tmp_path, ada="right"), allow_anonymous=False)
    access.guard = Gate(GateSettings(ban_after_failures=3))
    door = Door(broker, access, loop)
    door.peer = "[2001:db8::5]:5"
    waiting = [door.ask("ada", "right" if number == 9 else f"{number}") for number in range(10)]
    while any(request.code == PENDING for request in waiting):
        loop.run()
    assert sorted(request.code for request in waiting) == [rc.NOT_AUTHORIZED] * 3 + [rc.BANNED] * 7
    door.peer = "[2001:db8::6]:5"
    assert door.ask("ada", "right").code == rc.BANNED
    door.peer = "[2001:db8:0:1::6]:5"
    assert door.answer("ada", "right") == 0


def test_nobody_uses_up_the_connects_of_a_client_that_signs_in(
    tmp_path: Path, broker: Broker, loop: Loop, make: Make
) -> None:
    access = make(password_file=passwords(tmp_path, ada="right"), connects_per_minute=2.0)
    door = Door(broker, access, loop)
    for user in ("ada", "eve", "ada"):
        assert door.answer(user, "wrong", client_id="pump") == rc.NOT_AUTHORIZED
    assert [door.answer("ada", "right", client_id="pump") for _ in range(3)] == [0, 0, 0x9F]


def test_who_got_a_client_id_of_ours_stays_at_a_reload(
    tmp_path: Path, broker: Broker, loop: Loop, make: Make
) -> None:
    access = make(acl_file=acl(tmp_path, "user ada\nclient-id ada-*\n"))
    door = Door(broker, access, loop)
    ours, chosen = door.ask("ada", None, client_id=""), door.ask("ada", None, client_id="ada-1")
    ours.link.client_id, chosen.link.client_id = "headrace-1", "ada-1"
    acl(tmp_path, "user ada\nclient-id eve-*\n")
    access.reload()
    assert (access.must_go(ours.link), access.must_go(chosen.link)) == ("", "client_id")


def test_the_first_user_keeps_a_client_id(tmp_path: Path, broker: Broker, loop: Loop, make: Make) -> None:
    door = Door(broker, make(acl_file=acl(tmp_path, "topic #\n"), client_ids="first-user"), loop)
    opened = SessionOpened.at(0, "default", "pump", 0, 9, 5, None, 0, "ada")
    session = broker.fold.opened(opened)
    assert session.owner == "ada"
    assert door.ask("ada", None, client_id="pump").code == 0
    assert door.ask("eve", None, client_id="pump").code == rc.CLIENT_IDENTIFIER_NOT_VALID
    assert door.ask(None, None, client_id="pump").code == rc.CLIENT_IDENTIFIER_NOT_VALID
    assert door.ask("eve", None, client_id="other").code == 0
    session.owner = None  # as an earlier release left it
    assert door.ask("eve", None, client_id="pump").code == 0


def test_a_file_that_cannot_be_read_changes_nothing(
    tmp_path: Path, broker: Broker, loop: Loop, make: Make
) -> None:
    rules, file = tmp_path / "acl", tmp_path / "p"
    access = make(password_file=passwords(tmp_path, ada="right"), acl_file=acl(tmp_path, "topic read a\n"))
    link = MemoryLink(broker.worker)
    rules.write_text("topic read b\n")
    file.write_text("nonsense\n")
    with pytest.raises(ConfigError, match=r"access\.password_file: .*line 1"):
        access.reload()
    assert access.may_receive(link, b"a")
    file.unlink()
    with pytest.raises(ConfigError, match=r"access\.password_file: .*No such file"):
        access.reload()
    write_hashes(file, {})
    access.reload()
    assert access.may_receive(link, b"b")
    assert not access.may_receive(link, b"a")
