"""Rules of tenants, in the database. Blocks; runs on threads.

A rule allows or denies something of publish, subscribe and retain on the topics of a filter, to a whole tenant, to a
group, a user or a client. What no rule allows is denied, and what one denies no other allows.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import ColumnElement, Connection, Row, and_, select

from headrace.directory.entries import ACTIONS, ALLOW, DENY, SUBJECTS, Actor, Rule
from headrace.directory.errors import AlreadyThere, InvalidField
from headrace.directory.names import (
    client_id,
    group_name,
    tenant_name,
    topic_filter,
    user_name,
    whole_number,
)
from headrace.directory.schema import GROUPS, RULES, USERS
from headrace.directory.transactions import Database, Writing
from headrace.errors import NotThere

_NAMED = {"group": group_name, "user": user_name, "client": client_id}


class Rules:
    """The rules of the tenants of a directory."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def add(self, actor: Actor, rule: Rule) -> Rule:
        """Add a rule, and return it with its number. Raises InvalidField, NotThere for its tenant, user or group,
        NotInThatState, AlreadyThere."""
        check_rule(rule)
        with self._database.writing(actor) as writing:
            writing.check_tenant(rule.tenant)
            bits = bits_of(rule.actions)
            same = (
                RULES.c.tenant == rule.tenant,
                RULES.c.kind == rule.kind,
                RULES.c.subject == rule.subject,
                RULES.c.effect == rule.effect,
                RULES.c.actions == bits,
                RULES.c.filter == rule.filter,
            )
            number = writing.connection.execute(select(RULES.c.number).where(*same)).scalar()
            if number is not None:
                raise AlreadyThere(f"tenant {rule.tenant} has this rule already: number {number}")
            return add_rule(writing, rule)

    def remove(self, actor: Actor, tenant: str, number: int) -> None:
        """Remove a rule by its number. Raises InvalidField, NotThere, NotInThatState."""
        whole_number(number, "number")
        with self._database.writing(actor) as writing:
            writing.check_tenant(tenant_name(tenant))
            one = RULES.c.tenant == tenant, RULES.c.number == number
            row = writing.connection.execute(select(RULES).where(*one)).first()
            if row is None:
                raise NotThere(f"tenant {tenant} has no rule {number}")
            remove_rule(writing, _rule(row))

    def all(self, tenant: str) -> list[Rule]:
        """Return the rules of a tenant, the oldest first. Raises InvalidField."""
        with self._database.reading() as connection:
            return rules_of(connection, tenant_name(tenant), RULES.c.tenant == tenant)

    def shared(self, connection: Connection, tenant: str) -> list[Rule]:
        """Return the rules of a tenant that are about no single user: of the tenant, its groups and its clients."""
        return rules_of(connection, tenant, RULES.c.kind != "user")

    def of_user(self, connection: Connection, tenant: str, user: str) -> list[Rule]:
        """Return the rules that are about one user alone."""
        return rules_of(connection, tenant, and_(RULES.c.kind == "user", RULES.c.subject == user))


def bits_of(actions: tuple[str, ...]) -> int:
    """Return actions as bits: 1 publish, 2 subscribe, 4 retain."""
    return sum(1 << bit for bit, action in enumerate(ACTIONS) if action in actions)


def check_rule(rule: Rule) -> None:
    """Check the fields of a rule that is to be added. Raises InvalidField."""
    tenant_name(rule.tenant)
    if rule.effect not in (ALLOW, DENY):
        raise InvalidField("effect", f"is {ALLOW} or {DENY}")
    if not rule.actions or not set(rule.actions) <= set(ACTIONS):
        raise InvalidField("actions", f"is some of {', '.join(ACTIONS)}")
    topic_filter(rule.filter)
    if rule.kind not in SUBJECTS:
        raise InvalidField("kind", f"is one of {', '.join(SUBJECTS)}")
    if rule.kind in _NAMED:
        _NAMED[rule.kind](rule.subject)
    elif rule.subject:
        raise InvalidField("subject", "is empty for a rule of the whole tenant")


def _check_subject(writing: Writing, rule: Rule) -> None:
    """Check that there is who a rule is about; client ids are nobody's list. Raises NotThere."""
    table = {"user": USERS, "group": GROUPS}.get(rule.kind)
    if table is None:
        return
    one = table.c.tenant == rule.tenant, table.c.name == rule.subject
    if writing.connection.execute(select(table.c.name).where(*one)).first() is None:
        raise NotThere(f"tenant {rule.tenant} has no {rule.kind} {rule.subject!r}")


def remove_rule(writing: Writing, rule: Rule) -> None:
    """Remove a rule that is there."""
    one = RULES.c.tenant == rule.tenant, RULES.c.number == rule.number
    writing.connection.execute(RULES.delete().where(*one))
    writing.note("rule removed", rule.tenant, *_about(rule), **_detail(rule))


def add_rule(writing: Writing, rule: Rule) -> Rule:
    """Add a rule that is not there, and return it with its number. Raises NotThere for its user or group."""
    _check_subject(writing, rule)
    number = writing.note("rule added", rule.tenant, *_about(rule), **_detail(rule))
    row = {
        "tenant": rule.tenant,
        "number": number,
        "effect": rule.effect,
        "actions": bits_of(rule.actions),
        "filter": rule.filter,
        "kind": rule.kind,
        "subject": rule.subject,
    }
    writing.connection.execute(RULES.insert().values(row))
    return Rule(rule.tenant, number, rule.effect, rule.actions, rule.filter, rule.kind, rule.subject)


def _about(rule: Rule) -> tuple[str, ...]:
    """Return the subject of a change to a rule: the user whose entry it is part of, else nobody."""
    return (rule.subject,) if rule.kind == "user" else ()


def _detail(rule: Rule) -> dict[str, Any]:
    return {
        "effect": rule.effect,
        "actions": list(rule.actions),
        "filter": rule.filter,
        "kind": rule.kind,
        "name": rule.subject,
    }


def rules_of(connection: Connection, tenant: str, which: ColumnElement[bool] | None = None) -> list[Rule]:
    """Return rules of a tenant, the oldest first; all of them, or those of a condition."""
    which = RULES.c.tenant == tenant if which is None else which
    found = select(RULES).where(RULES.c.tenant == tenant, which).order_by(RULES.c.number)
    return [_rule(row) for row in connection.execute(found)]


def _rule(row: Row[Any]) -> Rule:
    actions = tuple(action for bit, action in enumerate(ACTIONS) if row.actions >> bit & 1)
    return Rule(row.tenant, row.number, row.effect, actions, row.filter, row.kind, row.subject)
