"""A tenant as one document: written for whoever keeps it in files, and brought into the directory, as a whole or not
at all.

    {"tenant": "acme", "state": "active", "quotas": {}, "settings": {},
     "users": [{"name", "state", "groups", "hash" | "password"}],
     "rules": [{"effect", "actions", "filter", "kind", "subject"}]}

What a document does not have is left as it is. Quotas and settings are those of the document and no others; users and
rules that are not in it stay, but for `prune`. To bring the same in twice changes nothing the second time. Blocks; runs
on threads.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final, Literal

import msgspec
from sqlalchemy import Table

from headrace.directory.entries import (
    ACTIVE,
    DELETING,
    DISABLED,
    Actor,
    Rule,
    Tenant,
    User,
    quota,
    setting,
)
from headrace.directory.errors import ChangedMeanwhile, InvalidField, NotInThatState
from headrace.directory.hashes import checked_hash, hashed, matches
from headrace.directory.names import group_name, password_of, tenant_name, user_name
from headrace.directory.rules import add_rule, check_rule, remove_rule, rules_of
from headrace.directory.schema import QUOTAS, SETTINGS
from headrace.directory.tenants import (
    find_tenant,
    insert_tenant,
    note_state,
    put_values,
    quotas_of,
    settings_of,
)
from headrace.directory.transactions import Database, Writing
from headrace.directory.users import (
    Users,
    change_user,
    delete_user,
    ensure_group,
    insert_user,
    join_group,
    leave_group,
    users_of,
)
from headrace.errors import HeadraceError, NotThere

PASSWORDS_MAX: Final = 100  # of a document that comes over HTTP: each takes long to hash
State = Literal["active", "disabled"]
_RuleKey = tuple[str, str, str, tuple[str, ...], str]


class UserDocument(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """A user. One that is new has a `hash` or a `password`; without them one that is there keeps its own."""

    name: str
    state: State = ACTIVE
    groups: list[str] = []
    hash: str = ""
    password: str = ""


class RuleDocument(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """A rule, without its number."""

    effect: str
    actions: list[str]
    filter: str
    kind: str = "tenant"
    subject: str = ""


class TenantDocument(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A tenant; null: left as it is."""

    tenant: str = ""
    state: State | None = None
    quotas: dict[str, int] | None = None
    settings: dict[str, str] | None = None
    users: list[UserDocument] | None = None
    rules: list[RuleDocument] | None = None


class Imported(msgspec.Struct):
    """What a document has changed, by name; rules are counted. `revision`: of the newest change of the directory."""

    tenant: str
    tenant_changes: list[str] = []
    users_created: list[str] = []
    users_changed: list[str] = []
    users_deleted: list[str] = []
    rules_added: int = 0
    rules_removed: int = 0
    is_dry_run: bool = False
    revision: int = 0


class NotForThisToken(HeadraceError):
    """A document changes the tenant itself, which only who administers all tenants may."""


class _Undone(Exception):
    """A dry run ends here, and nothing of it stays."""


class Documents:
    """The tenants of a directory as documents."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._users = Users(database)

    def export(self, tenant: str, hashes: bool = False) -> TenantDocument:
        """Return a tenant as it is; with the `hashes` of its users, which let in whoever finds a password for one. Raises
        InvalidField, NotThere."""
        tenant_name(tenant)
        with self._database.reading() as connection:
            found = find_tenant(connection, tenant)
            if found is None or found.state == DELETING:
                raise NotThere(f"there is no tenant {tenant}")
            users = [_user_document(one, hashes) for one in users_of(connection, tenant)]
            rules = [
                RuleDocument(one.effect, list(one.actions), one.filter, one.kind, one.subject)
                for one in rules_of(connection, tenant)
            ]
            state: State = DISABLED if found.state == DISABLED else ACTIVE
            quotas, settings = quotas_of(connection, tenant), settings_of(connection, tenant)
            return TenantDocument(tenant, state, quotas, settings, users, rules)

    def bring_in(
        self,
        actor: Actor,
        tenant: str,
        document: TenantDocument,
        *,
        prune: bool = False,
        dry_run: bool = False,
        whole: bool = True,
    ) -> Imported:
        """Have a tenant, which is made if it is not there, be as a document says. `dry_run`: say it and change nothing.
        Not `whole`: the users and the rules alone may be changed by whoever asks. Raises InvalidField, NotThere,
        NotInThatState, ChangedMeanwhile, NotForThisToken."""
        tenant_name(tenant)
        if document.tenant not in ("", tenant):
            raise InvalidField("tenant", f"the document is of {document.tenant}, and this is {tenant}")
        wanted = _Wanted(tenant, document)
        if any(one.password for one in document.users or ()):
            self._refuse_early(actor, tenant, wanted, whole)
            wanted.hash({one.name: one for one in self._users.all(tenant)})
        done = Imported(tenant, is_dry_run=dry_run)
        try:
            with self._database.writing(actor) as writing:
                _Import(writing, tenant, done, prune).run(wanted, whole)
                done.revision = writing.revision
                if dry_run:
                    raise _Undone
        except _Undone:
            pass
        return done

    def _refuse_early(self, actor: Actor, tenant: str, wanted: _Wanted, whole: bool) -> None:
        """Refuse who may not do this before a password is hashed: many of them keep a thread busy for seconds. Raises
        NotThere, NotInThatState, NotForThisToken."""
        try:
            with self._database.writing(actor) as writing:
                _Import(writing, tenant, Imported(tenant), prune=False).begin(wanted, whole)
                raise _Undone
        except _Undone:
            pass


class _Wanted:
    """A document that was checked. `hashes`: of the users that are to have another one; `seen`: the hashes of users whose
    password is the one that they have, which they must have still."""

    def __init__(self, tenant: str, document: TenantDocument) -> None:
        self.document = document
        given, set_ = document.quotas, document.settings
        self.quotas = None if given is None else {key: quota(key, str(n)) for key, n in given.items()}
        self.settings = None if set_ is None else {key: setting(key, text) for key, text in set_.items()}
        self.hashes: dict[str, str] = {}
        self.seen: dict[str, str] = {}
        users = document.users or []
        for at, one in enumerate(users):
            with _within(f"users[{at}]"):
                self._check_user(one)
        if len({one.name for one in users}) < len(users):
            raise InvalidField("users", "one of them is there twice")
        self.rules = [
            Rule(tenant, 0, one.effect, tuple(one.actions), one.filter, one.kind, one.subject)
            for one in document.rules or ()
        ]
        for at, rule in enumerate(self.rules):
            with _within(f"rules[{at}]"):
                check_rule(rule)
        self.hashes |= {one.name: one.hash for one in users if one.hash}

    def hash(self, known: Mapping[str, User]) -> None:
        """Hash the passwords of the document, once all else is checked: it takes long. `known` are the users that are
        there, who keep the hash of a password that they have."""
        for one in self.document.users or ():
            self._hash(one, known.get(one.name))

    def _check_user(self, one: UserDocument) -> None:
        user_name(one.name, "name")
        for group in one.groups:
            group_name(group)
        if one.hash and one.password:
            raise InvalidField("password", "there is a hash too: give one of them")
        if one.hash:
            checked_hash(one.hash)
        if one.password:
            password_of(one.password.encode())

    def _hash(self, one: UserDocument, there: User | None) -> None:
        secret = one.password.encode()
        if secret and there is not None and matches(there.hashed, secret):
            self.seen[one.name] = there.hashed
        elif secret:
            self.hashes[one.name] = hashed(secret)


class _Import:
    """A document on its way into the directory, within one transaction."""

    def __init__(self, writing: Writing, tenant: str, done: Imported, prune: bool) -> None:
        self._writing = writing
        self._tenant = tenant
        self._done = done
        self._prune = prune

    def run(self, wanted: _Wanted, whole: bool) -> None:
        document = wanted.document
        self.begin(wanted, whole)
        if document.users is not None:
            self._change_users(document.users, wanted)
        if document.rules is not None:
            self._change_rules(wanted.rules)

    def begin(self, wanted: _Wanted, whole: bool) -> None:
        """Change the tenant itself, as far as whoever asks may do that."""
        self._change_tenant(self._ensure(whole), wanted)
        if self._done.tenant_changes and not whole:
            changes = ", ".join(self._done.tenant_changes)
            raise NotForThisToken(
                f"this token may change users and rules, and the document changes: {changes}"
            )

    def _ensure(self, whole: bool) -> Tenant:
        """Return the tenant, which is made if it is not there."""
        found = find_tenant(self._writing.connection, self._tenant)
        if found is not None and found.state == DELETING:
            raise NotInThatState(f"tenant {self._tenant} is being deleted")
        if found is None and not whole:
            raise NotThere(f"there is no tenant {self._tenant}")
        if found is None:
            found = insert_tenant(self._writing, self._tenant)
            self._done.tenant_changes.append("created")
        return found

    def _change_tenant(self, there: Tenant, wanted: _Wanted) -> None:
        state = wanted.document.state
        if state is not None and state != there.state:
            what = "tenant disabled" if state == DISABLED else "tenant enabled"
            note_state(self._writing, self._tenant, state, what)
            self._done.tenant_changes.append(state)
        connection = self._writing.connection
        if wanted.quotas is not None:
            self._replace(QUOTAS, "quotas set", quotas_of(connection, self._tenant), wanted.quotas)
        if wanted.settings is not None:
            self._replace(SETTINGS, "settings set", settings_of(connection, self._tenant), wanted.settings)

    def _replace(self, table: Table, what: str, there: Mapping[str, Any], wanted: Mapping[str, Any]) -> None:
        new = {key: value for key, value in wanted.items() if there.get(key) != value}
        new |= dict.fromkeys(there.keys() - {key for key, value in wanted.items() if value is not None})
        if new:
            put_values(self._writing, table, self._tenant, new)
            note_state(self._writing, self._tenant, "", what, **new)
            self._done.tenant_changes.append(what)

    def _change_users(self, users: Sequence[UserDocument], wanted: _Wanted) -> None:
        there = {one.name: one for one in users_of(self._writing.connection, self._tenant)}
        for at, one in enumerate(users):
            found, new = there.get(one.name), wanted.hashes.get(one.name)
            if one.name in wanted.seen and (found is None or found.hashed != wanted.seen[one.name]):
                raise ChangedMeanwhile(f"user {self._tenant}/{one.name} was changed meanwhile: try again")
            if found is None and new is None:
                raise InvalidField(f"users[{at}]", "is new, and has neither hash nor password")
            if found is None and new is not None:
                insert_user(self._writing, self._tenant, one.name, new, "user imported")
                self._done.users_created.append(one.name)
            before = self._writing.revision
            self._change_user(one, found, new)
            if found is not None and self._writing.revision != before:
                self._done.users_changed.append(one.name)
        if self._prune:
            for name in sorted(there.keys() - {one.name for one in users}):
                delete_user(self._writing, self._tenant, name)
                self._done.users_deleted.append(name)

    def _change_user(self, one: UserDocument, found: User | None, new: str | None) -> None:
        """Give a user that is there by now what it lacks of its document."""
        if found is not None and new is not None and new != found.hashed:
            change_user(self._writing, self._tenant, one.name, "user imported", hashed=new)
        is_disabled = found is not None and found.disabled
        if (one.state == DISABLED) != is_disabled:
            what = "user disabled" if one.state == DISABLED else "user enabled"
            change_user(self._writing, self._tenant, one.name, what, disabled=one.state == DISABLED)
        groups = set(found.groups) if found is not None else set()
        for group in sorted(set(one.groups) - groups):
            join_group(self._writing, self._tenant, one.name, group)
        for group in sorted(groups - set(one.groups)):
            leave_group(self._writing, self._tenant, one.name, group)

    def _change_rules(self, rules: Sequence[Rule]) -> None:
        there = {_key(one): one for one in rules_of(self._writing.connection, self._tenant)}
        wanted = {_key(one): one for one in rules}
        for key, one in wanted.items():
            if key not in there:
                if one.kind == "group":  # one that has no member yet is there by this
                    ensure_group(self._writing, self._tenant, one.subject)
                add_rule(self._writing, one)
                self._done.rules_added += 1
        if self._prune:
            for key in there.keys() - wanted.keys():
                remove_rule(self._writing, there[key])
                self._done.rules_removed += 1


def _user_document(one: User, hashes: bool) -> UserDocument:
    state: State = DISABLED if one.disabled else ACTIVE
    return UserDocument(one.name, state, list(one.groups), one.hashed if hashes else "")


def _key(rule: Rule) -> _RuleKey:
    """Return what makes a rule this one, whatever its number is; actions in their usual order."""
    return rule.kind, rule.subject, rule.effect, tuple(sorted(set(rule.actions))), rule.filter


@contextmanager
def _within(entry: str) -> Iterator[None]:
    """Name the entry of a document in what is wrong with it."""
    try:
        yield
    except InvalidField as error:
        raise InvalidField(f"{entry}.{error.field}", error.reason) from None
