"""The lines of a broker as it runs: address behind a proxy, one JSON object a line, levels."""

from __future__ import annotations

import json
import socket
from pathlib import Path

import pytest

from broker_process import BrokerProcess, free_port, wait_until
from e2e.raw import RawClient


@pytest.mark.parametrize("level", ["info", "warning"])
def test_each_event_is_a_json_line_with_the_address_behind_the_proxy(tmp_path: Path, level: str) -> None:
    port = free_port()
    settings = {"log.format": "json", "log.level": level}
    more = ["--listen", f"tcp://127.0.0.1:{port}?proxy=required"]
    broker = BrokerProcess(tmp_path, settings, more)
    broker.spawn()
    try:
        _wait_for(port, broker.port)
        client = RawClient(("127.0.0.1", port), "behind")
        client.socket.sendall(b"PROXY TCP4 192.0.2.7 192.0.2.1 4711 1883\r\n")
        client.connect()
        client.close()
        stranger = socket.create_connection(("127.0.0.1", broker.port), timeout=10)
        stranger.sendall(b"GET / HTTP/1.1\r\n\r\n")
        assert stranger.recv(100) == b""
        stranger.close()
        refused = json.loads(broker.wait_for_line('"refused"', 10))
        assert refused["reason"] == "protocol_error"
        assert refused["address"].startswith("127.0.0.1:")
        assert refused["listener"] == f"tcp://127.0.0.1:{broker.port}"
        if level == "info":
            gone = json.loads(broker.wait_for_line('"disconnected"', 10))
            assert gone["address"] == "192.0.2.7:4711"
            assert gone["client"] == "behind"
            assert gone["listener"].startswith(f"tcp://127.0.0.1:{port}")
        broker.stop()
        events = [json.loads(line)["event"] for line in broker.lines]
        assert ("connected" in events) == (level == "info")
    finally:
        broker.end()


def _wait_for(*ports: int) -> None:
    def open_() -> bool:
        for port in ports:
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", port)):
                    return False
        return True

    wait_until(open_, "the listeners")
