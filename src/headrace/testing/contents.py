"""What a broker's data directory holds, for the one who tests an application: messages, who is there, who wants what.

Read from outside, up to the published high watermark, whether or not the broker runs: what is seen here was made
durable, and survives a kill.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import NamedTuple

from headrace.core.ports.identity import DEFAULT_TENANT
from headrace.core.records.message import Copy, decode_batch
from headrace.core.records.message import Message as Stored
from headrace.core.state.session import Session
from headrace.data.layout import Layout, is_new
from headrace.journal.errors import NoJournal
from headrace.journal.reader import JournalReader
from headrace.mqtt import packets
from headrace.mqtt.properties import Properties
from headrace.mqtt.topics import matches
from headrace.storage.embedded.recovery import folded

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class Message(NamedTuple):
    """A published message as the journal has it. `time` is when the broker received it; `properties` are MQTT 5's, by
    their names in snake case."""

    topic: str
    payload: bytes
    qos: int
    retain: bool
    client_id: str
    offset: int
    time: datetime
    properties: dict[str, object]

    @property
    def text(self) -> str:
        """Return the payload as UTF-8. Raises UnicodeDecodeError."""
        return self.payload.decode("utf-8")


class Contents:
    """The contents of a data directory, of all its shards; each call looks at the files as they are then. Safe in any one
    thread."""

    def __init__(self, data_dir: Path) -> None:
        self._data_dir = data_dir
        self._layout: Layout | None = None
        self._shards: list[_Shard] = []

    def messages(self, topic: str = "#") -> list[Message]:
        """Return the messages whose topic matches the filter `topic`, in the journal's order, of several shards by the
        time at which the broker received them; QoS 0 is not journaled."""
        return [message for message in self._published() if topic == "#" or matches(topic, message.topic)]

    def published(self, topic: str, count: int) -> Callable[[], bool]:
        """Return whether there are `count` such messages, to be asked again and again."""
        return lambda: len(self.messages(topic)) >= count

    def connected(self, client_id: str) -> Callable[[], bool]:
        """Return whether a client of that id is connected."""
        return lambda: self._is_connected(client_id)

    def disconnected(self, client_id: str) -> Callable[[], bool]:
        """Return whether no client of that id is connected: its session has ended, or waits for its return."""
        return lambda: not self._is_connected(client_id)

    def subscribed(self, topic: str, client_id: str | None) -> Callable[[], bool]:
        """Return whether the client, or with None any session, has subscribed to exactly this topic filter."""
        return lambda: any(
            topic in (session.subscriptions or {})
            for session in self._sessions()
            if client_id in (None, session.client_id)
        )

    def summary(self) -> str:
        """Return one line for who waited in vain."""
        clients = [
            f"{session.client_id} ({'connected' if session.closed_at_us == 0 else 'away'}; "
            f"{', '.join(session.subscriptions or {}) or 'no subscriptions'})"
            for session in self._sessions()
        ]
        messages = self.messages()
        topics = sorted({message.topic for message in messages})
        return (
            f"the journal holds {len(messages)} messages, on {', '.join(topics) or 'no topic'}; "
            f"clients: {', '.join(clients) or 'none'}"
        )

    def _is_connected(self, client_id: str) -> bool:
        return any(s.client_id == client_id and s.closed_at_us == 0 for s in self._sessions())

    def _sessions(self) -> list[Session]:
        return [session for shard in self._opened() for session in shard.sessions()]

    def _published(self) -> list[Message]:
        for shard in self._opened():
            shard.read_on()
        return list(
            heapq.merge(*(shard.messages for shard in self._shards), key=lambda message: message.time)
        )

    def _opened(self) -> list[_Shard]:
        """Return the shards, none before the broker has made the data directory."""
        if self._layout is None and not is_new(self._data_dir):
            self._layout = layout = Layout.open(self._data_dir)
            self._shards = [_Shard(layout, number) for number in range(layout.shards)]
        return self._shards


class _Shard:
    """One shard of a data directory: the messages that were published to it, and the sessions that are at home there."""

    def __init__(self, layout: Layout, number: int) -> None:
        self._directory = layout.directory(number)
        self._number = number
        self._count = layout.shards
        self._reader = JournalReader(self._directory)
        self.messages: list[Message] = []
        self._next_offset = 0

    def sessions(self) -> list[Session]:
        """Return the sessions, without the stand-ins for members of groups that are at home elsewhere."""
        try:
            fold = folded(self._directory, self._number, self._count)
        except NoJournal:
            return []
        tenant = fold.tenants.get(DEFAULT_TENANT)
        sessions = [] if tenant is None else tenant.sessions.values()
        return [session for session in sessions if not session.stands_in]

    def read_on(self) -> None:
        """Take note of the messages since the last time. Copies of other shards' are in the journals of those."""
        try:
            end = self._reader.high_watermark()
            start = max(self._next_offset, self._reader.start_offset())
            for batch in self._reader.scan(start, end):
                records = decode_batch(bytes(batch.body), batch.base_offset)
                stored = [r for r in records if isinstance(r, Stored) and not isinstance(r, Copy)]
                self.messages += [_message(record) for record in stored if record.offset >= start]
                self._next_offset = batch.end_offset
        except NoJournal:
            return


def _message(stored: Stored) -> Message:
    properties = Properties.decode(stored.properties, 0, len(stored.properties), packets.PUBLISH).as_dict()
    if stored.message_expiry_s >= 0:
        properties["message_expiry_interval"] = stored.message_expiry_s
    return Message(
        stored.topic.decode("utf-8"),
        stored.payload,
        stored.qos,
        stored.retain,
        stored.client_id,
        stored.offset,
        _EPOCH + timedelta(microseconds=stored.timestamp_us),
        properties,
    )
