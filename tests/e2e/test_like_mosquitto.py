"""`headrace pub` and `sub` beside mosquitto_pub and mosquitto_sub on our broker: flags people type without thinking."""

from __future__ import annotations

import os
import re
import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from broker_process import PYTHON, BrokerProcess, build_environment, headrace
from e2e.raw import RawClient

pytestmark = pytest.mark.mosquitto
OURS = [[PYTHON, "-m", "headrace", "pub"], [PYTHON, "-m", "headrace", "sub"]]
THEIRS = [["mosquitto_pub"], ["mosquitto_sub"]]
PAYLOAD = '{"x": [1, 2.5, "ü"], "s": "a/b"}'


def run(command: list[str], *args: str, stdin: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        [*command, *args],
        input=stdin,
        capture_output=True,
        check=False,
        timeout=30,
        env=build_environment() | {"LANG": "C.UTF-8"},
        cwd="/",
    )


def at(broker: BrokerProcess) -> list[str]:
    return ["-h", "127.0.0.1", "-p", str(broker.port)]


@contextmanager
def running(command: list[str], *args: str) -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(
        [*command, *args],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=build_environment() | {"LANG": "C.UTF-8"},
        cwd="/",
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def without_times(text: bytes) -> bytes:
    """What differs from one second to the next."""
    text = re.sub(rb'"tst":"[^"]*"', b'"tst"', text)
    return re.sub(rb'"message-expiry-interval":\d+', b'"expiry"', text)


FORMATS = [
    "%t|%p|%q|%r|%l|%m|%x %X|%C|%D|%F|%R|%S|%P|%A|%%|a\\tb\\n|\\e[1m|@Y @@",
    "%5t|%-8tX|%05l|%.1t|%10.1t|%8C|%05q%-5qX%5m|%40p|",
    "%J",
    "%Z",
    "%",
    "\\q",
]


@pytest.mark.parametrize("text", FORMATS)
def test_formats(broker: BrokerProcess, name: str, text: str) -> None:
    properties = ["-D", "publish", "content-type", "text/plain", "-D", "publish", "user-property", "k", "v",
                  "-D", "publish", "response-topic", "r/t", "-D", "publish", "correlation-data", "cd",
                  "-D", "publish", "payload-format-indicator", "1",
                  "-D", "publish", "message-expiry-interval", "600"]  # fmt: skip
    for pub in (OURS[0], THEIRS[0]) if text == FORMATS[0] else (OURS[0],):
        done = run(pub, *at(broker), "-V", "5", "-t", name, "-m", PAYLOAD, "-q", "1", "-r", *properties)
        assert done.returncode == 0, done.stderr
        asked = [*at(broker), "-V", "mqttv5", "-t", name, "-q", "1", "-C", "1", "-W", "10", "-F", text]
        ours, theirs = run(OURS[1], *asked), run(THEIRS[1], *asked)
        if theirs.returncode:
            assert ours.returncode == 2
            assert "specifier" in ours.stderr.decode()
            assert b"specifier" in theirs.stdout + theirs.stderr
        elif text == "%J":
            assert sorted(without_times(ours.stdout)) == sorted(without_times(theirs.stdout))
        else:
            assert ours.stdout == theirs.stdout


@pytest.mark.parametrize(
    ("version", "qos"),
    [
        ("mqttv311", "1"),
        ("mqttv5", "0"),
        ("mqttv5", "2"),
        *(
            pytest.param(*rest, marks=pytest.mark.deep)
            for rest in (("mqttv311", "0"), ("mqttv311", "2"), ("mqttv5", "1"))
        ),
    ],
)
def test_debug(broker: BrokerProcess, name: str, version: str, qos: str) -> None:
    def said(command: list[str], *args: str) -> bytes:
        done = run(command, *at(broker), "-i", f"{name}-d", "-d", "-V", version, "-q", qos, *args)
        assert done.returncode == 0, done.stderr
        # A packet id of QoS 0 is on no wire; theirs is a counter. Their last line is said after the acknowledgement was.
        text = re.sub(rb"(q0, r\d), m\d+", rb"\1", done.stdout)
        return b"\n".join(sorted(text.splitlines()))

    publish = ["-t", name, "-m", "hello", "-r"]
    assert said(OURS[0], *publish) == said(THEIRS[0], *publish)
    subscribe = ["-t", name, "-t", f"{name}/+", "-C", "1"]
    ours, theirs = said(OURS[1], *subscribe), said(THEIRS[1], *subscribe)
    if qos == "2":  # they hand a message out when it is released, and we when it is received
        ours, theirs = (
            b"\n".join(line for line in text.splitlines() if b" PUB" not in line) for text in (ours, theirs)
        )
    assert ours == theirs
    leave = ["-t", f"{name}/x", "-U", name, "-E"]
    assert b"UNSUBSCRIBE (Mid: 2, Topic: " + name.encode() in said(OURS[1], *leave)


def test_retained_only_and_remove_retained(broker: BrokerProcess, name: str) -> None:
    for command in (OURS[1], THEIRS[1]):
        for topic in ("a", "b", "kept"):
            assert run(OURS[0], *at(broker), "-t", f"{name}/{topic}", "-m", topic, "-r").returncode == 0
        with running(command, *at(broker), "-t", f"{name}/#", "--retained-only", "-v") as process:
            assert process.stdout is not None
            lines = {process.stdout.readline() for _ in range(3)}
            assert lines == {f"{name}/{topic} {topic}\n".encode() for topic in ("a", "b", "kept")}
            assert run(OURS[0], *at(broker), "-t", f"{name}/a", "-m", "now").returncode == 0
            assert process.wait(20) == 0
            assert process.stdout.read() == b""
        asked = ["-t", f"{name}/#", "--remove-retained", "-T", f"{name}/kept", "-C", "4", "-W", "10", "-v"]
        done = run(command, *at(broker), *asked)
        found = [f"{name}/a a", f"{name}/b b", f"{name}/a (null)", f"{name}/b (null)"]
        assert sorted(done.stdout.decode().splitlines()) == sorted(found)
        left = run(OURS[1], *at(broker), "-t", f"{name}/#", "-v", "-W", "0.5")
        assert left.stdout == f"{name}/kept kept\n".encode()


def test_messages_from_stdin(broker: BrokerProcess, clients: Callable[..., RawClient], name: str) -> None:
    client = clients(broker)
    client.subscribe(name, qos=1)
    for command in (OURS[0], THEIRS[0]):
        assert run(command, *at(broker), "-t", name, "-q", "1", "-s", stdin=b"a\nb\n").returncode == 0
        assert client.receive().payload == b"a\nb\n"
        assert run(command, *at(broker), "-t", name, "-q", "1", "-l", stdin=b"a\n\nb").returncode == 0
        assert [client.receive().payload for _ in range(3)] == [b"a", b"", b"b"]


def test_where_to_by_one_url(broker: BrokerProcess, clients: Callable[..., RawClient], name: str) -> None:
    client = clients(broker)
    client.subscribe(f"{name}/#", qos=1)
    for command in (OURS[0], THEIRS[0]):
        located = f"mqtt://user:word@127.0.0.1:{broker.port}/{name}/x"
        assert run(command, "-L", located, "-m", "hi", "-q", "1", "-V", "311").returncode == 0 or (
            command is THEIRS[0]
        )
    assert client.receive().topic == f"{name}/x"
    assert run(OURS[0], "-L", "http://h/t", "-m", "x").returncode == 2
    assert run(OURS[0], *at(broker), "-t", f"{name}/x", "-m", "kept", "-r").returncode == 0
    located = f"mqtt://127.0.0.1:{broker.port}/{name}/#"
    for command in (OURS[1], THEIRS[1]):
        assert run(command, "-L", located, "-C", "1", "-W", "10", "-N").stdout == b"kept"


def test_a_will(broker: BrokerProcess, clients: Callable[..., RawClient], name: str) -> None:
    client = clients(broker, "", 5)
    client.subscribe(f"{name}/gone", qos=1)
    will = ["--will-topic", f"{name}/gone", "--will-payload", "bye", "--will-qos", "1", "-V", "5",
            "-D", "will", "content-type", "text/plain"]  # fmt: skip
    with running(OURS[1], *at(broker), "-t", name, "-d", *will) as process:
        assert process.stdout is not None
        while not process.stdout.readline().startswith(b"Subscribed"):
            assert process.poll() is None
        process.kill()
    packet = client.receive()
    assert (packet.payload, packet.qos) == (b"bye", 1)
    assert "text/plain" in packet.properties.values()


def test_a_password_that_no_list_of_processes_shows(tmp_path: Path, name: str) -> None:
    secret = tmp_path / "secret"
    secret.write_text("word\n")
    assert headrace("passwd", str(tmp_path / "p"), "ada", "--password-file", str(secret)).returncode == 0
    broker = BrokerProcess(tmp_path / "b", {"access.password_file": str(tmp_path / "p")}).start()
    try:
        publish = [*OURS[0], *at(broker), "-t", name, "-m", "x", "-q", "1", "-u", "ada"]
        environment = build_environment()
        assert run([*publish, "--password-file", str(secret)]).returncode == 0
        assert run([*publish, "--password-file", "-"], stdin=b"word\n").returncode == 0
        assert run(publish).returncode == 1
        for word, code in ((b"word", 0), (b"other", 1)):
            done = subprocess.run(
                publish,
                env=environment | {"HEADRACE_PASSWORD": os.fsdecode(word)},
                capture_output=True,
                check=False,
                timeout=20,
                cwd="/",
            )
            assert done.returncode == code, done.stderr
        assert run([*publish, "-P", "word", "--password-file", str(secret)]).returncode == 2
    finally:
        broker.end()


def test_sub_ends_silently_with_its_reader(broker: BrokerProcess, name: str) -> None:
    """While it writes, and while nothing comes."""
    assert run(OURS[0], *at(broker), "-t", name, "-m", "x", "-r").returncode == 0
    for _ in range(2):
        with running(OURS[1], *at(broker), "-t", name) as process:
            assert process.stdout is not None
            assert process.stderr is not None
            assert process.stdout.readline() == b"x\n"
            process.stdout.close()
            assert process.wait(20) == -signal.SIGPIPE
            assert process.stderr.read() == b""


def test_pub_of_lines_ends_with_ctrl_c(broker: BrokerProcess, name: str) -> None:
    with running(OURS[0], *at(broker), "-t", name, "-l", "-d") as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdin.write(b"one\n")
        process.stdin.flush()
        while b"sending PUBLISH" not in process.stdout.readline():
            assert process.poll() is None
        process.send_signal(signal.SIGINT)
        assert process.wait(20) == 130
        assert b"Traceback" not in process.stderr.read()
