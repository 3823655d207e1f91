"""Tenants, their quotas and their settings, in the database. Blocks; runs on threads."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sqlalchemy import Connection, Row, Table, func, select

from headrace.directory.entries import ACTIVE, DELETING, DISABLED, Actor, Tenant, quota, setting
from headrace.directory.errors import AlreadyThere, NotInThatState
from headrace.directory.names import tenant_name
from headrace.directory.schema import OF_TENANTS, QUOTAS, SETTINGS, TENANTS, USERS
from headrace.directory.transactions import Database, Writing, check_revision
from headrace.errors import NotThere

Values = Mapping[str, str]


class Tenants:
    """The tenants of a directory."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def create(self, actor: Actor, name: str) -> Tenant:
        """Make a tenant. Raises InvalidField, AlreadyThere, NotInThatState for a name that is not free yet."""
        tenant_name(name)
        with self._database.writing(actor) as writing:
            found = find_tenant(writing.connection, name)
            if found is not None and found.state == DELETING:
                raise NotInThatState(
                    f"tenant {name} is being deleted: its name is free once `headrace tenant release {name}` was done"
                )
            if found is not None:
                raise AlreadyThere(f"there is a tenant {name} already")
            return insert_tenant(writing, name)

    def all(self) -> list[Tenant]:
        """Return all tenants, by name."""
        with self._database.reading() as connection:
            return [_tenant(row) for row in connection.execute(select(TENANTS).order_by(TENANTS.c.name))]

    def get(self, name: str) -> Tenant:
        """Return a tenant. Raises NotThere."""
        with self._database.reading() as connection:
            found = find_tenant(connection, tenant_name(name))
        if found is None:
            raise NotThere(f"there is no tenant {name}")
        return found

    def users(self, name: str) -> int:
        """Return how many users a tenant has."""
        with self._database.reading() as connection:
            users = select(func.count()).select_from(USERS).where(USERS.c.tenant == name)
            return int(connection.execute(users).scalar_one())

    def disable(self, actor: Actor, name: str, if_revision: int | None = None) -> None:
        """Let nobody of a tenant in. Raises NotThere, NotInThatState, ChangedMeanwhile."""
        self._set_state(actor, name, DISABLED, "tenant disabled", if_revision)

    def enable(self, actor: Actor, name: str, if_revision: int | None = None) -> None:
        """Let a tenant's users in again. Raises NotThere, NotInThatState, ChangedMeanwhile."""
        self._set_state(actor, name, ACTIVE, "tenant enabled", if_revision)

    def delete(self, actor: Actor, name: str, if_revision: int | None = None) -> None:
        """Delete a tenant with its users, rules and tokens. Its name is not free before `release`: a broker may hold
        sessions and messages of it. Raises NotThere, NotInThatState, ChangedMeanwhile."""
        with self._database.writing(actor) as writing:
            _check(writing, name, if_revision)
            for table in OF_TENANTS:
                writing.connection.execute(table.delete().where(table.c.tenant == name))
            note_state(writing, name, DELETING, "tenant deleted")

    def release(self, actor: Actor, name: str) -> None:
        """Give the name of a deleted tenant free, once no broker has anything of it. Raises NotThere, NotInThatState."""
        tenant_name(name)
        with self._database.writing(actor) as writing:
            if writing.state_of(name) != DELETING:
                raise NotInThatState(
                    f"tenant {name} is not being deleted: `headrace tenant delete {name}` comes first"
                )
            writing.connection.execute(TENANTS.delete().where(TENANTS.c.name == name))
            writing.note("tenant released", name)

    def _set_state(self, actor: Actor, name: str, state: str, what: str, if_revision: int | None) -> None:
        with self._database.writing(actor) as writing:
            _check(writing, name, if_revision)
            note_state(writing, name, state, what)

    # What a tenant may

    def set_quotas(
        self, actor: Actor, name: str, values: Values, if_revision: int | None = None
    ) -> dict[str, int]:
        """Set these quotas and leave the others; `none` takes one away. Returns all. Raises InvalidField, NotThere,
        NotInThatState, ChangedMeanwhile."""
        wanted = {key: quota(key, text) for key, text in values.items()}
        return self._set(actor, name, QUOTAS, "quotas set", wanted, if_revision)

    def replace_quotas(
        self, actor: Actor, name: str, values: Values, if_revision: int | None = None
    ) -> dict[str, int]:
        """Have a tenant have these quotas and no others; nothing is changed if it has. Returns all. Raises InvalidField,
        NotThere, NotInThatState, ChangedMeanwhile."""
        wanted = {key: quota(key, text) for key, text in values.items()}
        with self._database.writing(actor) as writing:
            _check(writing, name, if_revision)
            there = quotas_of(writing.connection, name)
            new = {key: value for key, value in wanted.items() if there.get(key) != value}
            new |= dict.fromkeys(there.keys() - wanted.keys())
            if new:
                put_values(writing, QUOTAS, name, new)
                note_state(writing, name, "", "quotas set", **new)
            return quotas_of(writing.connection, name)

    def set_settings(
        self, actor: Actor, name: str, values: Values, if_revision: int | None = None
    ) -> dict[str, str]:
        """Set these settings and leave the others; `default` takes one away. Returns all. Raises InvalidField, NotThere,
        NotInThatState, ChangedMeanwhile."""
        wanted = {key: setting(key, text) for key, text in values.items()}
        return self._set(actor, name, SETTINGS, "settings set", wanted, if_revision)

    def _set(
        self,
        actor: Actor,
        name: str,
        table: Table,
        what: str,
        wanted: Mapping[str, int | None] | Mapping[str, str | None],
        if_revision: int | None,
    ) -> dict[str, Any]:
        """Set values of a tenant in a table, None takes one away, and return all that it has there."""
        with self._database.writing(actor) as writing:
            _check(writing, name, if_revision)
            put_values(writing, table, name, wanted)
            note_state(writing, name, "", what, **wanted)
            return _values(writing.connection, table, name)

    def quotas(self, name: str) -> dict[str, int]:
        """Return the quotas that a tenant has."""
        with self._database.reading() as connection:
            return quotas_of(connection, name)

    def settings(self, name: str) -> dict[str, str]:
        """Return the settings that a tenant has."""
        with self._database.reading() as connection:
            return settings_of(connection, name)


def insert_tenant(writing: Writing, name: str) -> Tenant:
    """Make a tenant that is not there."""
    revision = writing.note("tenant created", name)
    row = {"name": name, "state": ACTIVE, "created_us": writing.now_us, "revision": revision}
    writing.connection.execute(TENANTS.insert().values(row))
    return Tenant(name, ACTIVE, writing.now_us, revision)


def find_tenant(connection: Connection, name: str) -> Tenant | None:
    """Return a tenant; None if there is none."""
    row = connection.execute(select(TENANTS).where(TENANTS.c.name == name)).first()
    return None if row is None else _tenant(row)


def quotas_of(connection: Connection, name: str) -> dict[str, int]:
    """Return the quotas that a tenant has, by name."""
    return _values(connection, QUOTAS, name)


def settings_of(connection: Connection, name: str) -> dict[str, str]:
    """Return the settings that a tenant has, by name."""
    return _values(connection, SETTINGS, name)


def _tenant(row: Row[Any]) -> Tenant:
    return Tenant(row.name, row.state, row.created_us, row.revision)


def _check(writing: Writing, name: str, if_revision: int | None) -> None:
    """Check that a tenant can be changed, and is as the asker saw it. Raises InvalidField, NotThere, NotInThatState,
    ChangedMeanwhile."""
    writing.check_tenant(tenant_name(name))
    found = find_tenant(writing.connection, name)
    assert found is not None
    check_revision(found.revision, if_revision, f"tenant {name}")


def note_state(writing: Writing, name: str, state: str, what: str, **detail: object) -> None:
    """Give a tenant the revision of a change, and with "" the state that it has."""
    changed: dict[str, object] = {"revision": writing.note(what, name, "", **detail)}
    if state:
        changed["state"] = state
    writing.connection.execute(TENANTS.update().where(TENANTS.c.name == name).values(changed))


def put_values(
    writing: Writing, table: Table, tenant: str, values: Mapping[str, int | None] | Mapping[str, str | None]
) -> None:
    """Set quotas or settings of a tenant; None takes one away."""
    for key, value in values.items():
        writing.connection.execute(table.delete().where(table.c.tenant == tenant, table.c.name == key))
        if value is not None:
            writing.connection.execute(table.insert().values(tenant=tenant, name=key, value=value))


def _values(connection: Connection, table: Table, tenant: str) -> dict[str, Any]:
    found = select(table.c.name, table.c.value).where(table.c.tenant == tenant).order_by(table.c.name)
    return {row.name: row.value for row in connection.execute(found)}
