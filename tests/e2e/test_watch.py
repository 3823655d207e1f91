"""`headrace status` and `headrace top` on a running broker, the latter on a real pseudo terminal."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import re
import select
import signal
import struct
import subprocess
import termios
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from broker_process import BUILD, PYTHON, BrokerProcess, build_environment, free_port, headrace
from e2e.raw import RawClient
from headrace.journal.consumers import ConsumerPosition
from headrace.journal.reader import JournalReader

DEADLINE_S = 30.0
LEAVES_SCREEN = "\x1b[?1049l"
Clients = Callable[..., RawClient]


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    folder = tmp_path_factory.mktemp("broker")
    (folder / "tokens").write_text("operate secret\nread public\n")
    (folder / "public").write_text("public\n")
    found = BrokerProcess(folder, {"journal.token_file": folder / "tokens"}).start()
    yield found
    found.end()
    assert "Traceback" not in found.stderr


def url(broker: BrokerProcess) -> str:
    return f"http://127.0.0.1:{broker.admin_port}"


def token(broker: BrokerProcess) -> list[str]:
    return ["--token-file", str(broker.folder / "public")]


class Terminal:
    """A command on a pseudo terminal of 140 columns and 45 lines."""

    def __init__(self, *arguments: str) -> None:
        self._ours, theirs = pty.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 45, 140, 0, 0))
        self.process = subprocess.Popen(
            ["setsid", "--ctty", PYTHON, "-m", "headrace", *arguments],  # so that Ctrl-C is a signal
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            env=build_environment() | {"TERM": "xterm"},
        )
        os.close(theirs)
        self.text = ""

    def until(self, pattern: str, after: int = 0) -> str:
        """Read until what was written fits; returns it."""
        deadline = time.monotonic() + DEADLINE_S
        while not re.search(pattern, self.text[after:], re.DOTALL):
            assert self._read(deadline), f"ended before {pattern!r}:\n{self.text}"
        return self.text

    def _read(self, deadline: float) -> bool:
        ready, _, _ = select.select([self._ours], [], [], max(0.0, deadline - time.monotonic()))
        assert ready, f"nothing more in {DEADLINE_S} s:\n{self.text}"
        try:
            data = os.read(self._ours, 65536)
        except OSError:  # the other end is closed
            return False
        self.text += data.decode("utf-8", "replace")
        return data != b""

    def press(self, key: bytes) -> None:
        os.write(self._ours, key)

    def end(self) -> int:
        """Read what is left; returns the exit status."""
        while self._read(time.monotonic() + DEADLINE_S):
            pass
        os.close(self._ours)
        return self.process.wait(DEADLINE_S)


@pytest.fixture
def terminal() -> Iterator[Callable[..., Terminal]]:
    made: list[Terminal] = []

    def make(*arguments: str) -> Terminal:
        made.append(Terminal(*arguments))
        return made[-1]

    yield make
    for one in made:
        if one.process.poll() is None:
            one.process.kill()
            one.process.wait()


def behind(broker: BrokerProcess, clients: Clients, client_id: str, messages: int) -> None:
    """A session for which so many messages wait."""
    away = clients(broker, client_id, clean=False)
    away.subscribe((client_id, 1))
    away.disconnect()
    publisher = clients(broker)
    for _ in range(messages):
        publisher.deliver(client_id, b"x" * 1000)
    publisher.disconnect()


# status


def test_status_says_on_a_screen_that_it_is_well(broker: BrokerProcess) -> None:
    shown = headrace("status", "--admin", url(broker))
    assert (shown.returncode, shown.stderr) == (0, "")
    lines = shown.stdout.splitlines()
    assert lines[0] == "health    good"
    assert len(lines) < 24
    assert any(line.startswith(f"broker    {url(broker)}, headrace ") for line in lines)


def test_status_as_json_counts_what_there_is(own_broker: BrokerProcess, clients: Clients) -> None:
    behind(own_broker, clients, "away", 3)
    here = clients(own_broker, "here")
    here.subscribe("x", "y")
    reader = JournalReader(own_broker.data_dir)
    end = reader.high_watermark()
    ConsumerPosition.register(own_broker.data_dir, "archive", reader.uuid, reader.epoch, end - 2)
    shown = headrace("status", "--json", "--admin", url(own_broker))
    found = json.loads(shown.stdout)
    expected = {
        "healthy": True,
        "ready": True,
        "problems": [],
        "connections": 1,
        "sessions": 2,
        "subscriptions": 3,
        "publishes_received": 3,
        "backlog_messages": 3,
        "build": "pure Python" if BUILD == "interpreted" else "compiled",
    }
    assert {name: found[name] for name in expected} == expected
    assert 3000 < found["backlog_bytes"] < 3100
    [consumer] = found["consumers"]
    assert (consumer["name"], consumer["offset"], consumer["lag_records"]) == ("archive", end - 2, 2)
    assert 0 < found["disk_free_bytes"] < found["disk_size_bytes"]


def test_status_of_nobody_is_1_and_one_line(tmp_path: Path) -> None:
    admin = f"http://127.0.0.1:{free_port()}"
    shown = headrace("status", "--admin", admin)
    assert shown.returncode == 1
    assert shown.stdout == ""
    assert shown.stderr.startswith(f"headrace: no broker answers at {admin}: ")
    assert len(shown.stderr.splitlines()) == 1


class Unready(BaseHTTPRequestHandler):
    """The admin HTTP of a broker whose disk is full."""

    def do_GET(self) -> None:
        if self.path == "/readyz":
            problem = {"status": 503, "detail": "the journal's disk is full: No space left on device"}
            self._answer(503, json.dumps(problem))
        else:
            self._answer(200, "headrace_journal_full 1\n")

    def _answer(self, status: int, body: str) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body.encode())

    def log_message(self, *_: object) -> None:
        """Nobody reads it."""


@pytest.fixture
def unready() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Unready)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    thread.join()
    server.server_close()


def test_status_of_a_broker_that_is_not_ready_is_1_and_says_why(unready: str) -> None:
    shown = headrace("status", "--admin", unready)
    assert shown.returncode == 1
    lines = shown.stdout.splitlines()
    assert lines[0] == "health    bad"
    assert lines[1] == "problem   not ready: the journal's disk is full: No space left on device"
    shown = headrace("status", "--json", "--admin", unready)
    assert shown.returncode == 1
    assert json.loads(shown.stdout)["healthy"] is False


# top


def test_top_shows_who_is_behind_and_what_flows(
    broker: BrokerProcess, clients: Clients, terminal: Callable[..., Terminal]
) -> None:
    behind(broker, clients, "late-device", 12)
    subscriber, publisher = clients(broker, "s"), clients(broker, "p")
    subscriber.subscribe(("flow", 1))
    shown = terminal("top", "--admin", url(broker), "--interval", "0.3", *token(broker))
    shown.until(r"late-device.*away.*12 ")
    for word in ("PUBLISH in", "PUBACK", "journal sync", "consumers and jobs", "good"):
        assert word in shown.text
    seen = len(shown.text)
    publisher.deliver("flow", b"x")
    subscriber.receive()
    shown.until(r"PUBACK[^\n]*\d ms[^\n]*\n.*delivery[^\n]*\d ms", after=seen)
    shown.press(b"\x03")
    assert shown.end() == 0
    assert shown.text.rstrip().endswith(LEAVES_SCREEN)
    assert "Traceback" not in shown.text


def test_top_gives_the_terminal_back_when_it_is_ended(
    broker: BrokerProcess, terminal: Callable[..., Terminal]
) -> None:
    shown = terminal("top", "--admin", url(broker), "--interval", "60")
    shown.until("Ctrl-C")
    assert "--token-file" in shown.text, "without one nobody is listed"
    shown.process.send_signal(signal.SIGTERM)
    assert shown.end() == 0
    assert LEAVES_SCREEN in shown.text


def test_top_ends_after_its_rounds(broker: BrokerProcess, terminal: Callable[..., Terminal]) -> None:
    shown = terminal("top", "--admin", url(broker), "--rounds", "2", "--interval", "0.2")
    assert shown.end() == 0
    assert LEAVES_SCREEN in shown.text


def test_top_wants_a_terminal(broker: BrokerProcess) -> None:
    shown = headrace("top", "--admin", url(broker))
    assert (shown.returncode, shown.stdout) == (1, "")
    assert shown.stderr == "headrace: top needs a terminal; `headrace status --json` is for programs\n"


def test_top_without_its_library_says_what_to_install(broker: BrokerProcess) -> None:
    lines = ("import sys", "sys.modules['rich'] = None", "sys.argv = ['headrace', 'top']")
    program = "; ".join([*lines, "import headrace.commands.main", "headrace.commands.main.main()"])
    shown = subprocess.run(
        [PYTHON, "-c", program], env=build_environment(), capture_output=True, text=True, timeout=60, cwd="/"
    )
    assert shown.returncode == 1
    assert shown.stderr == "headrace: top needs rich: pip install 'headrace[progress]'\n"


# The list behind it


def test_the_list_wants_a_token_that_may_look(broker: BrokerProcess) -> None:
    assert broker.get("/v1/clients/behind").status == 401
    assert headrace("trace", "client", "x", "--admin", url(broker), *token(broker)).returncode == 1


@pytest.mark.parametrize("limit", ["0", "201", "x", "-1", "%C2%B2"])
def test_a_limit_that_is_none(broker: BrokerProcess, limit: str) -> None:
    answer = subprocess.run(
        [
            "curl",
            "-s",
            "-H",
            "Authorization: Bearer public",
            f"{url(broker)}/v1/clients/behind?limit={limit}",
        ],
        capture_output=True,
        text=True,
        timeout=30,
    )
    assert json.loads(answer.stdout)["status"] == 400
