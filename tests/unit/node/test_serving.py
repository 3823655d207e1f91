"""A supervisor of workers: what it hands on to those that are started later, and what it leaves for them."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from headrace.api.server import Bounds
from headrace.config import Config, LimitsConfig, load
from headrace.data.claim import Claim, Wish
from headrace.node.serving import ADMIN_CONNECTIONS_MAX, SupervisedNode, admin_connections_max
from headrace.workers.runtime import CONFIG, Runtime


def config(data_dir: Path, messages_per_s: int) -> Config:
    return Config(data_dir=str(data_dir), workers=2, limits=LimitsConfig(messages_per_s=messages_per_s))


def test_a_configuration_that_could_not_be_handed_on_counts_for_no_worker(tmp_path: Path) -> None:
    """The disk of the runtime directory may be full when SIGHUP comes, and have room when a worker is started again."""
    folder = tmp_path / "run"
    folder.mkdir(mode=0o700)

    def handed_on() -> int:
        return load(folder / CONFIG, [], {}).limits.messages_per_s

    async def life() -> None:
        claim = Claim(tmp_path / "data", Wish(2))
        runtime = Runtime(folder)
        now = [100]
        try:
            node = SupervisedNode(
                config(tmp_path / "data", 100),
                lambda: config(tmp_path / "data", now[0]),
                claim,
                runtime,
                Bounds(),
            )
            node._write_config()
            now = [7]
            (folder / "config.new").mkdir()
            node._reload()
            assert handed_on() == 100
            (folder / "config.new").rmdir()
            node._write_config()  # as before each start of a worker
            assert handed_on() == 100
            node._reload()
            assert handed_on() == 7
        finally:
            claim.close()
            runtime.close()

    asyncio.run(life())


@pytest.mark.parametrize(("descriptors", "workers"), [(64, 2), (100, 8), (256, 16), (1024, 64), (1 << 20, 1)])
def test_strangers_at_the_admin_address_leave_descriptors_for_workers(descriptors: int, workers: int) -> None:
    most = admin_connections_max(descriptors, workers)
    assert 1 <= most <= ADMIN_CONNECTIONS_MAX
    assert 20 + 3 * workers + most <= descriptors


def test_few_descriptors_and_many_workers_leave_one_connection_to_the_admin_address() -> None:
    assert admin_connections_max(64, 40) == 1
    assert admin_connections_max(20_000, 8) == ADMIN_CONNECTIONS_MAX
