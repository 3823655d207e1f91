"""The first tables.

A migration says for itself which columns it makes: `headrace.directory.schema` is what the newest one leaves behind.
"""

from __future__ import annotations

from sqlalchemy import BigInteger, Column, LargeBinary, SmallInteger, UniqueConstraint
from sqlalchemy.dialects import mysql

from headrace.directory.migration_steps import create_table, insert_if_empty
from headrace.directory.schema import Exact

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

BYTES_32 = LargeBinary().with_variant(mysql.BINARY(32), "mysql", "mariadb")


def upgrade() -> None:
    """Make the tables, each as a whole: those that an interrupted migration has left are there already."""
    _changes()
    _who_there_is()
    _what_they_may()
    insert_if_empty("directory_revision", {"one": 1, "revision": 0})


def _changes() -> None:
    """Make the tables that say what was changed."""
    create_table(
        "directory_revision",
        Column("one", SmallInteger, primary_key=True, autoincrement=False),
        Column("revision", BigInteger, nullable=False),
    )
    create_table(
        "directory_changes",
        Column("revision", BigInteger, primary_key=True, autoincrement=False),
        Column("tenant", Exact(63), nullable=False),
        Column("what", Exact(32), nullable=False),
        Column("subject", Exact(65_535), nullable=False),
        Column("detail", Exact(131_070), nullable=False),
        Column("who", Exact(1024), nullable=False),
        Column("came_from", Exact(1024), nullable=False),
        Column("at_us", BigInteger, nullable=False),
        Column("stamp", BigInteger, nullable=False),
    )


def _who_there_is() -> None:
    """Make the tables of tenants, users and groups."""
    create_table(
        "directory_tenants",
        Column("name", Exact(63), primary_key=True),
        Column("state", Exact(32), nullable=False),
        Column("created_us", BigInteger, nullable=False),
        Column("revision", BigInteger, nullable=False),
    )
    create_table(
        "directory_users",
        Column("tenant", Exact(63), primary_key=True),
        Column("name", Exact(255), primary_key=True),
        Column("hash", Exact(1024), nullable=False),
        Column("cost", Exact(255), nullable=False),
        Column("disabled", SmallInteger, nullable=False),
        Column("created_us", BigInteger, nullable=False),
        Column("revision", BigInteger, nullable=False),
    )
    create_table(
        "directory_groups",
        Column("tenant", Exact(63), primary_key=True),
        Column("name", Exact(255), primary_key=True),
        Column("revision", BigInteger, nullable=False),
    )
    create_table(
        "directory_members",
        Column("tenant", Exact(63), primary_key=True),
        Column("user", Exact(255), primary_key=True),
        Column("group", Exact(255), primary_key=True),
        Column("revision", BigInteger, nullable=False),
    )


def _what_they_may() -> None:
    """Make the tables of rules, limits, bans and tokens."""
    create_table(
        "directory_rules",
        Column("tenant", Exact(63), primary_key=True),
        Column("number", BigInteger, primary_key=True, autoincrement=False),
        Column("effect", Exact(32), nullable=False),
        Column("actions", SmallInteger, nullable=False),
        Column("filter", Exact(65_535), nullable=False),
        Column("kind", Exact(32), nullable=False),
        Column("subject", Exact(1024), nullable=False),
        UniqueConstraint("tenant", "kind", "subject", "number", name="directory_rules_by_subject"),
    )
    create_table(
        "directory_quotas",
        Column("tenant", Exact(63), primary_key=True),
        Column("name", Exact(32), primary_key=True),
        Column("value", BigInteger, nullable=False),
    )
    create_table(
        "directory_settings",
        Column("tenant", Exact(63), primary_key=True),
        Column("name", Exact(32), primary_key=True),
        Column("value", Exact(1024), nullable=False),
    )
    create_table(
        "directory_bans",
        Column("tenant", Exact(63), primary_key=True),
        Column("kind", Exact(32), primary_key=True),
        Column("subject", Exact(1024), primary_key=True),
        Column("until_us", BigInteger, nullable=False),
        Column("reason", Exact(1024), nullable=False),
        Column("revision", BigInteger, nullable=False),
    )
    create_table(
        "directory_tokens",
        Column("number", Exact(32), primary_key=True),
        Column("sha256", BYTES_32, nullable=False),
        Column("role", Exact(32), nullable=False),
        Column("tenant", Exact(63), nullable=False),
        Column("created_us", BigInteger, nullable=False),
        Column("until_us", BigInteger, nullable=False),
        Column("note", Exact(1024), nullable=False),
        Column("revision", BigInteger, nullable=False),
        UniqueConstraint("sha256", name="directory_tokens_by_hash"),
    )
