"""Bans of clients, users and addresses, in the database. Blocks; runs on threads."""

from __future__ import annotations

from typing import Any, Final

from sqlalchemy import Connection, Row, or_, select

from headrace.directory.entries import BANNED, Actor, Ban
from headrace.directory.errors import InvalidField
from headrace.directory.names import (
    DURATION_S_MAX,
    client_id,
    network,
    note_of_text,
    tenant_name,
    user_name,
    whole_number,
)
from headrace.directory.schema import BANS
from headrace.directory.transactions import Database
from headrace.errors import NotThere

_NAMED: Final = {"client": client_id, "user": user_name, "address": network}


class Bans:
    """The bans of a directory. Those of addresses hold for all tenants, and their tenant is ""."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def add(
        self, actor: Actor, kind: str, tenant: str, subject: str, for_s: int = 0, reason: str = ""
    ) -> Ban:
        """Ban a client, a user or an address for so many seconds, 0: without end; one that is there gets this end.
        Raises InvalidField, NotThere for the tenant, NotInThatState."""
        subject = _checked(kind, tenant, subject)
        whole_number(for_s, "for", 0, DURATION_S_MAX)
        note_of_text(reason, "reason")
        with self._database.writing(actor) as writing:
            if tenant:
                writing.check_tenant(tenant)
            until_us = writing.now_us + for_s * 1_000_000 if for_s else 0
            detail = {"kind": kind, "until_us": until_us, "reason": reason}
            revision = writing.note("ban added", tenant, subject, **detail)
            found = Ban(tenant, kind, subject, until_us, reason, revision)
            writing.connection.execute(BANS.delete().where(*_is(kind, tenant, subject)))
            row = {"tenant": tenant, "kind": kind, "subject": subject, "until_us": until_us}
            writing.connection.execute(BANS.insert().values(**row, reason=reason, revision=revision))
            # What is over goes with the next one: nobody has to clear it away.
            over = BANS.c.until_us > 0, BANS.c.until_us <= writing.now_us
            writing.connection.execute(BANS.delete().where(*over))
        return found

    def remove(self, actor: Actor, kind: str, tenant: str, subject: str) -> None:
        """Lift a ban. Raises InvalidField, NotThere."""
        subject = _checked(kind, tenant, subject)
        with self._database.writing(actor) as writing:
            found = writing.connection.execute(BANS.delete().where(*_is(kind, tenant, subject)))
            if not found.rowcount:
                where = f" of tenant {tenant}" if tenant else ""
                raise NotThere(f"the {kind} {subject!r}{where} is not banned")
            writing.note("ban removed", tenant, subject, kind=kind)

    def all(self, tenant: str = "") -> list[Ban]:
        """Return the bans that hold now; of a tenant, which are none of addresses, if it is named."""
        with self._database.reading() as connection:
            return [one for one in self.holding(connection) if not tenant or one.tenant == tenant]

    def holding(self, connection: Connection) -> list[Ban]:
        """Return the bans that hold now, by kind, tenant and name."""
        now_us = self._database.clock_us()
        holds = or_(BANS.c.until_us == 0, BANS.c.until_us > now_us)
        order = BANS.c.kind, BANS.c.tenant, BANS.c.subject
        return [_ban(row) for row in connection.execute(select(BANS).where(holds).order_by(*order))]


def _checked(kind: str, tenant: str, subject: str) -> str:
    """Return whom a ban is about, an address as it is written canonically. Raises InvalidField."""
    if kind not in BANNED:
        raise InvalidField("kind", f"is one of {', '.join(BANNED)}")
    if kind != "address":
        tenant_name(tenant)
    elif tenant:
        raise InvalidField("tenant", "an address is banned for all tenants")
    return _NAMED[kind](subject)


def _is(kind: str, tenant: str, subject: str) -> tuple[Any, Any, Any]:
    return BANS.c.kind == kind, BANS.c.tenant == tenant, BANS.c.subject == subject


def _ban(row: Row[Any]) -> Ban:
    return Ban(row.tenant, row.kind, row.subject, row.until_us, row.reason, row.revision)
