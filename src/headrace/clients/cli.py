"""`headrace pub` and `headrace sub`. Exit codes: 0 ok, 1 failed, 2 wrong use."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import click

from headrace.clients import output
from headrace.clients.errors import ConnectionLost
from headrace.clients.mqtt import MqttClient
from headrace.clients.options import (
    PropertyCommand,
    connect_from,
    connection_options,
    endpoint_from,
    parse_properties,
)
from headrace.errors import HeadraceError
from headrace.mqtt import packets, reason_codes
from headrace.mqtt.packets import NO_EXPIRY, Connect, Publish, SubscriptionRequest
from headrace.mqtt.properties import Properties
from headrace.mqtt.topics import filter_error, valid_topic

_OVERLAPPING_PUBLISHES = 1_000
_SUBACK_TIMEOUT_S = 30.0
_SETTINGS = {"help_option_names": ["--help"], "max_content_width": 110}


class Failed(click.ClickException):
    """Something did not go as asked: exit code 1 and one line."""

    exit_code = 1


def _run(main: Callable[[], Any]) -> None:
    try:
        asyncio.run(main())
    except KeyboardInterrupt:
        sys.exit(130)  # as a shell says of a command that SIGINT ended
    except (HeadraceError, OSError, TimeoutError) as error:
        raise Failed(str(error) or type(error).__name__) from error


def _client(options: dict[str, Any], connect: Connect) -> MqttClient:
    to = endpoint_from(options)
    return MqttClient(to.host, to.port, connect, tls=to.tls, websocket_path=to.path)


# pub


@click.command(cls=PropertyCommand, context_settings=_SETTINGS)
@connection_options
@click.option("-t", "--topic", required=True)
@click.option("-m", "--message", help="the payload")
@click.option(
    "-f",
    "--file",
    "file",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    help="payload from a file",
)
@click.option("-l", "--stdin-lines", is_flag=True, help="one message for each line of stdin")
@click.option("-n", "--null-message", is_flag=True, help="a payload of no bytes")
@click.option("-q", "--qos", type=click.IntRange(0, 2), default=0, show_default=True)
@click.option("-r", "--retain", is_flag=True)
@click.option("--repeat", type=click.IntRange(1), default=1, help="publish it that many times")
@click.option(
    "--property", "properties", type=(str, str), multiple=True, metavar="NAME VALUE", help="in PUBLISH (5)"
)
def pub(**options: Any) -> None:
    """Publish one message, or one for each line of stdin."""
    if not valid_topic(options["topic"].encode()):
        raise click.UsageError(f"--topic: {options['topic']!r} is no topic name")
    _payload_source(options)
    connect = connect_from(options)
    properties = _publish_properties(options, connect.version)

    async def main() -> None:
        async with _client(options, connect) as client:
            await _publish_all(client, options, properties)

    _run(main)


def _payload_source(options: dict[str, Any]) -> None:
    chosen = [
        options["message"] is not None,
        bool(options["file"]),
        options["stdin_lines"],
        options["null_message"],
    ]
    if sum(chosen) != 1:
        raise click.UsageError("give exactly one of --message, --file, --stdin-lines, --null-message")


def _publish_properties(options: dict[str, Any], version: int) -> Properties:
    properties = parse_properties(options["properties"], packets.PUBLISH)
    if properties.as_dict() and version != packets.VERSION_5:
        raise click.UsageError("--property: only MQTT 5 has properties")
    return properties


async def _publish_all(client: MqttClient, options: dict[str, Any], properties: Properties) -> None:
    """Publish with many flows overlapping; the client keeps their order and the server's window."""
    expiry_s = NO_EXPIRY if properties.message_expiry_interval is None else properties.message_expiry_interval
    alias = properties.topic_alias or 0
    properties.message_expiry_interval = properties.topic_alias = None
    raw = properties.encode()
    topic = options["topic"].encode()
    flows: set[asyncio.Task[int]] = set()
    async for payload in _payloads(options):
        flow = client.publish(topic, payload, options["qos"], options["retain"], raw, expiry_s, alias)
        flows.add(asyncio.create_task(flow))
        if len(flows) >= _OVERLAPPING_PUBLISHES:
            done, flows = await asyncio.wait(flows, return_when=asyncio.FIRST_COMPLETED)
            _check(done)
    if flows:
        _check((await asyncio.wait(flows))[0])


def _check(flows: set[asyncio.Task[int]]) -> None:
    for flow in flows:
        code = flow.result()
        if code >= 0x80:
            raise Failed(f"the server refused the message: {reason_codes.name(code)}")


async def _payloads(options: dict[str, Any]) -> AsyncIterator[bytes]:
    if options["stdin_lines"]:
        loop = asyncio.get_running_loop()
        while line := await loop.run_in_executor(None, sys.stdin.buffer.readline):
            yield line.rstrip(b"\r\n")
        return
    payload = b""
    if options["file"]:
        payload = options["file"].read_bytes()
    elif options["message"] is not None:
        payload = options["message"].encode()
    for _ in range(options["repeat"]):
        yield payload


# sub


@click.command(cls=PropertyCommand, context_settings=_SETTINGS)
@connection_options
@click.option("-t", "--topic", "filters", multiple=True, required=True, help="topic filter, may be repeated")
@click.option("-q", "--qos", type=click.IntRange(0, 2), default=0, show_default=True)
@click.option("-C", "--count", type=click.IntRange(1), help="end after that many messages")
@click.option("-W", "--timeout", type=click.FloatRange(0, min_open=True), help="end after that many seconds")
@click.option("-v", "--verbose", is_flag=True, help="topic and payload")
@click.option("--json", "as_json", is_flag=True, help="one JSON object a line")
@click.option("-R", "--no-retained", is_flag=True, help="pass over retained messages")
@click.option("--receive-maximum", type=click.IntRange(1, 65_535), help="unacknowledged at a time (5)")
@click.option(
    "--retain-handling", type=click.IntRange(0, 2), default=0, help="0 send, 1 if new, 2 do not send (5)"
)
@click.option("--no-local", is_flag=True, help="not what this client publishes (5)")
@click.option("--retain-as-published", is_flag=True, help="keep the retain flag (5)")
@click.option(
    "--property", "properties", type=(str, str), multiple=True, metavar="NAME VALUE", help="in SUBSCRIBE (5)"
)
def sub(**options: Any) -> None:
    """Subscribe and write what arrives, each message acknowledged when it is written."""
    for topic_filter in options["filters"]:
        wrong = filter_error(topic_filter)
        if wrong:
            raise click.UsageError(f"--topic {topic_filter!r}: {wrong}")
    connect = connect_from(options, options["receive_maximum"])
    requests = _requests(options, connect.version)
    properties = parse_properties(options["properties"], packets.SUBSCRIBE)
    if properties.as_dict() and connect.version != packets.VERSION_5:
        raise click.UsageError("--property: only MQTT 5 has properties")

    async def main() -> None:
        async with _client(options, connect) as client:
            await _subscribe(client, requests, properties)
            await _write_all(client, options)

    _run(main)


def _requests(options: dict[str, Any], version: int) -> list[SubscriptionRequest]:
    wanted = (options["no_local"], options["retain_as_published"], options["retain_handling"])
    if any(wanted) and version != packets.VERSION_5:
        raise click.UsageError("--no-local, --retain-as-published, --retain-handling: only MQTT 5 has them")
    return [SubscriptionRequest(topic_filter, options["qos"], *wanted) for topic_filter in options["filters"]]


async def _subscribe(client: MqttClient, requests: list[SubscriptionRequest], properties: Properties) -> None:
    try:
        async with asyncio.timeout(_SUBACK_TIMEOUT_S):
            suback = await client.subscribe(requests, properties)
    except TimeoutError:
        raise Failed(f"no SUBACK in {_SUBACK_TIMEOUT_S} s") from None
    for code, request in zip(suback.reason_codes, requests, strict=True):
        if code >= 0x80:
            raise Failed(f"the server refused {request.filter!r}: {reason_codes.name(code)}")


async def _write_all(client: MqttClient, options: dict[str, Any]) -> None:
    """Until the count, the timeout, or the end of the connection."""
    render = output.as_json if options["as_json"] else output.verbose if options["verbose"] else output.plain
    written = 0
    try:
        async with asyncio.timeout(options["timeout"]):
            while options["count"] is None or written < options["count"]:
                message = await client.receive()
                written += _write(client, message, render, options["no_retained"])
    except TimeoutError:
        if options["count"] is not None:
            raise Failed(f"{written} of {options['count']} messages in {options['timeout']} s") from None
    except ConnectionLost as error:
        raise Failed(f"{error}, after {written} messages") from None


def _write(
    client: MqttClient, message: Publish, render: Callable[[Publish], bytes], no_retained: bool
) -> int:
    """Write and acknowledge one message; how many were written."""
    wanted = not (message.retain and no_retained)
    if wanted:
        sys.stdout.buffer.write(render(message))
        sys.stdout.buffer.flush()
    client.ack(message)
    return int(wanted)
