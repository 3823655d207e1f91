"""Who a client is: the directory is asked for its account, its password is verified, then it comes in or not.

Runs on the loop. The directory answers at once or later; passwords are hashed on a few threads (`verifying`). What
either of them said before the directory changed is not acted on: it is asked again, and who was right is let in if the
password is the same still. Whatever is refused goes through `audit`.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass

from headrace.core.ports.access import PENDING, Guard, SignIn
from headrace.core.ports.directory import NO_TELLING, Account, Directory, Rules, TokenClaims, Tokens
from headrace.core.ports.identity import Identity
from headrace.mqtt import reason_codes as rc
from headrace.net.gate import BANNED, Allowance
from headrace.net.remote import source_of
from headrace.services.audit import Audit
from headrace.services.pacing import ANONYMOUS, CERTIFICATE, JWT, NAME_ONLY, PASSWORD, Known, Paces
from headrace.services.passwords import REMEMBER_S
from headrace.services.token_looks import Expiring, TokenLook
from headrace.services.verifying import Attempt, Loop, Verifying
from headrace.services.waiting import Asked, Waiting

REFUSAL_STEP_S = 0.25
REFUSALS_PER_S = 1000  # the others wait for theirs, unless too many do
ASKED_MAX = 4  # times for one CONNECT: a directory that changes all the time keeps nobody waiting for ever
_SHORT = 64
_GUESSES = ("wrong_password", "unknown_user", "wrong_token")


def _nobody(*_: object) -> None:
    """Do nothing."""


@dataclass(frozen=True, slots=True)
class AccessSettings:
    """The files and rules of access control. `client_ids`: "any", or "first-user" where a client id belongs to the user
    who opened its session."""

    password_file: str = ""  # "": none
    acl_file: str = ""
    allow_anonymous: bool = True
    client_ids: str = "any"
    remember_s: float = REMEMBER_S
    patience_s: float = (
        8.0  # how long a CONNECT waits for the directory, and for a hash, before it is refused
    )
    connects_per_minute: float = 0.0  # of one client id; 0: as often as it likes
    chain: tuple[str, ...] = (PASSWORD,)  # of what lets in who names itself: PASSWORD, JWT


class Asking(Asked):
    """A CONNECT or HELLO that is on its way in: what it has been asked, and what was found out."""

    def __init__(self, accounts: Accounts, request: SignIn, user: str | None, is_certified: bool) -> None:
        super().__init__(request.link.identity.tenant, user, request.size, source_of(request.peer))
        self._accounts = accounts
        self.request = request
        self.is_certified = is_certified
        self.came = time.monotonic()
        self.asked = 0
        self.is_asking = False  # within the call of `Directory.find`
        self.found: Identity | int = PENDING
        self.line: str | None = None  # of the password that was verified
        self.step = 0  # in the chain of what lets clients in
        self.why = "wrong_token"  # the step before has not let it in
        self.is_unsure = False  # a token may be right, which cannot be told now
        self.claims: TokenClaims | None = None  # of the token that was verified
        self.bearer = ""  # who came with it
        self.unknown_at: int | None = None  # as of which revision the directory has no such user

    def abandoned(self) -> bool:
        return self.request.link.hung_up()

    def answer(self, account: Account | None) -> None:
        self._accounts.answered(self, account)

    def give_up(self) -> None:
        self._accounts.give_up(self)

    def forget(self) -> None:
        self.request.link.abort()


class Accounts:
    """Lets clients in. `guard` gives what turns addresses away now, None: nothing does. `tokens` verifies those of the
    chain; `came` is told who has come, by tenant, user and client id."""

    def __init__(
        self,
        directory: Directory,
        settings: AccessSettings,
        audit: Audit,
        loop: Loop,
        paces: Paces,
        guard: Callable[[], Guard | None],
        tokens: Tokens | None = None,
        came: Callable[[str, str, str], object] = _nobody,
    ) -> None:
        self._directory = directory
        self._settings = settings
        self._audit = audit
        self._loop = loop
        self._paces = paces
        self._guard = guard
        self._tokens = tokens
        self._came = came
        self.expiring = Expiring(loop, audit)
        self.verifying = Verifying(loop, settings.patience_s)
        self.waiting = Waiting(loop, settings.patience_s)
        self._connects: Allowance | None = None
        self.refusals_free_at = 0.0

    def limit(self, connects_per_minute: float) -> None:
        """Let a client id come so often from now on; 0: as often as it likes."""
        often = connects_per_minute
        self._connects = Allowance(often / 60, max(1.0, often), time.monotonic) if often else None

    def close(self) -> None:
        self.verifying.close()
        self.waiting.close()
        self.expiring.close()
        if self._tokens is not None:
            self._tokens.close()

    def authenticate(self, request: SignIn) -> Identity | int:
        """Let a client in, or refuse it as Mosquitto does: its answer to whatever is wrong is "not authorized", which
        tells a guesser nothing."""
        certified = request.link.certificate_name
        if self._is_banned(request):  # since it came in
            return self._refuse(request, None, rc.BANNED, BANNED)
        if certified is None:
            return self._refuse(request, None, rc.NOT_AUTHORIZED, "certificate_without_name")
        user = certified or request.username
        if not certified and request.username is None and not self._settings.allow_anonymous:
            return self._refuse(request, None, rc.NOT_AUTHORIZED, ANONYMOUS)
        name = None if user is None else self._directory.name_of(user)
        return self._ask(Asking(self, request, name, certified != ""))

    def _is_banned(self, request: SignIn) -> bool:
        guard = self._guard()
        return guard is not None and guard.bans(request.peer)

    # The directory

    def _ask(self, asking: Asking) -> Identity | int:
        """Ask the directory; PENDING: it answers later, or a password is verified."""
        if asking.asked >= ASKED_MAX:
            return self._refuse(asking.request, asking.user, rc.SERVER_UNAVAILABLE, "unavailable")
        if not self.waiting.has_room(asking.source, asking.size):
            return self._refuse(asking.request, asking.user, rc.SERVER_BUSY, "busy")
        asking.asked += 1
        asking.is_open, asking.found = True, PENDING
        asking.is_asking = True
        try:
            self._directory.find(asking)
        finally:
            asking.is_asking = False
        if asking.is_open:
            self.waiting.enter(asking)
        return asking.found

    def answered(self, asking: Asking, account: Account | None) -> None:
        """Go on with what the directory says, unless that is a second answer, or nobody waits any more."""
        if not asking.is_open:
            return
        asking.is_open = False
        self.waiting.leave(asking)
        is_late = not asking.is_asking
        if is_late and asking.request.link.closed:
            return
        if is_late and self._is_banned(asking.request):
            asking.found = self._refuse(asking.request, asking.user, rc.BANNED, BANNED)
        else:
            asking.found = self._look(asking, account)
        if is_late and asking.found != PENDING:
            asking.request.answer(asking.found)

    def give_up(self, asking: Asking) -> None:
        """Refuse who has waited for the directory for too long."""
        code = self._refuse(asking.request, asking.user, rc.SERVER_UNAVAILABLE, "unavailable")
        asking.request.answer(code)

    def _look(self, asking: Asking, account: Account | None) -> Identity | int:
        """Return what becomes of a client with this account."""
        request, user = asking.request, asking.user
        if account is None:
            return self._refuse(request, user, rc.SERVER_UNAVAILABLE, "unavailable")
        if account.revision < self._directory.revision(asking.tenant):
            return self._ask(asking)
        if asking.claims is not None:
            return self._take_bearer(asking, account)
        if asking.line is not None:
            return self._look_again(asking, account)
        if not asking.is_certified and user is not None and account.secrets is not None:
            return self._ask_in_turn(asking, account)
        if not account.is_open:
            return self._refuse(request, user, rc.NOT_AUTHORIZED, "disabled")
        if asking.is_certified:
            return self._welcome(request, user, Known(CERTIFICATE), account)
        if not self._settings.allow_anonymous:
            return self._refuse(request, user, rc.NOT_AUTHORIZED, ANONYMOUS)
        return self._welcome(request, user, Known(ANONYMOUS if user is None else NAME_ONLY), account)

    # What lets clients in, one after the other

    def _ask_in_turn(self, asking: Asking, account: Account) -> Identity | int:
        """Ask for what is next in the chain and may be what the client has sent. PENDING: it is looked at, or it was
        nothing, and the refusal leaves in its time."""
        chain, password = self._settings.chain, asking.request.password or b""
        while asking.step < len(chain):
            if chain[asking.step] == PASSWORD:
                return self._ask_for_password(asking, account)
            if self._tokens is not None and self._tokens.looks_like(password):
                return self._ask_for_token(asking, account)
            asking.step += 1
        code, why = rc.NOT_AUTHORIZED, asking.why
        if asking.is_unsure:
            code, why = rc.SERVER_UNAVAILABLE, NO_TELLING
        code = self._refuse(asking.request, asking.user, code, why)
        self._refuse_in_time(asking.request, asking.came, code)
        return PENDING

    def _ask_for_token(self, asking: Asking, account: Account) -> Identity | int:
        request, tokens = asking.request, self._tokens
        assert tokens is not None
        link, look = request.link, TokenLook(tokens, asking.tenant)
        attempt = Attempt(
            look,
            asking.user or "",
            request.password or b"",
            asking.source,
            request.size,
            lambda right: self._token_verified(asking, account, look, right),
            link.hung_up,
            link.abort,
        )
        if not self.verifying.submit(attempt):
            return self._refuse(request, asking.user, rc.SERVER_BUSY, "busy")
        return PENDING

    def _token_verified(self, asking: Asking, account: Account, look: TokenLook, right: bool | None) -> None:
        request, user = asking.request, asking.user or ""
        answer: Identity | int
        if self._is_banned(request):
            answer = self._refuse(request, user, rc.BANNED, BANNED)
        elif right is None:
            answer = self._refuse(request, user, rc.SERVER_UNAVAILABLE, "unavailable")
        elif not right:
            asking.why = look.why
            asking.is_unsure = look.why == NO_TELLING
            asking.step += 1
            answer = self._ask_in_turn(asking, account)
        else:
            asking.claims, asking.bearer = look.claims, user
            is_old = account.revision < self._directory.revision(asking.tenant)
            answer = self._ask(asking) if is_old else self._take_bearer(asking, account)
        if answer != PENDING:
            request.answer(answer)

    def _take_bearer(self, asking: Asking, account: Account) -> Identity | int:
        """Let in who has come with a token that is right: as the user that the directory has, or, where it has none, as
        one of its tenant whom the token alone knows."""
        request, secrets, claims = asking.request, account.secrets, asking.claims
        assert claims is not None
        is_known = asking.user is not None and secrets is not None and secrets.knows(asking.user)
        if asking.user is not None and not is_known:
            asking.user, asking.unknown_at = None, account.revision
            return self._ask(asking)
        held = account.held
        if asking.unknown_at is not None:
            held = self._directory.bearer(asking.tenant, asking.bearer, asking.unknown_at)
        if not account.is_open or self._directory.closed(
            asking.tenant, asking.bearer
        ):  # made, and disabled since
            return self._refuse(request, asking.bearer, rc.NOT_AUTHORIZED, "disabled")
        known = Known(JWT)
        known.claims = claims
        answer = self._welcome(request, asking.bearer, known, account)
        if not isinstance(answer, int):
            known.held = held
            self.expiring.add(request.link, claims.until_s)
        return answer

    # Passwords

    def _ask_for_password(self, asking: Asking, account: Account) -> Identity | int:
        request, user, secrets = asking.request, asking.user or "", account.secrets
        assert secrets is not None
        password = request.password or b""
        if account.is_open and secrets.remembered(user, password):
            return self._welcome(request, user, Known(PASSWORD, secrets.line(user)), account)
        link = request.link
        attempt = Attempt(
            secrets,
            user,
            password,
            asking.source,
            request.size,
            lambda right: self._verified(asking, account, right),
            link.hung_up,
            link.abort,
        )
        if not self.verifying.submit(attempt):
            return self._refuse(request, user, rc.SERVER_BUSY, "busy")
        return PENDING

    def _verified(self, asking: Asking, account: Account, right: bool | None) -> None:
        """Handle the answer of a thread. A refusal leaves at a multiple of a fixed time after CONNECT came: what else
        was hashed meanwhile, and at what cost, cannot be told from it."""
        request, user, secrets = asking.request, asking.user or "", account.secrets
        assert secrets is not None
        answer: Identity | int
        if self._is_banned(request):  # by a guess that was before this one
            answer = self._refuse(request, user, rc.BANNED, BANNED)
        elif right is None:
            guessed = secrets.was_guess(user)
            answer = self._refuse(request, user, rc.SERVER_UNAVAILABLE, "unavailable", is_guess=guessed)
        elif not right or not account.is_open:
            why = "wrong_password" if secrets.knows(user) else "unknown_user"
            asking.why = "disabled" if right else why
            asking.step = len(self._settings.chain) if right else asking.step + 1
            answer = self._ask_in_turn(asking, account)
        else:
            asking.line = secrets.line(user) or ""
            is_old = account.revision < self._directory.revision(asking.tenant)
            answer = self._ask(asking) if is_old else self._look_again(asking, account)
        if answer != PENDING:
            request.answer(answer)

    def _look_again(self, asking: Asking, account: Account) -> Identity | int:
        """Let a client in whose password was right, if it is the same in the newest account: else it is to come again."""
        request, user, secrets = asking.request, asking.user or "", account.secrets
        if secrets is None or not account.is_open or secrets.line(user) != asking.line:
            return self._refuse(request, user, rc.SERVER_UNAVAILABLE, "unavailable")
        secrets.remember(user, request.password or b"")
        return self._welcome(request, user, Known(PASSWORD, asking.line), account)

    # In or not

    def _flaps(self, tenant: str, user: str | None, client_id: str) -> bool:
        """Return whether a client that has signed in comes too often: nobody else can use up what a client may."""
        if self._connects is None or not client_id:
            return False
        key = f"{tenant}\0{user or ''}\0{client_id}"
        return not self._connects.take(key if len(key) <= _SHORT else str(hash(key)))  # many are remembered

    def _welcome(self, request: SignIn, user: str | None, known: Known, account: Account) -> Identity | int:
        """Let in a client that is who it says, or refuse it for what it may not be or is too much of."""
        identity = request.identity_of(user)
        if account.limits is not None:
            identity.limits = account.limits
        known.named = bool(request.client_id)
        known.held = account.held
        code, why = self._unwelcome(request, identity, known, account.rules)
        if why:
            return self._refuse(request, user, code, why)
        if account.limits is not None:
            request.link.worker.quotas.give(identity.tenant, account.limits)
        request.link.grants = known
        if user is not None:
            self._came(identity.tenant, user, request.client_id)
        if known.way == PASSWORD:
            self.verifying.was_let_in(user or "", source_of(request.peer))
        self._audit.success("login", known.way, source_of(request.peer), **_signing(request, user))
        return identity

    def _unwelcome(
        self, request: SignIn, identity: Identity, known: Known, rules: Rules | None
    ) -> tuple[int, str]:
        """Return with which reason code, and why, a client that is who it says is not let in; "" if it is, and then it is
        counted."""
        tenant, user, client_id = identity.tenant, identity.user, request.client_id
        if self._directory.bans(tenant, user, client_id):
            return rc.BANNED, BANNED
        if self._flaps(tenant, user, client_id):
            return rc.CONNECTION_RATE_EXCEEDED, "flapping"
        if known.named and rules is not None and not rules.may_be(user, client_id):
            return rc.CLIENT_IDENTIFIER_NOT_VALID, "client_id"
        client_ids = identity.limits.client_ids or self._settings.client_ids
        if client_ids == "first-user" and request.owner(tenant) not in (None, user):
            return rc.CLIENT_IDENTIFIER_NOT_VALID, "client_id_of_another"
        if self._paces.tenants.comes_too_often(tenant, identity.limits):
            return rc.CONNECTION_RATE_EXCEEDED, "tenant_connects"
        return rc.QUOTA_EXCEEDED, self._paces.admit(request, identity, known)

    def _refuse(
        self, request: SignIn, user: str | None, code: int, why: str, *, is_guess: bool = False
    ) -> int:
        """Note that a client is refused, and return the code. Guesses count against its address."""
        source = source_of(request.peer)
        self._audit.failure("login failed", why, source, **_signing(request, user))
        guard = self._guard()
        if (is_guess or why in _GUESSES) and guard is not None and guard.failed(request.peer):
            self._audit.failure(BANNED, "failed_logins", source, address=request.peer)
        return code

    def _refuse_in_time(self, request: SignIn, came: float, code: int) -> None:
        """Refuse only so many in a second, as far as a CONNECT may wait: who comes back at once leaves room for others
        meanwhile."""
        if request.link.hung_up():
            request.link.abort()
            return
        now = turn = time.monotonic()
        if self.refusals_free_at - came <= self._settings.patience_s:
            turn = max(now, self.refusals_free_at)
            self.refusals_free_at = turn + 1 / REFUSALS_PER_S
        steps = math.ceil((turn - came) / REFUSAL_STEP_S)
        self._loop.call_later(came + steps * REFUSAL_STEP_S - now, request.answer, code)


def _signing(request: SignIn, user: str | None) -> dict[str, str]:
    """Return who asks to be let in: the connection may have gone meanwhile."""
    listener = request.link.listener()
    return {
        "user": user or "",
        "client": request.client_id,
        "address": request.peer,
        "listener": listener,
    }
