"""One foreign broker for the tests of the clients."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from unit.clients.foreign_broker import MOSQUITTO, mosquitto


@pytest.fixture(scope="session")
def port(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    if MOSQUITTO is None:
        pytest.fail("mosquitto is not installed: make setup installs it")
    # It reads one packet per socket and pass, so five publishers outrun the PUBACKs of their one subscriber: with the
    # limit of 1 000 queued messages it drops what it acknowledged, and the losses counted would be its own.
    with mosquitto(tmp_path_factory.mktemp("mosquitto"), "max_queued_messages 0") as number:
        yield number
