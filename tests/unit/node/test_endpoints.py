"""The admin address of a node whose shards are several, in one worker."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import Request, urlopen

from headrace.config import Config, JournalConfig
from headrace.node.node import Node


def get(url: str) -> str:
    with urlopen(Request(url, headers={"Authorization": "Bearer secret"}), timeout=60) as answer:
        return str(answer.read().decode())


def answers(tmp_path: Path, shards: int, paths: list[str]) -> list[str]:
    """What a node with so many shards answers; the status where it is an error."""
    (tmp_path / "tokens").write_text("secret\n")
    config = Config(
        data_dir=str(tmp_path / "data"),
        shards=shards,
        listeners=("tcp://127.0.0.1:0",),
        admin="http://127.0.0.1:0",
        journal=JournalConfig(token_file=str(tmp_path / "tokens")),
    )

    async def life() -> list[str]:
        node = Node(config, owns_process=False)
        running = asyncio.create_task(node.run())
        await node.ready.wait()
        found = []
        for path in paths:
            try:
                found.append(await asyncio.to_thread(get, node._admin.url + path))
            except HTTPError as error:
                found.append(str(error.code))
        node.stop()
        await running
        return found

    return asyncio.run(life())


def test_several_shards_are_told_apart(tmp_path: Path) -> None:
    paths = [
        "/readyz",
        "/metrics",
        "/v1/journal/shards/2/",
        "/v1/journal/",
        "/v1/clients/behind",
        "/v1/clusters",
    ]
    ready, metrics, journal, old, clients, clusters = answers(tmp_path, 3, paths)
    assert ready == "ready\n"
    for shard in range(3):
        for name in ("high_watermark", "size_bytes", "start_offset"):
            assert f'headrace_journal_{name}{{shard="{shard}"}}' in metrics
    assert "headrace_connections 0.0" in metrics
    assert json.loads(journal)["high_watermark"] == 1
    assert old == "409"
    assert json.loads(clients) == {"clients": []}
    assert json.loads(clusters) == {"rows": [], "next": "1.0.-1"}  # a page is of one shard


def test_one_shard_is_what_it_was(tmp_path: Path) -> None:
    metrics, journal, other = answers(tmp_path, 1, ["/metrics", "/v1/journal/", "/v1/journal/shards/1/"])
    assert "headrace_journal_high_watermark 1.0" in metrics
    assert "shard=" not in metrics
    assert json.loads(journal)["high_watermark"] == 1
    assert other == "404"
