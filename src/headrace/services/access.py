"""Access control: accounts, permissions and paces, over a directory. Stands behind `core.ports.access`.

Runs on the loop. Who a client is, is found by `accounts`; what it may do, by `permissions`; how much, by `pacing`. What
all three go by is in a directory (`core.ports.directory`), of which that of files (`files`) is one.
"""

from __future__ import annotations

from dataclasses import replace

from headrace.core.ports.access import Access, SignIn
from headrace.core.ports.directory import Directory, Tokens
from headrace.core.ports.identity import Identity
from headrace.core.ports.link import Link
from headrace.core.ports.rights import Rights
from headrace.net.gate import BANNED
from headrace.services.accounts import (
    REFUSAL_STEP_S,
    REFUSALS_PER_S,
    AccessSettings,
    Accounts,
)
from headrace.services.audit import Audit
from headrace.services.files import FileDirectory
from headrace.services.node_counts import NodeCounts
from headrace.services.node_times import NodeTimes
from headrace.services.pacing import PASSWORD, Known, Paces
from headrace.services.permissions import Permissions
from headrace.services.verifying import Loop, Verifying

__all__ = ["REFUSALS_PER_S", "REFUSAL_STEP_S", "AccessSettings", "DirectoryAccess", "FileAccess"]


class DirectoryAccess(Access):
    """Access control by a directory."""

    def __init__(
        self,
        directory: Directory,
        settings: AccessSettings,
        audit: Audit,
        loop: Loop,
        tokens: Tokens | None = None,
    ) -> None:
        super().__init__()
        self._directory = directory
        self._settings = settings
        self.audit = audit
        self.paces = Paces(audit)
        self._permissions = Permissions(directory, audit)
        self.accounts = Accounts(
            directory,
            settings,
            audit,
            loop,
            self.paces,
            lambda: self.guard,
            tokens,
            self._permissions.came,
        )
        self.accounts.limit(settings.connects_per_minute)
        self.generation += 1

    @property
    def verifying(self) -> Verifying:
        return self.accounts.verifying

    def count_with(self, counts: NodeCounts, times: NodeTimes) -> None:
        """Count the connections and messages of users with those in other workers."""
        self.paces.count_with(counts, times)

    def reload(self) -> None:
        """Have the directory read again what is kept of it; on ConfigError, which names the key, what was there before
        stays."""
        self._directory.reload()
        self.generation += 1

    def changed(self) -> None:
        """Ask the directory anew about everything that connections remember: its rules are others now."""
        self.generation += 1

    def limit(self, settings: AccessSettings) -> None:
        """Keep these limits from now on, and those of the tenants as they are now. Who is connected stays; files are
        another matter (`reload`)."""
        often = settings.connects_per_minute
        if often != self._settings.connects_per_minute:
            self.accounts.limit(often)
        self._settings = replace(self._settings, connects_per_minute=often)
        self.generation += 1

    def must_go(self, link: Link) -> str:
        """Return why a connection that is there may not stay under the directory as it is now, "" if it may."""
        known = link.grants
        if isinstance(known, Known):  # it was let in
            why = self._shut_out(link)
            if why:
                return why
        secrets = self._directory.secrets(link.identity.tenant)
        if isinstance(known, Known) and known.way == PASSWORD and secrets is not None:
            line = secrets.line(link.identity.user or "")
            if line is None:
                return "user_deleted"
            if line != known.line:
                return "password_changed"
        named = link.client_id != "" and (not isinstance(known, Known) or known.named)
        return "client_id" if named and not self._permissions.may_stay(link) else ""

    def _shut_out(self, link: Link) -> str:
        """Return why nobody who is called so may be here now, "" if that is not so."""
        tenant, user = link.identity.tenant, link.identity.user
        why = self._directory.closed(tenant, user)
        return why or (BANNED if self._directory.bans(tenant, user, link.client_id) else "")

    def close(self) -> None:
        self.accounts.close()
        self._directory.close()

    def authenticate(self, request: SignIn) -> Identity | int:
        return self.accounts.authenticate(request)

    def left(self, link: Link) -> None:
        self.accounts.expiring.left(link)
        self._permissions.left(link)
        self.paces.left(link)

    def overdrawn(self, link: Link, rights: Rights) -> None:
        self.paces.overdrawn(link, rights)

    def may_publish(self, link: Link, topic: bytes) -> bool:
        return self._permissions.may_publish(link, topic)

    def may_retain(self, link: Link, topic: bytes) -> bool:
        return self._permissions.may_retain(link, topic)

    def may_leave_will(self, tenant: str, user: str | None, client_id: str, topic: bytes) -> bool:
        return self._permissions.may_leave_will(tenant, user, client_id, topic)

    def may_retain_will(self, tenant: str, user: str | None, client_id: str, topic: bytes) -> bool:
        return self._permissions.may_retain_will(tenant, user, client_id, topic)

    def may_receive(self, link: Link, topic: bytes) -> bool:
        return self._permissions.may_receive(link, topic)

    def may_device_receive(self, link: Link, client_id: str, topic: bytes) -> bool:
        return self._permissions.may_device_receive(link, client_id, topic)

    def may_subscribe(self, link: Link, topic_filter: str) -> bool:
        return self._permissions.may_subscribe(link, topic_filter)

    def renamed(self, link: Link) -> bool:
        return self._permissions.renamed(link)

    def note_denied(self, link: Link, action: str, topic: bytes) -> None:
        self._permissions.note_denied(link, action, topic)


class FileAccess(DirectoryAccess):
    """Access control by a password file and an ACL file. Raises ConfigError, which names the key."""

    def __init__(self, settings: AccessSettings, audit: Audit, loop: Loop) -> None:
        files = FileDirectory(settings.password_file, settings.acl_file, settings.remember_s)
        super().__init__(files, settings, audit, loop)
