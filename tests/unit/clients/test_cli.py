"""`headrace pub` and `headrace sub` against mosquitto: what they write and how they exit."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from broker_process import free_port
from headrace.clients.cli import pub, sub
from unit.clients.foreign_broker import mosquitto

CODE = "from headrace.clients.cli import {0}; {0}()"


def run(command: object, port: int, *args: str, stdin: bytes = b"") -> Result:
    return CliRunner().invoke(command, ["-p", str(port), *args], input=stdin)  # type: ignore[arg-type]


@contextlib.contextmanager
def subscriber(port: int, *args: str) -> Iterator[subprocess.Popen[bytes]]:
    """`sub` as a process, which has subscribed when the retained message `ready` is out."""
    assert run(pub, port, "-t", "ready", "-m", "ready", "-r", "-q", "1").exit_code == 0
    command = [sys.executable, "-c", CODE.format("sub"), "-p", str(port), "-t", "ready", *args]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            assert b"ready" in process.stdout.readline()
            yield process
        finally:
            process.kill()


def wait(process: subprocess.Popen[bytes]) -> tuple[int, bytes, bytes]:
    out, err = process.communicate(timeout=20)
    return process.returncode, out, err


@pytest.mark.mosquitto
@pytest.mark.parametrize("protocol", ["3.1", "3.1.1", "5"])
@pytest.mark.parametrize("qos", ["0", "1", "2"])
def test_a_message(port: int, protocol: str, qos: str) -> None:
    with subscriber(port, "-t", "cli/#", "-q", qos, "-v", "-C", "2", "--protocol", protocol) as process:
        assert run(pub, port, "-t", "cli/a", "-m", "hello", "-q", qos, "--protocol", protocol).exit_code == 0
        assert wait(process) == (0, b"cli/a hello\n", b"")


@pytest.mark.slow
@pytest.mark.mosquitto
@pytest.mark.parametrize("qos", ["0", "1", "2"])
def test_lines_of_stdin_keep_their_order(port: int, qos: str) -> None:
    lines = b"".join(b"%d\n" % number for number in range(2_500))
    with subscriber(port, "-t", "lines", "-q", qos, "-C", "2501") as process:
        assert run(pub, port, "-t", "lines", "-l", "-q", qos, stdin=lines).exit_code == 0
        assert wait(process) == (0, lines, b"")


@pytest.mark.mosquitto
def test_json_with_properties(port: int) -> None:
    with subscriber(
        port, "-t", "json", "-q", "1", "-C", "2", "--json", "--property", "subscription-identifier", "5"
    ) as p:
        users = ["--property", "user-property", "a", "b", "--property", "user-property", "c", "d"]
        others = ["--property", "content-type", "text/plain", "--property", "message-expiry-interval", "60"]
        result = run(pub, port, "-t", "json", "-m", "x", "-q", "1", *users, *others)
        assert result.exit_code == 0, result.output
        code, out, _ = wait(p)
    assert code == 0
    found = json.loads(out)
    assert (found["topic"], found["payload"], found["qos"]) == ("json", "x", 1)
    assert found["properties"]["user_properties"] == [["a", "b"], ["c", "d"]]
    assert found["properties"]["subscription_identifiers"] == [5]
    assert found["message_expiry_interval"] <= 60


@pytest.mark.mosquitto
def test_files_nothing_and_repeats(port: int, tmp_path: Path) -> None:
    file = tmp_path / "payload"
    file.write_bytes(b"\xff\x00binary")
    with subscriber(port, "-t", "kinds", "-C", "5") as process:
        assert run(pub, port, "-t", "kinds", "-f", str(file)).exit_code == 0
        assert run(pub, port, "-t", "kinds", "-n").exit_code == 0
        assert run(pub, port, "-t", "kinds", "-m", "x", "--repeat", "2").exit_code == 0
        assert wait(process) == (0, b"\xff\x00binary\n\nx\nx\n", b"")


@pytest.mark.mosquitto
def test_a_kept_session_hands_out_its_backlog(port: int) -> None:
    kept = ["-i", "kept", "-c", "-x", "60", "-q", "1", "-t", "backlog"]
    assert run(sub, port, *kept, "-W", "0.2").exit_code == 0
    assert run(pub, port, "-t", "backlog", "-m", "later", "-q", "1").exit_code == 0
    result = run(sub, port, *kept, "-C", "1", "-W", "10")
    assert (result.exit_code, result.stdout_bytes) == (0, b"later\n")


@pytest.mark.mosquitto
def test_retained_messages(port: int) -> None:
    assert run(pub, port, "-t", "old/news", "-m", "x", "-r").exit_code == 0
    assert run(sub, port, "-t", "old/+", "-C", "1", "-W", "10").stdout_bytes == b"x\n"
    assert run(sub, port, "-t", "old/+", "-R", "-W", "0.3").stdout_bytes == b""
    assert run(sub, port, "-t", "old/+", "--retain-handling", "2", "-W", "0.3").stdout_bytes == b""
    assert run(pub, port, "-t", "old/news", "-n", "-r").exit_code == 0


@pytest.mark.mosquitto
def test_a_count_that_is_not_reached_failed(port: int) -> None:
    result = run(sub, port, "-t", "silence", "-C", "2", "-W", "0.2")
    assert result.exit_code == 1
    assert "0 of 2 messages" in result.stderr


@pytest.mark.mosquitto
def test_a_broker_that_ends_failed(tmp_path: Path) -> None:
    with contextlib.ExitStack() as stack:
        with mosquitto(tmp_path) as mortal:
            process = stack.enter_context(subscriber(mortal, "-t", "x"))
        code, _, err = wait(process)
    assert code == 1
    assert b"connection lost" in err


def test_nobody_listens() -> None:
    port = free_port()
    for command, more in ((pub, ["-m", "x"]), (sub, [])):
        result = run(command, port, "-t", "a", *more)
        assert result.exit_code == 1
        assert "Error" in result.stderr


@pytest.mark.mosquitto
def test_not_authorized(tmp_path: Path) -> None:
    with mosquitto(tmp_path, anonymous=False) as closed:
        result = run(pub, closed, "-t", "a", "-m", "x")
        assert result.exit_code == 1
        assert "Not authorized" in result.stderr


@pytest.mark.parametrize(
    ("args", "why"),
    [
        ("-t a", "exactly one of"),
        ("-t a -m x -n", "exactly one of"),
        ("-m x", "--topic"),
        ("-t a/# -m x", "--topic"),
        ("-t a -m x -q 3", "3"),
        ("-t a -f /nowhere/at/all", "/nowhere"),
        ("-t a -m x --property nonsense 1", "nonsense"),
        ("-t a -m x --property topic-alias x", "topic-alias"),
        ("-t a -m x --protocol 3.1.1 --property content-type t", "only MQTT 5"),
        ("-t a -m x --url http://x", "--url"),
    ],
)
def test_wrong_use_of_pub(args: str, why: str) -> None:
    result = CliRunner().invoke(pub, args.split())
    assert result.exit_code == 2
    assert why in result.stderr


@pytest.mark.parametrize(
    ("args", "why"),
    [
        ("", "--topic"),
        ("-t a#", "a#"),
        ("-t $share/g", "$share/g"),
        ("-t a -C 0", "0"),
        ("-t a -W 0", "0"),
        ("-t a --receive-maximum 0", "0"),
        ("-t a --protocol 3.1.1 --no-local", "--no-local"),
        ("-t a --protocol 3.1.1 --property user-property a b", "only MQTT 5"),
        ("-t a --protocol 3.1.1 --receive-maximum 5", "only MQTT 5"),
    ],
)
def test_wrong_use_of_sub(args: str, why: str) -> None:
    result = CliRunner().invoke(sub, args.split())
    assert result.exit_code == 2
    assert why in result.stderr


def test_help_names_every_option() -> None:
    for command in (pub, sub):
        text = CliRunner().invoke(command, ["--help"]).output
        for parameter in command.params:
            assert parameter.opts[0] in text
