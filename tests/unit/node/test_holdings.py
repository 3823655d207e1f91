"""Shards of a running node are given up and taken, on purpose and because a journal has failed; the others serve on."""

from __future__ import annotations

import asyncio
import errno
import gc
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import urlopen

import aiomqtt
import pytest

from headrace.address import locate
from headrace.config import Config
from headrace.core.homes import Homes
from headrace.journal.errors import JournalMoved
from headrace.node.node import Node
from headrace.storage.port import ShardStorage
from headrace.workers.owners import NOBODY

pytestmark = pytest.mark.usefixtures("others_left_nothing")
LONG_S = 60.0
BROKEN = OSError(errno.EIO, "no such luck")
OURS = ("Broker", "Fold", "GroupCommit", "Neighbours", "OwnedShard", "SegmentedLog", "Session", "Timers")


def name_in(shard: int, prefix: str = "c", shards: int = 3) -> str:
    homes = Homes(shards)
    return next(f"{prefix}{n}" for n in range(99) if homes.of_client("default", f"{prefix}{n}") == shard)


class Client(aiomqtt.Client):
    """A client of a node, with a session that stays."""

    def __init__(self, node: Node, name: str) -> None:
        at = locate(node._doors.urls[0], {"tcp": 0})
        super().__init__(at.host, at.port, identifier=name, clean_session=False)

    async def next(self) -> object:
        return (await anext(aiter(self.messages))).payload


def lived(tmp_path: Path, test: Callable[[Node], Awaitable[None]], shards: int = 3) -> int:
    """Let a node of so many shards live through a test; returns its exit status."""

    async def life() -> int:
        urls = {"listeners": ("tcp://127.0.0.1:0",), "admin": "http://127.0.0.1:0"}
        node = Node(Config(data_dir=str(tmp_path), shards=shards, **urls), owns_process=False)  # type: ignore[arg-type]
        running = asyncio.create_task(node.run())
        await node.ready.wait()
        try:
            async with asyncio.timeout(LONG_S):
                await test(node)
        finally:
            node.stop()
            status = await running
        return status

    return asyncio.run(life())


async def until(condition: Callable[[], bool]) -> None:
    while not condition():
        await asyncio.sleep(0.01)


async def said(node: Node, path: str) -> str:
    def get() -> str:
        try:
            with urlopen(node._admin.url + path, timeout=LONG_S) as answer:
                return str(answer.read().decode())
        except HTTPError as error:
            return str(error.read().decode())

    return await asyncio.to_thread(get)


def owned(node: Node) -> list[int]:
    return sorted(shard.number for shard in node.shards)


def census() -> Counter[str]:
    gc.collect()
    return Counter(type(one).__name__ for one in gc.get_objects() if type(one).__name__ in OURS)


def test_what_is_published_while_a_shard_is_away_reaches_its_sessions_when_it_is_taken_again(
    tmp_path: Path,
) -> None:
    async def test(node: Node) -> None:
        async with Client(node, name_in(1)) as reader:
            await reader.subscribe("t", qos=1)
        async with Client(node, name_in(0)) as writer:
            await node._holdings.give_up(1)
            assert owned(node) == [0, 2]
            assert node.owners.of(1) == NOBODY
            await writer.publish("t", b"x", qos=1)
            with pytest.raises(aiomqtt.MqttError):
                await Client(node, name_in(1)).__aenter__()
            metrics = await said(node, "/metrics")
            assert 'headrace_journal_high_watermark{shard="1"}' not in metrics
            assert 'headrace_journal_high_watermark{shard="2"}' in metrics
            await node._holdings.take(1)
            assert owned(node) == [0, 1, 2]
            assert node.owners.of(1) == 0
            async with Client(node, name_in(1)) as reader:
                assert await reader.next() == b"x"
                await writer.publish("t", b"y", qos=1)
                assert await reader.next() == b"y"
            assert 'headrace_journal_high_watermark{shard="1"}' in await said(node, "/metrics")
            await until(lambda: node.trouble == "")
            assert await said(node, "/readyz") == "ready\n"

    assert lived(tmp_path, test) == 0


def test_a_shard_whose_journal_fails_is_named_and_taken_again_while_the_others_serve(tmp_path: Path) -> None:
    async def test(node: Node) -> None:
        opened = node._holdings._storages
        holdings, may_open = node._holdings, asyncio.Event()

        def locked(number: int) -> ShardStorage:
            if not may_open.is_set():
                raise OSError(errno.EIO, "the disk is away")
            return opened(number)

        holdings._storages = locked
        async with Client(node, name_in(1)) as reader:
            await reader.subscribe("t", qos=1)
        async with Client(node, name_in(2)) as other, Client(node, name_in(0)) as writer:
            await other.subscribe("t", qos=1)
            victim = Client(node, name_in(1, "v"))
            await victim.__aenter__()
            next(shard for shard in node.shards if shard.number == 1)._fail(BROKEN)
            assert "shard 1: journal failed: [Errno 5] no such luck" in await said(node, "/readyz")
            with pytest.raises(aiomqtt.MqttError):
                await victim.next()
            await until(lambda: owned(node) == [0, 2])
            await writer.publish("t", b"on", qos=1)
            assert await other.next() == b"on"
            await until(lambda: "the disk is away" in node.trouble)
            assert "shard 1: [Errno 5] the disk is away" in await said(node, "/readyz")
            may_open.set()
            await until(lambda: node.trouble == "")
            async with Client(node, name_in(1)) as reader:
                assert await reader.next() == b"on"
        assert not node.failed

    assert lived(tmp_path, test) == 0


def test_who_owns_nothing_else_ends(tmp_path: Path) -> None:
    async def test(node: Node) -> None:
        node.shards[0]._fail(BROKEN)
        assert node._stopping.is_set()

    assert lived(tmp_path / "one", test, 1) == 1


def test_who_ends_for_a_journal_that_was_moved_has_a_status_of_its_own(tmp_path: Path) -> None:
    """Another start would begin anew in its place."""

    async def alone(node: Node) -> None:
        node.shards[0]._fail(JournalMoved("it was removed"))

    async def at_first(node: Node) -> None:
        first, second = node.shards
        first._fail(JournalMoved("it was removed"))
        second._fail(BROKEN)

    async def at_last(node: Node) -> None:
        first, second = node.shards
        first._fail(BROKEN)
        second._fail(JournalMoved("it was removed"))

    assert lived(tmp_path / "one", alone, 1) == 3
    assert lived(tmp_path / "first", at_first, 2) == 3
    assert lived(tmp_path / "last", at_last, 2) == 3


def test_in_a_cluster_a_shard_whose_journal_ends_goes_alone_and_is_told_of(tmp_path: Path) -> None:
    async def test(node: Node) -> None:
        gone: list[tuple[int, str]] = []
        node._holdings.gone = lambda shard, why: gone.append((shard, why))
        for shard in list(node.shards):
            shard.lose(BROKEN)
            shard.lose(BROKEN)
        await until(lambda: len(gone) == 3)
        assert {shard for shard, _ in gone} == {0, 1, 2}
        assert all(str(BROKEN) in why for _, why in gone)
        assert (owned(node), node.trouble, node._stopping.is_set()) == ([], "", False)

    assert lived(tmp_path, test) == 0


def test_a_node_ends_when_all_of_its_journals_have_failed(tmp_path: Path) -> None:
    async def test(node: Node) -> None:
        first, second = node.shards
        first._fail(BROKEN)
        assert not node._stopping.is_set()
        second._fail(BROKEN)
        assert node._stopping.is_set()

    assert lived(tmp_path, test, 2) == 1


@pytest.mark.interpreted
def test_nothing_of_a_shard_is_left_in_the_process(tmp_path: Path) -> None:
    async def test(node: Node) -> None:
        async with Client(node, name_in(0)) as writer:
            for _ in range(2):
                async with Client(node, name_in(1)) as reader:
                    await reader.subscribe("t/#", qos=1)
                    await writer.publish("t/1", b"x", qos=1)
                    await reader.next()
                before = census()
                await node._holdings.give_up(1)
                await asyncio.sleep(0.2)  # sockets close, and so does what was asked on other threads
                left = census()
                for kind in OURS[:-2]:
                    assert left[kind] == before[kind] * 2 // 3, kind
                await node._holdings.take(1)

    assert lived(tmp_path, test) == 0
