"""What a broker knows of the tenants and users of a directory at the moment. Runs on the loop.

A user is known for as long as one of its clients is connected, since access control keeps it with the connection
(`Account.held`), and beyond that as long as it is among those who came last; a tenant from its first client on, since its
sessions, limits and wills stay when nobody of it is connected. Nothing is known of names that there are not.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from typing import TYPE_CHECKING
from weakref import WeakValueDictionary

from headrace.core.ports import directory as ports
from headrace.directory.entries import ACTIVE, DISABLED
from headrace.directory.grants import NOTHING, ClientGrants
from headrace.directory.policy import Permissions, Policy
from headrace.directory.tenancy import ByPrefix

if TYPE_CHECKING:
    from headrace.core.ports.limits import Limits
    from headrace.directory.reader import Found, Key, TenantView, UserView


class TenantRules(ports.Rules):
    """The rules of a tenant and of its users. Users are named as they sign in; one that is not known may do nothing."""

    def __init__(self, tenant: KnownTenant) -> None:
        super().__init__()
        self._tenant = tenant

    def grants(self, user: str | None, client_id: str) -> ports.Grants:
        tenant = self._tenant
        if tenant.view is None or tenant.closed():
            return NOTHING
        if user is None:
            trees = tenant.view.policy.trees(None, (), client_id)
            return ClientGrants(Permissions(trees, None, client_id), _may_publish(tenant.view))
        name = tenant.names.user_of(user)
        known = tenant.users.get(name)
        if known is None or known.view is None or known.closed():
            return NOTHING
        trees = tenant.view.policy.trees(None, known.view.user.groups, client_id)
        trees += known.view.policy.trees(name, (), client_id)
        return ClientGrants(Permissions(trees, name, client_id), _may_publish(tenant.view))

    def grants_of_token(self, user: str, client_id: str, rules: object) -> ports.Grants:
        tenant, name = self._tenant, self._tenant.names.user_of(user)
        if tenant.view is None or tenant.closed():
            return NOTHING
        known = tenant.users.get(name)
        groups: tuple[str, ...] = ()
        trees = []
        if known is not None:
            if known.closed():
                return NOTHING
            if known.view is not None:
                groups = known.view.user.groups
                trees = known.view.policy.trees(name, (), client_id)
        trees += tenant.view.policy.trees(None, groups, client_id)
        if isinstance(rules, Policy):
            trees += rules.trees(None, (), client_id)
        return ClientGrants(Permissions(trees, name, client_id), _may_publish(tenant.view))

    def may_be(self, user: str | None, client_id: str) -> bool:
        return True


def _may_publish(view: TenantView) -> bool:
    """Return whether the quotas of a tenant leave it anything to publish."""
    return view.quotas.get("publish_messages_per_s") != 0 and view.quotas.get("publish_bytes_per_s") != 0


class KnownTenant:
    """A tenant. `view` is what was found, None: it is there no more; `read_at` as of which revision. `revision` is that
    of the newest change that is known to concern it, `rules` another object after each, `limits` its own if it has
    any."""

    def __init__(self, name: str, view: TenantView | None, revision: int, names: ByPrefix) -> None:
        self.name = name
        self.view = view
        self.read_at = self.revision = revision
        self.names = names
        self.users: WeakValueDictionary[str, KnownUser] = WeakValueDictionary()
        self.limits: Limits | None = None
        self.rules = TenantRules(self)

    def changed(self) -> None:
        """Let the rules be others from now on: of the tenant, or of one of its users."""
        self.rules = TenantRules(self)

    def closed(self) -> str:
        """Return why nobody of it may come in, "" if that is not so."""
        state = "" if self.view is None else self.view.tenant.state
        return "" if state == ACTIVE else "tenant_disabled" if state == DISABLED else "tenant_deleted"


class KnownUser:
    """A user of a tenant. `view` is what was found, None: it is there no more; `read_at` as of which revision.
    `remembered`: the digest of a password that was right, and when. `is_bearer`: it is not there as far as we know, and
    since then clients of it have come by tokens alone."""

    __slots__ = ("__weakref__", "is_bearer", "name", "read_at", "remembered", "tenant", "view")

    def __init__(self, tenant: KnownTenant, name: str, view: UserView | None, revision: int) -> None:
        self.tenant = tenant
        self.name = name
        self.view = view
        self.read_at = revision
        self.remembered: tuple[bytes, float] | None = None
        self.is_bearer = False

    def closed(self) -> str:
        """Return why it may not come in, "" if it may."""
        why = self.tenant.closed()
        if why or self.view is None:
            return why or ("" if self.is_bearer else "user_deleted")
        return "user_disabled" if self.view.user.disabled else ""


class Memory:
    """The tenants and users that are known, of whom `recent_max` are without a connection. `stale` are those of which
    something has changed that was not read yet."""

    def __init__(self, recent_max: int, names: ByPrefix) -> None:
        self._recent_max = recent_max
        self._names = names
        self._tenants: dict[str, KnownTenant] = {}
        self._recent: OrderedDict[KnownUser, None] = OrderedDict()
        self.stale: dict[Key, None] = {}
        self._newest = (
            0  # of the revisions that were noted: what was found as of an older one may have changed since
        )

    def tenant(self, name: str) -> KnownTenant | None:
        """Return a tenant, None if nothing is known of it."""
        return self._tenants.get(name)

    def tenants(self) -> Iterator[KnownTenant]:
        """Yield all tenants that are known."""
        yield from list(self._tenants.values())

    def user(self, tenant: str, name: str) -> KnownUser | None:
        """Return a user, None if nothing is known of it."""
        known = self._tenants.get(tenant)
        return None if known is None else known.users.get(name)

    def bearer(self, tenant: str, name: str, revision: int) -> KnownUser | None:
        """Return a user that was not there as of a revision of its tenant, and is to be known if it is made: read once
        more if the tenant has changed since."""
        known = self._tenants.get(tenant)
        if known is None:
            return None
        user = known.users.get(name)
        if user is None:
            user = known.users[name] = KnownUser(known, name, None, revision)
            user.is_bearer = True
            if known.revision > revision:
                self.stale[tenant, name] = None
        elif user.view is None and user.read_at <= revision:
            user.is_bearer = True  # it was deleted, and comes anew: as one that was never there
        return user

    def came(self, user: KnownUser) -> None:
        """Note that a user has just been asked for: it is known for longer than those who were not."""
        self._recent[user] = None
        self._recent.move_to_end(user)
        if len(self._recent) > self._recent_max:
            self._recent.popitem(last=False)

    def note(self, key: Key, revision: int) -> None:
        """Note that a tenant or one of its users has changed, known or not: somebody may be looking for it just now."""
        self._newest = max(self._newest, revision)
        tenant = self._tenants.get(key[0])
        if tenant is None:
            return
        tenant.revision = max(tenant.revision, revision)
        if key[1] is None or key[1] in tenant.users:
            self.stale[key] = None

    def note_all(self, tenants: Iterator[KnownTenant]) -> None:
        """Note that anything of some tenants and their users may have changed, and that revisions begin anew."""
        self._newest = 0
        for tenant in tenants:
            tenant.revision = tenant.read_at = 0
            self.stale[tenant.name, None] = None
            for user in list(tenant.users.values()):
                user.read_at = 0
                self.stale[tenant.name, user.name] = None

    def learn(self, found: Found) -> bool:
        """Take over what was found, unless something newer is known. Returns whether that has changed what was known."""
        wanted = found.wanted
        tenant, changed = self._tenants.get(wanted.tenant), False
        if wanted.with_tenant:
            if tenant is None and found.tenant is not None:
                tenant = KnownTenant(wanted.tenant, found.tenant, found.revision, self._names)
                self._tenants[wanted.tenant] = tenant
                if (
                    found.revision < self._newest
                ):  # changes were noted while nobody knew it: it is read once more
                    tenant.revision = self._newest
                    self.stale[tenant.name, None] = None
            elif tenant is not None and found.revision >= tenant.read_at:
                tenant.view, tenant.read_at, changed = found.tenant, found.revision, True
                if tenant.view is None and not tenant.users:
                    del self._tenants[tenant.name]
        if tenant is None:
            return False
        if wanted.user is not None:
            changed |= self._learn_user(tenant, wanted.user, found)
        if changed:
            tenant.revision = max(tenant.revision, found.revision)
            tenant.changed()
        self._freshen(tenant, found)
        return changed

    def _learn_user(self, tenant: KnownTenant, name: str, found: Found) -> bool:
        """Take over what was found of a user, and return whether it was known otherwise."""
        user = tenant.users.get(name)
        if user is None:
            if found.user is not None:
                user = tenant.users[name] = KnownUser(tenant, name, found.user, found.revision)
                self.came(user)
                if found.revision < self._newest:
                    self.stale[tenant.name, name] = None
            return False
        if found.revision < user.read_at:
            return False
        was_there = user.view is not None
        user.view, user.read_at = found.user, found.revision
        user.is_bearer = user.is_bearer and found.user is None
        return was_there or found.user is not None

    def _freshen(self, tenant: KnownTenant, found: Found) -> None:
        """Note that what was found is read, if no change has come since."""
        wanted = found.wanted
        if found.revision < tenant.revision:
            return
        if wanted.with_tenant:
            self.stale.pop((tenant.name, None), None)
        if wanted.user is not None:
            self.stale.pop((tenant.name, wanted.user), None)
