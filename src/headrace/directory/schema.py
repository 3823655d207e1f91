"""The tables of the directory, on SQLite, PostgreSQL, MariaDB and MySQL.

Names compare by their bytes everywhere. What a column of text does otherwise is decided by collations: MariaDB's take A
for a, a for an accented one, and a name for the same with blanks behind it; so names are VARBINARY there, TEXT of the
collation "C" on PostgreSQL, and SQLite compares bytes unless told otherwise. Every key is part of CREATE TABLE, so that
a table is there as a whole or not at all, also where DDL cannot be rolled back.

`directory_changes` is the audit log, the outbox and what invalidates caches, in one: each change of anything is a row in
the transaction that makes the change. `directory_revision` has one row, which that transaction locks first: revisions
ascend in the order of commits, without gaps, whoever writes at once.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import (
    BigInteger,
    Column,
    Dialect,
    LargeBinary,
    MetaData,
    SmallInteger,
    Table,
    Text,
    TypeDecorator,
    UniqueConstraint,
)
from sqlalchemy.dialects import mysql, postgresql
from sqlalchemy.schema import SchemaItem
from sqlalchemy.types import TypeEngine

from headrace.directory.names import (
    CLIENT_ID_BYTES_MAX,
    FILTER_BYTES_MAX,
    HASH_BYTES_MAX,
    NAME_BYTES_MAX,
    TEXT_BYTES_MAX,
)

_KEY_BYTES_MAX = 3072  # of InnoDB


class Exact(TypeDecorator[str]):
    """A text of at most so many bytes that compares by its bytes."""

    impl = Text
    cache_ok = True

    def __init__(self, bytes_max: int) -> None:
        super().__init__()
        self.bytes_max = bytes_max

    def load_dialect_impl(self, dialect: Dialect) -> TypeEngine[Any]:
        """Return the type of the column on this engine."""
        if dialect.name in ("mysql", "mariadb"):
            small = self.bytes_max <= _KEY_BYTES_MAX
            return dialect.type_descriptor(mysql.VARBINARY(self.bytes_max) if small else mysql.MEDIUMBLOB())
        if dialect.name == "postgresql":
            return dialect.type_descriptor(postgresql.TEXT(collation="C"))
        return dialect.type_descriptor(Text())

    def process_bind_param(self, value: str | None, dialect: Dialect) -> Any:
        """Return a value for the driver."""
        if value is not None and dialect.name in ("mysql", "mariadb"):
            return value.encode()
        return value

    def process_result_value(self, value: Any, dialect: Dialect) -> str | None:
        """Return a value of the driver as text."""
        return bytes(value).decode() if isinstance(value, bytes | bytearray) else value

    def coerce_compared_value(self, op: Any, value: Any) -> Any:
        """Return the type of what a column is compared with: the same."""
        return self


METADATA = MetaData()
_TENANT_BYTES_MAX = 63
_WORD_BYTES_MAX = 32


def _tenant(**more: Any) -> Column[str]:
    return Column("tenant", Exact(_TENANT_BYTES_MAX), nullable=False, **more)


def _moment(name: str) -> Column[int]:
    """Return a column for microseconds since 1970."""
    return Column(name, BigInteger, nullable=False)


def _table(name: str, *columns: SchemaItem) -> Table:
    return Table(name, METADATA, *columns, mysql_engine="InnoDB", mariadb_engine="InnoDB")


def _revision() -> Column[int]:
    return Column("revision", BigInteger, nullable=False)


REVISION = _table(
    "directory_revision",
    Column("one", SmallInteger, primary_key=True, autoincrement=False),
    _revision(),
)
CHANGES = _table(
    "directory_changes",
    Column("revision", BigInteger, primary_key=True, autoincrement=False),
    _tenant(),
    Column("what", Exact(_WORD_BYTES_MAX), nullable=False),
    Column("subject", Exact(FILTER_BYTES_MAX), nullable=False),
    Column("detail", Exact(2 * FILTER_BYTES_MAX), nullable=False),  # JSON
    Column("who", Exact(TEXT_BYTES_MAX), nullable=False),
    Column("came_from", Exact(TEXT_BYTES_MAX), nullable=False),
    _moment("at_us"),
    Column("stamp", BigInteger, nullable=False),
)
TENANTS = _table(
    "directory_tenants",
    Column("name", Exact(_TENANT_BYTES_MAX), primary_key=True),
    Column("state", Exact(_WORD_BYTES_MAX), nullable=False),
    _moment("created_us"),
    _revision(),
)
USERS = _table(
    "directory_users",
    _tenant(primary_key=True),
    Column("name", Exact(NAME_BYTES_MAX), primary_key=True),
    Column("hash", Exact(HASH_BYTES_MAX), nullable=False),
    Column(
        "cost", Exact(NAME_BYTES_MAX), nullable=False
    ),  # scheme and parameters: what is in front of the salt
    Column("disabled", SmallInteger, nullable=False),
    _moment("created_us"),
    _revision(),
)
GROUPS = _table(
    "directory_groups",
    _tenant(primary_key=True),
    Column("name", Exact(NAME_BYTES_MAX), primary_key=True),
    _revision(),
)
MEMBERS = _table(
    "directory_members",
    _tenant(primary_key=True),
    Column("user", Exact(NAME_BYTES_MAX), primary_key=True),
    Column("group", Exact(NAME_BYTES_MAX), primary_key=True),
    _revision(),
)
RULES = _table(
    "directory_rules",
    _tenant(primary_key=True),
    Column("number", BigInteger, primary_key=True, autoincrement=False),  # the revision that made it
    Column("effect", Exact(_WORD_BYTES_MAX), nullable=False),
    Column("actions", SmallInteger, nullable=False),  # bits, in the order of the names
    Column("filter", Exact(FILTER_BYTES_MAX), nullable=False),
    Column("kind", Exact(_WORD_BYTES_MAX), nullable=False),
    Column("subject", Exact(CLIENT_ID_BYTES_MAX), nullable=False),
    UniqueConstraint("tenant", "kind", "subject", "number", name="directory_rules_by_subject"),
)
QUOTAS = _table(
    "directory_quotas",
    _tenant(primary_key=True),
    Column("name", Exact(_WORD_BYTES_MAX), primary_key=True),
    Column("value", BigInteger, nullable=False),
)
SETTINGS = _table(
    "directory_settings",
    _tenant(primary_key=True),
    Column("name", Exact(_WORD_BYTES_MAX), primary_key=True),
    Column("value", Exact(TEXT_BYTES_MAX), nullable=False),
)
BANS = _table(
    "directory_bans",
    _tenant(primary_key=True),
    Column("kind", Exact(_WORD_BYTES_MAX), primary_key=True),
    Column("subject", Exact(CLIENT_ID_BYTES_MAX), primary_key=True),
    _moment("until_us"),
    Column("reason", Exact(TEXT_BYTES_MAX), nullable=False),
    _revision(),
)
TOKENS = _table(
    "directory_tokens",
    Column("number", Exact(_WORD_BYTES_MAX), primary_key=True),
    Column("sha256", LargeBinary().with_variant(mysql.BINARY(32), "mysql", "mariadb"), nullable=False),
    Column("role", Exact(_WORD_BYTES_MAX), nullable=False),
    _tenant(),
    _moment("created_us"),
    _moment("until_us"),
    Column("note", Exact(TEXT_BYTES_MAX), nullable=False),
    _revision(),
    UniqueConstraint("sha256", name="directory_tokens_by_hash"),
)
OF_TENANTS = (USERS, GROUPS, MEMBERS, RULES, QUOTAS, SETTINGS, BANS, TOKENS)  # what goes with a tenant
