"""mqtt.js in Debian's Chromium: a page that speaks MQTT over ws and wss, and one that its Origin keeps out."""

from __future__ import annotations

import queue
import shutil
import subprocess
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import urlencode

import pytest

from broker_process import BrokerProcess, free_port, make_broker
from certificates import Authority
from e2e.conftest import finish
from e2e.mqttjs import mqttjs

pytestmark = pytest.mark.browser
PAGE = Path(__file__).with_name("browser.html")
DEADLINE_S = 120.0
# Root needs --no-sandbox, a container --disable-dev-shm-usage; no authority signed the broker's certificate.
FLAGS = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--ignore-certificate-errors",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
)


class Site:
    """Serves the page and mqtt.js on loopback; `outcome` gets what the page reports."""

    def __init__(self) -> None:
        files = {
            "/": ("text/html", PAGE.read_bytes()),
            "/mqtt.js": (
                "text/javascript",
                (mqttjs() / "node_modules/mqtt/dist/mqtt.min.js").read_bytes(),
            ),
        }
        outcome: queue.Queue[str] = queue.Queue()
        self.outcome = outcome

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                kind, body = files.get(self.path.partition("?")[0], ("", b""))
                self.send_response(200 if kind else 404)
                self.send_header("Content-Type", kind or "text/plain")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def do_POST(self) -> None:
                outcome.put(self.rfile.read(int(self.headers["Content-Length"])).decode())
                self.send_response(204)
                self.end_headers()

            def log_message(self, *args: object) -> None: ...

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.origin = f"http://127.0.0.1:{self.server.server_address[1]}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def close(self) -> None:
        self.server.shutdown()
        self.server.server_close()


@pytest.fixture
def site() -> Iterator[Site]:
    made = Site()
    yield made
    made.close()


@pytest.fixture
def urls(tmp_path: Path, site: Site) -> Iterator[dict[str, str]]:
    certificate, key = Authority(tmp_path / "ca").issue("server")
    ports = {name: free_port() for name in ("ws", "wss", "own", "other")}
    at = {name: f"127.0.0.1:{port}" for name, port in ports.items()}
    listen = [
        f"ws://{at['ws']}",
        f"wss://{at['wss']}",
        f"ws://{at['own']}?origins=https://console.example,{site.origin}",
        f"ws://{at['other']}?origins=https://console.example",
    ]
    settings = {"tls.certificate": certificate, "tls.key": key, "durability": "none"}
    extra = [part for url in listen for part in ("--listen", url)]
    broker: BrokerProcess = make_broker(tmp_path / "broker", settings, extra).start()
    try:
        yield {name: f"{'wss' if name == 'wss' else 'ws'}://{at[name]}/mqtt" for name in ports}
    finally:
        finish(broker)


def test_a_page_speaks_mqtt(site: Site, urls: dict[str, str], tmp_path: Path) -> None:
    chromium = shutil.which("chromium")
    assert chromium is not None, "chromium is missing: make setup installs it"
    accept = [("accept", urls[name]) for name in ("wss", "ws", "own")]
    page = f"{site.origin}/?{urlencode([*accept, ('refuse', urls['other'])])}"
    log = tmp_path / "chromium.log"
    with (
        log.open("wb") as stderr,
        subprocess.Popen(
            [chromium, *FLAGS, f"--user-data-dir={tmp_path / 'profile'}", page],
            stdout=subprocess.DEVNULL,
            stderr=stderr,
        ) as browser,
    ):
        try:
            outcome = site.outcome.get(timeout=DEADLINE_S)
        except queue.Empty:
            pytest.fail(f"the page reported nothing: {log.read_text(errors='replace')[-2000:]}")
        finally:
            browser.terminate()
            browser.wait(30)
    assert outcome == "ok"
