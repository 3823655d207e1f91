"""Access control by files, below the broker."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from headrace.core.access import PENDING, SignIn
from headrace.core.broker import Broker
from headrace.core.interfaces import Clock
from headrace.core.settings import BrokerSettings
from headrace.errors import ConfigError
from headrace.mqtt import reason_codes as rc
from headrace.mqtt.packets import Connect
from headrace.mqtt.properties import Properties
from headrace.services import access as module
from headrace.services.access import FileAccess
from headrace.services.passwords import hash_password, write_hashes
from headrace.stores.memory import ManualScheduler, MemoryJournal, MemoryLink


class Loop:
    """Collects what threads hand to the loop; `run` waits for one and calls it."""

    def __init__(self) -> None:
        self._calls: list[tuple[Callable[[int], None], int]] = []
        self._ready = threading.Semaphore(0)

    def call(self, function: Callable[[int], None], code: int) -> None:
        self._calls.append((function, code))
        self._ready.release()

    def run(self) -> int:
        assert self._ready.acquire(timeout=10)
        function, code = self._calls.pop(0)
        function(code)
        return code


@pytest.fixture
def loop() -> Loop:
    return Loop()


@pytest.fixture
def broker() -> Broker:
    return Broker(MemoryJournal(), ManualScheduler(), Clock(), BrokerSettings())


def ask(
    broker: Broker, access: FileAccess, user: str | None, password: str | None, identity: str = ""
) -> int:
    link = MemoryLink(broker)
    link.identity = identity
    link.version = 4
    secret = None if password is None else password.encode()
    packet = Connect(4, "c", True, 0, user, secret, None, Properties())
    return access.authenticate(SignIn(broker.sessions, link, packet))


def test_passwords(tmp_path: Path, broker: Broker, loop: Loop) -> None:
    write_hashes(tmp_path / "p", {"ada": hash_password(b"right")})
    access = FileAccess(str(tmp_path / "p"), "", False, loop.call)
    assert ask(broker, access, None, None) == rc.NOT_AUTHORIZED
    answers = []
    for user, password in (("ada", "wrong"), ("eve", "right"), ("ada", None), ("ada", "right")):
        assert ask(broker, access, user, password) == PENDING
        answers.append(loop.run())
    assert answers == [rc.NOT_AUTHORIZED, rc.NOT_AUTHORIZED, rc.NOT_AUTHORIZED, 0]
    assert ask(broker, access, "ada", "right") == 0  # remembered
    assert ask(broker, access, "ada", "wrong") == PENDING
    loop.run()
    access.close()


def test_a_certificate_needs_no_password(broker: Broker, loop: Loop) -> None:
    access = FileAccess("", "", False, loop.call)
    assert ask(broker, access, None, None, identity="pump 7") == 0
    assert ask(broker, access, "ada", "x") == rc.NOT_AUTHORIZED
    access.close()


def test_anonymous_clients_where_they_are_allowed(tmp_path: Path, broker: Broker, loop: Loop) -> None:
    (tmp_path / "acl").write_text("topic read a\nuser ada\ntopic write b\n")
    access = FileAccess("", str(tmp_path / "acl"), True, loop.call)
    assert ask(broker, access, None, None) == 0
    assert ask(broker, access, "ada", None) == 0
    link = MemoryLink(broker)
    assert access.may_receive(link, b"a")
    assert not access.may_publish(link, b"b")
    assert access.may_subscribe(link, "a")
    link.user, link.grants = "ada", None
    assert access.may_publish(link, b"b")
    access.close()


def test_too_many_at_once_are_told_to_come_later(
    tmp_path: Path, broker: Broker, loop: Loop, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_hashes(tmp_path / "p", {"ada": hash_password(b"right")})
    monkeypatch.setattr(module, "WAITING_MAX", 2)
    access = FileAccess(str(tmp_path / "p"), "", False, loop.call)
    assert [ask(broker, access, "ada", "wrong") for _ in range(3)] == [PENDING, PENDING, rc.SERVER_BUSY]
    loop.run()
    loop.run()
    assert ask(broker, access, "ada", "right") == PENDING
    assert loop.run() == 0
    access.close()


def test_a_file_that_cannot_be_read_changes_nothing(tmp_path: Path, broker: Broker, loop: Loop) -> None:
    acl, passwords = tmp_path / "acl", tmp_path / "p"
    acl.write_text("topic read a\n")
    write_hashes(passwords, {"ada": hash_password(b"right")})
    access = FileAccess(str(passwords), str(acl), True, loop.call)
    link = MemoryLink(broker)
    acl.write_text("topic read b\n")
    passwords.write_text("nonsense\n")
    with pytest.raises(ConfigError):
        access.reload()
    assert access.may_receive(link, b"a")
    passwords.unlink()
    with pytest.raises(OSError):
        access.reload()
    write_hashes(passwords, {})
    access.reload()
    assert access.may_receive(link, b"b")
    assert not access.may_receive(link, b"a")
    access.close()
