"""mqtt.js in Node, the client that browsers use, over ws, wss and tls. In a browser: test_browser.py."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from broker_process import BrokerProcess, free_port, make_broker
from certificates import Authority
from e2e.conftest import finish
from e2e.mqttjs import mqttjs

pytestmark = pytest.mark.node
SCRIPT = Path(__file__).with_name("mqttjs.mjs")


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("ca"))


@pytest.fixture(scope="module")
def urls(tmp_path_factory: pytest.TempPathFactory, authority: Authority) -> Iterator[dict[str, str]]:
    certificate, key = authority.issue("server")
    ports = {"ws": free_port(), "wss": free_port(), "tls": free_port()}
    listen = [part for scheme, port in ports.items() for part in ("--listen", f"{scheme}://127.0.0.1:{port}")]
    settings = {"tls.certificate": certificate, "tls.key": key, "durability": "none"}
    broker: BrokerProcess = make_broker(tmp_path_factory.mktemp("broker"), settings, listen).start()
    try:
        yield {
            "ws": f"ws://localhost:{ports['ws']}/mqtt",
            "wss": f"wss://localhost:{ports['wss']}/mqtt",
            "tls": f"mqtts://localhost:{ports['tls']}",
        }
    finally:
        finish(broker)


@pytest.mark.parametrize("over", ["ws", "wss", "tls"])
def test_mqttjs(authority: Authority, urls: dict[str, str], over: str) -> None:
    ca = [] if over == "ws" else [str(authority.ca)]
    done = subprocess.run(
        ["node", str(SCRIPT), urls[over], *ca],
        cwd=mqttjs(),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, "ok\n"), done.stderr
