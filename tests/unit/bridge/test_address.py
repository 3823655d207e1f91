"""Addresses of remote brokers."""

from __future__ import annotations

import pytest

from headrace.address import Location
from headrace.bridge.address import parse


@pytest.mark.parametrize(
    ("url", "address"),
    [
        ("tcp://broker.example", Location("tcp", "broker.example", 1883, "")),
        ("mqtt://broker.example:1", Location("tcp", "broker.example", 1, "")),
        ("tls://[::1]", Location("tls", "::1", 8883, "")),
        ("ws://h", Location("ws", "h", 80, "/mqtt")),
        ("wss://h:8084/deep/path", Location("wss", "h", 8084, "/deep/path")),
        ("unix:///run/mqtt.sock", Location("unix", "", 0, "/run/mqtt.sock")),
    ],
)
def test_an_address_is_taken_apart(url: str, address: Location) -> None:
    assert parse(url) == address
    assert parse(str(address)) == address


@pytest.mark.parametrize(
    "url",
    [
        "",
        "broker",
        "udp://h",
        "tcp://",
        "tcp://h/path",
        "tcp://u:p@h",
        "tcp://h:99999",
        "unix://h/p",
        "tcp://h?x=1",
    ],
)
def test_what_is_no_address_is_said(url: str) -> None:
    with pytest.raises(ValueError, match=r"no address|[Pp]ort"):
        parse(url)
