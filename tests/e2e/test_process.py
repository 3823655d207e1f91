"""The process from outside: start, ready, wrong use, one writer per directory, admin endpoints, stop."""

from __future__ import annotations

import os
import re
import signal
import socket
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from broker_process import BrokerExitedError, BrokerProcess, free_port, headrace, wait_until
from e2e.raw import RawClient
from e2e.wire import DISCONNECT, PUBACK

Clients = Callable[..., RawClient]
Brokers = Callable[..., BrokerProcess]


def test_ready_means_ready(own_broker: BrokerProcess, clients: Clients) -> None:
    """The line comes when both doors are open: no client of ours retries anywhere."""
    assert own_broker.get("/readyz").status == 200
    clients(own_broker).deliver("t", b"x")
    ready = [line for line in own_broker.lines if re.search(r"\bready\b", line)]
    assert len(ready) == 1, "one line, once"
    assert str(own_broker.port) in ready[0]


def test_admin_endpoints(broker: BrokerProcess, clients: Clients) -> None:
    assert broker.get("/healthz").status == 200
    assert broker.get("/readyz").status == 200
    assert broker.get("/nothing").status == 404
    assert broker.get("/metrics", "POST").status == 405
    answer = broker.get("/metrics")
    assert answer.status == 200
    assert answer.content_type.startswith("text/plain")
    for line in answer.body.splitlines():
        assert re.fullmatch(r'# (HELP|TYPE) \w+ .+|[a-z_]\w*(\{(\w+="[^"]*",?)+\})? [-+.\deE]+', line), (
            f"not the text format: {line!r}"
        )


def test_metrics_count(broker: BrokerProcess, clients: Clients) -> None:
    def total(start: str) -> float:
        return sum(
            value
            for name, value in broker.metrics().items()
            if name.split("{")[0] in (f"headrace_{start}", f"headrace_{start}_total")
        )

    names = (
        "connections",
        "sessions",
        "subscriptions",
        "retained_messages",
        "publishes_received",
        "publishes_sent",
    )
    before = {name: total(name) for name in names}
    client = clients(broker, "counted", clean=False)
    client.subscribe("m/#", "n", qos=1)
    for number in range(5):
        client.deliver(f"m/{number}", b"x", retain=number == 0)
        client.receive()
    client.ping()
    after = {name: total(name) - before[name] for name in names}
    assert after == dict(zip(names, (1, 1, 2, 1, 5, 5), strict=True))
    client.disconnect()
    wait_until(
        lambda: total("connections") == before["connections"], "the connection is gone from the metrics"
    )
    assert total("sessions") == before["sessions"] + 1


def test_second_process_on_one_directory_refuses(
    own_broker: BrokerProcess, brokers: Brokers, clients: Clients
) -> None:
    clients(own_broker).deliver("t", b"before")
    second = brokers()
    second.data_dir = own_broker.data_dir
    with pytest.raises(BrokerExitedError) as refused:
        second.start()
    assert refused.value.code == 1
    assert str(own_broker.data_dir) in refused.value.stderr
    assert "Traceback" not in refused.value.stderr
    clients(own_broker).deliver("t", b"after")
    own_broker.kill()
    second.start()  # the lock dies with its holder
    clients(second).deliver("t", b"x")


def test_address_in_use_is_said(own_broker: BrokerProcess, brokers: Brokers) -> None:
    second = brokers()
    second.port = own_broker.port
    with pytest.raises(BrokerExitedError) as refused:
        second.start()
    assert refused.value.code == 1
    assert str(own_broker.port) in refused.value.stderr
    assert "Traceback" not in refused.value.stderr


@pytest.mark.parametrize(
    ("options", "named"),
    [
        (["--set", "nosuch.key=1"], "nosuch"),
        (["--set", "session.nosuch=1"], "session.nosuch"),
        (["--set", "session.backlog_messages_max=many"], "session.backlog_messages_max"),
        (["--set", "session.backlog_messages_max=0"], "session.backlog_messages_max"),
        (["--set", "session.backlog_messages_max=65536"], "session.backlog_messages_max"),
        (["--set", "durability=sometimes"], "durability"),
        (["--set", "durability"], "--set"),
        (["--set", "session=1"], "session"),
        (["--listen", "udp://127.0.0.1:1"], "listeners"),
        (["--listen", "127.0.0.1:1883"], "listeners"),
        (["--listen", "tcp://127.0.0.1:99999"], "listeners"),
        (["--admin", "tcp://127.0.0.1:1"], "admin"),
        (["--config", "/nonexistent.toml"], "/nonexistent.toml"),
        (["--nonsense"], "--nonsense"),
    ],
)
def test_wrong_use_exits_2_and_names_it(tmp_path: Path, options: list[str], named: str) -> None:
    listen = [] if "--listen" in options else ["--listen", f"tcp://127.0.0.1:{free_port()}"]
    found = headrace("serve", "--data-dir", str(tmp_path / "data"), *listen, *options)
    assert found.returncode == 2, found.stderr
    assert named in found.stderr
    assert "Traceback" not in found.stderr
    assert not (tmp_path / "data").exists(), "wrong use must leave nothing behind"


@pytest.mark.slow
def test_wrong_keys_in_a_file(tmp_path: Path) -> None:
    file = tmp_path / "headrace.toml"
    for content, named in (
        ("[session]\nbacklog_mesages_max = 5\n", "session.backlog_mesages_max"),
        ("[session]\nreceive_maximum = 70000\n", "session.receive_maximum"),
        ('listeners = "tcp://127.0.0.1:1"\n', "listeners"),
        ("[nosuch]\nkey = 1\n", "nosuch"),
        ("session.\n", str(file)),
    ):
        file.write_text(content)
        for command in (["serve", "--config", str(file)], ["config", "check", str(file)]):
            found = headrace(*command, cwd=tmp_path)
            assert found.returncode == 2, (content, found.stderr)
            assert named in found.stderr


def test_a_configuration_file_is_obeyed_and_set_wins(
    brokers: Brokers, clients: Clients, tmp_path: Path
) -> None:
    file = tmp_path / "headrace.toml"
    file.write_text(
        "[session]\nbacklog_messages_max = 3\ninflight_max = 2\n[limits]\nkeep_alive_max_s = 77\n"
    )
    broker = brokers({"session.backlog_messages_max": 5}, extra=["--config", str(file)]).start()
    client = clients(broker, "s", clean=False)
    client.subscribe("t", qos=1)
    client.disconnect()
    clients(broker).deliver_many("t", range(9))
    client = clients(broker, "s", clean=False)
    assert [int(client.receive().payload) for _ in range(5)] == [4, 5, 6, 7, 8]
    assert clients(broker, "", 5, keep_alive_s=100).connack.properties[0x13] == 77


@pytest.mark.parametrize("host", ["0.0.0.0", "[::]"])
def test_other_addresses_with_anonymous_access_are_refused_unless_spelled_out(
    brokers: Brokers, clients: Clients, host: str
) -> None:
    if host == "[::]" and not socket.has_ipv6:
        pytest.skip("no IPv6 here")
    port = free_port()
    broker = brokers(extra=["--listen", f"tcp://{host}:{port}"])
    with pytest.raises(BrokerExitedError) as refused:
        broker.start()
    assert refused.value.code == 2
    assert "allow_anonymous" in refused.value.stderr
    broker.settings["allow_anonymous"] = "true"
    broker.start()
    broker.port = port
    clients(broker).deliver("t", b"x")


def test_without_anonymous_access_nobody_comes_in(brokers: Brokers, clients: Clients) -> None:
    broker = brokers({"allow_anonymous": "false"}).start()
    for version, code in ((4, 5), (5, 0x87)):
        client = clients(broker, f"v{version}", version, connect=False)
        client.connect(expect=code)
        assert client.read_to_end() == []


def test_several_listeners(brokers: Brokers, clients: Clients) -> None:
    second = free_port()
    broker = brokers(extra=["--listen", f"tcp://127.0.0.1:{second}"]).start()
    one = clients(broker)
    one.subscribe("t", qos=1)
    with RawClient(("127.0.0.1", second), "two") as two:
        two.connect()
        two.deliver("t", b"over the other door")
    assert one.receive().payload == b"over the other door"


def test_sigterm_drains(own_broker: BrokerProcess, clients: Clients) -> None:
    """What was read before SIGTERM is made durable and acknowledged; exit code 0; nobody new comes in."""
    away = clients(own_broker, "away", clean=False)
    away.subscribe("t", qos=1)
    away.disconnect()
    publisher = clients(own_broker, "p")
    for number in range(200):
        publisher.publish("t", str(number), 1)
    publisher.expect(PUBACK)
    own_broker.stop()
    acked = 1 + len([one for one in publisher.read_to_end() if one.kind == PUBACK])
    own_broker.start()
    away = clients(own_broker, "away", clean=False)
    found = [int(away.receive().payload) for _ in range(acked)]
    assert found == list(range(acked))


def test_sigint_is_a_clean_stop_too(own_broker: BrokerProcess) -> None:
    assert own_broker.process is not None
    own_broker.process.send_signal(signal.SIGINT)
    assert own_broker.wait() == 0


def test_sigterm_twice_and_with_deaf_clients(own_broker: BrokerProcess, clients: Clients) -> None:
    """A client that does not read cannot keep the broker from stopping."""
    deaf = clients(own_broker, "deaf", 5)
    deaf.subscribe("t", qos=0)
    publisher = clients(own_broker)
    for _ in range(200):
        publisher.publish("t", b"x" * 60_000, 0)
    publisher.ping()
    assert own_broker.process is not None
    own_broker.process.send_signal(signal.SIGTERM)
    own_broker.process.send_signal(signal.SIGTERM)
    assert own_broker.wait(20) == 0


def test_nothing_but_the_journal_is_in_the_data_directory(
    own_broker: BrokerProcess, clients: Clients
) -> None:
    """Decision 25a; and nobody else on this machine may read it."""
    clients(own_broker, "s", clean=False).deliver("t", b"x")
    own_broker.stop()
    found = {
        str(path.relative_to(own_broker.data_dir))
        for path in own_broker.data_dir.rglob("*")
        if path.is_file()
    }
    allowed = re.compile(r"journal/\d{20}\.(log|index|snapshot)|watermark|lock|reserve|consumers/.+")
    assert [path for path in found if not allowed.fullmatch(path)] == []
    assert any(path.endswith(".snapshot") for path in found)
    assert any(path.endswith(".log") for path in found)


class Detached(BrokerProcess):
    """One that is started without some of the standard streams."""

    closed = ""

    def command(self) -> list[str]:
        return ["sh", "-c", f'exec "$@" {self.closed}', "sh", *super().command()]

    def is_ready(self) -> bool:
        assert self.running
        with suppress(OSError):
            return self.get("/readyz").status == 200
        return False


@pytest.mark.parametrize(
    ("closed", "workers"),
    [
        (">&-", "1"),
        ("2>&-", "1"),
        ("<&- >&- 2>&-", "1"),
        pytest.param(">&-", "2", marks=pytest.mark.deep),
        pytest.param("2>&-", "2", marks=pytest.mark.deep),
        ("<&- >&- 2>&-", "2"),
    ],
)
def test_standard_streams_may_be_closed(tmp_path: Path, closed: str, workers: str) -> None:
    """Nothing of ours gets their numbers: what is written there by mistake would go into it."""
    broker = Detached(tmp_path, extra=["--workers", workers])
    broker.closed = closed
    try:
        broker.spawn()
        wait_until(broker.is_ready, "ready", 30)
        names = {os.readlink(f"/proc/{broker.pid}/fd/{number}") for number in range(3)}
        assert names <= {"/dev/null"} | {name for name in names if name.startswith("pipe:")}
        broker.stop()
    finally:
        broker.end()


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_directory_that_cannot_be_written(brokers: Brokers, tmp_path: Path) -> None:
    broker = brokers()
    tmp_path.chmod(0o500)
    with pytest.raises(BrokerExitedError) as refused:
        broker.start()
    tmp_path.chmod(0o700)
    assert refused.value.code == 1
    assert "Traceback" not in refused.value.stderr


def test_sigterm_tells_version_5_clients(brokers: Brokers, clients: Clients) -> None:
    broker = brokers().start()
    old, new = clients(broker, "old", 4), clients(broker, "new", 5)
    broker.stop()
    assert [(one.kind, one.reason) for one in new.read_to_end()] == [(DISCONNECT, 0x8B)]
    assert old.read_to_end() == []
