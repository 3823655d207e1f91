"""What the guide for who comes from Mosquitto promises: its files are read, and a bridge brings its messages along."""

from __future__ import annotations

import queue
import re
import subprocess
from pathlib import Path

import pytest
from paho.mqtt import publish
from paho.mqtt.client import Client, MQTTMessage
from paho.mqtt.enums import CallbackAPIVersion

from broker_process import ROOT, MosquittoProcess
from headrace.config import BridgeConfig, BridgeTlsConfig, BridgeTopicConfig, Config
from headrace.testing import BrokerProcess
from paho_end import end_loop

GUIDE = ROOT / "docs" / "how-to" / "come-from-mosquitto.md"
ACL = "# as it was\nuser ada\ntopic readwrite home/#\ntopic readwrite $SYS/#\n"


@pytest.mark.mosquitto
def test_files_are_read_as_they_are_and_retained_messages_come_over_the_bridge(tmp_path: Path) -> None:
    passwords, acl = tmp_path / "passwords", tmp_path / "acl"
    subprocess.run(["mosquitto_passwd", "-b", "-c", str(passwords), "ada", "secret"], check=True, timeout=30)
    acl.write_text(ACL, encoding="utf-8")
    (tmp_path / "mosquitto").mkdir()
    mosquitto = MosquittoProcess(
        tmp_path / "mosquitto", extra=[f"password_file {passwords}", f"acl_file {acl}"]
    )
    config = tmp_path / "headrace.toml"
    config.write_text(
        f"""
        [access]
        password_file = "{passwords}"
        acl_file = "{acl}"
        [[bridge]]
        name = "mosquitto"
        addresses = ["tcp://127.0.0.1:{mosquitto.port}"]
        username = "ada"
        password = "secret"
        [[bridge.topics]]
        pattern = "home/#"
        direction = "both"
        qos = 2
        """,
        encoding="utf-8",
    )
    try:
        mosquitto.start()
        for qos in range(3):
            publish.single(
                f"home/lamp/{qos}",
                "on",
                qos=qos,
                retain=True,
                port=mosquitto.port,
                auth={"username": "ada", "password": "secret"},
            )
        with BrokerProcess(config=config) as broker:
            broker.wait_until(lambda: broker.metrics()['headrace_bridge_up{bridge="mosquitto"}'] == 1)
            broker.wait_until(lambda: broker.metrics()['headrace_retained_messages{tenant="default"}'] >= 3)
            assert _retained(broker, 3) == {f"home/lamp/{qos}" for qos in range(3)}
            broker.kill()
            broker.start()
            assert _retained(broker, 3) == {f"home/lamp/{qos}" for qos in range(3)}
    finally:
        mosquitto.end()


def _retained(broker: BrokerProcess, count: int) -> set[str]:
    heard: queue.Queue[MQTTMessage] = queue.Queue()
    client = Client(CallbackAPIVersion.VERSION2, "reader")
    client.username_pw_set("ada", "secret")
    client.on_connect = lambda client, *_: client.subscribe("home/#", 1)
    client.on_message = lambda _client, _data, message: heard.put(message)
    client.connect(broker.host, broker.port)
    client.loop_start()
    try:
        return {message.topic for message in (heard.get(timeout=10) for _ in range(count)) if message.retain}
    finally:
        client.disconnect()
        end_loop(client)


def test_every_key_that_the_guide_names_exists() -> None:
    tables = GUIDE.read_text("utf-8").split("## Key by key")[1]
    tops = {name for name in Config.__struct_fields__ if name not in ("bridge", "pipeline")}
    bridge = {
        *BridgeConfig.__struct_fields__,
        *BridgeTopicConfig.__struct_fields__,
        *BridgeTlsConfig.__struct_fields__,
    }
    for row in re.findall(r"^\| `[^|]+\| ([^|]+) \|", tables, re.MULTILINE):
        for key in re.findall(r"`(\w+(?:\.\w+)?)(?: = [^`]*)?`", row):
            head, _, inner = key.partition(".")
            section = getattr(Config(), head, None) if inner else None
            known = inner in section.__struct_fields__ if section is not None else head in tops | bridge
            assert known, key
