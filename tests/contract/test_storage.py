"""What every storage of a shard behind `ShardStorage` does: segments in a directory, a partition, the one in memory."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from harness import message
from headrace.core.homes import Homes
from headrace.core.ports.clock import Clock
from headrace.core.ports.settings import BrokerSettings
from headrace.core.records.message import Message
from headrace.core.worker import Worker
from headrace.journal.log import LogSettings
from headrace.services.ticks import LoopScheduler
from headrace.services.watchdog import Watchdog
from headrace.storage.embedded.storage import EmbeddedSettings, EmbeddedStorage, Listening
from headrace.storage.kafka.storage import KafkaStorage
from headrace.storage.memory_storage import MemoryStorage
from headrace.storage.port import Recovered, ShardStorage, StorageEvents
from kafka_partition import FakeShard

DEADLINE_S = 10.0


class Place:
    """Where a storage keeps what it has, from one owner to the next."""

    def open(self) -> ShardStorage:
        raise NotImplementedError


class Folder(Place):
    def __init__(self, path: Path) -> None:
        self.path = path

    def open(self) -> ShardStorage:
        settings = EmbeddedSettings(LogSettings(segment_bytes_max=4096), 1 << 40, 3600.0)
        return EmbeddedStorage(self.path, settings, Listening(print, lambda _: None, Watchdog()))


class Memory(Place):
    def __init__(self) -> None:
        self.storage = MemoryStorage()

    def open(self) -> ShardStorage:
        self.storage = MemoryStorage(self.storage.batches)
        return self.storage


class Partition(Place):
    """A partition, and a machine with its cache; `emptied`: each owner is on a machine of its own."""

    def __init__(self, path: Path, emptied: bool) -> None:
        self.path = path
        self.emptied = emptied
        self.owners = 0
        self.partition = FakeShard()

    def open(self) -> ShardStorage:
        self.owners += 1
        folder = self.path / (str(self.owners) if self.emptied else "one")
        return KafkaStorage(self.partition.settings("w"), folder, print)


@pytest.fixture(params=["embedded", "memory", "kafka", "kafka-emptied"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    if request.param == "memory":
        return Memory()
    if request.param == "embedded":
        return Folder(tmp_path)
    return Partition(tmp_path, emptied=request.param == "kafka-emptied")


class Owner:
    """A broker over a storage, without a node: it notes what it hears."""

    def __init__(self, storage: ShardStorage) -> None:
        self.storage = storage
        self.heard: list[int] = []
        clock = Clock()
        clock.now_us = 1_790_000_000_000_000
        scheduler = LoopScheduler(asyncio.get_running_loop(), Watchdog())
        self.worker = Worker(scheduler, clock, BrokerSettings(), Homes())
        scheduler.end_tick = self.worker.end_tick
        self.broker = self.worker.own(0, storage.journal)
        self.found: Recovered = storage.recover(self.broker, print)
        self.epoch = storage.start(StorageEvents(self.durable, self.failed, self.full), None)

    def durable(self, high_watermark: int) -> None:
        assert self.storage.high_watermark >= high_watermark
        self.heard.append(high_watermark)
        self.broker.commit.on_high_watermark(high_watermark)

    def failed(self, error: BaseException) -> None:
        raise AssertionError(error)

    def full(self, reason: str, for_space: bool) -> None:
        raise AssertionError((reason, for_space))

    async def append(self, *payloads: bytes) -> None:
        """Append messages, and wait until they are durable."""
        for payload in payloads:
            self.broker.commit.append(message(payload=payload))
        self.worker.end_tick()
        deadline = time.monotonic() + DEADLINE_S
        while not self.broker.idle:
            assert time.monotonic() < deadline
            await asyncio.sleep(0.001)


def owned(place: Place, look: Callable[[Owner], Awaitable[None]]) -> None:
    """Own what is there, look at it, and give it up."""

    async def life() -> None:
        storage = place.open()
        try:
            await look(Owner(storage))
        finally:
            storage.close()

    asyncio.run(life())


def test_what_is_appended_becomes_durable_in_order(place: Place) -> None:
    async def look(owner: Owner) -> None:
        for count in range(5):
            await owner.append(*[b"x"] * count)
        assert owner.heard == sorted(owner.heard)
        assert owner.heard[-1] == owner.storage.high_watermark == 10

    owned(place, look)


def test_the_next_owner_finds_what_was_durable(place: Place) -> None:
    async def write(owner: Owner) -> None:
        await owner.append(b"one", b"two")
        await owner.append(b"three")

    async def read(owner: Owner) -> None:
        assert owner.found.replayed == 3
        assert owner.storage.high_watermark == 3
        found = [owner.storage.journal.fetch(offset) for offset in range(3)]
        payloads = [one.payload for one in found if isinstance(one, Message)]
        assert payloads == [b"one", b"two", b"three"]

    owned(place, write)
    owned(place, read)


def test_an_owner_that_has_others_beside_it_finds_the_same_in_slices(place: Place) -> None:
    async def write(owner: Owner) -> None:
        for _ in range(6):
            await owner.append(*[b"x" * 20] * 400)

    found: list[tuple[object, int]] = []

    async def adopt() -> None:
        storage = place.open()
        worker = Worker(
            LoopScheduler(asyncio.get_running_loop(), Watchdog()), Clock(), BrokerSettings(), Homes()
        )
        slices = storage.recovering(worker.prepare(0, storage.journal), print)
        passes = 0
        while True:
            try:
                next(slices)
                passes += 1
            except StopIteration as end:
                found.append((end.value, passes))
                break
        assert worker.brokers == []
        storage.close()

    owned(place, write)
    asyncio.run(adopt())
    ((said, passes),) = found
    assert isinstance(said, Recovered)
    assert said.replayed == 2400
    assert passes > 1


def test_what_a_process_gives_up_and_lives_on_is_closed_on_another_thread_and_opened_again(
    place: Place,
) -> None:
    async def life() -> None:
        for count in range(3):
            owner = Owner(place.open())
            assert owner.found.replayed == count
            await owner.append(b"x")
            owner.storage.unwatch()
            await asyncio.to_thread(owner.storage.close)

    asyncio.run(life())


def test_an_owner_behind_one_that_wrote_something_has_a_higher_epoch(place: Place) -> None:
    epochs: list[int] = []

    async def look(owner: Owner) -> None:
        epochs.append(owner.epoch)
        await owner.append(b"x")

    for _ in range(3):
        owned(place, look)
    assert epochs == sorted(set(epochs))


def test_the_name_is_the_same_for_every_owner(place: Place) -> None:
    names: list[tuple[str, bytes]] = []

    async def look(owner: Owner) -> None:
        first = message()
        first.offset = 0
        names.append((owner.storage.uuid, owner.found.name.id_of(first)))
        await owner.append(b"x")

    owned(place, look)
    owned(place, look)
    assert names[0] == names[1]
    assert names[0][0]


def test_a_snapshot_loses_nothing_and_may_be_taken_at_any_time(place: Place) -> None:
    async def write(owner: Owner) -> None:
        await owner.append(*[b"x" * 1000] * 10)
        await owner.storage.snapshot()
        await owner.append(b"behind it")
        await owner.storage.keep_small()

    async def read(owner: Owner) -> None:
        last = owner.storage.journal.fetch(10)
        assert isinstance(last, Message)
        assert last.payload == b"behind it"

    owned(place, write)
    owned(place, read)


def test_it_says_how_much_lies_behind_an_offset(place: Place) -> None:
    async def look(owner: Owner) -> None:
        await owner.append(b"one", b"two", b"three")
        assert [owner.storage.behind(offset)[0] for offset in (0, 2, 3, 9)] == [3, 1, 0, 0]

    owned(place, look)


def test_it_holds_no_more_once_it_is_given_up(place: Place) -> None:
    async def life() -> None:
        for _ in range(3):
            storage = place.open()
            Owner(storage)
            storage.close()

    asyncio.run(life())
