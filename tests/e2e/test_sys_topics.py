"""`$SYS/#` of ours and of Debian's mosquitto, side by side: who watches one can watch the other."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from broker_process import MOSQUITTO, ROOT, BrokerProcess, MosquittoProcess
from e2e.raw import RawClient

pytestmark = pytest.mark.skipif(not Path(MOSQUITTO).exists(), reason="needs Debian's mosquitto")

ROUNDS = 3  # of `uptime`: every name that there is has come by then
FORMATS = {
    "whole": r"\d+",
    "two decimals": r"\d+\.\d\d",
    "seconds": r"\d+ seconds",
    "version": r"\w+ version \S+",
}
# Ours alone; the page on MQTT says them.
MORE = {
    "connections",
    *(
        f"load/{name}/{minutes}min"
        for name in (
            "publish/messages/received",
            "publish/messages/sent",
            "publish/messages/dropped",
            "publish/bytes/received",
            "publish/bytes/sent",
        )
        for minutes in (1, 5, 15)
    ),
}
Clients = Callable[..., RawClient]


@pytest.fixture(scope="module")
def broker_settings() -> dict[str, object]:
    return {"sys_interval_s": 1}


@pytest.fixture(scope="module")
def mosquitto(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    process = MosquittoProcess(tmp_path_factory.mktemp("mosquitto"), extra=["sys_interval 1"])
    yield process.start()
    process.end()


def values(client: RawClient) -> dict[str, str]:
    """The last value of each topic, without `$SYS/broker/`."""
    found: dict[str, str] = {}
    client.subscribe("$SYS/#")
    rounds = 0
    while rounds <= ROUNDS:
        packet = client.receive()
        name = packet.topic.removeprefix("$SYS/broker/")
        found[name] = packet.payload.decode("ascii")
        rounds += name == "uptime"
    return found


def shape(value: str) -> str:
    return next(
        (name for name, form in FORMATS.items() if re.fullmatch(form, value)), f"none of ours: {value}"
    )


def test_every_name_of_mosquitto_with_a_value_of_the_same_form(
    broker: BrokerProcess, mosquitto: BrokerProcess, clients: Clients
) -> None:
    ours, theirs = values(clients(broker, "watcher")), values(clients(mosquitto, "watcher"))
    assert theirs.keys() - ours.keys() == set()
    assert ours.keys() - theirs.keys() == MORE
    assert {name: shape(ours[name]) for name in theirs} == {
        name: shape(value) for name, value in theirs.items()
    }


def test_the_same_traffic_counts_the_same(
    broker: BrokerProcess, mosquitto: BrokerProcess, clients: Clients
) -> None:
    """Where both count the same thing. `retained` and `stored` have Mosquitto's own `$SYS` messages in them, and its
    `clients/maximum` who is away, though its manual says connected."""
    names = [
        "clients/connected",
        "clients/total",
        "clients/disconnected",
        "clients/expired",
        "publish/messages/received",
        "publish/bytes/received",
        "publish/messages/dropped",
        "subscriptions/count",
    ]
    seen = []
    for one in (broker, mosquitto):
        away = clients(one, "away", clean=False)
        away.subscribe("t", "u")
        away.disconnect()
        publisher = clients(one, "p")
        for size in (10, 20, 30):
            publisher.deliver("x", b"x" * size)
        found = values(clients(one, "w"))
        seen.append({name: found[name] for name in names})
    assert seen[0] == seen[1]
    assert seen[0]["publish/bytes/received"] == "60"


def test_what_waits_is_stored(own_broker: BrokerProcess, clients: Clients) -> None:
    own_broker.stop()
    own_broker.settings["sys_interval_s"] = 1
    own_broker.start()
    away = clients(own_broker, "away", clean=False)
    away.subscribe(("t", 1))
    away.disconnect()
    publisher = clients(own_broker, "p")
    publisher.deliver("t", b"x" * 1000)
    publisher.deliver("kept", b"x" * 1000, retain=True)
    found = values(clients(own_broker, "w"))
    assert found["messages/stored"] == found["store/messages/count"] == "2"
    assert 2000 <= int(found["store/messages/bytes"]) < 2200
    assert found["retained messages/count"] == "1"
    assert 10 << 20 < int(found["heap/current"]) <= int(found["heap/maximum"]) < 4 << 30


def test_the_page_on_mqtt_names_every_topic(broker: BrokerProcess, clients: Clients) -> None:
    text = (ROOT / "docs" / "reference" / "mqtt.md").read_text("utf-8")
    section = text[text.index("## `$SYS` topics") : text.index("## `$events/")]
    documented = set(re.findall(r"`([^`]+)`", section))
    for name in values(clients(broker, "reader")):
        assert re.sub(r"/\d+min$", "/...", name) in documented, name
