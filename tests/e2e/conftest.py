"""One broker per module where the settings allow it; clients that close themselves at the end of a test."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from broker_process import BUILD, PYTHON, UNDER_AUDIT, BrokerProcess, build_environment, make_broker
from e2e.raw import RawClient
from e2e.workers import Crew
from kafka_server import KafkaServer, kafka_server


@pytest.fixture(scope="session", autouse=True)
def _build_under_test() -> None:
    """The process we start must be the build that the run claims to test."""
    if UNDER_AUDIT != "headrace":
        return
    found = subprocess.run(
        [PYTHON, "-c", "import headrace.core.broker as b; print(b.__file__)"],
        env=build_environment(),
        cwd="/",
        capture_output=True,
        text=True,
        check=False,
    )
    assert found.returncode == 0, found.stderr
    suffix = ".py" if BUILD == "interpreted" else ".so"
    assert found.stdout.strip().endswith(suffix), (
        f"HEADRACE_BUILD={BUILD}, but core is {found.stdout.strip()}"
    )


def finish(broker: BrokerProcess) -> None:
    """Ends a broker in good order."""
    try:
        if broker.running:
            broker.stop()
    finally:
        end(broker)


def end(broker: BrokerProcess) -> None:
    """A traceback on its stderr fails the test that used it."""
    broker.end()
    assert not broker.trouble, broker.trouble


@pytest.fixture(scope="module")
def broker_settings() -> dict[str, object]:
    """A module that needs its broker configured overrides this."""
    return {}


@pytest.fixture(scope="module")
def broker(
    tmp_path_factory: pytest.TempPathFactory, broker_settings: dict[str, object]
) -> Iterator[BrokerProcess]:
    """The module's broker.  Nobody kills or restarts it: tests use client ids and topics of their own."""
    running = make_broker(tmp_path_factory.mktemp("broker"), broker_settings).start()
    try:
        yield running
    finally:
        finish(running)


@pytest.fixture
def brokers(tmp_path: Path) -> Iterator[Callable[..., BrokerProcess]]:
    """Makes brokers for this test alone, not started yet; each has a folder of its own.

    They are killed at the end: a clean stop is slower, and has tests of its own.
    """
    made: list[BrokerProcess] = []

    def make(settings: dict[str, object] | None = None, **more: Any) -> BrokerProcess:
        made.append(make_broker(tmp_path / f"broker-{len(made)}", settings, **more))
        return made[-1]

    yield make
    for one in made:
        end(one)


@pytest.fixture
def own_broker(brokers: Callable[..., BrokerProcess]) -> BrokerProcess:
    """A started broker for this test alone: it may be killed and restarted."""
    return brokers().start()


@pytest.fixture
def clients() -> Iterator[Callable[..., RawClient]]:
    """Opens raw clients, connected unless `connect=False`."""
    opened: list[RawClient] = []

    def open_client(
        to: BrokerProcess, client_id: str = "", version: int = 4, *, connect: bool = True, **fields: Any
    ) -> RawClient:
        client = RawClient(to.address, client_id, version)
        opened.append(client)
        if connect:
            client.connect(**fields)
        return client

    yield open_client
    for client in opened:
        client.close()


@pytest.fixture
def name(request: pytest.FixtureRequest) -> str:
    """Unique within a module: the root of this test's topics and client ids."""
    return "".join(c if c.isalnum() else "-" for c in request.node.name.removeprefix("test_"))[:80]


@pytest.fixture
def crew(tmp_path: Path) -> Iterator[Crew]:
    """Two workers with a shard each; a traceback of one fails the test."""
    crew = Crew(tmp_path, 2, 2)
    try:
        crew.start()
        yield crew
    finally:
        crew.end()
    crew.check()


@pytest.fixture(scope="session")
def kafka() -> Iterator[KafkaServer]:
    """One node of Kafka for the whole run. Who kills it starts it again."""
    with kafka_server() as server:
        yield server
