"""Workers of one data directory, each a process with a listener of its own and without a supervisor: a client goes to the
worker of its home, so what it publishes for others has to pass between them."""

from __future__ import annotations

import shutil
import signal
import tempfile
from collections.abc import Mapping
from pathlib import Path

from broker_process import PYTHON, BrokerProcess, wait_until
from headrace.core.homes import Homes
from headrace.core.ports.identity import DEFAULT_TENANT
from headrace.data.layout import Layout
from headrace.workers.place import Place

LINK_S = 60.0
RUN = """
import sys
import uvloop
from headrace.commands.logs import set_up_logs
from headrace.config import load
from headrace.node.node import Node
from headrace.workers.place import Place

async def main():
    return await Node(config, place=Place.unpack(sys.argv[1])).run()

config = load(sets=sys.argv[2:])
set_up_logs(config)
sys.exit(uvloop.run(main()))
"""


class Worker(BrokerProcess):
    """One worker, `run` by `run`."""

    def __init__(
        self,
        folder: Path,
        layout: Layout,
        index: int,
        workers: int,
        runtime: Path,
        settings: Mapping[str, object] | None = None,
    ) -> None:
        super().__init__(folder, settings)
        self.data_dir = layout.path
        self.runs = 0
        self.layout, self.index, self.workers, self.runtime = layout, index, workers, runtime

    def command(self) -> list[str]:
        self.runs += 1
        layout = self.layout
        place = Place(self.index, self.workers, layout.shards, self.runtime, layout.node, self.runs)
        settings = [
            f"data_dir={layout.path}",
            f"listeners=tcp://127.0.0.1:{self.port}",
            f"admin=http://127.0.0.1:{self.admin_port}",
            *(f"{key}={value}" for key, value in self.settings.items()),
        ]
        return [PYTHON, "-c", RUN, place.pack(), *settings]

    def pause(self) -> None:
        """SIGSTOP."""
        assert self.process is not None
        self.process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        """SIGCONT."""
        assert self.process is not None
        self.process.send_signal(signal.SIGCONT)

    def end(self) -> None:
        if self.running:
            self.resume()
        super().end()

    @property
    def links(self) -> float:
        return self.metrics()["headrace_worker_links"]

    def streams_up(self) -> float:
        """How many other shards follow those of this worker."""
        return sum(value for name, value in self.metrics().items() if name.startswith("headrace_stream_up{"))


class Crew:
    """All workers, and names that are at home where a test wants them."""

    def __init__(
        self, folder: Path, workers: int, shards: int, settings: Mapping[str, object] | None = None
    ) -> None:
        self.layout = Layout.make(folder / "data", shards)
        self.homes = Homes(shards)
        self.runtime = Path(tempfile.mkdtemp(prefix="hr-"))  # short: the path of a Unix socket has 107 bytes
        self.workers = [
            Worker(folder / f"worker-{index}", self.layout, index, workers, self.runtime, settings)
            for index in range(workers)
        ]

    def start(self) -> None:
        for worker in self.workers:
            worker.start()
        self.wait_linked()

    def wait_linked(self) -> None:
        """Until each shard is followed by all others."""
        others = self.layout.shards - 1
        for worker in self.workers:
            own = len(range(worker.index, self.layout.shards, len(self.workers)))
            wait_until(
                lambda worker=worker, own=own: worker.streams_up() == own * others,  # type: ignore[misc]
                f"all follow the shards of worker {worker.index}",
                LINK_S,
            )

    def name_in(self, shard: int, prefix: str) -> str:
        names = (f"{prefix}{number}" for number in range(10_000))
        return next(name for name in names if self.homes.of_client(DEFAULT_TENANT, name) == shard)

    def check(self) -> None:
        """A traceback of one fails the test."""
        for worker in self.workers:
            assert not worker.trouble, worker.trouble

    def end(self) -> None:
        try:
            for worker in self.workers:
                worker.end()
        finally:
            shutil.rmtree(self.runtime, ignore_errors=True)
