"""What `headrace sub` does with the messages that arrive: which it writes, which it removes, and when it has enough."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from headrace.clients.mqtt import MqttClient
from headrace.clients.output import Output, OutputClosed, watch_reader
from headrace.mqtt.packets import Publish
from headrace.mqtt.topics import matches


class Verdict(Enum):
    """What is to be done with one message."""

    WRITE = "write"
    SKIP = "skip"
    END = "end"


@dataclass
class Selection:
    """Decides which messages are written. `count`: so many, then it ends; None for all. `left_out`: filters. `written`:
    how many were, so far."""

    count: int | None
    left_out: Sequence[str]
    no_retained: bool
    retained_only: bool
    remove_retained: bool
    written: int = 0

    def judge(self, message: Publish) -> Verdict:
        """Decide what becomes of a message, in the order of mosquitto_sub."""
        if self.retained_only and not message.retain:
            return Verdict.END
        if self.no_retained and message.retain:
            return Verdict.SKIP
        topic = message.topic.decode("utf-8")
        return Verdict.SKIP if any(matches(one, topic) for one in self.left_out) else Verdict.WRITE

    @property
    def satisfied(self) -> bool:
        return self.count is not None and self.written >= self.count


async def write_all(client: MqttClient, wanted: Selection, output: Output) -> None:
    """Write messages until there are enough, or the connection ends. Each is acknowledged when it is written.

    Raises ConnectionLost, OutputClosed.
    """
    writing = asyncio.create_task(_write_all(client, wanted, output))
    gone = asyncio.Event()
    watch_reader(gone.set)
    leaving = asyncio.create_task(gone.wait())
    try:
        await asyncio.wait((writing, leaving), return_when=asyncio.FIRST_COMPLETED)
        if not writing.done():
            raise OutputClosed("nobody reads stdout any more")
        await writing
    finally:
        writing.cancel()
        leaving.cancel()


async def _write_all(client: MqttClient, wanted: Selection, output: Output) -> None:
    removals: set[asyncio.Task[int]] = set()
    while not wanted.satisfied:
        message = await client.receive()
        verdict = wanted.judge(message)
        if verdict is Verdict.END:
            client.ack(message)
            break
        if verdict is Verdict.WRITE:
            if wanted.remove_retained and message.retain:
                removal = client.publish(message.topic, b"", 1, True)
                removals.add(asyncio.create_task(removal))
            output.write(message)
            wanted.written += 1
        client.ack(message)
        removals = {one for one in removals if not one.done()}
    if removals:
        await asyncio.wait(removals)
