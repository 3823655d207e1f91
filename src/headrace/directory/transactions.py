"""Transactions over the directory: readings, and writings that count revisions and leave a row for every change.

A writing locks the one row of `directory_revision` before it looks at anything, so writers come one after the other: what
one of them has read is still so when it commits, and revisions ascend in the order of commits. Readers lock nothing.
"""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from sqlalchemy import Connection, Engine, select
from sqlalchemy.exc import DBAPIError

from headrace.directory.engine import said, shown_url, writer_of
from headrace.directory.entries import DELETING, Actor
from headrace.directory.errors import ChangedMeanwhile, NotInThatState, OutcomeUnknown, WrongSchema
from headrace.directory.names import note_of_text
from headrace.directory.schema import CHANGES, REVISION, TENANTS
from headrace.errors import NotThere

_STAMP_BITS = 62


@dataclass
class Writing:
    """A transaction that writes. `revision` is that of its latest change; several changes have one each."""

    connection: Connection
    actor: Actor
    now_us: int
    revision: int

    def note(self, what: str, tenant: str, subject: str = "", **detail: object) -> int:
        """Write a change down, as something like "user created" about a subject, and return its revision."""
        self.revision += 1
        self.connection.execute(
            CHANGES.insert().values(
                revision=self.revision,
                tenant=tenant,
                what=what,
                subject=subject,
                detail=json.dumps(detail, ensure_ascii=False, sort_keys=True),
                who=self.actor.who,
                came_from=self.actor.came_from,
                at_us=self.now_us,
                stamp=secrets.randbits(_STAMP_BITS),
            )
        )
        return self.revision

    def check_tenant(self, tenant: str) -> None:
        """Check that a tenant is there and not on its way out. Raises NotThere, NotInThatState."""
        state = self.state_of(tenant)
        if state == DELETING:
            raise NotInThatState(f"tenant {tenant} is being deleted")

    def state_of(self, tenant: str) -> str:
        """Return the state of a tenant. Raises NotThere."""
        state = self.connection.execute(select(TENANTS.c.state).where(TENANTS.c.name == tenant)).scalar()
        if state is None:
            raise NotThere(f"there is no tenant {tenant}")
        return str(state)


def check_revision(found: int, wanted: int | None, what: str) -> None:
    """Check that nobody has changed an entry since the asker looked, if that says when. Raises ChangedMeanwhile."""
    if wanted is not None and found != wanted:
        raise ChangedMeanwhile(f"{what} is of revision {found} meanwhile, not {wanted}: nothing was changed")


class Database:
    """The database of one directory. `clock_us` tells the time in microseconds since 1970."""

    def __init__(self, engine: Engine, clock_us: Callable[[], int] = lambda: time.time_ns() // 1000) -> None:
        self.engine = engine
        self._writer = writer_of(engine)
        self.clock_us = clock_us

    @contextmanager
    def reading(self) -> Iterator[Connection]:
        """Open a transaction that only reads. Raises DirectoryUnavailable."""
        with said(self.engine.url), self.engine.connect() as connection:
            yield connection

    def revision(self, connection: Connection) -> int:
        """Return the revision of the newest change that has been committed."""
        found = connection.execute(select(REVISION.c.revision)).scalar()
        if found is None:
            raise WrongSchema("the directory has lost its row of the revision: put a backup back")
        return int(found)

    @contextmanager
    def writing(self, actor: Actor) -> Iterator[Writing]:
        """Open a transaction that writes, alone among all writers. What is raised within rolls it back. Raises
        DirectoryUnavailable, OutcomeUnknown where it is not known whether the commit was done."""
        note_of_text(actor.who, "who")
        note_of_text(actor.came_from, "from")
        with said(self.engine.url), self._writer.connect() as connection:
            found = connection.execute(select(REVISION.c.revision).with_for_update()).scalar()
            if found is None:
                raise WrongSchema("the directory has lost its row of the revision: put a backup back")
            writing = Writing(connection, actor, self.clock_us(), int(found))
            yield writing
            if writing.revision != found:
                connection.execute(REVISION.update().values(revision=writing.revision))
            self._commit(connection)

    def _commit(self, connection: Connection) -> None:
        try:
            connection.commit()
        except DBAPIError as error:
            if error.connection_invalidated:
                where = shown_url(self.engine.url)
                raise OutcomeUnknown(
                    f"{where}: the connection broke at the commit: look whether it was made"
                ) from None
            raise

    def close(self) -> None:
        """Close all connections."""
        self.engine.dispose()
