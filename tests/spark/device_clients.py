"""A device as the pipeline's tests have one: a persistent subscriber that shares no code with headrace."""

from __future__ import annotations

from broker_process import BrokerProcess
from e2e.raw import RawClient
from e2e.wire import NEVER, SESSION_EXPIRY, Packet

_END = b"-- end --"


def subscribe(broker: BrokerProcess, name: str, topic_filter: str) -> None:
    """From now on everything is kept for `name`."""
    with RawClient(broker.address, name, version=5) as client:
        client.connect(clean=False, properties={SESSION_EXPIRY: NEVER})
        client.subscribe(topic_filter, "end", qos=2)


def received(broker: BrokerProcess, name: str) -> list[Packet]:
    """Everything that was kept for it, in order."""
    with RawClient(broker.address, f"{name}-end") as client:
        client.connect()
        client.deliver("end", _END)
    found: list[Packet] = []
    with RawClient(broker.address, name, version=5) as client:
        client.connect(clean=False, properties={SESSION_EXPIRY: NEVER})
        while (packet := client.receive(deadline_s=30)).payload != _END:
            found.append(packet)
    return found
