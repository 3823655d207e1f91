"""Shared options: what they become, and which are wrong use."""

from __future__ import annotations

import ssl
from collections.abc import Iterator
from typing import Any

import click
import pytest
from click.testing import CliRunner

from headrace.clients.endpoint import Endpoint
from headrace.clients.options import (
    NEVER_EXPIRES_S,
    FiniteRange,
    PropertyCommand,
    connect_from,
    connection_options,
    endpoint_from,
    parse_properties,
)
from headrace.commands.main import cli
from headrace.mqtt import packets
from headrace.mqtt.packets import Connect


def connect(*args: str) -> Connect:
    """The CONNECT that these arguments ask for; click's error if they are wrong."""
    found: list[Connect] = []

    @click.command(cls=PropertyCommand)
    @connection_options
    def command(**options: Any) -> None:
        found.append(connect_from(options))

    result = CliRunner().invoke(command, args, standalone_mode=False)
    if result.exception is not None:
        raise result.exception
    return found[0]


def test_defaults() -> None:
    packet = connect()
    assert packet.version == 5
    assert packet.client_id.startswith("headrace-")
    assert packet.clean_start
    assert packet.will is None
    assert packet.properties.as_dict() == {}


def test_everything() -> None:
    packet = connect(
        *[
            "-i",
            "me",
            "-u",
            "you",
            "-P",
            "secret",
            "-k",
            "5",
            "-c",
            "-x",
            "30",
            "--application",
            "--connect-property",
            "receive-maximum",
            "9",
        ],
        *[
            "--connect-property",
            "user-property",
            "a",
            "b",
            "--will-topic",
            "w",
            "--will-payload",
            "p",
            "--will-qos",
            "1",
            "--will-delay",
            "3",
        ],
        "--will-retain",
    )
    assert (packet.client_id, packet.username, packet.password, packet.keep_alive_s) == (
        "me",
        "you",
        b"secret",
        5,
    )
    assert not packet.clean_start
    assert packet.properties.as_dict() == {
        "session_expiry_interval": 30,
        "receive_maximum": 9,
        "user_properties": [("a", "b"), ("session-type", "application")],
    }
    assert packet.will is not None
    assert (packet.will.topic, packet.will.payload, packet.will.qos) == ("w", b"p", 1)
    assert (packet.will.retain, packet.will.delay_s) == (True, 3)


def test_a_kept_session_of_version_5_does_not_expire_by_itself() -> None:
    assert connect("-c", "-i", "a").properties.session_expiry_interval == NEVER_EXPIRES_S
    assert connect("-c", "-i", "a", "--protocol", "3.1.1").properties.session_expiry_interval is None


@pytest.mark.parametrize(
    ("args", "why"),
    [
        ("-c", "--persistent needs --id"),
        ("-P x --protocol 3.1.1", "--password needs --username"),
        ("--will-topic a/#", "--will-topic"),
        ("--protocol 3.1.1 -x 5", "only MQTT 5"),
        ("--protocol 3.1 --application", "only MQTT 5"),
        ("--connect-property topic-alias 1", "not one of"),
        ("--connect-property receive-maximum many", "no number"),
        ("--connect-property receive-maximum 99999999999", "no number"),
        ("--connect-property user-property alone", "NAME VALUE"),
        ("--protocol 6", "6"),
        ("-x -1", "-1"),
    ],
)
def test_wrong_use(args: str, why: str) -> None:
    with pytest.raises(click.UsageError) as caught:
        connect(*args.split())
    assert why in caught.value.format_message()
    assert caught.value.exit_code == 2


def where(url: str, **changes: Any) -> Endpoint:
    options = {"host": None, "port": None, "ca": "", "cert": "", "key": "", "insecure": False}
    return endpoint_from(options | {"url": url} | changes)


def test_endpoint() -> None:
    assert where("tcp://broker") == Endpoint("broker", 1883)
    assert where("tcp://broker:5", host="other", port=6) == Endpoint("other", 6)
    assert where("ws://broker") == Endpoint("broker", 8083, "/mqtt")
    assert where("ws://broker/other") == Endpoint("broker", 8083, "/other")
    over_tls = where("wss://broker:9", insecure=True)
    assert (over_tls.port, over_tls.path) == (9, "/mqtt")
    assert over_tls.tls is not None
    assert over_tls.tls.verify_mode == ssl.CERT_NONE


@pytest.mark.parametrize(
    ("url", "changes", "names"),
    [
        ("tcp://x", {"ca": "/a"}, "--ca"),
        ("ws://x", {"insecure": True}, "--insecure"),
        ("tls://x", {"key": "/k"}, "--cert"),
        ("tcp://x/path", {}, "path"),
        ("udp://x", {}, "--url"),
    ],
)
def test_endpoint_refused(url: str, changes: dict[str, object], names: str) -> None:
    with pytest.raises(click.UsageError, match=names):
        where(url, **changes)


def test_properties_of_a_publish() -> None:
    pairs = (
        ("content-type", "t"),
        ("correlation-data", "c"),
        ("payload-format-indicator", "1"),
        ("message-expiry-interval", "60"),
        ("user-property", "k\0v"),
    )
    assert parse_properties(pairs, packets.PUBLISH).as_dict() == {
        "payload_format_indicator": 1,
        "message_expiry_interval": 60,
        "content_type": "t",
        "correlation_data": b"c",
        "user_properties": [("k", "v")],
    }


def test_a_subscription_identifier() -> None:
    found = parse_properties((("subscription-identifier", "7"),), packets.SUBSCRIBE)
    assert found.subscription_identifiers == [7]


def every(command: click.Command, path: str) -> Iterator[tuple[str, click.Parameter]]:
    """All parameters of a command and of those below it, with the words that lead to them."""
    yield from ((path, parameter) for parameter in command.params)
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            below = command.get_command(context, name)
            assert below is not None
            yield from every(below, f"{path} {name}")


def test_no_option_of_any_command_takes_a_number_that_is_none() -> None:
    numbers = [
        (path, one)
        for path, one in every(cli, "headrace")
        if isinstance(one.type, click.types.FloatParamType)
    ]
    assert len(numbers) >= 6
    assert [(path, one.name) for path, one in numbers if not isinstance(one.type, FiniteRange)] == []
    for path, one in numbers:
        for text in ("nan", "inf"):
            with pytest.raises(click.BadParameter):
                one.type.convert(text, one, click.Context(cli, info_name=path))
