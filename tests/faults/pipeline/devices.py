"""The two ends of the pipeline torture, as paho-mqtt has them: who publishes and notes what was acknowledged, and
who receives commands and counts them. Both have sessions that outlive their connections, so nothing is given up.
"""

from __future__ import annotations

import json
from collections import Counter, deque
from dataclasses import dataclass
from threading import Event, Thread

import paho.mqtt.client as mqtt
from paho.mqtt.enums import CallbackAPIVersion, MQTTProtocolVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties

from broker_process import BrokerProcess, wait_until
from paho_end import end_loop

WINDOW = 50
NEVER = 0xFFFFFFFF
BROKEN_EVERY = 10
PUBLISHER = "torture-publisher"
DEVICE = "torture-device"
WAIT_S = 120.0


@dataclass(frozen=True)
class Published:
    """What the publisher was asked to send; in the log once it is acknowledged."""

    number: int
    topic: str
    payload: bytes
    qos: int


def reading(number: int) -> Published:
    """Two of three at QoS 2; every tenth is no JSON."""
    payload = b"broken" if number % BROKEN_EVERY == 0 else json.dumps({"value": number}).encode()
    return Published(number, f"plant/{number % 7}/t", payload, 2 if number % 3 else 1)


def connected(name: str, broker: BrokerProcess) -> mqtt.Client:
    """A client that comes back by itself until it is told to leave."""
    client = mqtt.Client(CallbackAPIVersion.VERSION2, name, protocol=MQTTProtocolVersion.MQTTv5)
    client.max_inflight_messages_set(WINDOW)
    client.reconnect_delay_set(1, 1)
    stays = Properties(PacketTypes.CONNECT)  # type: ignore[no-untyped-call]
    stays.SessionExpiryInterval = NEVER
    client.connect(*broker.address, clean_start=False, properties=stays)
    client.loop_start()
    wait_until(client.is_connected, f"{name} connects", WAIT_S)
    return client


class Publisher:
    """Publishes 1, 2, 3, ... at most so many a second, each with its number as message id."""

    def __init__(self, broker: BrokerProcess, per_second: int) -> None:
        self.acknowledged: dict[int, Published] = {}
        self._open: dict[int, Published] = {}
        self._done: deque[int] = deque()  # packet ids, from the client's thread
        self._client = connected(PUBLISHER, broker)
        self._client.on_publish = lambda _client, _data, packet_id, *_: self._done.append(packet_id)
        self._pause_s = 1 / per_second
        self._stop = Event()
        self._thread = Thread(target=self._run)
        self._thread.start()

    def finish(self) -> None:
        """Stop, when everything that was sent is acknowledged."""
        self._stop.set()
        self._thread.join()
        wait_until(self._note, "the last acknowledgements", WAIT_S)
        self._client.disconnect()
        end_loop(self._client)

    def _run(self) -> None:
        number = 0
        while not self._stop.wait(self._pause_s):
            self._note()
            if len(self._open) < WINDOW:
                number += 1
                self._publish(reading(number))

    def _publish(self, what: Published) -> None:
        properties = Properties(PacketTypes.PUBLISH)  # type: ignore[no-untyped-call]
        properties.UserProperty = [("message-id", str(what.number))]
        # Without a connection it is queued, and sent when there is one.
        sent = self._client.publish(what.topic, what.payload, what.qos, properties=properties)
        self._open[sent.mid] = what

    def _note(self) -> bool:
        """Whether everything is acknowledged."""
        while self._done:
            what = self._open.pop(self._done.popleft())
            self.acknowledged[what.number] = what
        return not self._open


class Device:
    """Counts the commands that it gets; the client under it drops what QoS 2 repeats, on this and other connections."""

    def __init__(self, broker: BrokerProcess, name: str = DEVICE, topic_filter: str = "commands/#") -> None:
        self.commands: Counter[str] = Counter()
        self._granted = Event()
        self._client = connected(name, broker)
        self._client.on_message = self._on_message
        self._client.on_subscribe = lambda *_: self._granted.set()
        self._client.subscribe(topic_filter, 2)
        assert self._granted.wait(WAIT_S)

    def _on_message(self, _client: object, _data: object, message: mqtt.MQTTMessage) -> None:
        self.commands[message.payload.decode()] += 1

    def leave(self) -> None:
        self._client.disconnect()
        end_loop(self._client)
