"""One foreign broker for the tests of the clients."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from unit.clients.foreign_broker import MOSQUITTO, mosquitto


@pytest.fixture(scope="session")
def port(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    if MOSQUITTO is None:
        pytest.fail("mosquitto is not installed: make setup installs it")
    with mosquitto(tmp_path_factory.mktemp("mosquitto")) as number:
        yield number
