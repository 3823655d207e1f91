"""Tokens for the admin HTTP, in the database: of each its SHA-256, its role and its end. Blocks; runs on threads.

A token is 256 random bits, so its hash needs neither salt nor cost. It is shown once, to whom it is made for.
"""

from __future__ import annotations

import hashlib
import secrets
from typing import Any, Final

from sqlalchemy import Row, or_, select

from headrace.directory.entries import OWNER, ROLES, TENANT_ADMIN, Actor, Token
from headrace.directory.errors import InvalidField
from headrace.directory.names import (
    DURATION_S_MAX,
    line_of_text,
    note_of_text,
    tenant_name,
    whole_number,
)
from headrace.directory.schema import TOKENS
from headrace.directory.transactions import Database
from headrace.errors import NotThere

TOKEN_BYTES: Final = 32
PREFIX: Final = "hrt_"  # by which a scanner of secrets knows one
_NUMBER_BYTES: Final = 8


class Tokens:
    """The tokens of a directory."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def create(
        self, actor: Actor, role: str, tenant: str = "", for_s: int = 0, note: str = ""
    ) -> tuple[Token, str]:
        """Make a token for so many seconds, 0: without end. Returns what is kept of it, and the token itself, which is
        kept nowhere. Raises InvalidField, NotThere for the tenant, NotInThatState."""
        _check(role, tenant)
        whole_number(for_s, "for", 0, DURATION_S_MAX)
        note_of_text(note, "note")
        secret = PREFIX + secrets.token_urlsafe(TOKEN_BYTES)
        number = secrets.token_hex(_NUMBER_BYTES)
        with self._database.writing(actor) as writing:
            if tenant:
                writing.check_tenant(tenant)
            until_us = writing.now_us + for_s * 1_000_000 if for_s else 0
            detail = {"role": role, "until_us": until_us, "note": note}
            revision = writing.note("token created", tenant, number, **detail)
            made = Token(number, role, tenant, writing.now_us, until_us, note, revision)
            row = {
                "number": number,
                "sha256": _digest(secret),
                "role": role,
                "tenant": tenant,
                "created_us": writing.now_us,
                "until_us": until_us,
                "note": note,
                "revision": revision,
            }
            writing.connection.execute(TOKENS.insert().values(row))
        return made, secret

    def revoke(self, actor: Actor, number: str) -> None:
        """Have a token let nobody in any more, by its number. Raises InvalidField, NotThere."""
        line_of_text(number, "number")
        with self._database.writing(actor) as writing:
            one = TOKENS.c.number == number
            tenant = writing.connection.execute(select(TOKENS.c.tenant).where(one)).scalar()
            if tenant is None:
                raise NotThere(f"there is no token {number!r}")
            writing.connection.execute(TOKENS.delete().where(one))
            writing.note("token revoked", tenant, number)

    def all(self) -> list[Token]:
        """Return all tokens, the oldest first, also those whose end has come."""
        with self._database.reading() as connection:
            order = TOKENS.c.created_us, TOKENS.c.number
            return [_token(row) for row in connection.execute(select(TOKENS).order_by(*order))]

    def find(self, secret: str) -> Token | None:
        """Return what a token is for; None if it is none, or its end has come. It is looked for by its hash, so that the
        time tells nothing of those there are."""
        with self._database.reading() as connection:
            holds = or_(TOKENS.c.until_us == 0, TOKENS.c.until_us > self._database.clock_us())
            found = select(TOKENS).where(TOKENS.c.sha256 == _digest(secret), holds)
            row = connection.execute(found).first()
        return None if row is None else _token(row)


def _check(role: str, tenant: str) -> None:
    if role not in ROLES:
        raise InvalidField("role", f"is one of {', '.join(ROLES)}")
    if tenant:
        tenant_name(tenant)
    if role == TENANT_ADMIN and not tenant:
        raise InvalidField("tenant", f"is needed for the role {TENANT_ADMIN}")
    if role == OWNER and tenant:
        raise InvalidField("tenant", f"the role {OWNER} is for the whole directory")


def _digest(secret: str) -> bytes:
    return hashlib.sha256(secret.encode("utf-8", "surrogatepass")).digest()


def _token(row: Row[Any]) -> Token:
    return Token(row.number, row.role, row.tenant, row.created_us, row.until_us, row.note, row.revision)
