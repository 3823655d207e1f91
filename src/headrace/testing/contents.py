"""What a broker's data directory holds, for the one who tests an application: messages, who is there, who wants what.

Read from outside, up to the published high watermark, whether or not the broker runs: what is seen here was made
durable, and survives a kill.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import NamedTuple

from headrace.core.ports.identity import DEFAULT_TENANT
from headrace.core.records.message import Message as Stored
from headrace.core.records.message import decode_batch
from headrace.core.state.session import Session
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
    """The contents of a data directory; each call looks at the files as they are then. Safe in any one thread."""

    def __init__(self, data_dir: Path) -> None:
        self._data_dir = data_dir
        self._reader = JournalReader(data_dir)
        self._messages: list[Message] = []
        self._next_offset = 0

    def messages(self, topic: str = "#") -> list[Message]:
        """Return the messages whose topic matches the filter `topic`, in the journal's order; QoS 0 is not
        journaled."""
        self._read_on()
        return [message for message in self._messages if topic == "#" or matches(topic, message.topic)]

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
        topics = sorted({message.topic for message in self.messages()})
        return (
            f"the journal holds {len(self._messages)} messages, on {', '.join(topics) or 'no topic'}; "
            f"clients: {', '.join(clients) or 'none'}"
        )

    def _is_connected(self, client_id: str) -> bool:
        return any(s.client_id == client_id and s.closed_at_us == 0 for s in self._sessions())

    def _sessions(self) -> list[Session]:
        try:
            return list(folded(self._data_dir).tenant(DEFAULT_TENANT).sessions.values())
        except NoJournal:
            return []

    def _read_on(self) -> None:
        """Take note of the messages since the last time."""
        try:
            end = self._reader.high_watermark()
            start = max(self._next_offset, self._reader.start_offset())
            for batch in self._reader.scan(start, end):
                records = decode_batch(bytes(batch.body), batch.base_offset)
                stored = [record for record in records if isinstance(record, Stored)]
                self._messages += [_message(record) for record in stored if record.offset >= start]
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
