"""What a CONNACK means to a bridge."""

from __future__ import annotations

import pytest

from headrace.bridge.terms import refusal_of
from headrace.mqtt import reason_codes as rc
from headrace.mqtt.packets import Connack
from headrace.mqtt.properties import Properties


@pytest.mark.parametrize(
    ("version", "code", "words"),
    [
        (4, 0, ""),
        (4, 4, "refused: bad user name or password"),
        (4, 99, "refused: return code 99"),
        (5, 0, ""),
    ],
)
def test_return_codes_in_words(version: int, code: int, words: str) -> None:
    assert refusal_of(Connack(False, code, Properties()), version, 2) == words


def test_the_reason_string_of_version_5_is_told() -> None:
    properties = Properties()
    properties.reason_string = "come tomorrow"
    found = refusal_of(Connack(False, rc.SERVER_BUSY, properties), 5, 2)
    assert found == f"refused: {rc.name(rc.SERVER_BUSY)}: come tomorrow"


def test_a_maximum_qos_refuses_only_what_goes_out_above_it() -> None:
    properties = Properties()
    properties.maximum_qos = 1
    assert refusal_of(Connack(False, 0, properties), 5, 1) == ""
    assert "QoS 1 at most" in refusal_of(Connack(False, 0, properties), 5, 2)
