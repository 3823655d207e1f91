"""A failed sync: nothing is acknowledged after it, the process says so and exits with 1, and what it had acknowledged is
there at the next start."""

from __future__ import annotations

import errno
from collections.abc import Callable
from contextlib import suppress

import pytest

from broker_process import BrokerProcess
from e2e.raw import ClosedError, RawClient
from e2e.wire import PUBLISH
from faults.broker.conftest import Faults


@pytest.mark.slow
@pytest.mark.parametrize(
    ("call", "code"), [("fdatasync", errno.EIO), ("fdatasync", errno.ENOSPC), ("pwritev", errno.EIO)]
)
def test_the_broker_stops_for_good(
    call: str,
    code: int,
    faults: Faults,
    brokers: Callable[..., BrokerProcess],
    clients: Callable[..., RawClient],
) -> None:
    broker = brokers({}, environment=faults.environment).start()
    away = clients(broker, "away", clean=False)
    away.subscribe("t", qos=1)
    away.close()
    publisher = clients(broker, "p")
    publisher.deliver_many("t", range(500))
    faults.set(call, code)
    with suppress(ClosedError):
        for number in range(500, 520):
            publisher.publish("t", str(number), 1)
    assert publisher.read_to_end() == [], "acknowledged after the failure"
    assert broker.wait() == 1
    broker.end()
    faults.clear()
    assert "nothing is acknowledged any more" in broker.stderr
    broker.start()
    away = clients(broker, "away", clean=False)
    numbers: list[int] = []
    while len(numbers) < 500:
        found = away.receive()
        assert found.kind == PUBLISH
        numbers.append(int(found.payload))
    assert numbers == list(range(500))
    broker.stop()
