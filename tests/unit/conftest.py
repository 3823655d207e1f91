"""One set of databases for all unit tests that need one: each server is started once."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from databases import Databases


@pytest.fixture(scope="session")
def databases(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Databases]:
    found = Databases(tmp_path_factory.mktemp("databases"))
    yield found
    found.close()
