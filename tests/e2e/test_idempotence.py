"""Idempotent producers over sockets: through lost connections and kill -9 every message is stored and delivered once."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress

import pytest

from broker_process import BrokerProcess, wait_until
from e2e.raw import ClosedError, RawClient, SilenceError
from e2e.wire import NEVER, PUBACK, SESSION_EXPIRY, USER_PROPERTY

Brokers = Callable[..., BrokerProcess]

# A roll and a snapshot every second, so that kills meet both and most sequences are in snapshots alone.
RESTLESS: dict[str, object] = {
    "journal.segment_bytes_max": 65_536,
    "journal.snapshot_interval_bytes": 4_096,
    "journal.retention_bytes": 65_536,
    "session.backlog_messages_max": 65_535,
}
MESSAGES = 3_000
WINDOW = 200
KILLS = 3


def properties(sequence: int) -> dict[int, object]:
    return {USER_PROPERTY: [("producer-id", "orders"), ("producer-sequence", str(sequence))]}


def send_all(broker: BrokerProcess, first: int) -> Iterator[int]:
    """Send from `first` on over one connection; yields each acknowledged number. The caller kills the broker."""
    with RawClient(broker.address, "orders", version=5) as client:
        client.connect()
        waiting: dict[int, int] = {}
        number = first
        while number < MESSAGES or waiting:
            while number < MESSAGES and len(waiting) < WINDOW:
                waiting[client.publish("orders", b"%d" % number, 1, properties=properties(number))] = number
                number += 1
            answer = client.expect(PUBACK)
            assert answer.reason < 0x80
            yield waiting.pop(answer.packet_id)


def subscribe(broker: BrokerProcess) -> None:
    with RawClient(broker.address, "till", version=5) as client:
        client.connect(clean=False, properties={SESSION_EXPIRY: NEVER})
        client.subscribe("orders", qos=1)


def backlog(broker: BrokerProcess) -> list[int]:
    """Everything the subscriber gets; the one behind it says that this is the end."""
    found: list[int] = []
    with RawClient(broker.address, "end") as client:
        client.connect()
        client.deliver("orders", b"-1")
    with RawClient(broker.address, "till", version=5) as client:
        client.connect(clean=False, properties={SESSION_EXPIRY: NEVER})
        while not found or found[-1] != -1:
            found.append(int(client.receive().payload))
    return found[:-1]


@pytest.mark.parametrize(
    "settings",
    [
        pytest.param({}, id="replayed", marks=pytest.mark.deep),
        pytest.param(RESTLESS, id="snapshots"),
    ],
)
def test_kill_9_in_the_middle_and_everything_again(brokers: Brokers, settings: dict[str, object]) -> None:
    broker = brokers(settings).start()
    subscribe(broker)
    acked = 0
    for kill in range(1, KILLS + 1):
        with suppress(ClosedError, SilenceError):
            first = max(0, acked - 500)
            for acked in send_all(broker, first):
                if acked == kill * MESSAGES // (KILLS + 1):
                    broker.crash()
    assert acked < MESSAGES - 1
    assert list(send_all(broker, 0)) == list(range(MESSAGES))  # all of it again, in order
    assert backlog(broker) == list(range(MESSAGES))
    assert broker.metrics()['headrace_publishes_repeated_total{tenant="default"}'] >= acked


def test_a_crash_after_the_snapshot_alone_knows_the_producer(brokers: Brokers) -> None:
    """Long after: the records are gone, and the state is in the snapshot."""
    broker = brokers(RESTLESS).start()
    assert len(list(send_all(broker, 0))) == MESSAGES
    first_segment = broker.data_dir / "journal" / f"{0:020}.log"
    with RawClient(broker.address, "others") as client:
        client.connect()
        number = iter(range(1 << 30))

        def gone() -> bool:
            client.deliver_many("others", [next(number) for _ in range(500)])
            return not first_segment.exists()

        wait_until(gone, "retention takes the first segment", deadline_s=60)
    broker.crash()
    subscribe(broker)
    assert len(list(send_all(broker, 0))) == MESSAGES
    assert backlog(broker) == []
