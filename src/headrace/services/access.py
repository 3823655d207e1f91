"""Access control by files: passwords and ACL, read again on SIGHUP. Stands behind `core.ports.access`.

Runs on the loop; password hashes are verified on a few threads (`verifying`). Whatever is refused goes through `audit`.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

from headrace.core.inbound.pace import Budget, Pace, SharedBudget, Together
from headrace.core.ports.access import PENDING, Access, SignIn
from headrace.core.ports.identity import Identity
from headrace.core.ports.link import Link
from headrace.core.ports.rights import UNLIMITED, Rights
from headrace.errors import ConfigError, ProtocolError
from headrace.mqtt import reason_codes as rc
from headrace.net.gate import BANNED, Allowance
from headrace.net.remote import source_of
from headrace.services.acl import READ, WRITE, Acl, Grants, read_acl
from headrace.services.audit import Audit
from headrace.services.node_counts import NodeCounts
from headrace.services.node_table import key_of
from headrace.services.node_times import NodeTimes
from headrace.services.passwords import REMEMBER_S, PasswordFile, read_hashes
from headrace.services.verifying import Attempt, Loop, Verifying

Found = TypeVar("Found")

REFUSAL_STEP_S = 0.25
REFUSALS_PER_S = 1000  # the others wait for theirs, unless too many do
_SHORT = 64
_GUESSES = ("wrong_password", "unknown_user")
ANONYMOUS, CERTIFICATE, PASSWORD, NAME_ONLY = "anonymous", "certificate", "password", "name_only"


@dataclass(frozen=True, slots=True)
class AccessSettings:
    """The files and rules of access control. `client_ids`: "any", or "first-user" where a client id belongs to the user
    who opened its session."""

    password_file: str = ""  # "": none
    acl_file: str = ""
    allow_anonymous: bool = True
    client_ids: str = "any"
    remember_s: float = REMEMBER_S
    patience_s: float = 8.0  # how long a CONNECT waits for a hash before it is refused
    connects_per_minute: float = 0.0  # of one client id; 0: as often as it likes


class Known:
    """What access control remembers of a connection: how it signed in, the line of the password file that was right, and
    what it may do until the ACL is read again."""

    __slots__ = ("acl", "grants", "line", "named", "pace", "pace_of", "share", "user", "way")

    def __init__(self, way: str, line: str | None = None) -> None:
        self.way = way
        self.line = line
        self.named = True  # it chose its client id; else it got one of ours
        self.acl: Acl | None = None
        self.grants: Grants | None = None
        self.pace: Pace | None = None
        self.share: Budget | None = None  # that of its user, as long as it draws on it
        self.pace_of: tuple[int, int, str] | None = None  # the limits that it keeps
        self.user: _User | None = None  # with whom it is counted

    def let_go(self) -> None:
        """Draw on the budget of its user no more."""
        if self.share is not None:
            self.share.leave()
            self.share = None


class _OfUser(Together):
    """What all workers know of the budget of one user."""

    def __init__(self, counts: NodeCounts, times: NodeTimes, names: tuple[str, ...]) -> None:
        super().__init__()
        self._counts, self._times, self._names = counts, times, names
        self._key = key_of(*names)

    def full_at_us(self) -> int:
        return round(self._times.latest(*self._names) * 1_000_000)

    def hold(self, full_at_us: int) -> None:
        self._times.hold(full_at_us / 1_000_000, *self._names)

    def shares_of_others(self) -> int:
        return self._counts.others(self._key)

    def tell_shares(self, shares: int) -> None:
        self._counts.set(self._key, shares)


class _User:
    """The connections of one user of a tenant."""

    __slots__ = ("budget", "connections")

    def __init__(self) -> None:
        self.connections = 0
        self.budget: Budget | None = None


class FileAccess(Access):
    """Access control by a password file and an ACL file."""

    def __init__(self, settings: AccessSettings, audit: Audit, loop: Loop) -> None:
        super().__init__()
        self._settings = settings
        self.audit = audit
        self._loop = loop
        self.verifying = Verifying(loop, settings.patience_s)
        self._connects: Allowance | None = None
        self._users: dict[tuple[str, str], _User] = {}  # who is connected, by tenant and name
        self.counts: NodeCounts | None = None  # of the other workers
        self.times: NodeTimes | None = None
        self.limit(settings)
        self._refusals_free_at = 0.0
        self._passwords: PasswordFile | None = None
        self._acl: Acl | None = None
        self.reload()

    def reload(self) -> None:
        """Read both files; on ConfigError, which names the key, what was there before stays."""
        files = self._settings
        passwords = None
        if files.password_file:
            hashes = _read("access.password_file", files.password_file, read_hashes)
            passwords = PasswordFile(hashes, files.remember_s)
            if self._passwords is not None:
                passwords.take_over(self._passwords)
        acl = _read("access.acl_file", files.acl_file, read_acl) if files.acl_file else None
        self._passwords, self._acl = passwords, acl
        self.generation += 1

    def limit(self, settings: AccessSettings) -> None:
        """Keep these limits from now on, and those of the tenants as they are now. Who is connected stays; files are
        another matter (`reload`)."""
        often = settings.connects_per_minute
        if self._connects is None or often != self._settings.connects_per_minute:
            self._connects = Allowance(often / 60, max(1.0, often), time.monotonic) if often else None
        self._settings = replace(self._settings, connects_per_minute=often)
        self.generation += 1

    def must_go(self, link: Link) -> str:
        """Return why a connection that is there may not stay under the files as they are now, "" if it may."""
        known = link.grants
        if isinstance(known, Known) and known.way == PASSWORD and self._passwords is not None:
            line = self._passwords.line(link.identity.user or "")
            if line is None:
                return "user_deleted"
            if line != known.line:
                return "password_changed"
        named = link.client_id != "" and (not isinstance(known, Known) or known.named)
        if named and self._acl is not None and not self._acl.may_be(link.identity.user, link.client_id):
            return "client_id"
        return ""

    def close(self) -> None:
        self.verifying.close()

    # Who is it

    def authenticate(self, request: SignIn) -> Identity | int:
        """Let a client in, or refuse it as Mosquitto does: its answer to whatever is wrong is "not authorized", which
        tells a guesser nothing."""
        certified, username = request.link.certificate_name, request.username
        if self.guard is not None and self.guard.bans(request.peer):  # since it came in
            return self._refuse(request, None, rc.BANNED, BANNED)
        if certified is None:
            return self._refuse(request, None, rc.NOT_AUTHORIZED, "certificate_without_name")
        if certified:
            return self._welcome(request, certified, Known(CERTIFICATE))
        if username is None or self._passwords is None:
            if not self._settings.allow_anonymous:
                return self._refuse(request, username, rc.NOT_AUTHORIZED, ANONYMOUS)
            return self._welcome(request, username, Known(ANONYMOUS if username is None else NAME_ONLY))
        return self._ask_for_password(request, username, self._passwords)

    def _flaps(self, user: str | None, client_id: str) -> bool:
        """Return whether a client that has signed in comes too often: nobody else can use up what a client may."""
        if self._connects is None or not client_id:
            return False
        key = f"{user or ''}\0{client_id}"
        return not self._connects.take(key if len(key) <= _SHORT else str(hash(key)))  # many are remembered

    def _ask_for_password(self, request: SignIn, user: str, passwords: PasswordFile) -> Identity | int:
        password = request.password or b""
        if passwords.remembered(user, password):
            return self._welcome(request, user, Known(PASSWORD, passwords.line(user)))
        link, came = request.link, time.monotonic()
        attempt = Attempt(
            passwords,
            user,
            password,
            source_of(request.peer),
            request.size,
            lambda right: self._verified(request, came, passwords, right),
            link.hung_up,
            link.abort,
        )
        if not self.verifying.submit(attempt):
            return self._refuse(request, user, rc.SERVER_BUSY, "busy")
        return PENDING

    def _verified(self, request: SignIn, came: float, passwords: PasswordFile, right: bool | None) -> None:
        """Handle the answer of a thread. A refusal leaves at a multiple of a fixed time after CONNECT came: what else
        was hashed meanwhile, and at what cost, cannot be told from it."""
        user = request.username or ""
        now = self._passwords
        if right and now is not passwords and (now is None or not now.same_line(user, passwords)):
            right = None  # what was right has been changed meanwhile: come again
        answer: Identity | int
        if self.guard is not None and self.guard.bans(request.peer):  # by a guess that was before this one
            answer = self._refuse(request, user, rc.BANNED, BANNED)
        elif right is None:
            answer = self._refuse(request, user, rc.SERVER_UNAVAILABLE, "unavailable")
        elif not right:
            why = "wrong_password" if passwords.knows(user) else "unknown_user"
            code = self._refuse(request, user, rc.NOT_AUTHORIZED, why)
            self._refuse_in_time(request, came, code)
            return
        else:
            assert now is not None
            now.remember(user, request.password or b"")
            answer = self._welcome(request, user, Known(PASSWORD, now.line(user)))
        request.answer(answer)

    def _refuse_in_time(self, request: SignIn, came: float, code: int) -> None:
        """Refuse only so many in a second, as far as a CONNECT may wait: who comes back at once leaves room for others
        meanwhile."""
        if request.link.hung_up():
            request.link.abort()
            return
        now = turn = time.monotonic()
        if self._refusals_free_at - came <= self._settings.patience_s:
            turn = max(now, self._refusals_free_at)
            self._refusals_free_at = turn + 1 / REFUSALS_PER_S
        steps = math.ceil((turn - came) / REFUSAL_STEP_S)
        self._loop.call_later(came + steps * REFUSAL_STEP_S - now, request.answer, code)

    def _welcome(self, request: SignIn, user: str | None, known: Known) -> Identity | int:
        """Ask whether a client that is who it says may have this client id."""
        client_id = request.client_id
        if self._flaps(user, client_id):
            return self._refuse(request, user, rc.CONNECTION_RATE_EXCEEDED, "flapping")
        known.named = bool(client_id)
        if known.named and self._acl is not None and not self._acl.may_be(user, client_id):
            return self._refuse(request, user, rc.CLIENT_IDENTIFIER_NOT_VALID, "client_id")
        identity = request.identity_of(user)
        if self._settings.client_ids == "first-user" and request.owner(identity.tenant) not in (None, user):
            return self._refuse(request, user, rc.CLIENT_IDENTIFIER_NOT_VALID, "client_id_of_another")
        if not self._counts(request, identity, known):
            return self._refuse(request, user, rc.QUOTA_EXCEEDED, "user_connections")
        request.link.grants = known
        if known.way == PASSWORD:
            self.verifying.was_let_in(user or "", source_of(request.peer))
        self.audit.success("login", known.way, source_of(request.peer), **_signing(request, user))
        return identity

    def _counts(self, request: SignIn, identity: Identity, known: Known) -> bool:
        """Count a connection with those of its user. False: they are as many as they may be, and it takes over none of
        them."""
        tenant, name = identity.tenant, identity.user
        if name is None or request.link.closed:
            return True
        user = self._users.get((tenant, name))
        most = identity.limits.user_connections_max
        if most and self._connections_of(tenant, name) >= most and request.user_before(tenant) != name:
            return False
        if user is None:
            user = self._users[tenant, name] = _User()
        user.connections += 1
        self._tell(tenant, name, user.connections)
        known.user = user
        return True

    def _connections_of(self, tenant: str, name: str) -> int:
        """Return how many connections a user has, on all workers."""
        user = self._users.get((tenant, name))
        others = 0 if self.counts is None else self.counts.others(key_of("user", tenant, name))
        return others if user is None else others + user.connections

    def _tell(self, tenant: str, name: str, connections: int) -> None:
        """Tell the other workers how many connections a user has here."""
        if self.counts is not None:
            self.counts.set(key_of("user", tenant, name), connections)

    def left(self, link: Link) -> None:
        known, name = link.grants, link.identity.user
        if not isinstance(known, Known) or known.user is None or name is None:
            return
        user, known.user = known.user, None
        user.connections -= 1
        known.let_go()
        key = link.identity.tenant, name
        self._tell(*key, user.connections)
        if not user.connections and self._users.get(key) is user:
            del self._users[key]

    def _refuse(self, request: SignIn, user: str | None, code: int, why: str) -> int:
        source = source_of(request.peer)
        self.audit.failure("login failed", why, source, **_signing(request, user))
        if why in _GUESSES and self.guard is not None and self.guard.failed(request.peer):
            self.audit.failure(BANNED, "failed_logins", source, address=request.peer)
        return code

    # What may it do

    def may_publish(self, link: Link, topic: bytes) -> bool:
        acl = self._acl
        return acl is None or self._grants(acl, link).allows(WRITE, topic)

    def may_leave_will(self, user: str | None, client_id: str, topic: bytes) -> bool:
        acl = self._acl
        if acl is None or acl.grants(user, client_id).allows(WRITE, topic):
            return True
        more = {"user": user or "", "client": client_id, "topic": topic.decode("utf-8")}
        self.audit.failure("denied", "will_due", client_id[:_SHORT], **more)
        return False

    def may_receive(self, link: Link, topic: bytes) -> bool:
        acl = self._acl
        return acl is None or self._grants(acl, link).allows(READ, topic)

    def may_device_receive(self, link: Link, client_id: str, topic: bytes) -> bool:
        acl, user = self._acl, link.identity.user
        return acl is None or (
            acl.may_be(user, client_id) and acl.grants(user, client_id).allows(READ, topic)
        )

    def may_subscribe(self, link: Link, topic_filter: str) -> bool:
        acl = self._acl
        if acl is None or self._grants(acl, link).allows_filter(topic_filter):
            return True
        self.audit.failure(
            "denied", "subscribe", _source(link), **_named(link, link.client_id), topic=topic_filter
        )
        return False

    def renamed(self, link: Link) -> bool:
        acl = self._acl
        self._known(link).acl = None
        return acl is None or acl.may_be(link.identity.user, link.client_id)

    def note_denied(self, link: Link, action: str, topic: bytes) -> None:
        more = _named(link, link.client_id)
        self.audit.failure("denied", action, _source(link), **more, topic=topic.decode("utf-8"))

    def overdrawn(self, link: Link, rights: Rights) -> None:
        known, ours = self._known(link), link.identity.limits
        limits = (link.messages_per_s, ours.user_messages_per_s, ours.over_rate)
        if known.pace_of != limits:
            known.pace_of, known.pace = limits, self._pace(link, known)
        pace = known.pace
        if pace is None:
            rights.left = UNLIMITED
            return
        waited = pace.waits
        if not pace.overdrawn(rights, ours.over_rate == "wait"):
            return
        if not waited:
            reason = "user_messages_per_s" if not link.messages_per_s else "messages_per_s"
            self.audit.failure("too many messages", reason, _source(link), **_named(link, link.client_id))
        if ours.over_rate != "wait":
            raise ProtocolError(rc.MESSAGE_RATE_TOO_HIGH, "more messages a second than are allowed")

    def _pace(self, link: Link, known: Known) -> Pace | None:
        """Return what a connection keeps to: the budgets of its own and of its user."""
        known.let_go()
        now_ms, budgets = link.worker.clock.mono_ms, []
        if link.messages_per_s:
            budgets.append(Budget(link.messages_per_s, now_ms))
        together, user = link.identity.limits.user_messages_per_s, known.user
        if together and user is not None:
            if user.budget is None or user.budget.per_s != together:
                user.budget = self._budget(together, now_ms, link.identity)
            known.share = user.budget
            known.share.join()
            budgets.append(known.share)
        return Pace(link, budgets) if budgets else None

    def _budget(self, per_s: int, now_ms: int, identity: Identity) -> Budget:
        """Return the budget of a user; among other workers it is one with theirs."""
        if self.counts is None or self.times is None:
            return Budget(per_s, now_ms)
        names = ("messages", identity.tenant, identity.user or "")
        return SharedBudget(per_s, now_ms, _OfUser(self.counts, self.times, names))

    def _known(self, link: Link) -> Known:
        known = link.grants
        if not isinstance(known, Known):
            known = link.grants = Known(ANONYMOUS)
        return known

    def _grants(self, acl: Acl, link: Link) -> Grants:
        """Return the grants of a connection, remembered on the connection until the file is read again."""
        known = self._known(link)
        if known.grants is None or known.acl is not acl:
            known.acl, known.grants = acl, acl.grants(link.identity.user, link.client_id)
        return known.grants


def _read(key: str, file: str, read: Callable[[Path], Found]) -> Found:
    """Read a file of access control. Raises ConfigError, which names key, file and, where there is one, the line."""
    try:
        return read(Path(file))
    except ConfigError as error:
        raise type(error)(f"{key}: {error}") from None
    except OSError as error:
        raise ConfigError(f"{key}: {file}: {error.strerror}") from None


def _source(link: Link) -> str:
    return source_of(link.peer())


def _signing(request: SignIn, user: str | None) -> dict[str, str]:
    """Return who asks to be let in: the connection may have gone meanwhile."""
    listener = request.link.listener()
    return {
        "user": user or "",
        "client": request.client_id,
        "address": request.peer,
        "listener": listener,
    }


def _named(link: Link, client_id: str) -> dict[str, str]:
    user, listener = link.identity.user or "", link.listener()
    return {"user": user, "client": client_id, "address": link.peer(), "listener": listener}
