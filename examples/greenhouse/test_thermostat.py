from __future__ import annotations

import subprocess

import paho.mqtt.publish
import pytest
from thermostat import READINGS, Thermostat


@pytest.fixture
def thermostat(headrace_broker):
    found = Thermostat(headrace_broker.host, headrace_broker.port)
    found.start()
    headrace_broker.wait_until_subscribed(READINGS, "thermostat")
    yield found
    found.stop()


def read(broker, room, celsius):
    paho.mqtt.publish.single(
        f"greenhouse/{room}/temperature", str(celsius), qos=1, hostname=broker.host, port=broker.port
    )


def switched(broker, room, count=1):
    return [message.text for message in broker.wait_until_published(f"greenhouse/{room}/heater", count)]


def test_it_heats_what_is_cold_and_nothing_else(headrace_broker, thermostat):
    read(headrace_broker, "ferns", 15)
    read(headrace_broker, "cacti", 27)
    assert switched(headrace_broker, "ferns") == ["on"]
    assert switched(headrace_broker, "cacti") == ["off"]


def test_it_hears_what_was_read_while_it_was_away(headrace_broker, thermostat):
    thermostat.stop()
    headrace_broker.wait_until_disconnected("thermostat")
    read(headrace_broker, "ferns", 25)
    read(headrace_broker, "ferns", 15)
    thermostat.start()
    assert switched(headrace_broker, "ferns", 2) == ["off", "on"]


def test_it_goes_on_when_the_broker_was_killed(headrace_broker, thermostat):
    read(headrace_broker, "ferns", 15)
    switched(headrace_broker, "ferns")
    headrace_broker.kill()
    headrace_broker.start()
    headrace_broker.wait_until_connected("thermostat")
    read(headrace_broker, "ferns", 25)
    assert switched(headrace_broker, "ferns", 2)[-1] == "off"


@pytest.mark.headrace_broker(session__inflight_max=1)
def test_many_readings_are_taken_in_their_order(headrace_broker, thermostat):
    wanted = []
    for number in range(50):
        read(headrace_broker, "ferns", 15 if number % 3 else 25)
        wanted.append("on" if number % 3 else "off")
    assert switched(headrace_broker, "ferns", 50) == wanted


def test_it_says_that_its_password_is_wrong(make_headrace_broker, tmp_path):
    passwords = tmp_path / "passwords"
    subprocess.run(["headrace", "passwd", passwords, "thermostat", "-b", "secret"], check=True)
    broker = make_headrace_broker(access__password_file=str(passwords))
    wrong = Thermostat(broker.host, broker.port, user=("thermostat", "guess"))
    wrong.start()
    broker.wait_until(lambda: wrong.refused != "", "the refusal")
    wrong.stop()
    right = Thermostat(broker.host, broker.port, user=("thermostat", "secret"))
    right.start()
    broker.wait_until_subscribed(READINGS, "thermostat")
    right.stop()
    assert right.refused == ""
