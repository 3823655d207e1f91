"""How `headrace sub` writes a message: payload, topic and payload, one JSON object a line, or by a format (`format`).

JSON keys: topic, qos, retain, dup, packet_id, message_expiry_interval, properties, and payload (text) or
payload_base64 (what is no UTF-8).
"""

from __future__ import annotations

import asyncio
import base64
import json
import os
import stat
import sys
import time
from collections.abc import Callable

from headrace.clients.format import Arrived, NotJson, parse, render
from headrace.errors import HeadraceError
from headrace.mqtt import packets
from headrace.mqtt.packets import NO_EXPIRY, Publish
from headrace.mqtt.properties import Properties


class OutputClosed(HeadraceError):
    """Says that nobody reads stdout any more."""


class Output:
    """Writes messages to stdout, each at once. Raises ValueError for a format that is none."""

    def __init__(self, text: str | None, is_json: bool, is_verbose: bool, no_newline: bool) -> None:
        self._parts = None if text is None else parse(text)
        self._render = as_json if is_json else verbose if is_verbose else plain
        self._no_newline = no_newline

    def write(self, message: Publish) -> None:
        """Write a message as the options ask for it. Raises OutputClosed."""
        try:
            sys.stdout.buffer.write(self._bytes(message))
            sys.stdout.buffer.flush()
        except BrokenPipeError:
            _forget_output()
            raise OutputClosed("nobody reads stdout any more") from None

    def _bytes(self, message: Publish) -> bytes:
        if self._parts is None:
            data = self._render(message)
            return data[:-1] if self._no_newline else data
        try:
            data = render(self._parts, Arrived(message, time.time_ns()))
        except NotJson as error:
            sys.stderr.write(f"Error: {error}\n")
            return b""
        return data if self._no_newline else data + b"\n"


def watch_reader(closed: Callable[[], None]) -> None:
    """Call `closed` on the loop when stdout is a pipe and whoever read it is gone, also while nothing is written."""
    try:
        fd = sys.stdout.buffer.fileno()
        if stat.S_ISFIFO(os.fstat(fd).st_mode):
            loop = asyncio.get_running_loop()
            loop.add_reader(fd, _closed, loop, fd, closed)
    except (OSError, ValueError, AttributeError):  # it is a file in memory
        return


def _closed(loop: asyncio.AbstractEventLoop, fd: int, closed: Callable[[], None]) -> None:
    loop.remove_reader(fd)
    closed()


def _forget_output() -> None:
    """Forget what is left in Python's buffer: it would be written, and complained of, at the end of the interpreter."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def plain(message: Publish) -> bytes:
    return message.payload + b"\n"


def verbose(message: Publish) -> bytes:
    """Return a message with its topic, an empty payload as mosquitto_sub shows it."""
    return message.topic + b" " + (message.payload or b"(null)") + b"\n"


def as_json(message: Publish) -> bytes:
    found: dict[str, object] = {
        "topic": message.topic.decode(),
        "qos": message.qos,
        "retain": message.retain,
        "dup": message.dup,
        "packet_id": message.packet_id,
    }
    if message.message_expiry_s != NO_EXPIRY:
        found["message_expiry_interval"] = message.message_expiry_s
    if message.properties:
        found["properties"] = _properties(message.properties)
    found |= _payload(message.payload)
    return json.dumps(found, ensure_ascii=False).encode() + b"\n"


def _properties(raw: bytes) -> dict[str, object]:
    values = Properties.decode(raw, 0, len(raw), packets.PUBLISH).as_dict()
    return {
        name: base64.b64encode(value).decode() if isinstance(value, bytes) else value
        for name, value in values.items()
    }


def _payload(payload: bytes) -> dict[str, str]:
    try:
        return {"payload": payload.decode()}
    except UnicodeDecodeError:
        return {"payload_base64": base64.b64encode(payload).decode()}
