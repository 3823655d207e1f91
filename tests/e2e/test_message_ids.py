"""Message ids on request: paho asks in CONNECT, and finds the id that devices, consumers and the lake have."""

from __future__ import annotations

from collections.abc import Iterator
from hashlib import md5
from pathlib import Path
from queue import Queue
from typing import Any, cast

import paho.mqtt.client as mqtt
import pytest
from paho.mqtt.enums import CallbackAPIVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties

from broker_process import BrokerProcess, free_port, headrace, make_broker
from e2e.conftest import finish
from e2e.device import Device
from e2e.raw import RawClient
from headrace.journal.reader import JournalReader
from paho_end import end_loop

pytestmark = pytest.mark.skipif("__import__('broker_process').UNDER_AUDIT != 'headrace'")
NAME = "headrace-message-id"
DEADLINE_S = 60


class Served:
    """A broker with a listener for frames."""

    def __init__(self, folder: Path, settings: dict[str, object] | None = None) -> None:
        self.port = free_port()
        more = ["--listen", f"frame://127.0.0.1:{self.port}"]
        self.broker: BrokerProcess = make_broker(folder, settings or {}, more)

    def publish(self, topic: str, count: int) -> list[str]:
        """Their ids, as the device is told."""
        with Device(self.port) as device:
            return [device.publish(seq, topic, b"%d" % seq).hex() for seq in range(count)]


class Subscriber:
    """paho, which acknowledges nothing by itself. `asks`: for ids."""

    def __init__(self, broker: BrokerProcess, name: str, asks: bool = True, **fields: Any) -> None:
        self.messages: Queue[mqtt.MQTTMessage] = Queue()
        self._subscribed: Queue[bool] = Queue()
        self._client = mqtt.Client(CallbackAPIVersion.VERSION2, name, protocol=mqtt.MQTTv5, manual_ack=True)
        self._client.on_message = lambda _client, _data, message: self.messages.put(message)
        self._client.on_connect = self._connected
        self._client.on_subscribe = lambda *_: self._subscribed.put(True)
        self._filters = fields.pop("filters", ())
        properties: Any = cast(Any, Properties)(PacketTypes.CONNECT)
        properties.SessionExpiryInterval = 600
        for key, value in fields.items():
            setattr(properties, key, value)
        if asks:
            properties.UserProperty = (NAME, "")
        self._client.connect(*broker.address, clean_start=False, properties=properties)
        self._client.loop_start()
        for _ in self._filters:
            self._subscribed.get(timeout=DEADLINE_S)

    def _connected(self, client: mqtt.Client, *_: Any) -> None:
        for topic_filter in self._filters:
            client.subscribe(topic_filter, 1)

    def take(self, count: int) -> list[mqtt.MQTTMessage]:
        return [self.messages.get(timeout=DEADLINE_S) for _ in range(count)]

    def leave(self) -> None:
        self._client.disconnect()
        end_loop(self._client)


def ids_in(message: mqtt.MQTTMessage) -> list[str]:
    properties = getattr(message.properties, "UserProperty", [])
    return [value for name, value in properties if name == NAME]


def ids_of(messages: list[mqtt.MQTTMessage]) -> list[str]:
    found = [ids_in(message) for message in messages]
    assert all(len(one) == 1 for one in found)
    return [one[0] for one in found]


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    found = Served(tmp_path / "broker", {"frames.visibility_s": 600})
    found.broker.start()
    try:
        yield found
    finally:
        finish(found.broker)


def test_the_id_is_that_of_the_device_and_stays_over_redelivery_and_a_kill(served: Served) -> None:
    broker = served.broker
    first = Subscriber(broker, "app", filters=["locks"])
    ids = served.publish("locks", 20)
    assert len(set(ids)) == 20
    assert ids_of(first.take(20)) == ids
    first.leave()
    again = Subscriber(broker, "app")
    assert ids_of(again.take(20)) == ids, "nothing was acknowledged"
    broker.kill()
    again.leave()
    broker.start()
    last = Subscriber(broker, "app")
    found = last.take(20)
    assert ids_of(found) == ids
    assert all(message.dup for message in found)
    last.leave()
    with Device(served.port, b"service") as consumer:
        assert consumer.join("locks", "c") == 0
        assert [one.message_id.hex() for one in consumer.pull("locks", "c", 100)] == ids


def test_it_is_the_md5_of_the_lakes_message_id(served: Served) -> None:
    subscriber = Subscriber(served.broker, "app", filters=["a"])
    with RawClient(served.broker.address, "meter/1", 5) as client:
        client.connect()
        client.deliver("a", b"x", 1)
        client.deliver("a", b"y", 1, properties={0x26: [("message-id", "7")]})
        client.publish("a", b"z")
        client.publish("a", b"z", properties={0x26: [("message-id", "8")]})
        client.disconnect()
    stored, named, fleeting, chosen = subscriber.take(4)
    reader = JournalReader(served.broker.data_dir)
    text = f"journal:{reader.uuid}:{reader.epoch}:{reader.high_watermark() - 2}"
    assert ids_in(stored)[0] in {
        md5(f"journal:{reader.uuid}:{reader.epoch}:{offset}".encode()).hexdigest()
        for offset in range(reader.high_watermark())
    }, text
    assert ids_in(named) == [md5(b"client:default/meter%2F1/7").hexdigest()]
    assert ids_in(fleeting) == [], "it is nowhere"
    assert ids_in(chosen) == [md5(b"client:default/meter%2F1/8").hexdigest()]
    subscriber.leave()


def test_who_does_not_ask_gets_what_was_published(served: Served) -> None:
    asking = Subscriber(served.broker, "asks", filters=["t"], TopicAliasMaximum=10)
    silent = Subscriber(served.broker, "silent", asks=False, filters=["t"])
    old = RawClient(served.broker.address, "old")
    old.connect()
    old.subscribe(("t", 1))
    ids = served.publish("t", 3)
    assert ids_of(asking.take(3)) == ids
    assert [message.topic for message in silent.take(3)] == ["t"] * 3
    assert old.receive().payload == b"0"
    for one in (asking, silent):
        one.leave()
    old.close()
    later = Subscriber(served.broker, "asks", asks=False)
    assert [ids_in(message) for message in later.take(3)] == [[]] * 3, "each connection asks for itself"
    later.leave()


def test_retained_and_shared_messages_have_it_and_none_costs_a_message_its_room(served: Served) -> None:
    with RawClient(served.broker.address, "p", 5) as client:
        client.connect()
        client.deliver("kept/1", b"r" * 100, 1, retain=True)
        client.disconnect()
    retained = Subscriber(served.broker, "retained", filters=["kept/#"])
    [message] = retained.take(1)
    assert (message.retain, len(ids_of([message]))) == (True, 1)
    shared = Subscriber(served.broker, "member", filters=["$share/g/locks"])
    narrow = Subscriber(served.broker, "narrow", filters=["locks"], MaximumPacketSize=60)
    ids = served.publish("locks", 2)
    assert ids_of(shared.take(2)) == ids
    assert [(message.payload, ids_in(message)) for message in narrow.take(2)] == [(b"0", []), (b"1", [])]
    for one in (retained, shared, narrow):
        one.leave()


def test_ids_outlive_a_restore_which_begins_another_epoch(served: Served, tmp_path: Path) -> None:
    Subscriber(served.broker, "app", filters=["locks"]).leave()
    before = served.publish("locks", 5)
    served.broker.stop()
    backup = str(tmp_path / "backup")
    assert headrace("backup", backup, "--data-dir", str(served.broker.data_dir)).returncode == 0
    second = Served(tmp_path / "second")
    assert headrace("restore", backup, "--data-dir", str(second.broker.data_dir)).returncode == 0
    second.broker.start()
    try:
        with Device(second.port) as device:
            assert device.publish(4, "locks", b"4").hex() == before[4], "a repeat of before"
            after = [device.publish(9, "locks", b"9").hex()]
        subscriber = Subscriber(second.broker, "app")
        assert ids_of(subscriber.take(6)) == before + after
        subscriber.leave()
        with Device(second.port, b"service") as consumer:
            assert consumer.join("locks", "c") == 0
            assert [one.message_id.hex() for one in consumer.pull("locks", "c", 100)] == before + after
    finally:
        finish(second.broker)


def test_a_setting_takes_it_away(tmp_path: Path) -> None:
    served = Served(tmp_path / "broker", {"session.message_id_property": '""'})
    served.broker.start()
    try:
        subscriber = Subscriber(served.broker, "app", filters=["t"])
        served.publish("t", 1)
        assert ids_in(subscriber.take(1)[0]) == []
        subscriber.leave()
    finally:
        finish(served.broker)
