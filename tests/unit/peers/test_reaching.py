"""A worker is found again when another program has removed the files that others find it by."""

from __future__ import annotations

import asyncio
import os
import socket
from pathlib import Path

import pytest
from prometheus_client.registry import CollectorRegistry

from headrace.api.admin import Admin
from headrace.api.app import application, bind_unix
from headrace.api.server import Bounds
from headrace.peers.reaching import Reaching
from headrace.services.node_counts import NodeCounts
from headrace.workers.overview import ask, socket_of
from headrace.workers.place import Place
from machine import Machine, connect_packet, run, until


class Bench:
    """Two workers, of which the second has an admin address and looks after its files."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir()
        self.folder = folder
        self.machine = Machine(folder, ["tcp://127.0.0.1:0"])
        self.lines: list[str] = []
        self.admin = Admin(lambda: None)

    async def open(self) -> None:
        machine, folder = self.machine, self.folder
        await machine.open()
        self.path = socket_of(folder, 1)
        app = application(lambda: "", CollectorRegistry())
        await self.admin.open(bind_unix(self.path), "", app, lambda _what, _why: None, Bounds())
        second = machine.workers[1]
        self.counts = second.counts
        self.reaching = Reaching(
            Place(1, 2, 2, folder, "", 1),
            second.peers,
            second.handover,
            self.admin,
            [self.counts],
            self.lines.append,
        )

    async def close(self) -> None:
        await self.admin.close()
        await self.machine.close()

    def files(self) -> set[str]:
        return {name for name in os.listdir(self.folder) if name.endswith("-1.sock") or name == "counts"}

    async def connects(self) -> bytes:
        """What a client of the second worker gets that comes to the first one."""
        port = int(self.machine.workers[0].ports[0])
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(connect_packet(self.machine.name_at(1)))
        found = await reader.readexactly(4)
        writer.close()
        return found


def test_what_was_removed_is_made_anew_and_links_stay(tmp_path: Path) -> None:
    async def body() -> None:
        bench = Bench(tmp_path / "run")
        await bench.open()
        names = bench.files()
        assert len(names) == 4
        first, second = bench.machine.workers
        links = [first.peers._links[1], second.peers._links[0]]
        bench.counts.set(7, 3)
        for name in names:
            (bench.folder / name).unlink()
        await bench.reaching.look()
        assert bench.files() == names
        assert [first.peers._links[1], second.peers._links[0]] == links
        assert NodeCounts(bench.folder / "counts", 0, 2).others(7) == 3
        assert await bench.connects() == bytes([0x20, 2, 0, 0])
        answer = await asyncio.to_thread(ask, bench.path, "GET", "/readyz")
        assert answer.status == 200
        links[0].end("stopped")
        await until(lambda: first.peers.links_up == second.peers.links_up == 1)  # dialled anew
        before = {name: os.stat(bench.folder / name).st_ino for name in names}
        await bench.reaching.look()  # it leaves alone what is there
        assert {name: os.stat(bench.folder / name).st_ino for name in names} == before
        assert bench.lines == []
        await bench.close()

    run(body)


def test_a_directory_that_is_gone_is_waited_for_and_what_fails_is_told_once(tmp_path: Path) -> None:
    async def body() -> None:
        bench = Bench(tmp_path / "run")
        await bench.open()
        names = bench.files()
        away = tmp_path / "away"
        bench.folder.rename(away)
        await bench.reaching.look()
        assert bench.lines == []
        bench.folder.mkdir()
        blocking = bench.folder / "hand-1.sock"
        blocking.mkdir()
        for _ in range(2):
            with pytest.raises(OSError, match="hand-1") as failed:
                await bench.reaching.look()
            bench.reaching.failed(failed.value)
        assert len(bench.lines) == 1
        blocking.rmdir()
        await bench.reaching.look()
        assert bench.files() == names
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as strange:
            (bench.folder / "peer-1.sock").unlink()
            strange.bind(str(bench.folder / "peer-1.sock"))  # somebody else's in its place
            await bench.reaching.look()
        bench.machine.workers[0].peers._links[1].end("stopped")
        await until(lambda: bench.machine.workers[0].peers.links_up == 0)
        await bench.close()

    run(body)
