"""Access control by files: passwords and ACL, read again on SIGHUP. Stands behind `core.access`.

Runs on the loop; password hashes are verified on a few threads, a bounded number at a time: beyond that a CONNECT is
answered with "server busy", so that guessing passwords costs neither memory nor other clients' messages.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

from headrace.core.access import PENDING, Access, SignIn
from headrace.core.interfaces import Link
from headrace.mqtt import reason_codes as rc
from headrace.services.acl import READ, WRITE, Acl, Grants, read_acl
from headrace.services.passwords import PasswordFile, read_hashes

VERIFIER_THREADS = 2
WAITING_MAX = 2000

OnLoop = Callable[[Callable[[int], None], int], object]


class FileAccess(Access):
    """Passwords and ACL. An empty path: none of it. `on_loop` runs a function on the loop from a thread."""

    def __init__(self, password_file: str, acl_file: str, allow_anonymous: bool, on_loop: OnLoop) -> None:
        super().__init__()
        self._password_file = password_file
        self._acl_file = acl_file
        self._allow_anonymous = allow_anonymous
        self._on_loop = on_loop
        self._threads = ThreadPoolExecutor(VERIFIER_THREADS, "passwords")
        self._waiting = 0
        self._passwords: PasswordFile | None = None
        self._acl: Acl | None = None
        self.reload()

    def reload(self) -> None:
        """Read both files; on ConfigError or OSError what was there before stays."""
        passwords = PasswordFile(read_hashes(Path(self._password_file))) if self._password_file else None
        acl = read_acl(Path(self._acl_file)) if self._acl_file else None
        self._passwords, self._acl = passwords, acl
        self.generation += 1

    def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)

    # Who is it

    def authenticate(self, request: SignIn) -> int:
        """Mosquitto's answer to whatever is wrong is "not authorized", which tells a guesser nothing."""
        link, username = request.link, request.username
        if link.identity:
            link.user = link.identity
            return rc.SUCCESS
        if username is None:
            return rc.SUCCESS if self._allow_anonymous else rc.NOT_AUTHORIZED
        link.user = username
        passwords = self._passwords
        if passwords is None:
            return rc.SUCCESS if self._allow_anonymous else rc.NOT_AUTHORIZED
        password = request.password or b""
        if passwords.remembered(username, password):
            return rc.SUCCESS
        if self._waiting >= WAITING_MAX:
            return rc.SERVER_BUSY
        self._waiting += 1
        verified = self._threads.submit(passwords.verify, username, password)
        verified.add_done_callback(
            lambda done: self._on_loop(lambda code: self._answer(request, code), _code(done))
        )
        return PENDING

    def _answer(self, request: SignIn, code: int) -> None:
        self._waiting -= 1
        request.answer(code)

    # What may it do

    def may_publish(self, link: Link, topic: bytes) -> bool:
        acl = self._acl
        return acl is None or self._grants(acl, link).allows(WRITE, topic)

    def may_leave_will(self, user: str | None, client_id: str, topic: bytes) -> bool:
        acl = self._acl
        return acl is None or acl.grants(user, client_id).allows(WRITE, topic)

    def may_receive(self, link: Link, topic: bytes) -> bool:
        acl = self._acl
        return acl is None or self._grants(acl, link).allows(READ, topic)

    def may_subscribe(self, link: Link, topic_filter: str) -> bool:
        acl = self._acl
        return acl is None or self._grants(acl, link).allows_filter(topic_filter)

    def _grants(self, acl: Acl, link: Link) -> Grants:
        """Remembered on the connection until the file is read again."""
        held = link.grants
        if isinstance(held, Grants) and held.acl is acl:
            return held
        grants = acl.grants(link.user, link.client_id)
        link.grants = grants
        return grants


def _code(verified: Future[bool]) -> int:
    if verified.cancelled() or verified.exception() is not None:
        return rc.SERVER_UNAVAILABLE
    return rc.SUCCESS if verified.result() else rc.NOT_AUTHORIZED
