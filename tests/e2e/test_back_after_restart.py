"""Who is there after a restart: clients that come back under another client id, or not at all, and sessions whose time
was over before the broker was back. One broker after another, each with one worker or two."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from broker_process import BrokerProcess
from e2e.raw import RawClient
from e2e.scenario import Stage
from e2e.wire import CONNACK, SESSION_EXPIRY, WILL_DELAY, connect_packet

pytestmark = pytest.mark.slow

EACH = 4  # devices of each kind: they, and their topics, are at home in all shards
GRACE_S = 4
KEEP: dict[str, Any] = {"clean": False, "properties": {SESSION_EXPIRY: 600}}
ENDS = ["SIGTERM", "SIGKILL"]
EACH_END = [
    ("SIGTERM", 1),
    ("SIGKILL", 2),
    pytest.param("SIGTERM", 2, marks=pytest.mark.deep),
    pytest.param("SIGKILL", 1, marks=pytest.mark.deep),
]
"""With one worker and with two."""


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    stage = Stage("stage", tmp_path, None)
    yield stage
    stage.close()


def bring_down(broker: BrokerProcess, end: str) -> None:
    if end == "SIGKILL":
        broker.kill()
    else:
        broker.stop()


def device(stage: Stage, client_id: str, topic: str, version: int = 4) -> RawClient:
    """A device whose presence is a retained message: it says so itself, and leaves the opposite as its will."""
    client = stage.client(
        client_id, version, clean=True, will=(topic, b"offline"), will_qos=1, will_retain=True
    )
    client.deliver(topic, b"online", retain=True)
    return client


def devices(stage: Stage, run: int) -> None:
    """Some have no client id of their own, as `paho.Client()`, some make one anew for each run."""
    for number in range(EACH):
        version = 4 + number % 2
        device(stage, "", f"presence/assigned/{number}", version)
        device(stage, f"device-{number}-run-{run}", f"presence/anew/{number}", version)


def presence(stage: Stage, topics: int) -> dict[str, bytes]:
    """Who says what now, as a new subscriber finds it."""
    client = stage.client("", 5)
    client.subscribe("presence/#", qos=1)
    return {found.topic: found.payload for found in (client.receive() for _ in range(topics))}


@pytest.mark.parametrize(("end", "workers"), EACH_END)
def test_who_is_back_under_another_id_is_online(stage: Stage, end: str, workers: int) -> None:
    """All devices come back at once but one, which stays away. The last will that comes is later than the grace."""
    broker = stage.start_broker({"session.restart_grace_s": GRACE_S, "workers": workers})
    heir = stage.client("heir", clean=False)
    heir.subscribe("will/late", qos=1)
    heir.subscribe("presence/#", qos=1)
    delay: dict[str, Any] = {"will_properties": {WILL_DELAY: 1}, "will_qos": 1}
    late = stage.client("late", 5, will=("will/late", b"x"), **delay, **KEEP)
    devices(stage, 1)
    device(stage, "away", "presence/away")
    late.deliver("t")
    bring_down(broker, end)
    broker.start()
    devices(stage, 2)
    heir = stage.client("heir", clean=False)
    live: dict[str, bytes] = {}
    while "will/late" not in live:
        found = heir.receive(30)
        live[found.topic] = found.payload
    del live["will/late"]
    for said in (live, presence(stage, 2 * EACH + 1)):  # to who was subscribed, and to who subscribes
        assert len(said) == 2 * EACH + 1
        assert said.pop("presence/away") == b"offline"
        assert set(said.values()) == {b"online"}, said


@pytest.mark.parametrize("end", ENDS)
def test_who_has_no_id_is_offline_for_the_first_who_is_let_in(stage: Stage, end: str) -> None:
    """Nobody has to wait for the grace: such a client cannot come back."""
    broker = stage.start_broker({"session.restart_grace_s": 600, "workers": 1})
    device(stage, "", "presence/x")
    bring_down(broker, end)
    broker.start()
    assert presence(stage, 1) == {"presence/x": b"offline"}


def go_away(stage: Stage) -> None:
    """Clients that are at home in all shards go away, their sessions for two seconds; a message waits for each."""
    for number in range(EACH):
        client = stage.client(f"away-{number}", 5, clean=False, properties={SESSION_EXPIRY: 2})
        client.subscribe("stale", qos=1)
        client.disconnect()
    stage.client("", 5).deliver("stale", b"x")


def come_back(stage: Stage) -> list[RawClient]:
    """The same clients: what they say is on its way."""
    clients = [stage.client(f"away-{number}", 5, connect=False) for number in range(EACH)]
    for client in clients:
        client.send(connect_packet(client.client_id, version=5, **KEEP))
    return clients


def find_nothing(clients: list[RawClient]) -> None:
    assert [client.expect(CONNACK).session_present for client in clients] == [False] * EACH
    assert [client.ping() for client in clients] == [[]] * EACH  # what came before the answer


@pytest.mark.parametrize(("end", "workers"), EACH_END)
def test_a_session_that_ended_while_the_broker_was_down_is_not_resumed(
    stage: Stage, end: str, workers: int
) -> None:
    broker = stage.start_broker({"session.restart_grace_s": 600, "workers": workers})
    go_away(stage)
    bring_down(broker, end)
    stage.wait(2.5)
    broker.start()
    find_nothing(come_back(stage))


def test_a_session_that_ended_while_the_broker_stood_still_is_not_resumed(stage: Stage) -> None:
    """What was sent meanwhile is read before any timer is looked at."""
    broker = stage.start_broker({"workers": 1})
    go_away(stage)
    process = psutil.Process(broker.pid)
    process.suspend()
    stage.wait(2.5)
    clients = come_back(stage)
    process.resume()
    find_nothing(clients)
