"""Somebody else's test suite, in a folder of its own, with the fixtures and paho as its application's client."""

from __future__ import annotations

import re
import subprocess
from importlib.metadata import entry_points
from pathlib import Path

import pytest

from broker_process import PYTHON, build_environment

APPLICATION = '''
import paho.mqtt.client as mqtt


class Thermostat:
    """Answers readings with commands; remembers nothing: the broker does."""

    def __init__(self, host, port):
        self.client = mqtt.Client(mqtt.CallbackAPIVersion.VERSION2, "thermostat", clean_session=False)
        self.client.on_connect = lambda client, *_: client.subscribe("home/+/temperature", qos=1)
        self.client.on_message = self.on_message
        self.client.connect(host, port)
        self.client.loop_start()

    def on_message(self, client, _, message):
        room = message.topic.split("/")[1]
        client.publish(f"home/{room}/heating", "on" if float(message.payload) < 19 else "off", qos=1)

    def close(self):
        self.client.disconnect()
        self.client.loop_stop()
'''

SUITE = """
import paho.mqtt.publish as publish
import pytest
from application import Thermostat


def measure(broker, room, degrees):
    publish.single(f"home/{room}/temperature", str(degrees), qos=1, hostname=broker.host, port=broker.port)


@pytest.fixture
def thermostat(headrace_broker):
    found = Thermostat(headrace_broker.host, headrace_broker.port)
    headrace_broker.wait_until_subscribed("home/+/temperature", "thermostat")
    yield found
    found.close()


def commands(broker, count):
    return [(m.topic, m.text) for m in broker.wait_until_published("home/+/heating", count)]


def test_a_cold_room_is_heated(headrace_broker, thermostat):
    measure(headrace_broker, "bath", 17)
    assert commands(headrace_broker, 1) == [("home/bath/heating", "on")]


def test_each_test_begins_with_an_empty_broker(headrace_broker):
    assert headrace_broker.messages() == []


def test_a_reading_that_came_while_it_was_away_is_answered_after_a_crash(headrace_broker, thermostat):
    thermostat.close()
    headrace_broker.wait_until_disconnected("thermostat")
    measure(headrace_broker, "kitchen", 23)
    headrace_broker.kill()
    headrace_broker.start()
    again = Thermostat(headrace_broker.host, headrace_broker.port)
    assert commands(headrace_broker, 1) == [("home/kitchen/heating", "off")]
    again.close()


@pytest.mark.headrace_broker({"limits.keep_alive_max_s": 5}, session__inflight_max=3)
class TestSettings:
    @pytest.mark.headrace_broker(session__inflight_max=4)
    def test_marks_add_up_and_the_nearest_wins(self, headrace_broker):
        command = " ".join(headrace_broker._command())
        assert "limits.keep_alive_max_s=5" in command
        assert "session.inflight_max=4" in command
        assert "session.inflight_max=3" not in command


def test_there_may_be_several(make_headrace_broker, headrace_broker):
    other = make_headrace_broker(session__inflight_max=3)
    measure(other, "attic", 3)
    assert len(other.messages()) == 1
    assert headrace_broker.messages() == []


@pytest.mark.parametrize("time", [1, 2])
def test_one_broker_may_serve_the_whole_run(headrace_session_broker, time):
    measure(headrace_session_broker, "hall", time)
    assert len(headrace_session_broker.messages()) == time
"""

FAILING = """
def test_that_fails(headrace_broker, headrace_session_broker):
    print("at", headrace_broker.url, headrace_session_broker.url)
    assert headrace_broker.messages()
"""


def run(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    plugin = [] if _is_installed() else ["-p", "headrace.testing.plugin"]
    return subprocess.run(
        [
            PYTHON,
            "-m",
            "pytest",
            "-W",
            "error",
            "--strict-markers",
            "-p",
            "no:cacheprovider",
            "-o",
            "asyncio_default_fixture_loop_scope=function",
            *plugin,
            *arguments,
        ],
        cwd=folder,
        env=build_environment(),
        capture_output=True,
        text=True,
        timeout=240,
    )


def _is_installed() -> bool:
    """Whether the environment names the plugin, so that pytest loads it by itself."""
    return any(found.name == "headrace" for found in entry_points(group="pytest11"))


@pytest.mark.slow
def test_a_foreign_suite_passes(tmp_path: Path) -> None:
    (tmp_path / "application.py").write_text(APPLICATION, encoding="utf-8")
    (tmp_path / "test_application.py").write_text(SUITE, encoding="utf-8")
    ran = run(tmp_path)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "7 passed" in ran.stdout


@pytest.mark.slow
def test_a_failure_shows_the_log_of_each_broker(tmp_path: Path) -> None:
    (tmp_path / "test_failing.py").write_text(FAILING, encoding="utf-8")
    ran = run(tmp_path)
    assert ran.returncode == 1, ran.stdout + ran.stderr
    urls = re.findall(r"^- headrace at (\S+) -|^-+ headrace at (\S+) -+", ran.stdout, re.MULTILINE)
    assert len(urls) == 2, ran.stdout
    assert ran.stdout.count("acknowledged = on disk") == 2


@pytest.mark.compiled
def test_the_installed_wheel_names_the_plugin() -> None:
    assert _is_installed()
