"""The commands around the broker, as a shell sees them: output, exit codes, pipes."""

from __future__ import annotations

import base64
import json
import os
import random
import signal
import subprocess
import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest

from broker_process import PYTHON, BrokerProcess, build_environment, headrace
from e2e.raw import RawClient
from e2e.remote_broker import RemoteBroker
from e2e.wire import CONTENT_TYPE, PUBLISH, SESSION_EXPIRY, USER_PROPERTY

Clients = Callable[..., RawClient]
Brokers = Callable[..., BrokerProcess]


def url(broker: BrokerProcess) -> list[str]:
    return ["--url", f"tcp://127.0.0.1:{broker.port}"]


def test_help_names_the_commands() -> None:
    found = headrace("--help")
    assert found.returncode == 0
    for command in ("serve", "pub", "sub", "journal", "session", "config", "pipeline"):
        assert command in found.stdout
    assert headrace("--version").returncode == 0
    assert headrace("nosuch").returncode == 2


@pytest.mark.parametrize("protocol", ["3.1", "3.1.1", "5"])
@pytest.mark.parametrize("qos", ["0", "1", "2"])
def test_pub(broker: BrokerProcess, clients: Clients, name: str, protocol: str, qos: str) -> None:
    client = clients(broker)
    client.subscribe(name, qos=2)
    found = headrace("pub", *url(broker), "--protocol", protocol, "-t", name, "-m", "grüße", "-q", qos)
    assert found.returncode == 0, found.stderr
    packet = client.receive()
    assert (packet.payload.decode(), packet.qos) == ("grüße", int(qos))


def test_pub_from_stdin_file_and_nothing(
    broker: BrokerProcess, clients: Clients, name: str, tmp_path: Path
) -> None:
    client = clients(broker)
    client.subscribe(name, qos=1)
    lines = "".join(f"{number}\n" for number in range(500))
    assert headrace("pub", *url(broker), "-t", name, "-q", "1", "-l", stdin=lines).returncode == 0
    assert [int(client.receive().payload) for _ in range(500)] == list(range(500))
    (tmp_path / "payload").write_bytes(bytes(range(256)))
    assert (
        headrace("pub", *url(broker), "-t", name, "-q", "1", "-f", str(tmp_path / "payload")).returncode == 0
    )
    assert client.receive().payload == bytes(range(256))
    assert headrace("pub", *url(broker), "-t", name, "-q", "1", "-n").returncode == 0
    assert client.receive().payload == b""


def test_pub_retain_properties_and_will(broker: BrokerProcess, clients: Clients, name: str) -> None:
    options = ["--property", "content-type", "text/plain", "--property", "user-property", "unit", "°C"]
    found = headrace("pub", *url(broker), "-t", name, "-m", "21.5", "-q", "1", "-r", *options)
    assert found.returncode == 0, found.stderr
    client = clients(broker, "", 5)
    client.subscribe(name, qos=1)
    packet = client.receive()
    assert packet.retain
    assert packet.properties == {CONTENT_TYPE: "text/plain", USER_PROPERTY: [("unit", "°C")]}


def test_sub_count_verbose_and_json(broker: BrokerProcess, clients: Clients, name: str) -> None:
    publisher = clients(broker)
    for number in range(3):
        publisher.deliver(f"{name}/{number}", str(number), retain=True)
    plain = headrace("sub", *url(broker), "-t", f"{name}/+", "-q", "1", "-C", "3", "-W", "10")
    assert (plain.returncode, sorted(plain.stdout.split())) == (0, ["0", "1", "2"])
    verbose = headrace("sub", *url(broker), "-t", f"{name}/1", "-C", "1", "-v", "-W", "10")
    assert verbose.stdout == f"{name}/1 1\n"
    as_json = headrace("sub", *url(broker), "-t", f"{name}/2", "-q", "1", "-C", "1", "--json", "-W", "10")
    row = json.loads(as_json.stdout)
    assert row["topic"] == f"{name}/2"
    assert row["retain"] in (True, 1)


def test_sub_persistent_session(broker: BrokerProcess, clients: Clients, name: str) -> None:
    options = [*url(broker), "-i", name, "-c", "-t", name, "-q", "1", "-W", "1"]
    headrace("sub", *options)
    publisher = clients(broker)
    for number in range(20):
        publisher.deliver(name, str(number))
    found = headrace("sub", *options[:-2], "-C", "20", "-W", "10")
    assert (found.returncode, found.stdout.split()) == (0, [str(number) for number in range(20)])


def test_sub_acknowledges_what_it_has_written(broker: BrokerProcess, clients: Clients, name: str) -> None:
    """A reader of the pipe that goes away loses nothing: what it did not read comes again."""
    first = clients(broker, name, 5, clean=False, properties={SESSION_EXPIRY: 600})
    first.subscribe(name, qos=1)
    first.disconnect()
    clients(broker).deliver_many(name, range(2_000))
    options = [*url(broker), "-i", name, "-c", "-x", "600", "-t", name, "-q", "1", "-W", "10"]
    taken = headrace("sub", *options, "-C", "700")
    assert taken.stdout.split() == [str(number) for number in range(700)]
    rest = headrace("sub", *options, "-C", "1300")
    assert rest.stdout.split() == [str(number) for number in range(700, 2_000)]


def test_pub_and_sub_fail_loudly(tmp_path: Path) -> None:
    for command in (["pub", "-m", "x"], ["sub"]):
        found = headrace(*command, "--url", "tcp://127.0.0.1:9", "-t", "t")
        assert found.returncode == 1
        assert "127.0.0.1" in found.stderr
        assert "Traceback" not in found.stderr
    for wrong in (
        ["pub", "-t", "t"],
        ["pub", "-t", "a/#", "-m", "x"],
        ["sub", "-t", "a#"],
        ["sub"],
        ["pub", "-q", "3"],
    ):
        found = headrace(*wrong)
        assert found.returncode == 2, (wrong, found.stderr)
        assert "Traceback" not in found.stderr


def test_sub_ends_with_its_pipe_and_with_sigint(broker: BrokerProcess, clients: Clients, name: str) -> None:
    clients(broker).deliver(name, b"here", retain=True)
    command = [PYTHON, "-m", "headrace", "sub", *url(broker), "-t", name, "-v"]
    with subprocess.Popen(
        command, env=build_environment(), cwd="/", stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as one:
        assert one.stdout is not None
        assert one.stdout.readline() == f"{name} here\n".encode()
        one.send_signal(signal.SIGINT)
        assert one.wait(10) in (0, 130)
        assert one.stderr is not None
        assert b"Traceback" not in one.stderr.read()


def test_journal_verify_and_dump(own_broker: BrokerProcess, clients: Clients) -> None:
    """While the broker runs, after a stop, and after a kill."""
    client = clients(own_broker, "device-1", 5, clean=False, properties={SESSION_EXPIRY: 600})
    client.subscribe("t/#", qos=1)
    payloads = [os.urandom(20) for _ in range(10)]
    for payload in payloads:
        client.deliver("t/ü", payload)
    where = ["--data-dir", str(own_broker.data_dir)]
    for end in (None, own_broker.stop, own_broker.start, own_broker.kill):
        if end is not None:
            end()
        verified = headrace("journal", "verify", *where)
        assert verified.returncode == 0, verified.stdout + verified.stderr
        dumped = headrace("journal", "dump", *where)
        assert dumped.returncode == 0, dumped.stderr
        rows = [json.loads(line) for line in dumped.stdout.splitlines()]
        assert [row["offset"] for row in rows] == list(range(len(rows)))
        messages = [row for row in rows if row["kind"] == "message"]
        assert [base64.b64decode(row["payload_base64"]) for row in messages] == payloads
        assert {(row["tenant"], row["client_id"], row["topic"], row["qos"]) for row in messages} == {
            ("default", "device-1", "t/ü", 1)
        }
    part = headrace("journal", "dump", *where, "--from", "2", "--to", "5")
    assert [json.loads(line)["offset"] for line in part.stdout.splitlines()] == [2, 3, 4]


def test_journal_dump_shows_properties_and_expiry(own_broker: BrokerProcess) -> None:
    options = ["--property", "content-type", "text/plain", "--property", "user-property", "unit", "°C"]
    more = ["--property", "correlation-data", "id", "--property", "message-expiry-interval", "600"]
    to = [*url(own_broker), "-t", "t", "-m", "x", "-q", "1"]
    assert headrace("pub", *to, *options, *more).returncode == 0
    dumped = headrace("journal", "dump", "--data-dir", str(own_broker.data_dir))
    rows = [json.loads(line) for line in dumped.stdout.splitlines()]
    (message,) = (row for row in rows if row["kind"] == "message")
    assert message["message_expiry_interval"] == 600
    assert message["properties"] == {
        "content_type": "text/plain",
        "user_properties": [["unit", "°C"]],
        "correlation_data": base64.b64encode(b"id").decode(),
    }


def test_what_only_prints_ends_silently_with_its_reader(own_broker: BrokerProcess, clients: Clients) -> None:
    clients(own_broker).deliver_many("t", range(3000), window=100)
    command = [PYTHON, "-m", "headrace", "journal", "dump", "--data-dir", str(own_broker.data_dir)]
    with subprocess.Popen(
        command, env=build_environment(), cwd="/", stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as one:
        assert one.stdout is not None
        assert one.stderr is not None
        one.stdout.readline()
        one.stdout.close()
        assert one.wait(20) == -signal.SIGPIPE
        assert one.stderr.read() == b""


def test_journal_verify_finds_damage(own_broker: BrokerProcess, clients: Clients) -> None:
    """One flipped bit in the middle of what is durable: verify says where, and the broker refuses to start on it."""
    clients(own_broker).deliver_many("t", range(300), window=10)
    own_broker.stop()
    where = ["--data-dir", str(own_broker.data_dir)]
    assert headrace("journal", "verify", *where).returncode == 0
    log = min((own_broker.data_dir / "journal").glob("*.log"))
    content = bytearray(log.read_bytes())
    content[len(content) // 3] ^= 0x10
    log.write_bytes(content)
    found = headrace("journal", "verify", *where)
    assert found.returncode == 1
    assert log.name in found.stdout + found.stderr
    for snapshot in (own_broker.data_dir / "journal").glob("*.snapshot"):
        snapshot.unlink()  # else it need not read what is damaged
    own_broker.spawn()
    assert own_broker.wait() == 1
    own_broker.end()
    assert log.name in own_broker.stderr or "offset" in own_broker.stderr
    assert "Traceback" not in own_broker.stderr


def test_session_list_and_show(broker: BrokerProcess, clients: Clients, name: str) -> None:
    client = clients(broker, name, 5, clean=False, properties={SESSION_EXPIRY: 600, 0x21: 3})
    client.subscribe(f"{name}/#", qos=1)
    clients(broker).deliver_many(f"{name}/x", range(10))
    for _ in range(3):
        client.expect(PUBLISH)
    client.leave()
    clients(broker).deliver("flush", b"")
    where = ["--data-dir", str(broker.data_dir)]
    listed = headrace("session", "list", *where)
    assert listed.returncode == 0, listed.stderr
    line = next(line for line in listed.stdout.splitlines() if name in line)
    assert "DEVICE" in line
    rows = [json.loads(line) for line in headrace("session", "list", "--json", *where).stdout.splitlines()]
    (row,) = [row for row in rows if row["client_id"] == name]
    assert (row["tenant"], row["inflight"], row["backlog"]) == ("default", 3, 7)
    shown = json.loads(headrace("session", "show", name, *where).stdout)
    assert list(shown["subscriptions"]) == [f"{name}/#"]
    missing = headrace("session", "show", "nobody", *where)
    assert missing.returncode == 1
    assert "nobody" in missing.stderr


def test_inspection_without_a_journal(tmp_path: Path) -> None:
    for command in (["journal", "verify"], ["journal", "dump"], ["session", "list"]):
        found = headrace(*command, "--data-dir", str(tmp_path / "nothing"))
        assert found.returncode in (1, 2)
        assert "nothing" in found.stderr
        assert not (tmp_path / "nothing").exists()


def test_config_check_and_show(tmp_path: Path) -> None:
    shown = headrace("config", "show")
    assert shown.returncode == 0
    values = tomllib.loads(shown.stdout)
    assert values["durability"] == "fsync"
    assert values["session"]["backlog_messages_max"] == 10_000
    file = tmp_path / "headrace.toml"
    file.write_text(shown.stdout)  # what it shows it accepts
    assert headrace("config", "check", str(file)).returncode == 0
    assert headrace("config", "show", "--config", str(file)).stdout == shown.stdout
    changed = headrace("config", "show", "--set", "session.backlog_messages_max=5")
    assert tomllib.loads(changed.stdout)["session"]["backlog_messages_max"] == 5
    wrong = headrace("config", "check", "--set", "session.backlog_messages_max=-5")
    assert wrong.returncode == 2
    assert "session.backlog_messages_max" in wrong.stderr


def test_defaults_of_serve(brokers: Brokers, tmp_path: Path) -> None:
    """Without configuration: loopback only, anonymous allowed, data in ./headrace-data."""
    shown = tomllib.loads(headrace("config", "show").stdout)
    assert all(one.startswith("tcp://127.0.0.1:") for one in shown["listeners"])
    assert shown["data_dir"] == "./headrace-data"
    assert shown["allow_anonymous"] is True


@pytest.mark.slow
def test_a_megabyte_of_lines_through_pub_and_sub(broker: BrokerProcess, clients: Clients, name: str) -> None:
    """A pipe from pub to sub over the broker: every line, in order."""
    chance = random.Random(5)
    lines = [f"{number} {chance.randbytes(chance.randrange(150)).hex()}" for number in range(5_000)]
    away = clients(broker, name, 5, clean=False, properties={SESSION_EXPIRY: 600})
    away.subscribe(name, qos=1)
    away.disconnect()
    sent = headrace("pub", *url(broker), "-t", name, "-q", "1", "-l", stdin="\n".join(lines) + "\n")
    assert sent.returncode == 0, sent.stderr
    options = ["-i", name, "-c", "-x", "600", "-t", name, "-q", "1", "-C", "5000", "-W", "20"]
    found = headrace("sub", *url(broker), *options)
    assert found.stdout.splitlines() == lines


def test_sub_passes_over_odd_topics_and_names_them() -> None:
    greets = [(b"t/a", b"1"), (b"t/\x1b[2J", b"odd"), ("t/\ufffe".encode(), b"odd"), (b"t/b", b"2")]
    with RemoteBroker(greets) as remote:
        address = f"tcp://127.0.0.1:{remote.port}"
        found = headrace("sub", "--url", address, "-V", "5", "-t", "t/#", "-q", "1", "-C", "2")
    assert (found.returncode, found.stdout.split()) == (0, ["1", "2"])
    assert r"'t/\x1b[2J'" in found.stderr
    assert r"'t/\ufffe'" in found.stderr


def test_sub_ends_at_a_topic_that_must_end_the_connection_and_names_it() -> None:
    with RemoteBroker([(b"t/a", b"1"), (b"t/+/x", b"2")]) as remote:
        address = f"tcp://127.0.0.1:{remote.port}"
        found = headrace("sub", "--url", address, "-V", "5", "-t", "t/#", "-q", "1", "-C", "2")
    assert (found.returncode != 0, found.stdout.split()) == (True, ["1"])
    assert "'t/+/x'" in found.stderr
