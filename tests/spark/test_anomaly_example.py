"""`examples/anomaly_to_command.py` with a real broker and a foreign client as device: a command for each anomaly."""

from __future__ import annotations

import importlib.util
import json
import threading
from pathlib import Path
from types import ModuleType
from typing import Any

import paho.mqtt.client as paho
import pytest
from paho.mqtt.enums import CallbackAPIVersion
from pyspark.sql import SparkSession

from broker_process import ROOT, BrokerProcess, wait_until
from headrace_spark.base.broker_address import BrokerAddress
from paho_end import end_loop

pytestmark = pytest.mark.spark
WAIT_S = 400


def example() -> ModuleType:
    spec = importlib.util.spec_from_file_location("anomaly", ROOT / "examples" / "anomaly_to_command.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class Device:
    """A boiler with paho as its client: publishes readings, notes commands."""

    def __init__(self, broker: BrokerProcess) -> None:
        self.commands: list[dict[str, Any]] = []
        self._there = threading.Event()
        self._client = paho.Client(CallbackAPIVersion.VERSION2, "boiler", protocol=paho.MQTTv5)
        self._client.on_message = lambda _client, _data, message: self.commands.append(
            json.loads(message.payload)
        )
        self._client.on_subscribe = lambda *_: self._there.set()
        self._client.connect("127.0.0.1", broker.port)
        self._client.loop_start()
        self._client.subscribe("command/boiler", 2)
        assert self._there.wait(WAIT_S)

    def reads(self, celsius: float) -> None:
        payload = json.dumps({"celsius": celsius})
        self._client.publish("site/boiler/temp", payload, 1).wait_for_publish(WAIT_S)

    def switch_off(self) -> None:
        self._client.disconnect()
        end_loop(self._client)


def test_an_anomaly_becomes_one_command(spark: SparkSession, broker: BrokerProcess, tmp_path: Path) -> None:
    module, device = example(), Device(broker)
    address = BrokerAddress(f"tcp://127.0.0.1:{broker.port}")

    def run() -> Any:
        return module.start(spark, broker.data_dir, tmp_path, address, 90.0)

    device.reads(95)  # before anybody looks
    query = run()
    try:
        wait_until(lambda: query.lastProgress is not None, "the first trigger", WAIT_S)
        for celsius in (20, 91, 89.9, 120):
            device.reads(celsius)
        wait_until(lambda: len(device.commands) >= 2, "two commands", WAIT_S)
        query.stop()
        device.reads(99)  # while it is away
        query = run()
        wait_until(lambda: len(device.commands) >= 3, "the third command", WAIT_S)
        assert [command["celsius"] for command in device.commands] == [91, 120, 99]
    finally:
        query.stop()
        device.switch_off()
