"""A node inside a program: it starts, serves and ends in the program's loop, and a start that fails holds nothing."""

from __future__ import annotations

import asyncio
import sys
from contextlib import AsyncExitStack
from pathlib import Path

import aiomqtt
import msgspec
import pytest

from headrace.address import locate
from headrace.config import Config, QueuesConfig
from headrace.core.homes import Homes
from headrace.data.layout import Layout
from headrace.errors import ConfigError
from headrace.journal.log import LogSettings, SegmentedLog
from headrace.node.node import Node
from headrace.workers.place import Place


def config(data_dir: Path, *listeners: str) -> Config:
    return Config(data_dir=str(data_dir), listeners=listeners, admin="")


def test_it_serves_until_it_is_stopped(tmp_path: Path) -> None:
    async def life() -> int:
        node = Node(config(tmp_path, "tcp://127.0.0.1:0"), owns_process=False)
        running = asyncio.create_task(node.run())
        await node.ready.wait()
        node.stop()
        return await running

    for _ in range(2):  # the second one opens what the first one left
        assert asyncio.run(life()) == 0


def test_it_serves_several_shards(tmp_path: Path) -> None:
    async def life() -> tuple[int, list[int]]:
        node = Node(
            Config(data_dir=str(tmp_path), shards=3, listeners=("tcp://127.0.0.1:0",)), owns_process=False
        )
        running = asyncio.create_task(node.run())
        await node.ready.wait()
        watermarks = [shard.storage.high_watermark for shard in node.shards]
        node.stop()
        return await running, watermarks

    for start in range(1, 3):
        assert asyncio.run(life()) == (0, [start] * 3)
    assert sorted(path.name for path in tmp_path.glob("shard*")) == [
        "shard-0",
        "shard-1",
        "shard-2",
        "shards.json",
    ]


def test_a_shard_that_cannot_be_opened_gives_up_the_others(tmp_path: Path) -> None:
    layout = Layout.make(tmp_path, 2)
    (layout.directory(1) / "journal").write_text("in the way")

    async def fail() -> None:
        Node(Config(data_dir=str(tmp_path), listeners=("tcp://127.0.0.1:0",)), owns_process=False)

    for _ in range(2):
        with pytest.raises(OSError, match=r"data_dir: .*shard-1/journal"):
            asyncio.run(fail())
    SegmentedLog.open(layout.directory(0), LogSettings(), print).close()


def test_another_number_of_shards_is_refused(tmp_path: Path) -> None:
    Layout.make(tmp_path, 2)

    async def fail() -> None:
        Node(Config(data_dir=str(tmp_path), shards=3), owns_process=False)

    with pytest.raises(ConfigError, match=r"^shards: 3, but"):
        asyncio.run(fail())


def test_a_worker_makes_no_journal_where_the_shards_of_its_node_were(tmp_path: Path) -> None:
    layout = Layout.make(tmp_path / "data", 2)
    place = Place(0, 2, 2, tmp_path, layout.node, 2)
    layout.path.rename(tmp_path / "moved")

    async def fail() -> None:
        Node(config(layout.path, "tcp://127.0.0.1:0"), place=place)

    with pytest.raises(ConfigError, match="was it moved"):
        asyncio.run(fail())
    assert not layout.path.exists()


def test_a_start_that_fails_gives_up_the_data_directory(tmp_path: Path) -> None:
    async def fail() -> None:
        nowhere = f"unix://{tmp_path}/no/such/folder/socket"
        await Node(config(tmp_path / "data", nowhere), owns_process=False).run()

    for _ in range(2):  # the second one would not get a lock that is held
        with pytest.raises((OSError, ConfigError), match="listeners"):
            asyncio.run(fail())


def test_a_store_that_cannot_be_used_gives_up_the_data_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "headrace.stores.redis.store", None)  # as if hiredis were not installed
    queues = QueuesConfig(device="redis://127.0.0.1:1")

    async def fail() -> None:
        Node(
            msgspec.structs.replace(config(tmp_path / "data", "tcp://127.0.0.1:0"), queues=queues),
            owns_process=False,
        )

    for _ in range(2):  # the second one would not get a lock that is held
        with pytest.raises(ConfigError, match=r"queues\.device: a Redis needs hiredis"):
            asyncio.run(fail())


def test_a_message_reaches_a_client_of_another_shard(tmp_path: Path) -> None:
    """Publisher and subscribers are at home in different shards of one worker."""

    async def life(names: list[str]) -> list[object]:
        node = Node(
            Config(data_dir=str(tmp_path), shards=3, listeners=("tcp://127.0.0.1:0",)), owns_process=False
        )
        running = asyncio.create_task(node.run())
        await node.ready.wait()
        location = locate(node._doors.urls[0], {"tcp": 0})
        got: list[object] = []
        async with asyncio.timeout(60), AsyncExitStack() as stack:
            clients = [
                await stack.enter_async_context(aiomqtt.Client(location.host, location.port, identifier=name))
                for name in names
            ]
            for client in clients:
                await client.subscribe("plant/+", qos=1)
            await clients[0].publish("plant/boiler", b"71.5", qos=1)
            got += [(await anext(aiter(client.messages))).payload for client in clients]
        node.stop()
        await running
        return got

    homes = Homes(3)
    names = [
        next(f"c{n}" for n in range(99) if homes.of_client("default", f"c{n}") == home) for home in range(3)
    ]
    assert asyncio.run(life(names)) == [b"71.5"] * 3


def test_a_broker_inside_a_program_is_one_worker(tmp_path: Path) -> None:
    async def fail() -> None:
        Node(Config(data_dir=str(tmp_path / "data"), workers=2), owns_process=False)

    with pytest.raises(ConfigError, match=r"^workers: a broker inside a program is one worker"):
        asyncio.run(fail())
    assert not (tmp_path / "data").exists()


@pytest.mark.parametrize("owned", [False, True])
def test_what_the_loop_cannot_do_for_want_of_memory_is_contained(tmp_path: Path, owned: bool) -> None:
    """It reads again what tells of a signal; a program around the broker has a handler of its own."""

    async def life() -> tuple[int, list[object]]:
        loop = asyncio.get_running_loop()
        heard: list[object] = []
        if owned:
            loop.set_exception_handler(lambda _, context: heard.append(context["exception"]))
        node = Node(config(tmp_path, "tcp://127.0.0.1:0"), owns_process=False)
        running = asyncio.create_task(node.run())
        await node.ready.wait()
        loop.call_exception_handler({"message": "Exception in callback", "exception": MemoryError()})
        node.stop()
        await running
        return node.worker.failures.counts["loop"], heard

    count, heard = asyncio.run(life())
    assert count == (0 if owned else 1)
    assert [type(one) for one in heard] == ([MemoryError] if owned else [])
