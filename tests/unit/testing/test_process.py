"""The broker as a process of a test: it comes, stays through kills and restarts, and leaves nothing behind."""

from __future__ import annotations

import contextlib
import os
import queue
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import paho.mqtt.client as paho
import pytest
from paho.mqtt.enums import CallbackAPIVersion

from broker_process import build_environment
from headrace.testing import BrokerFailed, BrokerProcess

pytestmark = pytest.mark.slow

V2 = CallbackAPIVersion.VERSION2


@contextlib.contextmanager
def client(
    broker: BrokerProcess, client_id: str, clean: bool = True, arrived: queue.Queue[bytes] | None = None
) -> Iterator[paho.Client]:
    """A connected client; what it is sent goes into `arrived`, from the first message on."""
    found = paho.Client(V2, client_id, clean_session=clean)
    if arrived is not None:
        found.on_message = lambda _c, _u, message: arrived.put(bytes(message.payload))
    found.connect(broker.host, broker.port)
    found.loop_start()
    try:
        yield found
    finally:
        found.disconnect()
        found.loop_stop()


def publish(broker: BrokerProcess, topic: str, *payloads: str) -> None:
    with client(broker, "publisher") as publisher:
        for payload in payloads:
            publisher.publish(topic, payload, qos=1).wait_for_publish(10)


def test_what_was_acknowledged_is_there_after_a_kill_and_after_a_restart() -> None:
    with BrokerProcess() as broker:
        port = broker.port
        publish(broker, "plant/boiler", "1", "2")
        broker.kill()
        assert not broker.running
        assert [message.text for message in broker.messages()] == ["1", "2"]
        broker.start()
        publish(broker, "plant/pump", "3")
        broker.restart()
        assert broker.port == port
        found = broker.wait_until_published("plant/#", count=3)
        assert [(m.topic, m.text, m.qos, m.client_id) for m in found] == [
            ("plant/boiler", "1", 1, "publisher"),
            ("plant/boiler", "2", 1, "publisher"),
            ("plant/pump", "3", 1, "publisher"),
        ]
        assert [m.text for m in broker.messages("plant/pump")] == ["3"]


def test_a_kill_ends_workers_too_and_leaves_them_no_time_to_say_goodbye() -> None:
    with BrokerProcess(workers=2) as broker:
        children = Path(f"/proc/{broker.pid}/task/{broker.pid}/children").read_text().split()
        assert len(children) == 2
        broker.kill()
        broker.wait_until(lambda: not any(is_there(pid) for pid in children), "the end of the workers")
        assert "stopping" not in broker.log
        broker.start()


@pytest.mark.parametrize("settings", [{"workers": 2}, {"workers": 1, "shards": 3}, {"workers": "auto"}])
def test_whatever_holds_its_data_it_is_read_as_that_of_one(settings: dict[str, object]) -> None:
    names = [f"client-{n}" for n in range(6)]  # at home in all shards
    with BrokerProcess(settings) as broker, contextlib.ExitStack() as stack:
        assert broker.messages() == []
        for name in names:
            member = stack.enter_context(client(broker, name))
            member.subscribe([(f"of/{name}", 1), ("$share/g/plant/#", 1), ("all/#", 1)])
            broker.wait_until_subscribed("$share/g/plant/#", name)
            broker.wait_until_connected(name)
            member.publish(f"all/{name}", name, qos=1).wait_for_publish(10)
        found = broker.wait_until_published("all/#", count=len(names))
        assert [message.client_id for message in found] == names
        with pytest.raises(TimeoutError, match=r"holds 6 messages, on all/client-0, .*client-5 \(connected"):
            broker.wait_until_connected("nobody", timeout_s=0.05)
        broker.kill()
        assert [message.text for message in broker.messages("all/#")] == names
        broker.start()
        stack.close()
        broker.wait_until_disconnected(names[0])


def is_there(pid: str) -> bool:
    """Whether a process runs: one that nobody has waited for does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def test_what_waits_for_a_client_that_is_away_survives_a_kill() -> None:
    arrived: queue.Queue[bytes] = queue.Queue()
    with BrokerProcess() as broker:
        with client(broker, "monitor", clean=False) as monitor:
            monitor.subscribe("plant/#", qos=1)
            broker.wait_until_subscribed("plant/#", "monitor")
        broker.wait_until_disconnected("monitor")
        publish(broker, "plant/boiler", "71.5")
        broker.kill()
        broker.start()
        with client(broker, "monitor", clean=False, arrived=arrived):
            broker.wait_until_connected("monitor")
            assert arrived.get(timeout=10) == b"71.5"


def test_waiting_in_vain_says_what_there_was() -> None:
    with BrokerProcess() as broker:
        publish(broker, "plant/boiler", "1")
        with pytest.raises(
            TimeoutError, match=r"2 messages on plant/#: not within .* 1 messages, on plant/boil"
        ):
            broker.wait_until_published("plant/#", count=2, timeout_s=0.05)
        with pytest.raises(TimeoutError, match="somebody subscribed to nobody/asks"):
            broker.wait_until_subscribed("nobody/asks", timeout_s=0.05)


def test_a_broker_that_dies_ends_every_waiting() -> None:
    with BrokerProcess() as broker:
        os.kill(broker.pid, signal.SIGABRT)
        with pytest.raises(BrokerFailed) as failed:
            broker.wait_until_published(timeout_s=60)
        assert failed.value.code == -signal.SIGABRT
        with pytest.raises(BrokerFailed):
            broker.stop()


def test_a_broker_that_cannot_start_says_why_and_leaves_nothing() -> None:
    broker = BrokerProcess({"session.inflight_mx": 3})
    with pytest.raises(BrokerFailed, match=r"session\.inflight_max\?") as failed, broker:
        """It is not entered."""
    assert failed.value.code == 2
    assert not broker.folder.exists()


def test_a_port_that_was_taken_meanwhile_is_replaced_unless_it_was_asked_for() -> None:
    with contextlib.closing(BrokerProcess()) as broker:
        taken = broker.port
        with socket.create_server(("127.0.0.1", taken)):
            broker.start()
            assert broker.port != taken
            publish(broker, "a", "1")
            with (
                pytest.raises(BrokerFailed, match=r"(?i)address already in use"),
                BrokerProcess(port=taken),
            ):
                """It is not entered."""


def test_settings_listeners_and_a_configuration_file_reach_it(tmp_path: Path) -> None:
    file = tmp_path / "headrace.toml"
    file.write_text("[limits]\nkeep_alive_max_s = 7\n", encoding="utf-8")
    with BrokerProcess(
        config=file,
        listeners=["ws://127.0.0.1:0"],
        folder=tmp_path / "data folder",
        limits__packet_bytes_max=4096,
    ) as broker:
        assert broker.listeners[0].startswith("ws://127.0.0.1:")
        assert broker.listeners[0] in broker.log
        with client(broker, "large") as large:
            refused = large.publish("a", b"x" * 5000, qos=1)
            broker.wait_until(
                lambda: broker.metrics()["headrace_connections"] == 0 or not large.is_connected()
            )
            assert not refused.is_published()
    assert (tmp_path / "data folder" / "data" / "journal").is_dir()


def test_what_the_environment_says_is_not_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADRACE_DATA_DIR", "/nowhere")
    monkeypatch.setenv("WATCHDOG_USEC", "1")
    with BrokerProcess() as broker:
        publish(broker, "a", "1")
        assert [message.topic for message in broker.messages()] == ["a"]


def test_a_broker_that_is_forgotten_ends_with_the_program() -> None:
    program = "from headrace.testing import BrokerProcess; print(BrokerProcess().start().pid)"
    ran = subprocess.run(
        [sys.executable, "-c", program], env=build_environment(), capture_output=True, text=True, timeout=60
    )
    assert ran.returncode == 0, ran.stderr
    with pytest.raises(ProcessLookupError):
        os.kill(int(ran.stdout), 0)


def test_it_needs_no_pytest() -> None:
    program = (
        "import sys; sys.modules['pytest'] = None; import headrace.testing as t;"
        "assert 'headrace.node.node' not in sys.modules;"
        "print(t.Broker.__name__, t.BrokerProcess.__name__, t.Message.__name__)"
    )
    ran = subprocess.run(
        [sys.executable, "-c", program], env=build_environment(), capture_output=True, text=True, timeout=60
    )
    assert ran.stdout.split() == ["Broker", "BrokerProcess", "Message"], ran.stderr
