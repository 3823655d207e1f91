"""Brokers with `[[bridge]]` for tests: the configuration written down, and what to wait for."""

from __future__ import annotations

import json
import time
from pathlib import Path

from broker_process import BrokerProcess
from e2e.raw import RawClient
from e2e.wire import PUBLISH, Packet

QUICK: dict[str, object] = {"reconnect_min_s": 0.05, "reconnect_max_s": 0.5, "connect_timeout_s": 5.0}
DEADLINE_S = 60.0


def topic(pattern: str, direction: str, qos: int = 2, **prefixes: str) -> dict[str, object]:
    return {"pattern": pattern, "direction": direction, "qos": qos} | dict(prefixes)


def toml(value: object) -> str:
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{key} = {toml(item)}" for key, item in value.items()) + " }"
    if isinstance(value, list):
        return "[" + ", ".join(toml(item) for item in value) + "]"
    return json.dumps(value)


def configure(broker: BrokerProcess, *bridges: dict[str, object]) -> None:
    """Write the bridges of a broker that is to be started; quick to come back unless they say otherwise."""
    broker.folder.mkdir(parents=True, exist_ok=True)
    file = broker.folder / "bridges.toml"
    file.write_text(f"bridge = {toml([QUICK | bridge for bridge in bridges])}\n")
    broker.extra = ["--config", str(file)]


def bridge(to: BrokerProcess, *topics: dict[str, object], **more: object) -> dict[str, object]:
    """One `[[bridge]]` to another broker of the test."""
    return {"name": "b", "addresses": [f"tcp://127.0.0.1:{to.port}"], "topics": list(topics)} | more


def wait_up(broker: BrokerProcess, lives: int = 1) -> None:
    """Until the bridge of this broker has come up so many times since its start."""
    until = time.monotonic() + DEADLINE_S
    while broker.metrics()['headrace_bridge_connects_total{bridge="b"}'] < lives:
        assert time.monotonic() < until, broker.stderr
        time.sleep(0.02)


def wait_metric(broker: BrokerProcess, name: str, value: float) -> None:
    until = time.monotonic() + DEADLINE_S
    while (found := broker.metrics()[name]) != value:
        assert time.monotonic() < until, f"{name} is {found}: {broker.stderr}"
        time.sleep(0.02)


def listen(
    broker: BrokerProcess, topic_filter: str, version: int = 5, client_id: str = "listener"
) -> RawClient:
    """A subscriber with Retain As Published where the version has it."""
    client = RawClient(broker.address, client_id, version)
    client.connect()
    options = 2 | (8 if version == 5 else 0)
    client.subscribe((topic_filter, options), granted=[2])
    return client


def receive(client: RawClient) -> Packet:
    """The next PUBLISH, with the patience that a bridge on a busy machine needs."""
    found = client.receive(DEADLINE_S)
    assert found.kind == PUBLISH
    return found


def write(folder: Path, name: str, text: str) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text(text)
    return folder / name
