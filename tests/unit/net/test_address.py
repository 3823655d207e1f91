"""Listener URLs."""

from __future__ import annotations

import pytest

from headrace.net.address import Options, parse


@pytest.mark.parametrize(
    ("url", "scheme", "host", "port", "loopback"),
    [
        ("tcp://127.0.0.1:1", "tcp", "127.0.0.1", 1, True),
        ("mqtt://localhost", "tcp", "localhost", 1883, True),
        ("tls://0.0.0.0", "tls", "0.0.0.0", 8883, False),
        ("mqtts://[::1]:0", "tls", "::1", 0, True),
        ("ws://broker.example", "ws", "broker.example", 8083, False),
        ("wss://[::]/", "wss", "::", 8084, False),
    ],
)
def test_internet_addresses(url: str, scheme: str, host: str, port: int, loopback: bool) -> None:
    address = parse(url)
    assert (address.scheme, address.host, address.port) == (scheme, host, port)
    assert address.loopback == loopback
    assert address.options == Options()
    assert address.encrypted == (scheme in ("tls", "wss"))
    assert address.websocket == (scheme in ("ws", "wss"))
    assert parse(address.url(7)).port == 7


def test_a_unix_socket_is_a_path() -> None:
    address = parse("unix:///run/head%20race/mqtt.sock?mode=600")
    assert (address.path, address.options.mode, address.loopback) == ("/run/head race/mqtt.sock", 0o600, True)
    assert parse("unix:///a").url(0) == "unix:///a"


def test_options_have_types() -> None:
    address = parse(
        "tls://h:1?cert=/c.pem&key=/k.pem&ca=/a.pem&client_cert=require&identity=cn&proxy=optional"
        "&connections_max=5&packet_bytes_max=1000&connect_timeout_s=1.5&pending_bytes_max=70000"
        "&origins=https://a.example,https://b.example&paths=/mqtt,/ws"
    )
    assert address.options == Options(
        cert="/c.pem",
        key="/k.pem",
        ca="/a.pem",
        client_cert="require",
        identity="cn",
        proxy="optional",
        origins="https://a.example,https://b.example",
        paths="/mqtt,/ws",
        connections_max=5,
        packet_bytes_max=1000,
        pending_bytes_max=70_000,
        connect_timeout_s=1.5,
    )


@pytest.mark.parametrize(
    "url",
    [
        "udp://h:1",
        "h:1",
        "tcp://",
        "tcp://h:1/path",
        "tcp://user@h:1",
        "tcp://h:70000",
        "tcp://h:1?colour=red",
        "tcp://h:1?proxy=perhaps",
        "tcp://h:1?proxy=off&proxy=off",
        "tcp://h:1?connections_max=0",
        "tcp://h:1?connect_timeout_s=soon",
        "tls://h:1?cert=",
        "unix://host/path",
        "unix:///",
        "unix:///a?mode=9",
        "ws://h:1?paths=mqtt",
        "ws://h:1?paths=/mqtt,ws",
    ],
)
def test_what_is_no_address_is_said(url: str) -> None:
    with pytest.raises(ValueError):
        parse(url)
