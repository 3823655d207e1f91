"""What one connection sends takes effect in the order in which it was sent: with clients as applications use them, which
subscribe and publish without waiting, and with one worker and two. The model: unit/core/test_order."""

from __future__ import annotations

import json
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import paho.mqtt.client as paho
import pytest
from paho.mqtt.enums import CallbackAPIVersion

from broker_process import make_broker
from e2e.conftest import finish
from e2e.mqttjs import mqttjs
from e2e.raw import RawClient
from e2e.wire import CONNACK, PUBLISH, connect_packet, packet, text
from e2e.workers import Crew
from paho_end import end_loop

pytestmark = pytest.mark.slow

SCRIPT = Path(__file__).with_name("mqttjs_order.mjs")
ROUNDS = 20
DEADLINE_S = 20.0


class Place:
    """Where clients go: `port` of the worker, and an id that is at home there."""

    def __init__(self, ports: list[int], crew: Crew | None) -> None:
        self._ports = ports
        self._crew = crew

    def port(self, number: int) -> int:
        return self._ports[number % len(self._ports)]

    def name(self, number: int, prefix: str) -> str:
        crew = self._crew
        return f"{prefix}-{number}" if crew is None else crew.name_in(number % len(self._ports), prefix)


@pytest.fixture(scope="module", params=["one worker", "two workers"])
def place(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    folder = tmp_path_factory.mktemp("order")
    if request.param == "one worker":
        broker = make_broker(folder).start()
        try:
            yield Place([broker.port], None)
        finally:
            finish(broker)
        return
    crew = Crew(folder, 2, 2)
    try:
        crew.start()
        yield Place([worker.port for worker in crew.workers], crew)
    finally:
        crew.end()
    crew.check()


class Paho:
    """A paho client with a thread of its own, and the (topic, payload) that it has heard."""

    def __init__(self, port: int, client_id: str) -> None:
        self.client = paho.Client(CallbackAPIVersion.VERSION2, client_id)
        self.heard: list[tuple[str, bytes]] = []
        self._changed = threading.Condition()
        self._ready = 0
        self.client.on_connect = self._count
        self.client.on_subscribe = self._count
        self.client.on_message = self._on_message
        self.client.connect("127.0.0.1", port)
        self.client.loop_start()
        self.wait_ready(1)

    def _count(self, *_: Any) -> None:
        with self._changed:
            self._ready += 1
            self._changed.notify_all()

    def wait_ready(self, count: int) -> None:
        """Until so many of CONNACK and SUBACK have come."""
        with self._changed:
            assert self._changed.wait_for(lambda: self._ready >= count, DEADLINE_S)

    def _on_message(self, _client: Any, _data: Any, message: paho.MQTTMessage) -> None:
        if message.topic.startswith("ask/"):
            self.client.publish(message.topic.replace("ask", "answer"), message.payload, message.qos)
        with self._changed:
            self.heard.append((message.topic, bytes(message.payload)))
            self._changed.notify_all()

    def wait_heard(self, count: int) -> list[tuple[str, bytes]]:
        with self._changed:
            self._changed.wait_for(lambda: len(self.heard) >= count, DEADLINE_S)
            return list(self.heard)

    def close(self) -> None:
        self.client.disconnect()
        end_loop(self.client)


@pytest.mark.parametrize("qos", range(3))
def test_paho_subscribes_and_publishes_at_once(place: Place, qos: int) -> None:
    responder = Paho(place.port(1), place.name(1, f"responder{qos}"))
    responder.client.subscribe("ask/#", qos)
    responder.wait_ready(2)
    asker = Paho(place.port(0), place.name(0, f"asker{qos}"))
    for number in range(ROUNDS):
        asker.client.subscribe(f"own/{number}", qos)
        asker.client.publish(f"own/{number}", b"x", qos)
        asker.client.subscribe(f"answer/{number}", qos)
        asker.client.publish(f"ask/{number}", b"x", qos)
    heard = asker.wait_heard(2 * ROUNDS)
    asker.close()
    responder.close()
    wanted = [(f"{what}/{number}", b"x") for what in ("answer", "own") for number in range(ROUNDS)]
    assert sorted(heard) == sorted(wanted)


@pytest.mark.node
@pytest.mark.parametrize("qos", range(2))
def test_mqttjs_subscribes_and_publishes_at_once(place: Place, qos: int) -> None:
    where: list[str] = []
    for number, prefix in enumerate(("asker-js", "responder-js")):
        where += [f"mqtt://127.0.0.1:{place.port(number)}", place.name(number, f"{prefix}{qos}")]
    done = subprocess.run(
        ["node", str(SCRIPT), *where, str(qos)],
        cwd=mqttjs(),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    heard = json.loads(done.stdout)
    in_order = [str(number) for number in range(ROUNDS)]
    assert heard == {"own": ROUNDS, "answers": ROUNDS, "asker": in_order, "responder": in_order}


def observers(place: Place, topic: str) -> list[RawClient]:
    """One on each worker and at each QoS."""
    found = []
    for number in range(2):
        for qos in range(3):
            client = RawClient(("127.0.0.1", place.port(number)), place.name(number, f"{topic}-sees{qos}-"))
            client.connect()
            client.subscribe(topic, qos=qos)
            found.append(client)
    return found


@pytest.mark.parametrize("qos", range(3))
@pytest.mark.parametrize("clean", [False, True])
def test_a_will_comes_before_the_birth_of_the_connection_that_takes_over(
    place: Place, qos: int, clean: bool
) -> None:
    topic = f"birth/{qos}/{clean}"
    seen = observers(place, topic)
    name = place.name(0, f"{topic}-node")
    connections: list[RawClient] = []
    birth = packet(PUBLISH << 4, text(topic) + b"online")
    connect = connect_packet(name, clean=clean, will=(topic, b"offline"), will_qos=qos)
    for _ in range(ROUNDS):
        connections.append(RawClient(("127.0.0.1", place.port(0)), name))
        connections[-1].send(connect + birth)
        connections[-1].expect(CONNACK)
    connections[-1].disconnect()
    for client in seen:
        got = [client.receive().payload for _ in range(2 * ROUNDS - 1)]
        assert got == [b"online", *[b"offline", b"online"] * (ROUNDS - 1)], f"{client.client_id}"
    for client in [*seen, *connections]:
        client.close()


def test_messages_of_one_publisher_keep_their_order_whatever_their_qos(place: Place) -> None:
    seen = observers(place, "mixed-raw")
    publisher = RawClient(("127.0.0.1", place.port(0)), place.name(0, "mixed-publisher"))
    publisher.connect()
    for number in range(10 * ROUNDS):
        publisher.publish("mixed-raw", str(number), (1, 0, 1, 2, 0)[number % 5])
    publisher.disconnect()
    for client in seen:
        got = [int(client.receive().payload) for _ in range(10 * ROUNDS)]
        assert got == list(range(10 * ROUNDS))
        client.close()
