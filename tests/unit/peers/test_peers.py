"""Workers that speak to each other over real sockets: streams, channels, strangers, silence, and starts and stops."""

from __future__ import annotations

import asyncio
import functools
import inspect
import os
import resource
import socket
import tempfile
from collections.abc import Callable, Coroutine
from pathlib import Path
from random import Random

import pytest
import uvloop

from harness import Client, Harness, recover
from headrace.build import PURE, build
from headrace.core.homes import Homes
from headrace.core.ports.clock import Clock
from headrace.core.records.message import Message
from headrace.core.shards.neighbours import Neighbours
from headrace.core.shards.peer import Wire
from headrace.core.shards.queue_port import QueuePort
from headrace.core.shards.routes import Routes
from headrace.core.shards.stream_settings import StreamSettings
from headrace.core.state.wanted import WantedListener
from headrace.core.worker import Worker
from headrace.peers import peer_link
from headrace.peers.channel import Channel
from headrace.peers.peer_frames import FORMAT, HELLO, MAGIC, Greeting
from headrace.peers.peers import REFUSED_S, SHORTEST_S, STRANGERS_MAX, Follower, Peers, user_of
from headrace.storage.memory import ManualScheduler, MemoryJournal
from headrace.workers.place import Place

NODE = "0123456789abcdef" * 2
LONG_S = 60.0


class Crew(Harness):
    """One worker with its shards over journals in memory, and its peers."""

    def __init__(self, place: Place, journals: dict[int, MemoryJournal] | None = None) -> None:
        self.place = place
        self.owners = place.owners()
        self.journals = journals or {shard: MemoryJournal() for shard in self.owners.shards_of(place.index)}
        self.lines: list[str] = []
        super().__init__()

    def _open(self, bodies: list[bytes]) -> None:
        self.clock = Clock()
        self.worker = Worker(ManualScheduler(), self.clock, self.settings, Homes(self.place.shards))
        self._set_clock()
        for shard, journal in self.journals.items():
            broker = self.worker.own(shard, journal)
            neighbours = broker.join(journal, Routes(), StreamSettings())
            recover(broker.fold, journal.bodies, None)
            epoch = journal.next_offset()
            broker.sessions.absences.start()
            neighbours.begin(epoch)
        self.broker = self.worker.brokers[0]
        self.sync()
        self.peers = Peers(
            self.place, self.owners, self.worker, asyncio.get_running_loop(), self.lines.append
        )

    def sync(self) -> None:
        self.worker.end_tick()
        while not self.worker.idle:
            for broker in self.worker.brokers:
                journal = self.journals[broker.shard]
                journal.durable = len(journal.records)
                broker.commit.on_high_watermark(journal.durable)
            self.worker.end_tick()

    def again(self, place: Place | None = None) -> Crew:
        """Another process with what is durable of this one, which has died."""
        journals = {shard: MemoryJournal(journal.bodies) for shard, journal in self.journals.items()}
        return Crew(place or self.place, journals)

    def client_in(self, shard: int, prefix: str, **options: object) -> Client:
        names = (f"{prefix}{number}" for number in range(10_000))
        homes = self.worker.homes
        return self.client(next(n for n in names if homes.of_client("default", n) == shard), **options)

    def follows(self, *pairs: tuple[int, int]) -> bool:
        """Whether each of these (shard of this worker, other shard) is followed."""
        by_shard = {broker.shard: broker.neighbours for broker in self.worker.brokers}
        return all(by_shard[near].follows(far) for near, far in pairs)  # type: ignore[attr-defined]


class Town:
    """So many workers in one directory."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.crews: list[Crew] = []

    def place(self, index: int, workers: int = 2, shards: int = 2, run: int = 1) -> Place:
        return Place(index, workers, shards, self.directory, NODE, run)

    async def open(self, place: Place) -> Crew:
        crew = Crew(place)
        await self.start(crew)
        return crew

    async def start(self, crew: Crew) -> None:
        self.crews.append(crew)
        await crew.peers.start()

    async def pair(self) -> tuple[Crew, Crew]:
        """Two workers with a shard each, which follow each other."""
        first, second = await self.open(self.place(0)), await self.open(self.place(1))
        await self.until(lambda: first.follows((0, 1)) and second.follows((1, 0)))
        await self.settle()
        return first, second

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(LONG_S):
            while not condition():
                await self.settle(1)

    async def settle(self, passes: int = 20) -> None:
        for _ in range(passes):
            for crew in self.crews:
                crew.sync()
            await asyncio.sleep(0.001)


def in_town(test: Callable[..., Coroutine[None, None, None]]) -> Callable[..., None]:
    """Run a test on uvloop, as the broker does, with a town in a directory that is empty again at the end."""

    @functools.wraps(test)
    def run(*arguments: object, **named: object) -> None:
        uvloop.run(_run(test, *arguments, **named))

    signature = inspect.signature(test)
    given = [parameter for name, parameter in signature.parameters.items() if name != "town"]
    run.__signature__ = signature.replace(parameters=given)  # type: ignore[attr-defined]
    return run


async def _run(test: Callable[..., Coroutine[None, None, None]], *arguments: object, **named: object) -> None:
    with tempfile.TemporaryDirectory() as directory:  # short: the path of a Unix socket has 107 bytes
        town = Town(Path(directory))
        try:
            await test(town, *arguments, **named)
        finally:
            for crew in town.crews:
                await crew.peers.stop()
        assert os.listdir(directory) == []


def payloads(client: Client) -> list[bytes]:
    return [payload for _, payload, _, _ in client.publishes()]


def suback(client: Client) -> bool:
    return any(first >> 4 == 9 for first, _ in client.drain())


@pytest.mark.parametrize("qos", [0, 1, 2])
@in_town
async def test_what_is_published_at_one_worker_reaches_the_sessions_of_another(town: Town, qos: int) -> None:
    first, second = await town.pair()
    reader = second.client_in(1, "r", version=5)
    reader.subscribe("a/+", 2)
    await town.until(lambda: suback(reader))
    writer = first.client_in(0, "w")
    for number in range(50):
        writer.publish("a/b", b"%d" % number, qos)
    found: list[bytes] = []

    def complete() -> bool:
        found.extend(payloads(reader))
        return len(found) >= 50

    await town.until(complete)
    assert found == [b"%d" % number for number in range(50)]
    assert first.lines == ["linked to worker 1"]


@in_town
async def test_shards_of_one_worker_follow_each_other_without_a_socket(town: Town) -> None:
    crew = await town.open(Place.alone(3, NODE))
    await town.until(lambda: crew.follows((0, 1), (0, 2), (1, 0), (1, 2), (2, 0), (2, 1)))
    reader, writer = crew.client_in(2, "r"), crew.client_in(0, "w")
    reader.subscribe("#", 1)
    await town.until(lambda: suback(reader))
    writer.publish("a", b"x" * 300_000)
    await town.until(lambda: payloads(reader) == [b"x" * 300_000])
    assert os.listdir(town.directory) == []


@in_town
async def test_a_worker_that_died_is_found_again_and_nothing_is_lost_or_doubled(town: Town) -> None:
    first, second = await town.pair()
    reader = second.client_in(1, "r")
    reader.subscribe("a", 1)
    await town.until(lambda: suback(reader))
    writer = first.client_in(0, "w")
    writer.publish("a", b"1")
    await town.until(lambda: payloads(reader) == [b"1"])
    second.peers.abandon()
    town.crews.remove(second)
    await town.until(lambda: first.peers.links_up == 0)
    writer.publish("a", b"2")
    third = second.again(town.place(1, run=2))
    await town.start(third)
    await town.until(lambda: first.follows((0, 1)) and third.follows((1, 0)))
    writer.publish("a", b"3")
    back = third.client_in(1, "r")
    found: list[bytes] = []

    def complete() -> bool:
        found.extend(payloads(back))
        return len(set(found)) >= 3

    await town.until(complete)
    assert found == [b"1", b"2", b"3"], "the first was never acknowledged"
    assert [line.partition(":")[0] for line in first.lines] == [
        "linked to worker 1",
        "the link to worker 1 has ended (closed)",
        "linked to worker 1",
    ]


@in_town
async def test_a_wire_that_was_cut_is_opened_again(town: Town) -> None:
    first, second = await town.pair()
    neighbours = second.broker.neighbours
    assert isinstance(neighbours, Neighbours)
    taker = neighbours._takers[0]
    before = taker.wire
    taker.end()
    assert not second.follows((1, 0))
    await town.until(lambda: second.follows((1, 0)))
    assert taker.wire is not before
    assert first.peers.links_up == second.peers.links_up == 1


@pytest.mark.skipif(build() != PURE, reason="whoever speaks of queues is compiled there")
@in_town
async def test_a_wire_for_which_there_was_no_memory_is_opened_again(town: Town) -> None:
    class NoMemory(QueuePort):
        """Has none when a wire ends, so often; else speaks of no queues."""

        def __init__(self, times: int) -> None:
            self.left = times

        def cut(self, home: int) -> None:
            self.left -= 1
            if self.left >= 0:
                raise MemoryError

        def reached(self, home: int, wire: Wire) -> None: ...

        def closed(self, shard: int) -> None: ...

        def go_on(self) -> None: ...

        def on_timer(self) -> None: ...

        def may_have(self, message: Message) -> bool:
            return False

    first, second = await town.pair()
    neighbours = first.broker.neighbours
    assert isinstance(neighbours, Neighbours)
    neighbours._takers[1].end()
    neighbours.queues = port = NoMemory(2)
    first.peers._followers[0].due_s = 0.0
    first.peers._unfollowed = True
    await town.until(lambda: first.follows((0, 1)))
    assert port.left <= 0
    reader = first.client_in(0, "r")
    reader.subscribe("a", 1)
    await town.settle()
    second.client_in(1, "w").publish("a", b"x", 1)
    await town.settle()
    assert [payload for _, payload, *_ in reader.publishes()] == [b"x"]


class Refused:
    """A shard that follows another one."""

    def __init__(self) -> None:
        self.answered = False

    def was_answered(self, source: int) -> bool:
        return self.answered


def test_a_shard_that_is_refused_announces_its_filters_less_and_less_often() -> None:
    """However long it takes to read them all before it is told so; a wire that lasted is opened again at once."""
    near = Refused()
    follower = Follower(near, 1)  # type: ignore[arg-type]
    now_s, pauses = 1000.0, []
    for _ in range(12):
        follower.tried(now_s)
        pauses.append(follower.due_s - now_s)
        now_s = follower.due_s + 2 * REFUSED_S
    assert pauses[0] <= SHORTEST_S
    assert min(pauses[-3:]) >= REFUSED_S / 2
    near.answered = True
    follower.tried(now_s)
    assert follower.due_s - now_s <= SHORTEST_S


@in_town
async def test_a_shard_knows_whether_it_was_answered(town: Town) -> None:
    first, second = await town.pair()
    near, source = first.broker.neighbours, second.broker.neighbours
    assert isinstance(near, Neighbours)
    assert isinstance(source, Neighbours)
    assert near.was_answered(1)
    second.broker.fold.streams.followed[0] = 1 << 40  # it had more
    near._takers[1].end()
    await town.until(lambda: source.behind != {})
    await town.until(lambda: not first.follows((0, 1)))
    assert not near.was_answered(1)


@in_town
async def test_the_filters_of_all_pairs_of_shards_are_not_written_at_once(town: Town) -> None:
    """Else those of a million sessions end a link as too slow, again and again."""
    first, second = await town.open(town.place(0, shards=4)), await town.open(town.place(1, shards=4))
    await town.until(lambda: first.peers.links_up == second.peers.links_up == 1)
    pairs = [(near, far) for near in (0, 2) for far in (1, 3)]
    await town.until(lambda: first.follows(*pairs))
    await town.settle()
    bytes_each = 0
    for broker in first.worker.brokers:
        assert isinstance(broker.neighbours, Neighbours)
        wanted = broker.neighbours._wanted
        listener, wanted.listener = wanted.listener, WantedListener()
        for number in range(150):
            wanted.add("default", f"{number:060000}")
        wanted.listener = listener
        bytes_each = sum(len(name) for _, name in wanted.filters())
        for taker in broker.neighbours._takers.values():
            if taker.source % 2:
                taker.end()
    assert bytes_each > peer_link.HIGH_BYTES
    for follower in first.peers._followers:
        follower.due_s = 0.0
    first.peers._follow()
    transport = first.peers._links[1]._transport
    assert transport is not None
    assert bytes_each // 2 < transport.get_write_buffer_size() < 1.5 * bytes_each
    await town.until(lambda: first.follows(*pairs))
    assert first.peers.counts["slow"] == 0


@in_town
async def test_a_silent_worker_is_cut_off_and_nothing_is_begun_with_it_before(
    town: Town, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = await town.pair()
    await town.until(lambda: first.peers.links_up == 1)
    link = first.peers._links[1]
    for _ in range(peer_link.QUIET_TICKS + 1):
        link._ticks += 1  # as if that time had passed without a word
    assert link.quiet
    assert first.peers.is_silent(1)
    assert first.peers.open_channel(1, b"") is None
    taker = first.broker.neighbours._takers[1]  # type: ignore[attr-defined]
    taker.end()
    first.peers._follow()
    assert not first.follows((0, 1))
    await town.until(lambda: first.follows((0, 1)))  # its next heartbeat was heard
    assert first.peers.counts["silent"] == 0
    assert not first.peers.is_silent(1)
    link._ticks += peer_link.SILENT_TICKS + 1
    link.tick()
    assert first.peers.counts["silent"] == 1
    assert first.peers.is_silent(1)  # although the link is no more
    await town.until(lambda: first.follows((0, 1)) and second.follows((1, 0)))
    assert not first.peers.is_silent(1)


@in_town
async def test_channels_carry_bytes_both_ways(town: Town) -> None:
    first, second = await town.pair()
    opened: list[tuple[Channel, bytes]] = []
    came = bytearray()
    closed: list[str] = []

    def accept(channel: Channel, opening: bytes) -> None:
        opened.append((channel, opening))
        channel.on_bytes = channel.send  # type: ignore[assignment]
        channel.on_closed = lambda: closed.append("far")

    second.peers.accept = accept
    channel = first.peers.open_channel(1, b"who")
    assert channel is not None
    channel.on_bytes = came.extend
    data = bytes(range(256)) * 4096
    channel.send(data)
    await town.until(lambda: len(came) == len(data))
    assert came == data
    assert (opened[0][1], opened[0][0].peer, channel.peer) == (b"who", 0, 1)
    channel.close()
    await town.until(lambda: closed == ["far"])
    refused = first.peers.open_channel(1, b"")
    assert refused is not None
    second.peers.accept = None
    refused = second.peers.open_channel(0, b"nobody takes channels there")
    assert refused is not None
    refused.on_closed = lambda: closed.append("refused")
    await town.until(lambda: "refused" in closed)


@in_town
async def test_a_link_whose_numbers_are_all_used_is_replaced(town: Town) -> None:
    first, second = await town.pair()
    first.peers._links[1]._next = (1 << 31) + 1  # as if all that there are had been opened
    assert first.peers.open_channel(1, b"one more") is None
    assert first.lines[-1] == "the link to worker 1 has ended (stopped): all numbers of channels were used"
    await town.until(lambda: first.follows((0, 1)) and second.follows((1, 0)))
    assert first.peers.open_channel(1, b"one more") is not None


@in_town
async def test_a_wire_for_which_no_number_is_left_begins_on_a_new_link(town: Town) -> None:
    first, second = await town.pair()
    first.peers._links[1]._next = (1 << 31) + 1
    first.broker.neighbours._takers[1].end()  # type: ignore[attr-defined]
    await town.until(lambda: first.peers.counts["stopped"] == 1)
    await town.until(lambda: first.follows((0, 1)) and second.follows((1, 0)))


def hello(greeting: Greeting) -> bytes:
    body = greeting.encode()
    return (len(body) + 5).to_bytes(4, "little") + bytes([HELLO, 0, 0, 0, 0]) + body


GOOD = Greeting(0, 2, 2, 1, bytes.fromhex(NODE))
STRANGERS = {
    "oversized": b"GET / HTTP/1.1\r\n\r\n",
    "garbage": hello(GOOD).replace(MAGIC, b"HRQUEER\n"),
    "format": hello(GOOD).replace(MAGIC + bytes([FORMAT]), MAGIC + b"\x09"),
    "cluster": hello(Greeting(0, 2, 2, 1, bytes(16))),
    "worker": hello(Greeting(0, 3, 3, 1, bytes.fromhex(NODE))),
    "truncated": hello(GOOD)[:9],
}


@pytest.mark.parametrize("reason", STRANGERS)
@in_town
async def test_a_stranger_is_cut_off_counted_and_told_once(town: Town, reason: str) -> None:
    first, second = await town.pair()
    for _ in range(2):
        count = second.peers.counts[reason]
        with socket.socket(socket.AF_UNIX) as stranger:
            stranger.connect(second.peers.path)
            stranger.sendall(STRANGERS[reason])
            if reason == "truncated":
                stranger.shutdown(socket.SHUT_WR)
            await town.until(functools.partial(lambda before: second.peers.counts[reason] > before, count))
    assert len([line for line in second.lines if f"({reason})" in line]) == 1
    assert first.peers.links_up == second.peers.links_up == 1
    assert first.follows((0, 1)), "nobody else is harmed"
    assert second.follows((1, 0))


@in_town
async def test_a_worker_that_dials_as_another_one_is_refused(town: Town) -> None:
    first, second = await town.pair()
    with socket.socket(socket.AF_UNIX) as stranger:
        stranger.connect(second.peers.path)
        stranger.sendall(hello(Greeting(1, 2, 2, 1, bytes.fromhex(NODE))))
        await town.until(lambda: second.peers.counts["worker"] == 1)
    assert first.peers.links_up == second.peers.links_up == 1


class ShortOfMemory:
    """The loop, which has no memory for some connections."""

    def __init__(self, loop: asyncio.AbstractEventLoop, times: int) -> None:
        self.loop = loop
        self.left = times

    def __getattr__(self, name: str) -> object:
        return getattr(self.loop, name)

    async def create_unix_connection(self, *arguments: object) -> object:
        self.left -= 1
        if self.left >= 0:
            raise MemoryError
        return await self.loop.create_unix_connection(*arguments)  # type: ignore[arg-type]


@in_town
async def test_a_worker_is_dialled_again_for_whom_there_was_no_memory(town: Town) -> None:
    await town.open(town.place(1))
    first = Crew(town.place(0))
    first.peers._loop = loop = ShortOfMemory(asyncio.get_running_loop(), 2)  # type: ignore[assignment]
    await town.start(first)
    await town.until(lambda: first.follows((0, 1)))
    assert loop.left < 0
    await town.until(lambda: not first.peers._strangers)


@in_town
async def test_a_worker_that_is_not_there_yet_is_dialled_in_vain_and_nothing_is_left_of_it(
    town: Town,
) -> None:
    first = await town.open(town.place(0))
    await town.settle(500)
    second = await town.open(town.place(1))
    await town.until(lambda: first.follows((0, 1)) and second.follows((1, 0)))
    assert first.peers._strangers == set()
    await town.settle(500)
    assert first.lines == ["linked to worker 1"]
    assert sum(first.peers.counts.values()) == 0


class Wanting:
    """A loop that has no memory for a connection the first time."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self.wants = 1

    def __getattr__(self, name: str) -> object:
        return getattr(self._loop, name)

    async def create_unix_connection(self, *arguments: object) -> object:
        if self.wants:
            self.wants -= 1
            raise MemoryError
        return await self._loop.create_unix_connection(*arguments)  # type: ignore[arg-type]


@in_town
async def test_a_worker_is_dialled_again_whatever_was_raised(town: Town) -> None:
    first = Crew(town.place(0))
    first.peers._loop = Wanting(asyncio.get_running_loop())  # type: ignore[assignment]
    await town.start(first)
    second = await town.open(town.place(1))
    await town.until(lambda: first.follows((0, 1)) and second.follows((1, 0)))
    assert first.peers._strangers == set()
    assert first.peers._loop.wants == 0  # type: ignore[attr-defined]


@in_town
async def test_a_new_link_of_a_worker_replaces_the_old_one(town: Town) -> None:
    _, second = await town.pair()
    with socket.socket(socket.AF_UNIX) as other:
        other.connect(second.peers.path)
        other.sendall(hello(GOOD))
        await town.until(lambda: second.peers.counts["replaced"] == 1)
    await town.until(lambda: second.follows((1, 0)))


@in_town
async def test_too_many_who_do_not_say_who_they_are_are_turned_away(town: Town) -> None:
    _, second = await town.pair()
    strangers = [socket.socket(socket.AF_UNIX) for _ in range(STRANGERS_MAX + 5)]
    try:
        for stranger in strangers:
            stranger.connect(second.peers.path)
            await asyncio.sleep(0)
        await town.until(lambda: second.peers.counts["greeting"] >= 5)
        assert second.peers.links_up == 1
    finally:
        for stranger in strangers:
            stranger.close()


@in_town
async def test_a_process_of_another_user_is_refused(town: Town, monkeypatch: pytest.MonkeyPatch) -> None:
    _, second = await town.pair()
    monkeypatch.setattr(os, "geteuid", lambda: 4711)
    with socket.socket(socket.AF_UNIX) as stranger:
        stranger.connect(second.peers.path)
        await town.until(lambda: second.peers.counts["user"] == 1)
    assert second.peers.links_up == 1


def test_the_system_tells_who_is_at_the_other_side() -> None:
    near, far = socket.socketpair()
    with near, far:
        assert user_of(near.fileno()) == os.geteuid()
        os.fstat(near.fileno())  # the socket stays open


def test_who_is_at_the_other_side_can_be_told_without_a_free_descriptor() -> None:
    near, far = socket.socketpair()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with near, far:
        resource.setrlimit(resource.RLIMIT_NOFILE, (0, hard))
        try:
            with pytest.raises(OSError, match="Too many open files"):
                os.open(os.devnull, os.O_RDONLY)
            assert user_of(near.fileno()) == os.geteuid()
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@in_town
async def test_a_file_that_a_dead_worker_left_is_replaced(town: Town) -> None:
    path = town.directory / "peer-0.sock"
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))
    first, second = await town.open(town.place(0)), await town.open(town.place(1))
    await town.until(lambda: first.follows((0, 1)) and second.follows((1, 0)))


@in_town
async def test_four_workers_with_two_shards_each_follow_all_others(town: Town) -> None:
    crews = [await town.open(town.place(index, 4, 8)) for index in (3, 1, 0, 2)]

    def complete() -> bool:
        return all(
            crew.follows((near, far))
            for crew in crews
            for near in crew.owners.shards_of(crew.place.index)
            for far in range(8)
            if far != near
        )

    await town.until(complete)
    assert [crew.peers.links_up for crew in crews] == [3, 3, 3, 3]


@in_town
async def test_a_shard_that_is_ahead_of_another_is_told_once(town: Town) -> None:
    first, second = await town.pair()
    neighbours = first.broker.neighbours
    assert isinstance(neighbours, Neighbours)
    neighbours.ahead[1] = 70
    told = "shard 1 gets nothing of shard 0: it has taken that one's journal up to 70"
    await town.until(lambda: any(line.startswith(told) for line in first.lines))
    await town.settle(200)
    assert len([line for line in first.lines if line.startswith(told)]) == 1
    assert second.lines == ["linked to worker 0"]


@in_town
async def test_a_shard_that_has_less_of_another_than_it_had_is_told_of(town: Town) -> None:
    first, _ = await town.pair()
    neighbours = first.broker.neighbours
    assert isinstance(neighbours, Neighbours)
    neighbours.behind[1] = (30, 70)
    told = "shard 1 gets nothing of shard 0: it asks for that one's journal from 30 on, and had all up to 70"
    await town.until(lambda: any(line.startswith(told) for line in first.lines))


@pytest.mark.parametrize("follows", [True, False])
@in_town
async def test_a_shard_that_began_later_before_is_told_of(town: Town, follows: bool) -> None:
    first, _ = await town.pair()
    neighbours = first.broker.neighbours
    assert isinstance(neighbours, Neighbours)
    (neighbours.older_followers if follows else neighbours.older_sources)[1] = (30, 70)
    told = f"shard {int(follows)} gets nothing of shard {int(not follows)}: shard 1 has begun at offset 30"
    await town.until(lambda: any(line.startswith(told) for line in first.lines))


@in_town
async def test_whatever_breaks_meanwhile_nothing_is_lost_and_nothing_comes_twice(town: Town) -> None:
    """Links and wires end again and again, while clients of all shards publish for each other."""
    rng = Random(7)
    crews = [await town.open(town.place(index, 3, 3)) for index in range(3)]
    readers = [crew.client_in(shard, "r", version=5) for shard, crew in enumerate(crews)]
    for reader in readers:
        reader.subscribe("load/#", 1)
    await town.until(lambda: all(suback(reader) for reader in readers))
    writers = [crew.client_in(shard, "w") for shard, crew in enumerate(crews)]
    found: list[list[bytes]] = [[], [], []]
    for number in range(150):
        for shard, writer in enumerate(writers):
            writer.publish(f"load/{shard}", b"%d/%d" % (shard, number))
        if number % 5 == 0:
            await town.settle(rng.randrange(1, 8))
            break_something(rng, rng.choice(crews))
        for reader, kept in zip(readers, found, strict=True):
            kept += [payload for _, payload, _, _ in acknowledged(reader)]

    def complete() -> bool:
        for reader, kept in zip(readers, found, strict=True):
            kept += [payload for _, payload, _, _ in acknowledged(reader)]
        return all(len(kept) >= 450 for kept in found)

    await town.until(complete)
    for kept in found:
        by_shard = [[one for one in kept if one.startswith(b"%d/" % shard)] for shard in range(3)]
        assert by_shard == [[b"%d/%d" % (shard, number) for number in range(150)] for shard in range(3)]
    assert sum(crew.peers.counts["closed"] for crew in crews) >= 3


def acknowledged(client: Client) -> list[tuple[int, bytes, bool, int]]:
    """What was delivered, acknowledged."""
    packets = client.publishes()
    for packet_id, _, _, _ in packets:
        client.ack(packet_id)
    return packets


def break_something(rng: Random, crew: Crew) -> None:
    links = list(crew.peers._links.values())
    if links and rng.random() < 0.4:
        rng.choice(links).end("closed")
        return
    neighbours = crew.broker.neighbours
    assert isinstance(neighbours, Neighbours)
    for taker in neighbours._takers.values():
        if rng.random() < 0.5:
            taker.end()


def test_the_loop_of_the_standard_library_serves_as_well() -> None:
    async def test(town: Town) -> None:
        first, second = await town.pair()
        reader = second.client_in(1, "r")
        reader.subscribe("#", 1)
        await town.until(lambda: suback(reader))
        first.client_in(0, "w").publish("a", b"x" * 500_000)
        await town.until(lambda: payloads(reader) == [b"x" * 500_000])

    asyncio.run(_run(test))
