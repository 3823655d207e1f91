"""Several shards over one store: each hears its own answers. The contract of all stores holds for a share, too."""

from __future__ import annotations

from headrace.core.ports.clock import Clock
from headrace.core.ports.queue_store import QueueName
from headrace.core.storing.notes import StoreNotes, StoringSettings
from headrace.core.storing.stored_queue import StoredQueue, Waiting
from headrace.core.storing.storing import Storing
from headrace.stores.memory import MemoryStore
from headrace.stores.sharing import SharedStore


class Ten(Waiting):
    """Ten entries that wait."""

    def newest(self) -> int:
        return 10

    def entries(self, first: int, count: int, bytes_max: int) -> list[bytes]:
        return [b"%d" % serial for serial in range(first, first + count)]


class Noted(StoreNotes):
    """What a shard writes down."""

    def __init__(self) -> None:
        self.stored_up_to = 0

    def stored(self, queue: StoredQueue, generation: int, first: int, up_to: int) -> None:
        self.stored_up_to = up_to


def test_shards_hear_their_own_answers_and_a_closed_one_none() -> None:
    store = MemoryStore()
    shared = SharedStore(store)
    shares = [shared.share() for _ in range(3)]
    notes = [Noted() for _ in shares]
    clock = Clock()
    for number, share in enumerate(shares):
        storing = Storing(share, notes[number], clock, StoringSettings(f"0{number}", 1000))
        storing.begin(StoredQueue("t", "c", 7, Ten()))
        storing.run()
    shares[1].close()
    store.deliver()
    assert [note.stored_up_to for note in notes] == [10, 0, 10]
    assert set(store.streams) == {QueueName("t", "c", f"0{number}", 1, 7) for number in range(3)}
    again = shared.share()
    assert again.number == 3


def test_every_shard_hears_that_a_primary_is_lost() -> None:
    store = MemoryStore()
    shared = SharedStore(store)
    shards = []
    for number in range(2):
        notes = Noted()
        storing = Storing(shared.share(), notes, Clock(), StoringSettings(f"0{number}", 1000))
        queue = StoredQueue("t", "c", 7, Ten())
        storing.begin(queue)
        storing.run()
        store.deliver()
        shards.append((storing, queue))
    store.wipe()
    store.deliver()
    for storing, queue in shards:
        storing.run()
        assert storing.counters.compared == 1
        store.deliver()
        assert queue.stream is None or queue.stream.generation == 2
