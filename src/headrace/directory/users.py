"""Users and groups of tenants, in the database. Blocks; runs on threads."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import Connection, Row, func, select

from headrace.directory.entries import Actor, User
from headrace.directory.errors import AlreadyThere
from headrace.directory.hashes import checked_hash, cost_of, hashed
from headrace.directory.names import group_name, password_of, tenant_name, user_name
from headrace.directory.schema import GROUPS, MEMBERS, RULES, USERS
from headrace.directory.transactions import Database, Writing, check_revision
from headrace.errors import NotThere


class Users:
    """The users of the tenants of a directory."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def create(
        self, actor: Actor, tenant: str, name: str, password: bytes, groups: Sequence[str] = ()
    ) -> None:
        """Make a user that is of these groups. Raises InvalidField, NotThere for the tenant, NotInThatState,
        AlreadyThere."""
        _check_names(tenant, name)
        for group in groups:
            group_name(group)
        found = hashed(password_of(password))  # before the transaction, which others wait for
        with self._database.writing(actor) as writing:
            writing.check_tenant(tenant)
            if _row_of(writing.connection, tenant, name) is not None:
                raise AlreadyThere(f"tenant {tenant} has a user {name!r} already")
            insert_user(writing, tenant, name, found, "user created")
            for group in groups:
                join_group(writing, tenant, name, group)

    def set_password(
        self, actor: Actor, tenant: str, name: str, password: bytes, if_revision: int | None = None
    ) -> int:
        """Give a user another password, and return the revision. Raises InvalidField, NotThere, ChangedMeanwhile."""
        _check_names(tenant, name)
        found = hashed(password_of(password))
        values = {"hash": found, "cost": cost_of(found)}
        return self._change(actor, tenant, name, "password set", values, if_revision)

    def disable(self, actor: Actor, tenant: str, name: str, if_revision: int | None = None) -> int:
        """Let a user in no more, and return the revision. Raises InvalidField, NotThere, ChangedMeanwhile."""
        _check_names(tenant, name)
        return self._change(actor, tenant, name, "user disabled", {"disabled": 1}, if_revision)

    def enable(self, actor: Actor, tenant: str, name: str, if_revision: int | None = None) -> int:
        """Let a user in again, and return the revision. Raises InvalidField, NotThere, ChangedMeanwhile."""
        _check_names(tenant, name)
        return self._change(actor, tenant, name, "user enabled", {"disabled": 0}, if_revision)

    def delete(self, actor: Actor, tenant: str, name: str, if_revision: int | None = None) -> None:
        """Delete a user, with its rules and memberships. Raises InvalidField, NotThere, ChangedMeanwhile."""
        _check_names(tenant, name)
        with self._database.writing(actor) as writing:
            _check(writing, tenant, name, if_revision)
            delete_user(writing, tenant, name)

    def import_hashes(
        self, actor: Actor, tenant: str, hashes: Mapping[str, str], replace: bool = False
    ) -> int:
        """Make users with the hashes that they have elsewhere, all of them or none, and return how many. Users that are
        there keep their passwords and are refused, but for `replace`. Raises InvalidField, NotThere, AlreadyThere."""
        tenant_name(tenant)
        for name, found in hashes.items():
            checked_hash(found, f"hash of {user_name(name)!r}")
        with self._database.writing(actor) as writing:
            writing.check_tenant(tenant)
            for name, found in hashes.items():
                there = _row_of(writing.connection, tenant, name) is not None
                if there and not replace:
                    raise AlreadyThere(f"tenant {tenant} has a user {name!r} already: nothing was imported")
                if there:  # who was disabled stays so
                    change_user(writing, tenant, name, "user imported", hashed=found)
                else:
                    insert_user(writing, tenant, name, found, "user imported")
        return len(hashes)

    def all(self, tenant: str) -> list[User]:
        """Return the users of a tenant, by name. Raises InvalidField."""
        tenant_name(tenant)
        with self._database.reading() as connection:
            return users_of(connection, tenant)

    def find(self, connection: Connection, tenant: str, name: str) -> User | None:
        """Return a user with its groups; None if there is none."""
        row = _row_of(connection, tenant, name)
        if row is None:
            return None
        mine = MEMBERS.c.tenant == tenant, MEMBERS.c.user == name
        groups = connection.execute(select(MEMBERS.c.group).where(*mine).order_by(MEMBERS.c.group))
        return _user(row, tuple(groups.scalars()))

    def costs(self, connection: Connection, most: int) -> list[str]:
        """Return the most frequent costs of the hashes of all tenants together."""
        counted = select(USERS.c.cost).group_by(USERS.c.cost).order_by(func.count().desc(), USERS.c.cost)
        return list(connection.execute(counted.limit(most)).scalars())

    # Groups

    def join(self, actor: Actor, tenant: str, name: str, group: str) -> None:
        """Have a user be of a group, which is made if it is not there. Raises InvalidField, NotThere."""
        _check_names(tenant, name)
        group_name(group)
        with self._database.writing(actor) as writing:
            _check(writing, tenant, name, None)
            join_group(writing, tenant, name, group)

    def leave(self, actor: Actor, tenant: str, name: str, group: str) -> None:
        """Have a user be of a group no more. Raises InvalidField, NotThere."""
        _check_names(tenant, name)
        group_name(group)
        with self._database.writing(actor) as writing:
            _check(writing, tenant, name, None)
            if not leave_group(writing, tenant, name, group):
                raise NotThere(f"user {tenant}/{name} is not of the group {group!r}")

    def _change(
        self,
        actor: Actor,
        tenant: str,
        name: str,
        what: str,
        values: dict[str, Any],
        if_revision: int | None,
    ) -> int:
        with self._database.writing(actor) as writing:
            _check(writing, tenant, name, if_revision)
            revision = writing.note(what, tenant, name)
            changed = USERS.update().where(*_is(tenant, name)).values(**values, revision=revision)
            writing.connection.execute(changed)
            return revision


def _check_names(tenant: str, name: str) -> None:
    tenant_name(tenant)
    user_name(name)


def _is(tenant: str, name: str) -> tuple[Any, Any]:
    return USERS.c.tenant == tenant, USERS.c.name == name


def _row_of(connection: Connection, tenant: str, name: str) -> Row[Any] | None:
    return connection.execute(select(USERS).where(*_is(tenant, name))).first()


def _check(writing: Writing, tenant: str, name: str, if_revision: int | None) -> None:
    """Check that a user can be changed, and is as the asker saw it. Raises NotThere, NotInThatState, ChangedMeanwhile."""
    writing.check_tenant(tenant)
    row = _row_of(writing.connection, tenant, name)
    if row is None:
        raise NotThere(f"tenant {tenant} has no user {name!r}")
    check_revision(row.revision, if_revision, f"user {tenant}/{name}")


def users_of(connection: Connection, tenant: str) -> list[User]:
    """Return the users of a tenant, by name."""
    groups: dict[str, list[str]] = {}
    of_tenant = select(MEMBERS.c.user, MEMBERS.c.group).where(MEMBERS.c.tenant == tenant)
    for user, group in connection.execute(of_tenant.order_by(MEMBERS.c.group)):
        groups.setdefault(user, []).append(group)
    rows = connection.execute(select(USERS).where(USERS.c.tenant == tenant).order_by(USERS.c.name))
    return [_user(row, tuple(groups.get(row.name, ()))) for row in rows]


def delete_user(writing: Writing, tenant: str, name: str) -> None:
    """Delete a user, with its rules and memberships."""
    own = RULES.c.tenant == tenant, RULES.c.kind == "user", RULES.c.subject == name
    writing.connection.execute(RULES.delete().where(*own))
    members = MEMBERS.c.tenant == tenant, MEMBERS.c.user == name
    writing.connection.execute(MEMBERS.delete().where(*members))
    writing.connection.execute(USERS.delete().where(*_is(tenant, name)))
    writing.note("user deleted", tenant, name)


def change_user(
    writing: Writing, tenant: str, name: str, what: str, hashed: str = "", disabled: bool | None = None
) -> None:
    """Give a user that is there another hash, or have it disabled or not."""
    values: dict[str, Any] = {"revision": writing.note(what, tenant, name)}
    if hashed:
        values |= {"hash": hashed, "cost": cost_of(hashed)}
    if disabled is not None:
        values["disabled"] = int(disabled)
    writing.connection.execute(USERS.update().where(*_is(tenant, name)).values(values))


def insert_user(writing: Writing, tenant: str, name: str, found: str, what: str) -> None:
    """Make a user that is not there, with this hash."""
    revision = writing.note(what, tenant, name)
    row = {
        "tenant": tenant,
        "name": name,
        "hash": found,
        "cost": cost_of(found),
        "disabled": 0,
        "created_us": writing.now_us,
        "revision": revision,
    }
    writing.connection.execute(USERS.insert().values(row))


def join_group(writing: Writing, tenant: str, name: str, group: str) -> None:
    """Write a membership, and the group if it is not there."""
    revision = writing.note("group joined", tenant, name, group=group)
    ensure_group(writing, tenant, group)
    _leave(writing, tenant, name, group)  # one that is there already is of this revision now
    row = {"tenant": tenant, "user": name, "group": group, "revision": revision}
    writing.connection.execute(MEMBERS.insert().values(row))
    _touch(writing, tenant, name, revision)


def ensure_group(writing: Writing, tenant: str, group: str) -> None:
    """Write a group if it is not there; it is of the revision of the latest change."""
    known = GROUPS.c.tenant == tenant, GROUPS.c.name == group
    if writing.connection.execute(select(GROUPS.c.name).where(*known)).first() is None:
        row = {"tenant": tenant, "name": group, "revision": writing.revision}
        writing.connection.execute(GROUPS.insert().values(row))


def leave_group(writing: Writing, tenant: str, name: str, group: str) -> bool:
    """Have a user be of a group no more, and return whether it was."""
    if not _leave(writing, tenant, name, group):
        return False
    _touch(writing, tenant, name, writing.note("group left", tenant, name, group=group))
    return True


def _leave(writing: Writing, tenant: str, name: str, group: str) -> bool:
    """Delete a membership, and return whether there was one."""
    one = MEMBERS.c.tenant == tenant, MEMBERS.c.user == name, MEMBERS.c.group == group
    return writing.connection.execute(MEMBERS.delete().where(*one)).rowcount > 0


def _touch(writing: Writing, tenant: str, name: str, revision: int) -> None:
    """Give a user the revision of a change to its groups."""
    writing.connection.execute(USERS.update().where(*_is(tenant, name)).values(revision=revision))


def _user(row: Row[Any], groups: tuple[str, ...]) -> User:
    disabled = bool(row.disabled)
    return User(row.tenant, row.name, disabled, row.created_us, row.revision, row.hash, groups)
