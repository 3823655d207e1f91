"""Topic queues of two workers: devices, MQTT clients and consumers at both, and each of the workers killed with -9."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

from broker_process import free_port, headrace
from e2e.device import Device
from e2e.raw import RawClient
from e2e.test_workers import Workers, workers
from e2e.test_workers import until as wait_until
from headrace.clients.frame import Consumer, Message, Producer
from headrace.core.homes import Homes

pytestmark = [pytest.mark.slow, pytest.mark.skipif("__import__('broker_process').UNDER_AUDIT != 'headrace'")]
HOMES = Homes(2)
SOON: dict[str, Any] = {"shortest_pause_s": 0.02, "longest_pause_s": 0.2}
DEADLINE_S = 60.0


def topic_in(shard: int, prefix: str) -> str:
    return next(f"{prefix}{n}" for n in range(99) if HOMES.of_topic("default", f"{prefix}{n}") == shard)


def name_in(shard: int, prefix: str) -> str:
    return next(f"{prefix}{n}" for n in range(99) if HOMES.of_client("default", f"{prefix}{n}") == shard)


async def until(condition: Any) -> None:
    async with asyncio.timeout(DEADLINE_S):
        while not condition():
            await asyncio.sleep(0.01)


def rows(node: Workers, tokens: Path) -> list[dict[str, Any]]:
    """What `headrace frame clusters` shows."""
    admin = f"http://127.0.0.1:{node.admin_port}"
    done = headrace("frame", "clusters", "--json", "--admin", admin, "--token-file", str(tokens))
    assert (done.returncode, done.stderr) == (0, "")
    return [json.loads(line) for line in done.stdout.splitlines()]


def options(folder: Path, port: int) -> list[str]:
    (folder / "tokens").write_text("read public\n")
    settings = {"frames.visibility_s": 600, "journal.token_file": folder / "tokens"}
    sets = [part for key, value in settings.items() for part in ("--set", f"{key}={value}")]
    return ["--workers", "2", "--listen", f"frame://127.0.0.1:{port}", *sets]


def kill(node: Workers, worker: int) -> None:
    """SIGKILL; the supervisor starts another one."""
    before = node.pids[worker]
    os.kill(before, signal.SIGKILL)
    wait_until(lambda: node.pids.get(worker, before) != before, "another process")


class Log:
    """A consumer that notes what it was given, in order."""

    def __init__(self, port: int, topic: str, sn: str) -> None:
        self.consumer = Consumer(f"frame://127.0.0.1:{port}", topic, "log", sn=sn, pool=2, **SOON)
        self.got: list[Message] = []
        self.consumer.handler(self._note)

    async def _note(self, message: Message) -> None:
        self.got.append(message)


@pytest.mark.asyncio
@pytest.mark.parametrize("home", [pytest.param(0, marks=pytest.mark.deep), 1])
async def test_whichever_worker_is_killed_every_message_is_handled_and_acknowledged(
    tmp_path: Path, home: int
) -> None:
    port, topic = free_port(), topic_in(home, "locks/")
    address = f"frame://127.0.0.1:{port}"
    with workers(tmp_path, *options(tmp_path, port)) as node:
        node.start()
        logs = [Log(port, topic, name_in(shard, "service")) for shard in range(2)]
        running = [asyncio.ensure_future(log.consumer.run()) for log in logs]
        published: dict[bytes, bytes] = {}
        sent = 0
        producers = [Producer(address, name_in(shard, "door"), **SOON) for shard in range(2)]
        async with producers[0], producers[1]:

            async def publish(count: int) -> None:
                nonlocal sent
                payloads = [b"%d" % number for number in range(sent, sent + count)]
                sent += count
                waits = [producers[n % 2].publish(topic, payload) for n, payload in enumerate(payloads)]
                published.update(zip(await asyncio.gather(*waits), payloads, strict=True))

            async with asyncio.timeout(DEADLINE_S):
                while not all(log.got for log in logs):  # each has a part in it
                    await publish(20)
            for worker in (home, 1 - home):
                sending = asyncio.ensure_future(publish(200))
                await asyncio.to_thread(kill, node, worker)
                await sending
        await asyncio.to_thread(wait_until, lambda: node.get("/readyz") == "ready\n", "ready")
        for shard in range(2):
            with RawClient(("127.0.0.1", node.port), name_in(shard, "mqtt")) as client:
                client.connect()
                client.publish(topic, b"mqtt %d" % shard, qos=1)
        await until(lambda: len({message.message_id for log in logs for message in log.got}) == sent + 2)
        tokens = tmp_path / "tokens"
        await asyncio.to_thread(wait_until, lambda: rows(node, tokens)[0]["lag"] == 0, "acknowledged")
        for log in logs:
            log.consumer.stop()
        await asyncio.gather(*running)
        times: dict[bytes, list[Message]] = defaultdict(list)
        for log in logs:
            for message in log.got:
                times[message.message_id].append(message)
        by_devices = {found: one[0].payload for found, one in times.items() if found in published}
        assert by_devices == published
        others = sorted(one[0].payload for found, one in times.items() if found not in published)
        assert others == [b"mqtt 0", b"mqtt 1"]
        assert all(sum(not message.redelivered for message in one) <= 1 for one in times.values())
        [row] = await asyncio.to_thread(rows, node, tokens)
        assert (row["topic"], row["cluster"], row["messages"]) == (topic, "log", sent + 2)
        assert (row["lag"], row["consumers"]) == (0, 0)
        assert node.stop() == 0
    assert "Traceback" not in node.log


def test_consumers_of_one_connection_read_queues_of_both_workers(tmp_path: Path) -> None:
    port, topics = free_port(), [topic_in(shard, "meters/") for shard in range(2)]
    with workers(tmp_path, *options(tmp_path, port)) as node:
        node.start()
        with Device(port, b"reader") as reader, Device(port, b"meter") as meter:
            for topic in topics:
                assert reader.join(topic, "bill") == 0
            for seq, topic in enumerate(topics * 3):
                meter.publish(seq, topic, b"%d" % seq)
            for shard, topic in enumerate(topics):
                found: list[int] = []
                while len(found) < 3:
                    got = reader.pull(topic, "bill", 3 - len(found), 60_000)
                    found += [int(message.payload) for message in got]
                    assert reader.ack(topic, "bill", *(message.message_id for message in got)) == 0
                assert found == [shard, shard + 2, shard + 4]
            shown = rows(node, tmp_path / "tokens")
        told = [
            (row["topic"], row["cluster"], row["messages"], row["lag"], row["consumers"]) for row in shown
        ]
        assert told == [(topic, "bill", 3, 0, 1) for topic in topics]
        assert node.stop() == 0
    assert "Traceback" not in node.log
