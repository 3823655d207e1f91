"""`headrace pub` and `headrace sub`. Exit codes: 0 ok, 1 failed, 2 wrong use."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from headrace.clients import stdin
from headrace.clients.debug import TalkingClient
from headrace.clients.errors import ConnectionLost
from headrace.clients.mqtt import MqttClient
from headrace.clients.options import (
    FiniteRange,
    PropertyCommand,
    connect_from,
    connection_options,
    encoded,
    endpoint_from,
    properties_of,
    take_located,
)
from headrace.clients.output import Output, OutputClosed
from headrace.clients.receiving import Selection, write_all
from headrace.errors import HeadraceError
from headrace.mqtt import packets, reason_codes
from headrace.mqtt.packets import NO_EXPIRY, Connect, SubscriptionRequest
from headrace.mqtt.properties import Properties
from headrace.mqtt.topics import filter_error, valid_topic

_OVERLAPPING_PUBLISHES = 1_000
_SUBACK_TIMEOUT_S = 30.0
Answer = TypeVar("Answer")
_SETTINGS = {"help_option_names": ["--help"], "max_content_width": 110}


class Failed(click.ClickException):
    """Says that something did not go as asked: exit code 1 and one line."""

    exit_code = 1


def _run(main: Callable[[], Any]) -> None:
    try:
        asyncio.run(main())
    except KeyboardInterrupt:
        sys.exit(130)  # as a shell says of a command that SIGINT ended
    except OutputClosed:  # `| head` has what it wants: end as whoever writes into a pipe without a reader
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGPIPE)
    except (HeadraceError, OSError, TimeoutError) as error:
        raise Failed(str(error) or type(error).__name__) from error


def _client(options: dict[str, Any], connect: Connect) -> MqttClient:
    to = endpoint_from(options)
    kind = TalkingClient if options["debug"] else MqttClient
    farewell = properties_of(options, "disconnect")
    return kind(to.host, to.port, connect, tls=to.tls, websocket_path=to.path, farewell=farewell)


# pub


@click.command(cls=PropertyCommand, context_settings=_SETTINGS)
@connection_options
@click.option("-t", "--topic")
@click.option("-m", "--message", help="the payload")
@click.option(
    "-f",
    "--file",
    "file",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    help="payload from a file",
)
@click.option("-l", "--stdin-lines", is_flag=True, help="one message for each line of stdin")
@click.option("-s", "--stdin-file", is_flag=True, help="one message: all of stdin")
@click.option("-n", "--null-message", is_flag=True, help="a payload of no bytes")
@click.option("-q", "--qos", type=click.IntRange(0, 2), default=0, show_default=True)
@click.option("-r", "--retain", is_flag=True)
@click.option("--repeat", type=click.IntRange(1), default=1, help="publish it that many times")
@click.option(
    "--property", "properties", type=(str, str), multiple=True, metavar="NAME VALUE", help="in PUBLISH (5)"
)
def pub(**options: Any) -> None:
    """Publish one message, or one for each line of stdin."""
    located = take_located(options)
    topic = encoded(options["topic"] if options["topic"] is not None else located)
    if not valid_topic(topic):
        raise click.UsageError(f"--topic: {os.fsdecode(topic)!r} is no topic name")
    _payload_source(options)
    connect = connect_from(options)
    properties = properties_of(options, "publish", options["properties"])

    async def main() -> None:
        async with _client(options, connect) as client:
            await _publish_all(client, topic, options, properties)

    _run(main)


def _payload_source(options: dict[str, Any]) -> None:
    chosen = [
        options["message"] is not None,
        bool(options["file"]),
        options["stdin_lines"],
        options["stdin_file"],
        options["null_message"],
    ]
    if sum(chosen) != 1:
        raise click.UsageError(
            "give exactly one of --message, --file, --stdin-lines, --stdin-file, --null-message"
        )


async def _publish_all(
    client: MqttClient, topic: bytes, options: dict[str, Any], properties: Properties
) -> None:
    """Publish with many flows overlapping; the client keeps their order and the server's window."""
    expiry_s = NO_EXPIRY if properties.message_expiry_interval is None else properties.message_expiry_interval
    alias = properties.topic_alias or 0
    properties.message_expiry_interval = properties.topic_alias = None
    raw = properties.encode()
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
        async for line in stdin.lines():
            yield line
        return
    payload = b""
    if options["file"]:
        payload = options["file"].read_bytes()
    elif options["stdin_file"]:
        payload = await stdin.whole()
    elif options["message"] is not None:
        payload = encoded(options["message"])
    for _ in range(options["repeat"]):
        yield payload


# sub


@click.command(cls=PropertyCommand, context_settings=_SETTINGS)
@connection_options
@click.option("-t", "--topic", "filters", multiple=True, help="topic filter, may be repeated")
@click.option("-U", "--unsubscribe", "unwanted", multiple=True, help="unsubscribe from it, may be repeated")
@click.option("-T", "--filter-out", "left_out", multiple=True, help="pass over what matches, may be repeated")
@click.option("-q", "--qos", type=click.IntRange(0, 2), default=0, show_default=True)
@click.option("-C", "--count", type=click.IntRange(1), help="end after that many messages")
@click.option("-W", "--timeout", type=FiniteRange(0, min_open=True), help="end after that many seconds")
@click.option("-E", "--end-subscribed", is_flag=True, help="end when the subscriptions are acknowledged")
@click.option("-v", "--verbose", is_flag=True, help="topic and payload")
@click.option("-F", "--format", "format_", help="as mosquitto_sub has it: %t %p %q %j ...")
@click.option("-N", "--no-newline", is_flag=True, help="nothing behind a message")
@click.option("--json", "as_json", is_flag=True, help="one JSON object a line")
@click.option("-R", "--no-retained", is_flag=True, help="pass over retained messages")
@click.option("--retained-only", is_flag=True, help="end with the first message that is not retained")
@click.option("--remove-retained", is_flag=True, help="remove the retained messages that arrive")
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
    located = take_located(options)
    options["filters"] += (located,) if located else ()
    _check_filters(options)
    output = _output(options)
    connect = connect_from(options, options["receive_maximum"])
    requests = _requests(options, connect.version)
    properties = properties_of(options, "subscribe", options["properties"])
    leaving = properties_of(options, "unsubscribe")
    wanted = Selection(
        options["count"],
        options["left_out"],
        options["no_retained"],
        options["retained_only"],
        options["remove_retained"],
    )

    async def work(client: MqttClient) -> None:
        if requests:
            await _subscribe(client, requests, properties)
        if options["unwanted"]:
            await _in_time("UNSUBACK", client.unsubscribe(options["unwanted"], leaving))
        if not options["end_subscribed"]:
            await write_all(client, wanted, output)

    async def main() -> None:
        async with _client(options, connect) as client:
            await _until_timeout(work(client), wanted, options["timeout"])

    _run(main)


async def _until_timeout(work: Awaitable[None], wanted: Selection, timeout_s: float | None) -> None:
    try:
        async with asyncio.timeout(timeout_s):
            await work
    except TimeoutError:
        if wanted.count is not None:
            raise Failed(f"{wanted.written} of {wanted.count} messages in {timeout_s} s") from None
    except ConnectionLost as error:
        raise Failed(f"{error}, after {wanted.written} messages") from None


def _check_filters(options: dict[str, Any]) -> None:
    if not options["filters"] and not options["unwanted"]:
        raise click.UsageError("--topic: give one at least, or --unsubscribe")
    named = {"topic": "filters", "unsubscribe": "unwanted", "filter-out": "left_out"}
    for name, key in named.items():
        for topic_filter in options[key]:
            wrong = filter_error(topic_filter)
            if wrong:
                raise click.UsageError(f"--{name} {topic_filter!r}: {wrong}")
    if options["no_retained"] and (options["retained_only"] or options["remove_retained"]):
        raise click.UsageError("--no-retained goes neither with --retained-only nor with --remove-retained")


def _output(options: dict[str, Any]) -> Output:
    if options["format_"] is not None and (options["verbose"] or options["as_json"]):
        raise click.UsageError("--format goes neither with --verbose nor with --json")
    try:
        return Output(options["format_"], options["as_json"], options["verbose"], options["no_newline"])
    except ValueError as error:
        raise click.UsageError(f"--format: {error}") from None


def _requests(options: dict[str, Any], version: int) -> list[SubscriptionRequest]:
    wanted = (options["no_local"], options["retain_as_published"], options["retain_handling"])
    if any(wanted) and version != packets.VERSION_5:
        raise click.UsageError("--no-local, --retain-as-published, --retain-handling: only MQTT 5 has them")
    return [SubscriptionRequest(topic_filter, options["qos"], *wanted) for topic_filter in options["filters"]]


async def _subscribe(client: MqttClient, requests: list[SubscriptionRequest], properties: Properties) -> None:
    suback = await _in_time("SUBACK", client.subscribe(requests, properties))
    for code, request in zip(suback.reason_codes, requests, strict=True):
        if code >= 0x80:
            raise Failed(f"the server refused {request.filter!r}: {reason_codes.name(code)}")


async def _in_time(what: str, answer: Awaitable[Answer]) -> Answer:
    try:
        async with asyncio.timeout(_SUBACK_TIMEOUT_S):
            return await answer
    except TimeoutError:
        raise Failed(f"no {what} in {_SUBACK_TIMEOUT_S} s") from None
