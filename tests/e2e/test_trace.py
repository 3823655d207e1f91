"""`headrace trace` on a running broker: what it shows, whom it leaves alone, and that it ends."""

from __future__ import annotations

import json
import select
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from broker_process import PYTHON, BrokerProcess, build_environment, headrace
from e2e.raw import RawClient


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    tokens = tmp_path / "tokens"
    tokens.write_text("operate secret\nread public\n")
    (tmp_path / "secret").write_text("secret\n")
    (tmp_path / "public").write_text("public\n")
    found = BrokerProcess(tmp_path, {"journal.token_file": tokens}).start()
    yield found
    found.end()


class Traced:
    """A `headrace trace` that runs: `until` reads its rows up to one that fits."""

    def __init__(self, broker: BrokerProcess, kind: str, pattern: str, seconds: int = 30) -> None:
        arguments = ["trace", kind, pattern, "--json", "--seconds", str(seconds), *where(broker)]
        self.process = subprocess.Popen(
            [PYTHON, "-m", "headrace", *arguments],
            env=build_environment(),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.rows: list[dict[str, Any]] = []

    def until(self, **wanted: object) -> dict[str, Any]:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.rows.append(json.loads(line))
            if all(self.rows[-1].get(name) == value for name, value in wanted.items()):
                return self.rows[-1]
        raise AssertionError(f"no row like {wanted} in {self.rows}")

    def interrupt(self) -> int:
        self.process.send_signal(signal.SIGINT)
        _, errors = self.process.communicate(timeout=20)
        assert "Traceback" not in errors
        return self.process.returncode


def where(broker: BrokerProcess, token: str = "secret") -> list[str]:
    admin = f"http://127.0.0.1:{broker.admin_port}"
    return ["--admin", admin, "--token-file", str(broker.folder / token)]


def has_output(traced: Traced) -> bool:
    assert traced.process.stdout is not None
    return bool(select.select([traced.process.stdout], [], [], 0.1)[0])


def live(broker: BrokerProcess) -> None:
    """The life of a client, and of one that nobody asked for."""
    with RawClient(broker.address, "sensor-1") as sensor, RawClient(broker.address, "other") as other:
        sensor.connect()
        other.connect()
        sensor.publish("t", b"plain")
        sensor.deliver("t", b"four", 1)
        sensor.ping()


@pytest.mark.parametrize("seconds", ["0.2", "1", "1.3"])
def test_a_trace_ends_by_itself_with_status_0(broker: BrokerProcess, seconds: str) -> None:
    ended = headrace("trace", "topic", "#", "--seconds", seconds, *where(broker))
    assert (ended.returncode, ended.stderr) == (0, "")


def test_a_client_from_connect_to_disconnect(broker: BrokerProcess) -> None:
    traced = Traced(broker, "client", "sensor-*")
    try:
        for _ in range(200):  # until the trace is on, each is a client before its time
            live(broker)
            if has_output(traced):
                break
        live(broker)
        traced.until(packet="CONNECT")
        row = traced.until(packet="PUBLISH", qos=1)
        assert row["client"] == "sensor-1"
        assert (row["topic"], row["bytes"], row["dir"]) == ("t", 4, "in")
        traced.until(packet="PUBACK", dir="out")
        traced.until(event="disconnected")
        assert {row["client"] for row in traced.rows} == {"sensor-1"}
        assert "payload" not in json.dumps(traced.rows)
        assert traced.interrupt() != 0
    finally:
        traced.process.kill()
        traced.process.communicate()


def test_a_topic_shows_who_publishes_and_who_gets_it_also_of_those_who_were_there(
    broker: BrokerProcess,
) -> None:
    with RawClient(broker.address, "s", 5) as subscriber, RawClient(broker.address, "p") as publisher:
        subscriber.connect()
        subscriber.subscribe(("a/#", 1))
        publisher.connect()
        traced = Traced(broker, "topic", "a/+")
        try:
            for _ in range(200):
                publisher.deliver("a/b", b"x", 1)
                publisher.deliver("a/b/c", b"x", 1)
                if has_output(traced):
                    break
            publisher.deliver("a/b", b"x", 1)
            publisher.deliver("a/b", b"x", 1)
            row = traced.until(client="s", dir="out")
            assert (row["packet"], row["topic"]) == ("PUBLISH", "a/b")
            traced.until(client="p", dir="in")
            assert {row["topic"] for row in traced.rows} == {"a/b"}
            traced.interrupt()
        finally:
            traced.process.kill()
            traced.process.communicate()
        publisher.deliver("a/b", b"still", 1)  # whoever was traced goes on


def test_who_may_not_is_told_and_what_makes_no_sense(broker: BrokerProcess) -> None:
    refused = headrace("trace", "topic", "#", *where(broker, "public"))
    assert refused.returncode == 1
    assert "needs operate" in refused.stderr
    wrong = headrace("trace", "topic", "a/#/b", *where(broker))
    assert wrong.returncode == 1
    assert "pattern" in wrong.stderr
    assert len(wrong.stderr.splitlines()) == 1
    nobody = headrace("trace", "topic", "#", "--admin", "http://127.0.0.1:1")
    assert nobody.returncode == 1
    assert "http://127.0.0.1:1" in nobody.stderr


def test_a_trace_ends_by_itself(broker: BrokerProcess) -> None:
    ended = headrace("trace", "client", "*", "--seconds", "0.5", *where(broker))
    assert (ended.returncode, ended.stderr) == (0, "")
