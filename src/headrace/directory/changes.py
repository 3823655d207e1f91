"""The table of changes, read from a revision on. Blocks; runs on threads."""

from __future__ import annotations

import json
from typing import Any, Final

from sqlalchemy import Row, select

from headrace.directory.entries import Change
from headrace.directory.schema import CHANGES
from headrace.directory.transactions import Database

CHANGES_MAX: Final = 1000  # of one reading


class Changes:
    """What was changed in a directory: by whom, from where, when, in the order of commits."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def since(self, revision: int, most: int = CHANGES_MAX, tenant: str | None = None) -> list[Change]:
        """Return the changes behind a revision, the oldest first, at most so many; of one tenant, if it is named."""
        with self._database.reading() as connection:
            found = select(CHANGES).where(CHANGES.c.revision > revision)
            if tenant is not None:
                found = found.where(CHANGES.c.tenant == tenant)
            rows = connection.execute(found.order_by(CHANGES.c.revision).limit(most))
            return [_change(row) for row in rows]

    def revision(self) -> int:
        """Return the revision of the newest change."""
        with self._database.reading() as connection:
            return self._database.revision(connection)


def _change(row: Row[Any]) -> Change:
    detail = json.loads(row.detail)
    return Change(
        row.revision, row.tenant, row.what, row.subject, detail, row.who, row.came_from, row.at_us, row.stamp
    )
