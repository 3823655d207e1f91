"""A directory behind a broker's admin HTTP: as much of `directory.store.Store` as commands use that can be asked there.

Who changes something is known to the broker by the token; what is checked before anything is asked names its field.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlencode

import msgspec

from headrace.console.admin import AdminClient
from headrace.directory.entries import Actor, Ban, Rule, Tenant, User, quota, setting
from headrace.directory.errors import InvalidField
from headrace.directory.names import tenant_name

if TYPE_CHECKING:
    from headrace.directory.documents import Imported, TenantDocument

Values = Mapping[str, str]


class RemoteStore:
    """The directory of a broker that runs."""

    def __init__(self, client: AdminClient) -> None:
        self.tenants = RemoteTenants(client)
        self.users = RemoteUsers(client)
        self.rules = RemoteRules(client)
        self.documents = RemoteDocuments(client)
        self.bans = RemoteBans(client)

    def close(self) -> None:
        """Do nothing: a connection that is kept ends with the command."""


class RemoteTenants:
    """Has the tenants of a broker's directory, as `directory.tenants.Tenants` has them."""

    def __init__(self, client: AdminClient) -> None:
        self._client = client

    def create(self, actor: Actor, name: str) -> Tenant:
        return _tenant(self._client.ask("POST", "/v1/tenants", {"name": tenant_name(name)}))

    def all(self) -> list[Tenant]:
        return [_tenant(row) for row in self._client.get("/v1/tenants")["rows"]]

    def get(self, name: str) -> Tenant:
        return _tenant(self._client.get(_path(name)))

    def users(self, name: str) -> int:
        return int(self._client.get(_path(name))["users"])

    def quotas(self, name: str) -> dict[str, int]:
        return dict(self._client.get(_path(name))["quotas"])

    def settings(self, name: str) -> dict[str, str]:
        return dict(self._client.get(_path(name))["settings"])

    def set_quotas(
        self, actor: Actor, name: str, values: Values, if_revision: int | None = None
    ) -> dict[str, int]:
        wanted = {key: quota(key, text) for key, text in values.items()}
        return dict(self._change(name, if_revision, quotas=wanted)["quotas"])

    def set_settings(
        self, actor: Actor, name: str, values: Values, if_revision: int | None = None
    ) -> dict[str, str]:
        wanted = {key: setting(key, text) for key, text in values.items()}
        return dict(self._change(name, if_revision, settings=wanted)["settings"])

    def disable(self, actor: Actor, name: str, if_revision: int | None = None) -> None:
        self._change(name, if_revision, state="disabled")

    def enable(self, actor: Actor, name: str, if_revision: int | None = None) -> None:
        self._change(name, if_revision, state="active")

    def delete(self, actor: Actor, name: str, if_revision: int | None = None) -> None:
        self._client.ask("DELETE", _path(name) + _query(if_revision=if_revision))

    def release(self, actor: Actor, name: str) -> None:
        self._client.ask("DELETE", _path(name) + _query(release="true", force="true"))

    def _change(self, name: str, if_revision: int | None, **what: object) -> Any:
        return self._client.ask("PATCH", _path(name), what | {"if_revision": if_revision})


class RemoteUsers:
    """Has their users, as `directory.users.Users`."""

    def __init__(self, client: AdminClient) -> None:
        self._client = client

    def create(
        self, actor: Actor, tenant: str, name: str, password: bytes, groups: Sequence[str] = ()
    ) -> None:
        body = {"name": name, "password": _text(password), "groups": list(groups)}
        self._client.ask("POST", "/v1/users" + _query(tenant=tenant), body)

    def set_password(
        self, actor: Actor, tenant: str, name: str, password: bytes, if_revision: int | None = None
    ) -> int:
        return self._change(tenant, name, if_revision, password=_text(password))

    def disable(self, actor: Actor, tenant: str, name: str, if_revision: int | None = None) -> int:
        return self._change(tenant, name, if_revision, state="disabled")

    def enable(self, actor: Actor, tenant: str, name: str, if_revision: int | None = None) -> int:
        return self._change(tenant, name, if_revision, state="active")

    def delete(self, actor: Actor, tenant: str, name: str, if_revision: int | None = None) -> None:
        self._client.ask("DELETE", "/v1/users" + _query(tenant=tenant, user=name, if_revision=if_revision))

    def all(self, tenant: str) -> list[User]:
        return [_user(tenant, row) for row in self._client.get("/v1/users" + _query(tenant=tenant))["rows"]]

    def _change(self, tenant: str, name: str, if_revision: int | None, **what: object) -> int:
        path = "/v1/users" + _query(tenant=tenant, user=name)
        return int(self._client.ask("PATCH", path, what | {"if_revision": if_revision})["revision"])


class RemoteRules:
    """Has their rules, as `directory.rules.Rules`."""

    def __init__(self, client: AdminClient) -> None:
        self._client = client

    def add(self, actor: Actor, rule: Rule) -> Rule:
        body = {
            "effect": rule.effect,
            "actions": list(rule.actions),
            "filter": rule.filter,
            "kind": rule.kind,
            "subject": rule.subject,
        }
        return _rule(rule.tenant, self._client.ask("POST", "/v1/rules" + _query(tenant=rule.tenant), body))

    def all(self, tenant: str) -> list[Rule]:
        return [_rule(tenant, row) for row in self._client.get("/v1/rules" + _query(tenant=tenant))["rows"]]

    def remove(self, actor: Actor, tenant: str, number: int) -> None:
        self._client.ask("DELETE", "/v1/rules" + _query(tenant=tenant, number=number))


class RemoteDocuments:
    """Writes tenants out and brings them in, as `directory.documents.Documents`."""

    def __init__(self, client: AdminClient) -> None:
        self._client = client

    def export(self, tenant: str, hashes: bool = False) -> TenantDocument:
        found = self._client.get("/v1/export" + _query(tenant=tenant_name(tenant), hashes=_flag(hashes)))
        document: TenantDocument = msgspec.convert(found, _documents().TenantDocument)
        return document

    def bring_in(
        self,
        actor: Actor,
        tenant: str,
        document: TenantDocument,
        *,
        prune: bool = False,
        dry_run: bool = False,
    ) -> Imported:
        query = _query(tenant=tenant_name(tenant), prune=_flag(prune), dry_run=_flag(dry_run))
        found = self._client.ask("POST", "/v1/import" + query, msgspec.to_builtins(document))
        done: Imported = msgspec.convert(found, _documents().Imported)
        return done


class RemoteBans:
    """Has who is banned, as `directory.bans.Bans`."""

    def __init__(self, client: AdminClient) -> None:
        self._client = client

    def add(
        self, actor: Actor, kind: str, tenant: str, subject: str, for_s: int = 0, reason: str = ""
    ) -> Ban:
        body = {"for_s": for_s, "reason": reason}
        return _ban(self._client.ask("PUT", _one(kind, tenant, subject), body))

    def remove(self, actor: Actor, kind: str, tenant: str, subject: str) -> None:
        self._client.ask("DELETE", _one(kind, tenant, subject))

    def all(self, tenant: str = "") -> list[Ban]:
        rows = self._client.get("/v1/bans" + _query(tenant=tenant or None))["rows"]
        return [_ban(row) for row in rows]


def _one(kind: str, tenant: str, subject: str) -> str:
    return "/v1/bans" + _query(kind=kind, tenant=tenant or None, subject=subject)


def _ban(row: Any) -> Ban:
    return Ban(row["tenant"], row["kind"], row["subject"], row["until_us"], row["reason"], 0)


def _documents() -> Any:
    """Return the types of documents, once they are needed: they come with the extra of the directory."""
    from headrace.directory import documents

    return documents


def _flag(is_set: bool) -> str:
    return str(is_set).lower()


def _path(name: str) -> str:
    return f"/v1/tenants/{quote(tenant_name(name), safe='')}"


def _query(**parameters: object) -> str:
    given = {name: value for name, value in parameters.items() if value is not None}
    return f"?{urlencode(given)}" if given else ""


def _text(password: bytes) -> str:
    """Return a password as JSON can carry it. Raises InvalidField."""
    try:
        return password.decode("utf-8")
    except UnicodeDecodeError:
        raise InvalidField("password", "is not UTF-8: over HTTP it has to be") from None


def _tenant(row: Any) -> Tenant:
    return Tenant(row["name"], row["state"], row["created_us"], row["revision"])


def _user(tenant: str, row: Any) -> User:
    disabled = row["state"] == "disabled"
    return User(tenant, row["name"], disabled, row["created_us"], row["revision"], "", tuple(row["groups"]))


def _rule(tenant: str, row: Any) -> Rule:
    about = row["effect"], tuple(row["actions"]), row["filter"], row["kind"], row["subject"]
    return Rule(tenant, row["number"], *about)
