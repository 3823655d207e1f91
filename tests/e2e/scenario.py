"""Tests in which time itself must pass (expiry, delays, keep alive), all waiting at the same time.

A scenario is a function of a `Stage`, run in a thread of its own.  `Scenarios.play` runs those of a module at once and
keeps each one's outcome, and a parametrised test tells it.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from broker_process import BrokerProcess, make_broker
from e2e.raw import RawClient

Script = Callable[["Stage"], None]


class Stage:
    """What a scenario works with: a name of its own, a broker, clients that are closed for it."""

    def __init__(self, name: str, folder: Path, broker: BrokerProcess | None) -> None:
        self.name = name
        self._folder = folder / name
        self._broker = broker
        self._made: list[BrokerProcess] = []
        self._clients: list[RawClient] = []

    @property
    def broker(self) -> BrokerProcess:
        assert self._broker is not None, "this scenario needs a broker of its own"
        return self._broker

    def start_broker(self, settings: dict[str, object] | None = None) -> BrokerProcess:
        """A broker for this scenario alone."""
        self._broker = make_broker(self._folder / str(len(self._made)), settings)
        self._made.append(self._broker)
        return self._broker.start()

    def wait(self, seconds: float) -> None:
        """Lets time pass: what the test is about, never a way to be in step with the broker."""
        time.sleep(seconds)

    def client(
        self, client_id: str = "", version: int = 4, *, connect: bool = True, **fields: Any
    ) -> RawClient:
        client = RawClient(self.broker.address, client_id, version)
        self._clients.append(client)
        if connect:
            client.connect(**fields)
        return client

    def close(self) -> None:
        for client in self._clients:
            client.close()
        for broker in self._made:
            broker.end()
            assert not broker.trouble, broker.trouble


class Scenarios:
    """The scenarios of a module, in the order of their definition."""

    def __init__(self) -> None:
        self.scripts: dict[str, Script] = {}

    def add(self, script: Script) -> Script:
        self.scripts[script.__name__] = script
        return script

    def play(self, folder: Path, broker: BrokerProcess | None) -> dict[str, BaseException | None]:
        """Runs them all; what each one raised, None for those that went well."""
        outcomes: dict[str, BaseException | None] = {}

        def run(name: str, script: Script) -> None:
            stage = Stage(name.replace("_", "-"), folder, broker)
            outcomes[name] = _raised(lambda: script(stage))
            outcomes[name] = _raised(stage.close) or outcomes[name]

        threads = [threading.Thread(target=run, args=one, daemon=True) for one in self.scripts.items()]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        return {name: outcomes.get(name, TimeoutError("it does not end")) for name in self.scripts}


def _raised(action: Callable[[], None]) -> BaseException | None:
    try:
        action()
    except Exception as error:
        return error
    return None
