"""What happens by itself when time passes: expiry, will delays, keep alive, the CONNECT deadline."""

from __future__ import annotations

import time
from typing import Any

import pytest

from broker_process import BrokerProcess, wait_until
from e2e.metrics import dropped
from e2e.raw import RawClient
from e2e.scenario import Scenarios, Stage
from e2e.wire import DISCONNECT, MESSAGE_EXPIRY, SESSION_EXPIRY, WILL_DELAY

SCENARIOS = Scenarios()


@pytest.fixture(scope="module")
def broker_settings() -> dict[str, object]:
    return {"limits.connect_timeout_s": 1}


@pytest.fixture(scope="module")
def outcomes(
    tmp_path_factory: pytest.TempPathFactory, broker: BrokerProcess
) -> dict[str, BaseException | None]:
    return SCENARIOS.play(tmp_path_factory.mktemp("time"), broker)


def test_time_passes(outcomes: dict[str, BaseException | None], scenario: str) -> None:
    error = outcomes[scenario]
    if error is not None:
        raise error


def keep(expiry_s: int) -> dict[str, Any]:
    return {"clean": False, "properties": {SESSION_EXPIRY: expiry_s}}


def away(stage: Stage, client_id: str, version: int = 4, **fields: Any) -> None:
    client = stage.client(client_id, version, **({"clean": False} | fields))
    client.subscribe(stage.name, qos=1)
    client.disconnect()


# -- sessions


@SCENARIOS.add
def a_session_expires(stage: Stage) -> None:
    stage.client(stage.name, 5, **keep(1)).disconnect()
    assert stage.client(stage.name, 5, **keep(1)).connack.session_present
    stage.client(stage.name, 5, **keep(1)).disconnect()
    stage.wait(2.2)
    assert not stage.client(stage.name, 5, **keep(1)).connack.session_present


@SCENARIOS.add
def a_session_that_is_connected_does_not_expire(stage: Stage) -> None:
    client = stage.client(stage.name, 5, **keep(1))
    client.subscribe(stage.name, qos=1)
    stage.wait(2.2)
    client.deliver(stage.name, b"x")
    assert client.receive().payload == b"x"


@SCENARIOS.add
def disconnect_changes_the_expiry(stage: Stage) -> None:
    stage.client(f"{stage.name}-0", 5, **keep(600)).disconnect(0, {SESSION_EXPIRY: 0})
    assert not stage.client(f"{stage.name}-0", 5, **keep(1)).connack.session_present
    stage.client(f"{stage.name}-1", 5, **keep(1)).disconnect(0, {SESSION_EXPIRY: 600})
    stage.client(f"{stage.name}-2", 5, **keep(600)).disconnect(0, {SESSION_EXPIRY: 1})
    stage.wait(2.2)
    assert stage.client(f"{stage.name}-1", 5, **keep(1)).connack.session_present
    assert not stage.client(f"{stage.name}-2", 5, **keep(1)).connack.session_present


# -- messages


@SCENARIOS.add
def remaining_expiry_is_passed_on(stage: Stage) -> None:
    subscriber, publisher = stage.client(stage.name, 5, **keep(600)), stage.client("", 5)
    subscriber.subscribe(stage.name, qos=1)
    publisher.deliver(stage.name, b"live", properties={MESSAGE_EXPIRY: 100})
    assert subscriber.receive().properties[MESSAGE_EXPIRY] in (99, 100)
    subscriber.disconnect()
    publisher.deliver(stage.name, b"stored", properties={MESSAGE_EXPIRY: 100})
    publisher.deliver(stage.name, b"without")
    stage.wait(2.2)
    subscriber = stage.client(stage.name, 5, **keep(600))
    assert 90 <= subscriber.receive().properties[MESSAGE_EXPIRY] <= 98  # [MQTT-3.3.2-6]
    assert MESSAGE_EXPIRY not in subscriber.receive().properties


@SCENARIOS.add
def expired_messages_do_not_come(stage: Stage) -> None:
    away(stage, stage.name)
    publisher = stage.client("", 5)
    for number in range(20):
        lifetime = {MESSAGE_EXPIRY: 1} if number % 2 else {MESSAGE_EXPIRY: 600} if number % 4 else {}
        publisher.deliver(stage.name, str(number), properties=lifetime)
    stage.wait(1.8)
    subscriber = stage.client(stage.name, clean=False)
    subscriber.deliver(stage.name, b"99")
    found = [int(subscriber.receive().payload) for _ in range(11)]
    assert found == [*range(0, 20, 2), 99]  # [MQTT-3.3.2-5]


@SCENARIOS.add
def what_is_in_flight_does_not_expire(stage: Stage) -> None:
    """Decision 7: what may have been sent is finished by its acknowledgement and nothing else."""
    subscriber = stage.client(stage.name, 5, **keep(600))
    subscriber.subscribe(stage.name, qos=1)
    stage.client("", 5).deliver(stage.name, b"x", properties={MESSAGE_EXPIRY: 1})
    sent = subscriber.read()
    subscriber.leave()
    stage.wait(1.8)
    again = stage.client(stage.name, 5, **keep(600)).read()
    assert (again.payload, again.packet_id, again.dup) == (b"x", sent.packet_id, True)


@SCENARIOS.add
def default_expiry_and_its_count(stage: Stage) -> None:
    """T5: a message without an expiry of its own gets the default, one with its own keeps it."""
    broker = stage.start_broker({"session.default_message_expiry_s": 1})
    away(stage, "s")
    publisher = stage.client("", 5)
    publisher.deliver(stage.name, b"0", properties={MESSAGE_EXPIRY: 600})
    publisher.deliver(stage.name, b"1")
    stage.client("", 4).deliver(stage.name, b"2")
    publisher.deliver(stage.name, b"3", properties={MESSAGE_EXPIRY: 600})
    stage.wait(1.8)
    publisher.deliver(stage.name, b"4")
    back = stage.client("s", clean=False)
    assert [int(back.receive().payload) for _ in range(3)] == [0, 3, 4]
    wait_until(lambda: sum(dropped(broker).values()) == 2, "the expired ones are counted")
    assert len(dropped(broker)) == 1, "one reason for them all"


@SCENARIOS.add
def retained_expires(stage: Stage) -> None:
    publisher = stage.client("", 5)
    publisher.deliver(f"{stage.name}/long", b"x", retain=True, properties={MESSAGE_EXPIRY: 100})
    publisher.deliver(f"{stage.name}/short", b"x", retain=True, properties={MESSAGE_EXPIRY: 2})
    client = stage.client("", 5)
    client.subscribe(f"{stage.name}/#", qos=1)
    left = {one.topic: one.properties[MESSAGE_EXPIRY] for one in (client.receive(), client.receive())}
    assert 1 <= left[f"{stage.name}/short"] <= 2
    assert 95 <= left[f"{stage.name}/long"] <= 100
    stage.wait(2.5)
    client = stage.client("", 5)
    client.subscribe(f"{stage.name}/#", qos=1)
    assert client.receive().topic == f"{stage.name}/long"
    client.deliver(f"{stage.name}/live", b"x")
    assert client.receive().topic == f"{stage.name}/live"


# -- wills


def mourned(stage: Stage, delay_s: int, expiry_s: int) -> tuple[RawClient, RawClient]:
    """Who listens for the will, and who is going to leave one."""
    heir = stage.client(f"{stage.name}-heir")
    heir.subscribe(f"{stage.name}/#", qos=1)
    will: dict[str, Any] = {"will": (f"{stage.name}/will", b"gone"), "will_properties": {WILL_DELAY: delay_s}}
    return heir, stage.client(stage.name, 5, **(will | keep(expiry_s)))


@SCENARIOS.add
def will_delay_passes_first(stage: Stage) -> None:
    heir, client = mourned(stage, 2, 60)
    began = time.monotonic()
    client.abort()
    assert heir.receive().payload == b"gone"
    assert 1.8 < time.monotonic() - began < 5


@SCENARIOS.add
def a_client_that_returns_cancels_its_will(stage: Stage) -> None:
    heir, client = mourned(stage, 1, 60)
    client.abort()
    again = stage.client(stage.name, 5, **keep(60))
    assert again.connack.session_present
    stage.wait(2.2)
    again.disconnect()
    heir.deliver(f"{stage.name}/marker", b"")
    assert heir.receive().topic == f"{stage.name}/marker"


@SCENARIOS.add
def the_session_ends_before_the_will_delay(stage: Stage) -> None:
    """The will goes out when the delay has passed or the session ends, whichever is first [MQTT-3.1.3-9]."""
    heir, client = mourned(stage, 600, 1)
    began = time.monotonic()
    client.abort()
    assert heir.receive().payload == b"gone"
    assert 0.8 < time.monotonic() - began < 5


# -- connections


@SCENARIOS.add
def keep_alive_timeout_fires_the_will(stage: Stage) -> None:
    heir = stage.client()
    heir.subscribe(stage.name, qos=1)
    stage.client("", will=(stage.name, b"gone"), keep_alive_s=1)
    assert heir.receive().payload == b"gone"


def _silent(stage: Stage, version: int) -> None:
    client = stage.client("", version, keep_alive_s=1)
    began = time.monotonic()
    last = client.read_to_end(6)
    took = time.monotonic() - began
    assert 1.4 < took < 4, f"closed after {took:.2f} s, 1.5 s are the rule [MQTT-3.1.2-22]"
    assert [(one.kind, one.reason) for one in last] == ([(DISCONNECT, 0x8D)] if version == 5 else [])


@SCENARIOS.add
def keep_alive_closes_version_4(stage: Stage) -> None:
    _silent(stage, 4)


@SCENARIOS.add
def keep_alive_closes_version_5(stage: Stage) -> None:
    _silent(stage, 5)


@SCENARIOS.add
def any_packet_keeps_alive(stage: Stage) -> None:
    client = stage.client("", keep_alive_s=1)
    for _ in range(4):
        stage.wait(0.7)
        client.publish(stage.name, b"reading", 0)
    assert client.ping() == []


@SCENARIOS.add
def no_keep_alive_no_timeout(stage: Stage) -> None:
    client = stage.client("", keep_alive_s=0)
    stage.wait(2.8)
    assert client.ping() == []


@SCENARIOS.add
def a_silent_connection_is_closed(stage: Stage) -> None:
    """`limits.connect_timeout_s` is 1 here; a slow beginning is as silent as none."""
    silent, slow = stage.client(connect=False), stage.client(connect=False)
    began = time.monotonic()
    slow.send(b"\x10")
    assert silent.read_to_end(6) == slow.read_to_end(6) == []
    assert 0.9 < time.monotonic() - began < 4


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "scenario" in metafunc.fixturenames:
        metafunc.parametrize("scenario", list(SCENARIOS.scripts))
