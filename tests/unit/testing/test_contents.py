"""What a data directory holds, read while a broker writes it."""

from __future__ import annotations

import gc
from datetime import UTC, datetime, timedelta
from pathlib import Path

import paho.mqtt.client as paho
from paho.mqtt.enums import CallbackAPIVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties

from headrace.testing import BrokerProcess
from headrace.testing.contents import Contents


def test_a_directory_without_a_journal_holds_nothing(tmp_path: Path) -> None:
    contents = Contents(tmp_path)
    assert contents.messages() == []
    assert contents.disconnected("anybody")()
    assert not contents.subscribed("#", None)()
    assert contents.summary() == "the journal holds 0 messages, on no topic; clients: none"


def test_a_message_has_what_its_publisher_gave_it() -> None:
    began = datetime.now(UTC) - timedelta(seconds=1)
    properties = Properties(PacketTypes.PUBLISH)  # type: ignore[no-untyped-call]
    properties.UserProperty = [("a", "1"), ("a", "2")]
    properties.ResponseTopic = "answers"
    properties.MessageExpiryInterval = 60
    with BrokerProcess() as broker:
        client = paho.Client(CallbackAPIVersion.VERSION2, "five", protocol=paho.MQTTv5)
        client.connect(broker.host, broker.port)
        client.loop_start()
        client.publish("a/b", b"\xff", qos=2, retain=True, properties=properties).wait_for_publish(10)
        client.publish("a/c", b"at most once", qos=0)
        client.publish("a/d", b"", qos=1).wait_for_publish(10)
        message, after = broker.messages()
        client.disconnect()
        client.loop_stop()
    assert (message.topic, message.payload, message.qos, message.retain) == ("a/b", b"\xff", 2, True)
    assert message.client_id == "five"
    assert began < message.time <= after.time < datetime.now(UTC) + timedelta(seconds=1)
    assert message.properties["user_properties"] == [("a", "1"), ("a", "2")]
    assert message.properties["response_topic"] == "answers"
    assert message.properties["message_expiry_interval"] == 60
    assert after.topic == "a/d"
    assert after.offset > message.offset


def test_looking_leaves_the_collector_of_who_looks_as_it_was() -> None:
    with BrokerProcess() as broker:
        frozen = gc.get_freeze_count()
        gc.disable()
        try:
            broker.wait_until(lambda: not broker._contents.connected("nobody")())
            assert not gc.isenabled()
        finally:
            gc.enable()
        assert gc.get_freeze_count() == frozen
