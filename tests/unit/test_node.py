"""A node inside a program: it starts, serves and ends in the program's loop, and a start that fails holds nothing."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from headrace.config import Config
from headrace.errors import ConfigError
from headrace.node import Node


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


def test_a_start_that_fails_gives_up_the_data_directory(tmp_path: Path) -> None:
    async def fail() -> None:
        nowhere = f"unix://{tmp_path}/no/such/folder/socket"
        await Node(config(tmp_path / "data", nowhere), owns_process=False).run()

    for _ in range(2):  # the second one would not get a lock that is held
        with pytest.raises((OSError, ConfigError), match="listeners"):
            asyncio.run(fail())
