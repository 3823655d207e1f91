"""This machine as a fleet: enough devices, each of them something that can be read."""

from __future__ import annotations

import json

from demo.machine import fleet
from headrace.mqtt.topics import valid_topic


def test_enough_devices_with_names_and_topics_of_their_own() -> None:
    devices = fleet(200, 400)
    assert 200 <= len(devices) <= 400
    assert len({device.name for device in devices}) == len(devices)
    assert len({device.topic for device in devices}) == len(devices)
    assert all(valid_topic(device.topic.encode()) for device in devices)


def test_every_device_can_be_read_as_json() -> None:
    for device in fleet(200, 400):
        assert json.loads(json.dumps(device.read())), device.name


def test_whole_things_come_before_their_counters() -> None:
    names = [device.name for device in fleet(0, 400)]
    assert {"cpu-0", "cpu-all", "memory-ram"} <= set(names)
    assert any(name.startswith("process-") for name in names)
    assert not any("." in name for name in names if name.startswith("cpu-"))
