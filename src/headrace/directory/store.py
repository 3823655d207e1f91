"""A directory that is open: its tenants, users, rules, bans, tokens and changes. Blocks; runs on threads."""

from __future__ import annotations

import time
from collections.abc import Callable

from headrace.directory.bans import Bans
from headrace.directory.changes import Changes
from headrace.directory.documents import Documents
from headrace.directory.engine import PATIENCE, Patience, check_there, engine_of, make_file, url_of
from headrace.directory.migrating import Migrator
from headrace.directory.rules import Rules
from headrace.directory.tenants import Tenants
from headrace.directory.tokens import Tokens
from headrace.directory.transactions import Database
from headrace.directory.users import Users


class Store:
    """One directory. Whatever is raised, nothing of that call was done, but for OutcomeUnknown."""

    def __init__(self, database: Database) -> None:
        self.database = database
        self.tenants = Tenants(database)
        self.users = Users(database)
        self.rules = Rules(database)
        self.documents = Documents(database)
        self.bans = Bans(database)
        self.tokens = Tokens(database)
        self.changes = Changes(database)

    def close(self) -> None:
        """Close the connections to the database."""
        self.database.close()


def open_store(
    url: str,
    *,
    make: bool,
    patience: Patience = PATIENCE,
    clock_us: Callable[[], int] = lambda: time.time_ns() // 1000,
) -> Store:
    """Open the directory at a URL, as `engine` describes them. `make`: the file of SQLite is made if it is not there, and
    so are the tables of an empty database. Raises InvalidField, WrongSchema, DirectoryUnavailable."""
    found = url_of(url)
    if make:
        make_file(found)
    check_there(found)
    engine = engine_of(found, patience)
    try:
        Migrator(engine).prepare(make)
    except BaseException:
        engine.dispose()
        raise
    return Store(Database(engine, clock_us))
