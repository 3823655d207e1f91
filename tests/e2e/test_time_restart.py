"""Time over the end of the broker itself: wills, delays and expiries go on (decision 15, P5)."""

from __future__ import annotations

import time
from typing import Any

import psutil
import pytest

from broker_process import BrokerProcess
from e2e.raw import RawClient
from e2e.scenario import Scenarios, Stage
from e2e.wire import MESSAGE_EXPIRY, SESSION_EXPIRY, WILL_DELAY

SCENARIOS = Scenarios()
KEEP: dict[str, Any] = {"clean": False, "properties": {SESSION_EXPIRY: 600}}


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> dict[str, BaseException | None]:
    return SCENARIOS.play(tmp_path_factory.mktemp("time"), None)


def test_time_passes(outcomes: dict[str, BaseException | None], scenario: str) -> None:
    error = outcomes[scenario]
    if error is not None:
        raise error


def wills(heir: RawClient, count: int) -> list[str]:
    """The next wills that come; a marker may come again, if its PUBACK was not in the journal yet."""
    found: list[str] = []
    while len(found) < count:
        packet = heir.receive()
        if packet.topic != "will/marker":
            found.append(packet.topic)
    return sorted(found)


def no_more_wills(heir: RawClient) -> None:
    heir.deliver("will/end", b"")
    assert wills(heir, 1) == ["will/end"]


def _wills_and_grace(stage: Stage, end: str) -> None:
    """Six were connected: one returns within the grace of 3 s, one after it and within its delay, one had said
    goodbye, three stay away."""
    broker = stage.start_broker({"session.restart_grace_s": 3})
    heir = stage.client("heir", clean=False)
    heir.subscribe("will/+", qos=1)
    stage.client("goodbye", will=("will/goodbye", b"x"), will_qos=1).disconnect()
    stage.client("away", will=("will/away", b"x"), will_qos=1, clean=False)
    stage.client("clean", will=("will/clean", b"x"), will_qos=1)
    delay: dict[str, Any] = {"will_properties": {WILL_DELAY: 3}, "will_qos": 1} | KEEP
    stage.client("delayed", 5, will=("will/delayed", b"x"), **delay)
    stage.client("returns", 5, will=("will/returns", b"x"), **KEEP)
    stage.client("late", 5, will=("will/late", b"x"), **delay)
    heir.deliver("will/marker", b"")  # all of it is durable now, transient sessions as well
    assert heir.receive().topic == "will/marker"
    if end == "SIGKILL":
        broker.kill()
    else:
        broker.stop()
    started = time.monotonic()
    broker.start()
    ready = time.monotonic()
    assert stage.client("returns", 5, **KEEP).connack.session_present
    heir = stage.client("heir", clean=False)
    assert wills(heir, 2) == ["will/away", "will/clean"]
    assert started + 3 < time.monotonic() < ready + 8
    assert stage.client("late", 5, **KEEP).connack.session_present
    assert wills(heir, 1) == ["will/delayed"]
    assert started + 6 < time.monotonic() < ready + 11
    no_more_wills(heir)


@SCENARIOS.add
def wills_after_sigkill(stage: Stage) -> None:
    _wills_and_grace(stage, "SIGKILL")


@SCENARIOS.add
def wills_after_sigterm(stage: Stage) -> None:
    _wills_and_grace(stage, "SIGTERM")


@SCENARIOS.add
def a_delay_that_runs_survives_sigkill(stage: Stage) -> None:
    """The connection was lost before the crash: the delay goes on, the will comes, and comes once."""
    broker = stage.start_broker({"session.restart_grace_s": 1})
    heir = stage.client("heir", clean=False)
    heir.subscribe("will/+", qos=1)
    stage.client(
        "device", 5, will=("will/x", b"x"), will_qos=1, will_properties={WILL_DELAY: 2}, **KEEP
    ).abort()
    heir.deliver("flush", b"")
    broker.crash()
    heir = stage.client("heir", clean=False)
    assert wills(heir, 1) == ["will/x"]
    heir.ping()
    heir.deliver("flush", b"")  # the PUBACK is durable with it
    broker.crash()
    heir = stage.client("heir", clean=False)
    stage.wait(1.8)
    no_more_wills(heir)


@SCENARIOS.add
def sessions_keep_their_ends(stage: Stage) -> None:
    """Clean sessions are gone, ended ones stay ended, persistent ones are there, expiry goes on."""
    broker = stage.start_broker()
    stage.client("clean", clean=True)
    stage.client("kept", clean=False)
    stage.client("ended", clean=False).disconnect()
    stage.client("ended", clean=True).disconnect()
    stage.client("short", 5, clean=False, properties={SESSION_EXPIRY: 1}).disconnect()
    stage.client("long", 5, clean=False, properties={SESSION_EXPIRY: 600}).disconnect()
    broker.crash()
    stage.wait(2.8)
    present = {
        client_id: stage.client(client_id, clean=False).connack.session_present
        for client_id in ("clean", "kept", "ended", "short", "long")
    }
    assert present == {"clean": False, "kept": True, "ended": False, "short": False, "long": True}


@SCENARIOS.add
def expiry_of_messages_goes_on(stage: Stage) -> None:
    """The time that the broker was down counts as well: a message is as old as it is."""
    broker = stage.start_broker({"session.default_message_expiry_s": 600})
    client = stage.client("s", 5, **KEEP)
    client.subscribe("t", qos=1)
    client.disconnect()
    publisher = stage.client("", 5)
    for expiry_s in (2, 1_000, 3):
        publisher.deliver("t", str(expiry_s), properties={MESSAGE_EXPIRY: expiry_s})
    publisher.deliver("t", b"default")
    publisher.deliver("r", b"retained", retain=True, properties={MESSAGE_EXPIRY: 3})
    broker.kill()
    stage.wait(3.5)
    broker.start()
    client = stage.client("s", 5, **KEEP)
    first, second = client.receive(), client.receive()
    assert (first.payload, second.payload) == (b"1000", b"default")
    assert 900 < first.properties[MESSAGE_EXPIRY] <= 997
    assert 500 < second.properties[MESSAGE_EXPIRY] <= 597
    client.subscribe("r", qos=1)
    client.deliver("t", b"live")
    assert client.receive().payload == b"live"


@SCENARIOS.add
def an_idle_broker_rests(stage: Stage) -> None:
    broker: BrokerProcess = stage.start_broker()
    for number in range(50):
        stage.client(f"idle-{number}", keep_alive_s=30)
    process = psutil.Process(broker.pid)
    stage.wait(0.5)
    before = sum(process.cpu_times()[:2])
    stage.wait(2.0)
    assert sum(process.cpu_times()[:2]) - before < 0.3


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "scenario" in metafunc.fixturenames:
        metafunc.parametrize("scenario", list(SCENARIOS.scripts))
