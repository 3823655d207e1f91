"""What the journal was offered to keep in memory: in the end, what somebody waits for."""

from __future__ import annotations

from harness import Client, Harness
from headrace.core.broker import Broker
from headrace.core.interfaces import Absent, JournalPort
from headrace.core.message import Message
from headrace.stores.memory import ManualScheduler, MemoryJournal


class Offered(JournalPort):
    """Passes on to `MemoryJournal`, and keeps the records."""

    def __init__(self) -> None:
        super().__init__()
        self.memory = MemoryJournal()
        self.batches: list[list[object]] = []

    def next_offset(self) -> int:
        return self.memory.next_offset()

    def append(
        self, body: bytes, records: list[object], first_timestamp_us: int, max_timestamp_us: int
    ) -> None:
        self.batches.append(records)
        self.memory.append(body, records, first_timestamp_us, max_timestamp_us)

    def fetch(self, offset: int) -> Message | Absent:
        return self.memory.fetch(offset)

    def payloads(self) -> list[bytes]:
        """Those that are kept."""
        return [record.payload for batch in self.batches for record in batch if isinstance(record, Message)]


def test_a_message_is_let_go_when_it_has_left_to_all_who_get_it() -> None:
    harness = Harness()
    offered = Offered()
    harness.journal = offered.memory
    harness.broker = Broker(offered, ManualScheduler(), harness.clock, harness.settings)
    harness.broker.sessions.start()
    harness.sync()
    here, away = harness.client("here"), harness.client("away")
    here.subscribe("t/#")
    away.subscribe("t/away")
    group = harness.client("member")
    group.subscribe("$share/g/t/group")
    group.link.window = 0
    away.lose_unsynced()
    publisher: Client = harness.client("p", clean=True)
    publisher.publish("t/warm", b"first", sync=False)  # the limit of a new session is on its way
    harness.sync()
    offered.batches.clear()
    for topic in ("here", "away", "group"):
        publisher.publish(f"t/{topic}", topic.encode(), sync=False)
    harness.broker.end_tick()
    assert offered.payloads() == [b"here", b"away", b"group"]
    harness.sync()
    assert offered.payloads() == [b"away", b"group"]
    assert [payload for _, payload, _, _ in here.publishes()] == [b"first", b"here", b"away", b"group"]
