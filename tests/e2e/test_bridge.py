"""Bridges between real brokers: headrace and Debian's mosquitto, in both directions."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from broker_process import BrokerProcess, MosquittoProcess
from e2e.bridging import bridge, configure, listen, receive, topic, wait_metric, wait_up
from e2e.raw import RawClient
from e2e.wire import SESSION_EXPIRY

Brokers = Callable[..., BrokerProcess]


@pytest.fixture
def mosquitto(tmp_path: Path) -> Iterator[MosquittoProcess]:
    found = MosquittoProcess(tmp_path / "mosquitto")
    yield found
    found.end()


def publisher(broker: BrokerProcess, version: int = 5) -> RawClient:
    client = RawClient(broker.address, "publisher", version)
    client.connect()
    return client


@pytest.mark.mosquitto
@pytest.mark.parametrize("version", ["3.1.1", "5.0"])
def test_out_to_mosquitto_and_in_from_it(brokers: Brokers, mosquitto: MosquittoProcess, version: str) -> None:
    """Every QoS, prefixes on both sides, the retain flag, in one order."""
    mosquitto.start()
    own = brokers()
    rules = [
        topic("up/#", "out", local_prefix="here/", remote_prefix="plant/7/"),
        topic("down/#", "in", local_prefix="from/", remote_prefix="cloud/"),
    ]
    configure(own, bridge(mosquitto, *rules, version=version))
    own.start()
    wait_up(own)
    there, here = listen(mosquitto, "plant/#"), listen(own, "from/#")
    with there, here, publisher(own) as one, publisher(mosquitto) as other:
        for qos in (0, 1, 2):
            one.deliver("here/up/x", f"out {qos}", qos, retain=qos == 1)
            other.deliver("cloud/down/x", f"in {qos}", qos, retain=qos == 1)
            for client, name, text in ((there, "plant/7/up/x", "out"), (here, "from/down/x", "in")):
                found = receive(client)
                assert (found.topic, found.payload.decode()) == (name, f"{text} {qos}")
                assert (found.qos, found.retain) == (qos, qos == 1)
    for broker, name in ((mosquitto, "plant/7/up/x"), (own, "from/down/x")):
        with listen(broker, name, client_id="late") as late:
            assert receive(late).retain


@pytest.mark.mosquitto
def test_the_bridges_of_mosquitto_come_in(brokers: Brokers, mosquitto: MosquittoProcess) -> None:
    """Its bridge bit means: nothing comes back, and retain flags stay; its state topic is taken."""
    own = brokers().start()
    lines = [
        "connection m",
        f"address 127.0.0.1:{own.port}",
        "topic # both 2",
        "bridge_protocol_version mqttv311",
    ]
    mosquitto.extra = [*lines, "restart_timeout 1", "remote_clientid m"]
    mosquitto.start()
    with listen(own, "$SYS/broker/connection/m/state") as state:
        assert receive(state).payload == b"1"
    here, there = listen(own, "t/#"), listen(mosquitto, "t/#")
    with here, there, publisher(own) as one, publisher(mosquitto) as other:
        one.deliver("t/a", "from here", 2, retain=True)
        assert [receive(client).payload for client in (here, there)] == [b"from here"] * 2
        other.deliver("t/b", "from there", 2, retain=True)
        found = receive(here)
        assert (found.payload, found.retain) == (b"from there", True)
        assert receive(there).payload == b"from there"
        one.deliver("t/end", "", 1)
        assert receive(here).topic == receive(there).topic == "t/end"


@pytest.mark.mosquitto
@pytest.mark.parametrize("qos", [1, 2])
def test_what_is_published_while_the_remote_is_away_follows_in_order(
    brokers: Brokers, mosquitto: MosquittoProcess, qos: int
) -> None:
    own = brokers()
    configure(own, bridge(mosquitto, topic("t/#", "out", qos)))
    mosquitto.start()
    own.start()
    wait_up(own)
    keep: dict[str, Any] = {"clean": False, "properties": {SESSION_EXPIRY: 600}}
    with RawClient(mosquitto.address, "keeper", 5) as keeper:
        keeper.connect(**keep)
        keeper.subscribe("t/#", qos=qos)
        keeper.disconnect()
    mosquitto.stop()  # it saves its sessions now
    with publisher(own) as one:
        one.deliver_many("t/x", range(3_000), qos=qos)
    wait_metric(own, 'headrace_bridge_backlog_messages{bridge="b"}', 3_000)
    own.restart()
    mosquitto.start()
    with RawClient(mosquitto.address, "keeper", 5) as keeper:
        keeper.connect(**keep)
        assert [int(receive(keeper).payload) for _ in range(3_000)] == list(range(3_000))
    wait_metric(own, 'headrace_bridge_backlog_messages{bridge="b"}', 0)
