"""How many connections each user and each tenant has, and how much they publish. Runs on the loop."""

from __future__ import annotations

from functools import partial

from headrace.core.inbound.pace import Budget, Meter, Pace, SharedBudget
from headrace.core.ports.access import SignIn
from headrace.core.ports.directory import Grants, Rules, TokenClaims
from headrace.core.ports.identity import DEFAULT_TENANT, Identity
from headrace.core.ports.limits import NO_LIMIT
from headrace.core.ports.link import Link
from headrace.core.ports.rights import UNLIMITED, Rights
from headrace.errors import ProtocolError
from headrace.mqtt import reason_codes as rc
from headrace.net.remote import source_of
from headrace.services.audit import Audit
from headrace.services.node_budget import NodeBudget
from headrace.services.node_counts import NodeCounts
from headrace.services.node_table import key_of
from headrace.services.node_times import NodeTimes
from headrace.services.tenant_uses import TenantUse, TenantUses

_RATES = ("messages_per_s", "user_messages_per_s", "tenant_messages_per_s")
ANONYMOUS, CERTIFICATE, PASSWORD, NAME_ONLY = "anonymous", "certificate", "password", "name_only"
JWT = "jwt"


class Known:
    """What access control remembers of a connection: how it signed in, what stood for the password
    that was right, and what it may do until the rules change."""

    __slots__ = (
        "claims",
        "grants",
        "held",
        "line",
        "named",
        "pace",
        "pace_of",
        "rules",
        "shares",
        "tenant",
        "user",
        "way",
    )

    def __init__(self, way: str, line: str | None = None) -> None:
        self.way = way
        self.line = line
        self.claims: TokenClaims | None = None  # of the token that it came with
        self.held: object = None  # what the directory has to know for as long as it is here
        self.named = True  # it chose its client id; else it got one of ours
        self.rules: Rules | None = None
        self.grants: Grants | None = None
        self.pace: Pace | None = None
        self.shares: tuple[Budget, ...] = ()  # those of its user and tenant, as long as it draws on them
        self.pace_of: tuple[int, int, int, str] | None = None  # the limits that it keeps
        self.user: _User | None = None  # with whom it is counted
        self.tenant: TenantUse | None = None

    def let_go(self) -> None:
        """Draw on the budgets of its user and its tenant no more."""
        for share in self.shares:
            share.leave()
        self.shares = ()


class _User:
    """The connections of one user of a tenant."""

    __slots__ = ("budget", "connections")

    def __init__(self) -> None:
        self.connections = 0
        self.budget: Budget | None = None


class Paces:
    """Counts the connections of users, and keeps connections to what they may publish. `counts` and `times` are what the
    other workers know, None where there are none."""

    def __init__(self, audit: Audit) -> None:
        self._audit = audit
        self._users: dict[tuple[str, str], _User] = {}  # who is connected, by tenant and name
        self.tenants = TenantUses()
        self.counts: NodeCounts | None = None
        self.times: NodeTimes | None = None

    def count_with(self, counts: NodeCounts, times: NodeTimes) -> None:
        """Count connections and messages with those in other workers."""
        self.counts, self.times = counts, times
        self.tenants.counts, self.tenants.times = counts, times

    def admit(self, request: SignIn, identity: Identity, known: Known) -> str:
        """Count a connection with those of its user and of its tenant. Returns why it is one too many, and takes over
        none of them; "" if it is not."""
        tenant, name, limits = identity.tenant, identity.user, identity.limits
        if request.link.closed:
            return ""
        most = limits.user_connections_max if name is not None else 0
        if most and self._connections_of(tenant, name or "") >= most and request.user_before(tenant) != name:
            return "user_connections"
        if (
            limits is not request.link.worker.quotas.usual or tenant != DEFAULT_TENANT
        ):  # else there are no tenants
            known.tenant = self.tenants.admit(tenant, limits, request.user_before(tenant) is not None)
            if known.tenant is None:
                return "tenant_connections"
        if name is not None:
            user = self._users.get((tenant, name))
            if user is None:
                user = self._users[tenant, name] = _User()
            user.connections += 1
            self._tell(tenant, name, user.connections)
            known.user = user
        return ""

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
        if not isinstance(known, Known):
            return
        known.let_go()
        link.meter = None
        use, known.tenant = known.tenant, None
        if use is not None:
            self.tenants.left(use)
        user, known.user = known.user, None
        if user is None or name is None:
            return
        user.connections -= 1
        key = link.identity.tenant, name
        self._tell(*key, user.connections)
        if not user.connections and self._users.get(key) is user:
            del self._users[key]

    def overdrawn(self, link: Link, rights: Rights) -> None:
        known, ours = known_of(link), link.identity.limits
        self._meter(link, known, ours.tenant_bytes_per_s)
        limits = (
            link.messages_per_s,
            ours.user_messages_per_s,
            ours.tenant_messages_per_s,
            ours.over_rate,
        )
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
            reason = next((name for name, most in zip(_RATES, limits, strict=False) if most), _RATES[0])
            self._audit.failure("too many messages", reason, source_of(link.peer()), **named(link))
        if ours.over_rate != "wait":
            raise ProtocolError(rc.MESSAGE_RATE_TOO_HIGH, "more messages a second than are allowed")

    def _meter(self, link: Link, known: Known, per_s: int) -> None:
        """Have a connection that publishes draw what is read from it on the bytes of its tenant, if those are limited."""
        use, meter = known.tenant, link.meter
        if use is None or per_s == NO_LIMIT:
            if meter is not None:
                link.meter = None
                meter.stop()
            return
        budget = self.tenants.bytes_budget(use, per_s, link.worker.clock.mono_ms)
        if isinstance(meter, Meter) and meter.budget is budget:
            return
        if meter is not None:
            meter.stop()
        link.meter = Meter(link, budget, partial(self._tell_of_bytes, link))

    def _tell_of_bytes(self, link: Link) -> None:
        self._audit.failure("too many bytes", "tenant_bytes_per_s", source_of(link.peer()), **named(link))

    def _pace(self, link: Link, known: Known) -> Pace | None:
        """Return what a connection keeps to: the budgets of its own, of its user and of its tenant."""
        known.let_go()
        now_ms, budgets = link.worker.clock.mono_ms, []
        if link.messages_per_s:
            budgets.append(Budget(link.messages_per_s, now_ms))
        together, user = link.identity.limits.user_messages_per_s, known.user
        if together and user is not None:
            if user.budget is None or user.budget.per_s != together:
                user.budget = self._budget(together, now_ms, link.identity)
            known.shares = (user.budget,)
        of_tenant, use = link.identity.limits.tenant_messages_per_s, known.tenant
        if of_tenant != NO_LIMIT and use is not None:
            known.shares += (self.tenants.budget(use, of_tenant, now_ms),)
        for share in known.shares:
            share.join()
        budgets += known.shares
        return Pace(link, budgets) if budgets else None

    def _budget(self, per_s: int, now_ms: int, identity: Identity) -> Budget:
        """Return the budget of a user; among other workers it is one with theirs."""
        if self.counts is None or self.times is None:
            return Budget(per_s, now_ms)
        names = ("messages", identity.tenant, identity.user or "")
        return SharedBudget(per_s, now_ms, NodeBudget(self.counts, self.times, names))


def known_of(link: Link) -> Known:
    """Return what is remembered of a connection; who was never asked is anonymous."""
    known = link.grants
    if not isinstance(known, Known):
        known = link.grants = Known(ANONYMOUS)
    return known


def named(link: Link) -> dict[str, str]:
    """Return who a connection is, for the audit log."""
    user, listener = link.identity.user or "", link.listener()
    return {"user": user, "client": link.client_id, "address": link.peer(), "listener": listener}
