"""Steps of migrations that may be done again: where DDL commits by itself, an interrupted migration has done some."""

from __future__ import annotations

from alembic import op
from sqlalchemy import column, func, inspect, select, table
from sqlalchemy.schema import SchemaItem


def create_table(name: str, *columns: SchemaItem) -> None:
    """Make a table with all its keys in one statement, unless it is there."""
    if not inspect(op.get_bind()).has_table(name):
        op.create_table(name, *columns, mysql_engine="InnoDB", mariadb_engine="InnoDB")


def insert_if_empty(name: str, row: dict[str, int]) -> None:
    """Write the first row of a table, unless it has one."""
    found = table(name, *(column(key) for key in row))
    if not op.get_bind().execute(select(func.count()).select_from(found)).scalar_one():
        op.get_bind().execute(found.insert().values(row))
