"""A node of several worker processes: it starts, serves over all of them, survives the death of any, and stops."""

from __future__ import annotations

import asyncio
import fcntl
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import AsyncExitStack, ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import aiomqtt
import pytest

from broker_process import headrace
from e2e.device import Device
from headrace.core.homes import Homes
from headrace.core.state.session import BRIDGE_PREFIX
from headrace.testing.ports import free_port

pytestmark = pytest.mark.slow

PATIENCE_S = 60.0


def until(condition: Callable[[], object], what: str) -> None:
    """Wait for it."""
    end = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < end, f"{what}: not within {PATIENCE_S} s"
        time.sleep(0.05)


def serve(folder: Path, *options: str, files: str = "") -> subprocess.Popen[bytes]:
    """Start `headrace serve` in a folder of its own; its log is `log` there. `files`: how many it may have open."""
    folder.mkdir(exist_ok=True)
    command = ["sh", "-c", f'ulimit -n {files}; exec "$@"', "sh"] if files else []
    command += [sys.executable, "-m", "headrace", "serve", "--data-dir", str(folder / "data"), *options]
    with (folder / "log").open("ab") as log:
        return subprocess.Popen(command, stderr=log, stdout=log)


class Workers:
    """A node with workers, which a test may kill in parts."""

    files = ""

    def __init__(self, folder: Path, *options: str) -> None:
        self.folder, self.options = folder, options
        self.port, self.admin_port = free_port(), free_port()
        self.unix = folder / "s"
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        self.begin()
        until(lambda: self.lines("ready ", "promise=") or self.over(), "ready")
        assert not self.over(), self.log

    def begin(self) -> None:
        self.seen = len(self.log)
        addresses = ["--listen", f"tcp://127.0.0.1:{self.port}", "--listen", f"unix://{self.unix}"]
        admin = ["--admin", f"http://127.0.0.1:{self.admin_port}"]
        self.process = serve(self.folder, *addresses, *admin, *self.options, files=self.files)

    @property
    def log(self) -> str:
        file = self.folder / "log"
        return file.read_text() if file.exists() else ""

    def lines(self, *words: str) -> list[str]:
        """The lines of the newest life that hold all of these words."""
        said = self.log[self.seen :].splitlines()
        return [line for line in said if all(word in line for word in words)]

    def over(self) -> bool:
        assert self.process is not None
        return self.process.poll() is not None

    @property
    def pids(self) -> dict[int, int]:
        """The pid of each worker that there is."""
        assert self.process is not None
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split()
        found = {}
        for pid in children:
            place = re.search(r'"index": ([0-9]+)', Path(f"/proc/{pid}/cmdline").read_bytes().decode())
            if place:
                found[int(place[1])] = int(pid)
        return found

    @property
    def runtime(self) -> Path:
        """The directory that its processes have between them."""
        command = Path(f"/proc/{self.pids[1]}/cmdline").read_text().split("\0")
        return Path(command[command.index("--config") + 1]).parent

    def get(self, path: str) -> str:
        """What the admin address answers: the body, or of an error its detail."""
        try:
            with urllib.request.urlopen(
                f"http://127.0.0.1:{self.admin_port}{path}", timeout=PATIENCE_S
            ) as found:
                return str(found.read().decode())
        except urllib.error.HTTPError as error:
            return str(json.loads(error.read())["detail"])

    def ask(self, path: str, body: bytes | None = None) -> Any:
        """What the admin address answers to who has a token. Raises HTTPError."""
        asked = urllib.request.Request(
            f"http://127.0.0.1:{self.admin_port}{path}", body, {"Authorization": "Bearer secret"}
        )
        with urllib.request.urlopen(asked, timeout=PATIENCE_S) as found:
            return json.loads(found.read())

    def send(self, number: signal.Signals) -> None:
        assert self.process is not None
        self.process.send_signal(number)

    def stop(self) -> int:
        assert self.process is not None
        self.send(signal.SIGTERM)
        return self.process.wait(PATIENCE_S)

    def end(self) -> None:
        """Whatever is left of it goes."""
        if self.process is None:
            return
        pids = [] if self.over() else list(self.pids.values())
        self.process.kill()
        self.process.wait()
        until(lambda: all(is_dead(pid) for pid in pids), "the end of its workers")


def is_dead(pid: int) -> bool:
    """Whether a process that nobody has waited for has ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return True


@contextmanager
def workers(folder: Path, *options: str) -> Iterator[Workers]:
    node = Workers(folder, *options)
    try:
        yield node
    finally:
        node.end()


def accepts(port: int) -> bool:
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_S):
            return True
    except ConnectionRefusedError:
        return False


def test_workers_start_answer_for_one_node_and_stop(tmp_path: Path) -> None:
    with workers(tmp_path, "--workers", "2") as node:
        node.start()
        assert sorted(node.pids) == [0, 1]
        assert accepts(node.port)
        assert node.get("/readyz") == "ready\n"
        metrics = node.get("/metrics")
        for number in range(2):
            assert f'headrace_journal_high_watermark{{shard="{number}"}}' in metrics
            assert f'headrace_worker_up{{worker="{number}"}} 1.0' in metrics
            assert f'process_open_fds{{worker="{number}"}}' in metrics
            assert node.lines("worker ready", f"shards=[{number}]", f"worker={number}")
        assert metrics.count("headrace_build_info{") == 1
        pids = node.pids
        assert node.stop() == 0
        assert all(is_dead(pid) for pid in pids.values())
        assert not node.unix.exists()
        assert not accepts(node.port)
        assert len(node.lines("stopped", "clean=True")) == 3
        node.start()  # the same data, ports and socket
        assert node.stop() == 0


def test_a_worker_that_is_killed_comes_back_while_the_others_go_on(tmp_path: Path) -> None:
    with workers(tmp_path, "--workers", "2") as node:
        node.start()
        before = node.pids
        config = node.runtime / "config.toml"
        with pytest.raises(BlockingIOError):  # so that systemd-tmpfiles leaves it alone
            fcntl.flock(os.open(config.parent, os.O_RDONLY), fcntl.LOCK_EX | fcntl.LOCK_NB)
        config.unlink()  # as other programs do that clean up in /tmp
        os.kill(before[1], signal.SIGKILL)
        until(
            lambda: node.lines("a worker has ended; it is started again", "worker=1", "status=-9"), "the end"
        )
        assert accepts(node.port)
        until(lambda: node.pids.get(1, before[1]) != before[1], "another process")
        assert node.pids[0] == before[0]
        until(lambda: node.get("/readyz") == "ready\n", "ready again")
        assert 'headrace_worker_restarts_total{worker="1"} 1.0' in node.get("/metrics")
        assert node.stop() == 0


@pytest.mark.parametrize("removed", ["directory", pytest.param("files", marks=pytest.mark.deep)])
def test_a_runtime_directory_that_others_clean_up_is_made_again(tmp_path: Path, removed: str) -> None:
    """Not ready until then; workers that are started again, and connections that change workers, find each other."""
    names = spread_names(8)

    async def serves(node: Workers) -> None:
        async with asyncio.timeout(PATIENCE_S), AsyncExitStack() as stack:
            clients = [
                await stack.enter_async_context(aiomqtt.Client("127.0.0.1", node.port, identifier=name))
                for name in names
            ]
            for client in clients:
                await client.subscribe("t", qos=1)
            await clients[0].publish("t", b"x", qos=1)
            for client in clients:
                assert await got(client, 1) == [b"x"]

    with workers(tmp_path, "--workers", "2") as node:
        node.start()
        runtime = node.runtime
        names_of_files = sorted(os.listdir(runtime))
        for _ in range(2):
            if removed == "directory":
                shutil.rmtree(runtime)
            else:
                for file in runtime.iterdir():
                    file.unlink()
            assert "was removed by another program" in node.get("/readyz")
            until(lambda: node.get("/readyz") == "ready\n", "ready again")
            asyncio.run(serves(node))
        until(lambda: sorted(os.listdir(runtime)) == names_of_files, "everything is there again")
        before = node.pids[1]
        os.kill(before, signal.SIGKILL)
        until(lambda: node.lines("worker serves again", "worker=1"), "another process")
        until(lambda: node.get("/readyz") == "ready\n", "ready again")
        asyncio.run(serves(node))
        assert node.stop() == 0
        assert not runtime.exists()


async def connected(node: Workers, name: str, stack: AsyncExitStack) -> aiomqtt.Client:
    """A client with a session that stays, once the worker of its home is there."""
    end = time.monotonic() + PATIENCE_S
    options: dict[str, Any] = {"clean_session": False, "protocol": aiomqtt.ProtocolVersion.V311}
    while True:
        client = aiomqtt.Client("127.0.0.1", node.port, identifier=name, **options)
        try:
            return await stack.enter_async_context(client)
        except aiomqtt.MqttError:
            assert time.monotonic() < end, f"{name} cannot connect"
            await asyncio.sleep(0.1)


async def got(client: aiomqtt.Client, count: int) -> list[object]:
    messages = aiter(client.messages)
    return [(await anext(messages)).payload for _ in range(count)]


def test_every_client_comes_to_its_home_wherever_it_connects(tmp_path: Path) -> None:
    """Publisher and subscriber in all pairs of two workers; then one worker dies, and its sessions go on."""
    homes = Homes(2)
    names = [
        [f"c{n}" for n in range(40) if homes.of_client("default", f"c{n}") == home][:3] for home in range(2)
    ]

    async def before(node: Workers) -> None:
        async with asyncio.timeout(PATIENCE_S), AsyncExitStack() as stack:
            clients = [await connected(node, name, stack) for name in (*names[0], *names[1])]
            for client in clients:
                await client.subscribe("plant/+", qos=1)
            for number, client in enumerate(clients):
                await client.publish(f"plant/{number}", f"m{number}", qos=1)
            for client in clients:
                assert sorted(str(one) for one in await got(client, 6)) == [f"b'm{n}'" for n in range(6)]

    async def after(node: Workers) -> None:
        async with asyncio.timeout(PATIENCE_S), AsyncExitStack() as stack:
            publisher = await connected(node, names[0][0], stack)
            await publisher.publish("plant/late", "late", qos=1)
            for name in (*names[0][1:], *names[1]):
                client = await connected(node, name, stack)
                while await got(client, 1) != [b"late"]:
                    pass  # one that was acknowledged just before the kill may come again

    with workers(tmp_path, "--workers", "2") as node:
        node.start()
        asyncio.run(before(node))
        os.kill(node.pids[1], signal.SIGKILL)
        asyncio.run(after(node))
        assert node.stop() == 0


def test_what_is_published_at_qos_0_right_after_ready_arrives(tmp_path: Path) -> None:
    """Ready means that each shard looks for what the others want; so it is again when a worker was started again."""

    async def exchange(node: Workers) -> None:
        async with asyncio.timeout(PATIENCE_S), AsyncExitStack() as stack:
            clients = [await connected(node, name, stack) for name in names]
            for client in clients:
                await client.subscribe("t")
            for number in range(50):
                for client in clients:
                    await client.publish("t", str(number), qos=0)
            expected = sorted(str(number).encode() for number in range(50) for _ in clients)
            for client in clients:
                assert sorted(await got(client, 50 * len(clients))) == expected  # type: ignore[type-var]

    homes = Homes(4)
    names = [
        next(f"c{n}" for n in range(99) if homes.of_client("default", f"c{n}") == home) for home in range(4)
    ]
    with workers(tmp_path, "--workers", "4") as node:
        node.start()
        asyncio.run(exchange(node))
        os.kill(node.pids[1], signal.SIGKILL)
        until(lambda: node.get("/readyz").startswith("worker 1: "), "it has ended")
        until(lambda: node.get("/readyz") == "ready\n", "ready again")
        asyncio.run(exchange(node))
        assert node.stop() == 0


def spread_names(count: int) -> list[str]:
    """So many client ids, one after the other at home in two workers."""
    homes = Homes(2)
    of_each = [
        [f"c{n}" for n in range(99) if homes.of_client("default", f"c{n}") == home] for home in range(2)
    ]
    return [of_each[n % 2][n // 2] for n in range(count)]


def sign_in(node: Workers, name: str, user: str) -> int:
    """The return code of a CONNECT 3.1.1 with this user and a password; -1: the connection was closed before."""
    body = b"\0\4MQTT\4\xc2\0\0"
    for text in (name, user, "a guess"):
        body += len(text).to_bytes(2, "big") + text.encode()
    with socket.create_connection(("127.0.0.1", node.port), timeout=PATIENCE_S) as client:
        try:
            client.sendall(bytes([0x10, len(body)]) + body)
            said = client.recv(4, socket.MSG_WAITALL)
        except ConnectionError:
            return -1
    return said[3] if said else -1


def test_failed_logins_at_different_workers_ban_an_address_from_all_of_them(tmp_path: Path) -> None:
    (tmp_path / "passwords").touch()
    options = [f"access.password_file={tmp_path}/passwords", "access.ban_after_failures=4"]
    with workers(tmp_path, "--workers", "2", *(word for one in options for word in ("--set", one))) as node:
        node.start()
        assert [sign_in(node, name, "eve") for name in spread_names(8)] == [5] * 4 + [-1] * 4
        before = node.pids
        for pid in before.values():
            os.kill(pid, signal.SIGKILL)
        until(lambda: len(node.lines("worker serves again")) == 2, "both workers again")
        assert [sign_in(node, name, "eve") for name in spread_names(4)] == [-1] * 4  # it outlives them


def test_connections_of_a_worker_that_stays_away_keep_nobody_out(tmp_path: Path) -> None:
    """What it held is gone; until its shard can be opened again it has nothing, and the others may have all."""
    names = spread_names(6)
    homes = Homes(2)
    first, second = (
        [name for name in names if homes.of_client("default", name) == shard] for shard in range(2)
    )
    assert len(first) == len(second) == 3

    async def fill(node: Workers) -> None:
        async with asyncio.timeout(2 * PATIENCE_S), AsyncExitStack() as stack:
            for name in second:
                await connected(node, name, stack)
            (tmp_path / "data" / "shard-1" / "shard.json").rename(tmp_path / "shard.json")
            os.kill(node.pids[1], signal.SIGKILL)
            until(lambda: len(node.lines("a worker has ended", "worker=1")) > 1, "it cannot come back")
            assert node.get("/readyz").startswith("worker 1: ")
            for name in first:  # `connected` tries again while it is refused
                await connected(node, name, stack)

    with workers(tmp_path, "--workers", "2", "--set", "limits.connections_max=3") as node:
        node.start()
        asyncio.run(fill(node))
        (tmp_path / "shard.json").rename(tmp_path / "data" / "shard-1" / "shard.json")
        until(lambda: node.get("/readyz") == "ready\n", "ready again")
        assert node.stop() == 0


def test_subscriptions_of_a_user_count_over_all_workers(tmp_path: Path) -> None:
    async def subscribe(node: Workers, names: list[str]) -> list[int]:
        codes = []
        async with asyncio.timeout(PATIENCE_S), AsyncExitStack() as stack:
            for number, name in enumerate(names):
                client = aiomqtt.Client("127.0.0.1", node.port, identifier=name, username="ada",
                                        clean_session=False, protocol=aiomqtt.ProtocolVersion.V311)  # fmt: skip
                await stack.enter_async_context(client)
                granted = await client.subscribe(f"t/{number}", qos=1)
                codes += [code if isinstance(code, int) else code.value for code in granted]
        return codes

    names = spread_names(6)
    with workers(tmp_path, "--workers", "2", "--set", "limits.user_subscriptions_max=4") as node:
        node.start()
        assert asyncio.run(subscribe(node, names)) == [1, 1, 1, 1, 0x80, 0x80]
        assert node.stop() == 0
        node.start()  # what sessions have left is counted again
        assert asyncio.run(subscribe(node, names[::-1])) == [0x80, 0x80, 0x80, 0x80, 0x80, 0x80]


def test_devices_of_a_user_count_over_all_workers_also_while_one_recovers(tmp_path: Path) -> None:
    passwords, port = tmp_path / "passwords", free_port()
    assert headrace("passwd", str(passwords), "hub", "-b", "secret").returncode == 0

    def hello(name: str) -> int:
        with Device(port, name.encode()) as device:
            return device.hello("hub", "secret")

    names = spread_names(6)
    options = [f"access.password_file={passwords}", "frames.user_devices_max=3"]
    more = [word for one in options for word in ("--set", one)]
    with workers(tmp_path, "--workers", "2", "--listen", f"frame://127.0.0.1:{port}", *more) as node:
        node.start()
        assert [hello(name) for name in names] == [0, 0, 0, 0x97, 0x97, 0x97]
        for pid in node.pids.values():
            os.kill(pid, signal.SIGKILL)
        until(lambda: len(node.lines("worker serves again")) == 2, "both workers again")
        assert [hello(name) for name in names[::-1]] == [0x97, 0x97, 0x97, 0, 0, 0]


def test_an_sn_belongs_to_one_user_at_whichever_worker_it_speaks(tmp_path: Path) -> None:
    """Behind an SN of one's own at home at the other worker, too; also after a kill, and of MQTT with `first-user`."""
    passwords, port = tmp_path / "passwords", free_port()
    for user in ("ada", "eve"):
        assert headrace("passwd", str(passwords), user, "-b", f"of {user}").returncode == 0

    def speak(user: str, first: str, sn: str) -> int:
        """The code with which a connection of `first` answers what `sn` publishes, or ends."""
        with Device(port, first.encode()) as device:
            assert device.hello(user, f"of {user}") == 0
            device.start_publish(1, "t", f"{first} {sn}".encode(), sn=sn.encode())
            try:
                return device.published()[1]
            except AssertionError:  # an ERROR
                return 0x87

    async def connect(user: str, name: str) -> int:
        client = aiomqtt.Client("127.0.0.1", node.port, identifier=name, username=user, password=f"of {user}",
                                protocol=aiomqtt.ProtocolVersion.V5)  # fmt: skip
        try:
            async with asyncio.timeout(PATIENCE_S), client:
                return 0
        except aiomqtt.MqttError as error:
            return int(str(error).partition("code:")[2].partition("]")[0])

    doors, sns = spread_names(4), [f"sn-{number}" for number in range(8)]
    options = [f"access.password_file={passwords}", "access.client_ids=first-user"]
    more = [word for one in options for word in ("--set", one)]
    with workers(tmp_path, "--workers", "2", "--listen", f"frame://127.0.0.1:{port}", *more) as node:
        node.start()
        assert [speak("ada", doors[number % 2], sn) for number, sn in enumerate(sns)] == [0] * 8
        for kill in (False, True):
            if kill:
                for pid in node.pids.values():
                    os.kill(pid, signal.SIGKILL)
                until(lambda: len(node.lines("worker serves again")) == 2, "both workers again")
            for door in (0, 1):
                assert [speak("eve", doors[2 + door], sn) for sn in sns] == [0x87] * 8
                assert [speak("ada", doors[door], sn) for sn in sns] == [0] * 8
        assert asyncio.run(connect("eve", sns[0])) == asyncio.run(connect("eve", sns[1])) == 0x85
        assert asyncio.run(connect("ada", sns[0])) == 0


@pytest.mark.parametrize("count", [1, 2])
def test_a_reload_that_takes_a_right_away_ends_pulls_that_wait(tmp_path: Path, count: int) -> None:
    """At whichever worker the queue is, and though the consumer says nothing."""
    passwords, acl, port = tmp_path / "passwords", tmp_path / "acl", free_port()
    for user in ("ada", "eve"):
        assert headrace("passwd", str(passwords), user, "-b", "secret").returncode == 0
    acl.write_text("topic readwrite t/#\nuser ada\ntopic readwrite t/#\nuser eve\ntopic readwrite t/#\n")
    options = [f"access.password_file={passwords}", f"access.acl_file={acl}", "allow_anonymous=true"]
    more = [word for one in options for word in ("--set", one)]
    topics = [f"t/{number}" for number in range(4)]
    frames = f"frame://127.0.0.1:{port}"
    with workers(tmp_path, "--workers", str(count), "--listen", frames, *more) as node, ExitStack() as stack:
        node.start()
        readers = [stack.enter_context(Device(port, b"reader-%d" % number)) for number in range(4)]
        for reader, topic in zip(readers, topics, strict=True):
            assert reader.hello("ada", "secret") == 0
            assert reader.join(topic, "c") == 0
            for _ in range(5):
                reader.start_pull(topic, "c", 256, 60_000)
        with Device(port, b"writer") as writer:
            assert writer.hello("eve", "secret") == 0
            for number, topic in enumerate(topics):
                writer.publish(number, topic, b"before")
            assert [len(reader.pulled()) for reader in readers] == [1] * 4
            acl.write_text("topic write t/#\nuser ada\ntopic write t/#\nuser eve\ntopic readwrite t/#\n")
            node.send(signal.SIGHUP)
            until(lambda: len(node.lines("reloaded")) == count, "all workers have read the rules")
            for number, topic in enumerate(topics):
                writer.publish(9 + number, topic, b"behind")
            assert [reader.error() for reader in readers] == [0x87] * 4


def test_retained_messages_count_over_all_workers(tmp_path: Path) -> None:
    """A worker knows of those of another within seconds: until then it keeps one more, which is deleted again."""
    homes = Homes(2)
    topics = [f"n/{number}" for number in range(99)]
    of_each: list[list[str]] = [[], []]
    for topic in topics:
        of_each[homes.of_retained(b"default", topic.encode())].append(topic)

    def kept(node: Workers) -> int:
        found = re.search(r"^headrace_retained_messages\{.*\} ([0-9]+)", node.get("/metrics"), re.MULTILINE)
        return int(found[1]) if found else 0

    async def fill(node: Workers) -> None:
        async with asyncio.timeout(PATIENCE_S), AsyncExitStack() as stack:
            first, second = [await connected(node, name, stack) for name in spread_names(2)]
            for topic in of_each[0][:3]:
                await first.publish(topic, b"x", qos=1, retain=True)
            assert kept(node) == 3
            while True:
                await second.publish(of_each[1][0], b"x", qos=1, retain=True)
                if kept(node) == 3:
                    return
                await second.publish(of_each[1][0], b"", qos=1, retain=True)
                await asyncio.sleep(0.1)

    with workers(tmp_path, "--workers", "2", "--set", "limits.retained_messages_max=3") as node:
        node.start()
        asyncio.run(fill(node))


def test_system_topics_say_the_same_of_the_node_at_every_worker(tmp_path: Path) -> None:
    async def values(node: Workers, what: dict[str, str]) -> None:
        """Wait until a client of each worker has read these values."""
        async with asyncio.timeout(PATIENCE_S), AsyncExitStack() as stack:
            for client in [await connected(node, name, stack) for name in spread_names(2)]:
                await client.subscribe("$SYS/#")
                found: dict[str, str] = {}
                messages = aiter(client.messages)
                while found.items() & what.items() != what.items():
                    message = await anext(messages)
                    assert isinstance(message.payload, bytes)
                    found[str(message.topic).removeprefix("$SYS/broker/")] = message.payload.decode()

    async def before(node: Workers) -> None:
        async with asyncio.timeout(PATIENCE_S), AsyncExitStack() as stack:
            clients = [await connected(node, name, stack) for name in spread_names(6)[2:]]
            for number, client in enumerate(clients):
                await client.publish(f"t/{number}", b"four", qos=1, retain=True)
        await values(node, {"clients/total": "6", "clients/connected": "2", "retained messages/count": "4",
                            "publish/bytes/received": "16"})  # fmt: skip

    with workers(tmp_path, "--workers", "2", "--set", "sys_interval_s=1") as node:
        node.start()
        asyncio.run(before(node))
        os.kill(node.pids[1], signal.SIGKILL)
        until(lambda: node.lines("worker serves again"), "the worker again")
        asyncio.run(
            values(node, {"clients/total": "6", "publish/bytes/received": "16"})
        )  # nothing is forgotten


def test_every_worker_tells_which_bridges_are_up(tmp_path: Path) -> None:
    async def states(node: Workers, names: list[str], expected: list[bytes], act: Callable[[], None]) -> None:
        """Wait until each of these clients has read the first state, act, and wait until they have read the others."""
        async with asyncio.timeout(PATIENCE_S), AsyncExitStack() as stack:
            clients = [await connected(node, name, stack) for name in names]
            read = [aiter(client.messages) for client in clients]
            for client in clients:
                await client.subscribe("$SYS/broker/connection/+/state")
            for messages in read:
                assert (await anext(messages)).payload == expected[0]
            act()
            for state in expected[1:]:
                for messages in read:
                    assert (await anext(messages)).payload == state

    names = spread_names(2)
    home = Homes(2).of_client("default", BRIDGE_PREFIX + "b")
    config = tmp_path / "config.toml"
    with workers(tmp_path / "far", "--workers", "1") as far:
        config.write_text(bridge_to(far.port, "sys_interval_s = 0"))
        with workers(tmp_path / "near", "--workers", "2", "--config", str(config)) as node:
            node.start()
            asyncio.run(states(node, names, [b"0", b"1"], far.start))
            kill = partial(os.kill, node.pids[home], signal.SIGKILL)
            asyncio.run(states(node, [names[1 - home]], [b"1", b"0", b"1"], kill))
            asyncio.run(states(node, names, [b"1", b"0"], far.end))


def bridge_to(port: int, *lines: str) -> str:
    """A configuration with a bridge `b` that sends what is published here to a broker on this port."""
    rule = ["[[bridge.topics]]", 'pattern = "t/#"']
    address = f'addresses = ["tcp://127.0.0.1:{port}"]'
    return "\n".join([*lines, "[[bridge]]", 'name = "b"', address, "reconnect_max_s = 1.0", *rule])


def test_a_new_bridge_gets_what_is_retained_in_every_shard(tmp_path: Path) -> None:
    topics = {f"t/{number}" for number in range(6)}
    assert {Homes(2).of_topic("default", topic) for topic in topics} == {0, 1}

    async def retain(node: Workers) -> None:
        async with asyncio.timeout(PATIENCE_S), AsyncExitStack() as stack:
            client = await connected(node, "w", stack)
            for topic in topics:
                await client.publish(topic, b"kept", qos=1, retain=True)

    async def read(far: Workers, then: Callable[[], None]) -> None:
        async with asyncio.timeout(PATIENCE_S), AsyncExitStack() as stack:
            client = await connected(far, "r", stack)
            await client.subscribe("t/#", qos=1)
            then()
            left = set(topics)
            async for message in client.messages:
                left.discard(str(message.topic))
                if not left:
                    return

    config = tmp_path / "config.toml"
    with workers(tmp_path / "near", "--workers", "2") as node, workers(tmp_path / "far") as far:
        node.start()
        asyncio.run(retain(node))
        assert node.stop() == 0
        config.write_text(bridge_to(far.port))
        node.options += ("--config", str(config))
        far.start()
        asyncio.run(read(far, node.start))
        assert not node.lines("something failed")


def test_a_node_that_waits_for_a_worker_says_for_which(tmp_path: Path) -> None:
    with workers(tmp_path, "--workers", "2") as node:
        node.start()
        lock = node.folder / "data/shard-1/journal"
        os.kill(node.pids[1], signal.SIGKILL)
        lock.rename(lock.with_name("away"))
        lock.write_text("in the way")  # what is started again cannot open its journal
        until(lambda: "worker 1: " in node.get("/readyz"), "not ready")
        assert 'headrace_worker_up{worker="1"} 0.0' in node.get("/metrics")
        assert accepts(node.port)
        until(lambda: len(node.lines("a worker has ended", "status=1", "worker=1")) >= 2, "tried again")
        lock.unlink()
        lock.with_name("away").rename(lock)
        until(lambda: node.get("/readyz") == "ready\n", "ready again")
        assert node.stop() == 0


def test_workers_end_with_their_supervisor_and_the_next_start_waits_for_them(tmp_path: Path) -> None:
    with workers(tmp_path, "--workers", "2") as node:
        node.start()
        pids = node.pids
        assert all(holds(pid, "shards.json") for pid in pids.values())  # which the next start waits for
        assert node.process is not None
        os.kill(node.process.pid, signal.SIGKILL)
        node.process.wait()
        node.start()  # at once, on the same data, ports and socket
        assert all(is_dead(pid) for pid in pids.values())
        assert node.stop() == 0
        assert (
            len([line for line in node.log.splitlines() if "stopped" in line and "clean=True" in line]) == 5
        )


def holds(pid: int, name: str) -> bool:
    """Whether a process has a file of this name open."""
    found = []
    for descriptor in Path(f"/proc/{pid}/fd").iterdir():
        with suppress(FileNotFoundError):
            found.append(os.readlink(descriptor))
    return any(path.endswith(f"/{name}") for path in found)


def test_a_supervisor_that_stood_still_ends_nobody(tmp_path: Path) -> None:
    with workers(tmp_path, "--workers", "2") as node:
        node.start()
        pids = node.pids
        node.send(signal.SIGSTOP)
        time.sleep(7.0)  # longer than it takes to notice
        node.send(signal.SIGCONT)
        assert node.get("/readyz") == "ready\n"
        time.sleep(2.0)  # it has looked at its workers
        assert node.pids == pids
        assert node.stop() == 0


def test_signals_reach_all_workers(tmp_path: Path) -> None:
    with workers(tmp_path, "--workers", "2") as node:
        node.start()
        node.send(signal.SIGHUP)
        until(lambda: len(node.lines("reloaded")) == 2, "both have read again")
        node.send(signal.SIGINT)
        assert node.process is not None
        assert node.process.wait(PATIENCE_S) == 0


def test_a_configuration_that_could_not_be_handed_on_counts_for_no_worker(tmp_path: Path) -> None:
    """The disk of the runtime directory may be full when SIGHUP comes, and have room when a worker is started again."""
    config = tmp_path / "config.toml"
    config.write_text("[limits]\nmessages_per_s = 100\n")
    with workers(tmp_path, "--workers", "2", "--config", str(config)) as node:
        node.start()
        handed_on = node.runtime / "config.toml"
        blocking = node.runtime / "config.new"
        blocking.mkdir()
        config.write_text("[limits]\nmessages_per_s = 7\n")
        node.send(signal.SIGHUP)
        until(lambda: node.lines("configuration not reloaded, the old one stays"), "it says so")
        blocking.rmdir()
        before = node.pids[0]
        os.kill(before, signal.SIGKILL)
        until(lambda: node.pids.get(0, before) != before, "another process")
        assert "messages_per_s = 100\n" in handed_on.read_text()
        node.send(signal.SIGHUP)
        until(lambda: "messages_per_s = 7\n" in handed_on.read_text(), "it is handed on")
        until(lambda: node.lines("worker serves again"), "it serves again")
        assert node.stop() == 0


def test_the_admin_address_answers_for_all_workers(tmp_path: Path) -> None:
    (tmp_path / "tokens").write_text("secret\n")
    tokens = f"journal.token_file={tmp_path / 'tokens'}"
    with workers(tmp_path, "--workers", "2", "--set", tokens, "--set", "shards=4") as node:
        node.start()
        assert node.ask("/v1/clients/behind") == {"clients": []}
        assert [shard["shard"] for shard in node.ask("/v1/journal/shards")["shards"]] == [0, 1, 2, 3]
        place, pages = "0.-1", 0
        while place:
            page = node.ask(f"/v1/clusters?from={place}")
            assert page["rows"] == []
            place, pages = page["next"], pages + 1
        assert pages == 4
        body = json.dumps({"kind": "client", "pattern": "*", "seconds": 5}).encode()
        trace = node.ask("/v1/traces", body)["id"]
        found = node.ask(f"/v1/traces/{trace}")
        assert (found["rows"], found["left_out"], found["over"]) == ([], 0, False)
        assert "token" in node.get("/v1/clients/behind")
        with pytest.raises(urllib.error.HTTPError, match="400"):
            node.ask("/v1/clients/behind?limit=0")
        assert node.stop() == 0


def test_strangers_at_the_admin_address_leave_descriptors_for_a_worker(tmp_path: Path) -> None:
    with workers(tmp_path, "--workers", "2") as node, ExitStack() as stack:
        node.files = "64"
        node.start()
        for _ in range(100):
            stranger = socket.create_connection(("127.0.0.1", node.admin_port), timeout=PATIENCE_S)
            stack.enter_context(stranger).sendall(b"GET /readyz HTTP/1.1\r\n")
        until(lambda: node.lines("admin: a connection made room"), "there are as many as may be")
        os.kill(node.pids[0], signal.SIGKILL)
        until(lambda: node.lines("worker serves again"), "it serves again")
        assert not node.lines("Too many open files")
        assert node.stop() == 0


def test_port_0_is_one_port_for_all_workers(tmp_path: Path) -> None:
    with workers(tmp_path, "--workers", "2", "--listen", "tcp://127.0.0.1:0") as node:
        node.start()
        [line] = node.lines("ready ", "promise=", "shards=2", "workers=2")
        ports = [int(port) for port in re.findall(r"tcp://127\.0\.0\.1:([0-9]+)", line)]
        assert len(ports) == 2
        assert all(accepts(port) for port in ports)
        assert node.stop() == 0


@pytest.mark.parametrize(
    ("made", "options", "said"),
    [
        (["--workers", "2"], ["--workers", "3"], "headrace: workers: 3, but "),
        (["--workers", "2"], ["--set", "shards=3"], "headrace: shards: 3, but "),
        ([], ["--workers", "2"], "headrace reshard --data-dir"),
        ([], ["--workers", "0"], "headrace: workers: "),
        ([], ["--workers", "two"], "headrace: workers: "),
        ([], ["--set", "shards=-1"], "headrace: shards: "),
    ],
)
def test_what_does_not_fit_is_refused_with_its_key(
    tmp_path: Path, made: list[str], options: list[str], said: str
) -> None:
    with workers(tmp_path, *made) as node:
        if made:
            node.start()
        else:
            node.begin()
            until(lambda: node.lines("ready ", "promise="), "ready")
        assert node.stop() == 0
    process = serve(tmp_path, "--listen", "tcp://127.0.0.1:0", *options)
    assert process.wait(PATIENCE_S) == 2
    assert said in (tmp_path / "log").read_text().splitlines()[-1]


def test_two_supervisors_exclude_each_other(tmp_path: Path) -> None:
    with workers(tmp_path, "--workers", "2") as node:
        node.start()
        process = serve(tmp_path, "--listen", "tcp://127.0.0.1:0", "--workers", "2")
        assert process.wait(PATIENCE_S) == 1
        assert f"(pid {node.process.pid if node.process else 0}) has this data directory open" in node.log
        assert node.get("/readyz") == "ready\n"
        assert node.stop() == 0


def test_a_worker_that_cannot_begin_ends_the_start(tmp_path: Path) -> None:
    options = ["--workers", "2", "--set", "access.password_file=nowhere"]
    process = serve(tmp_path, "--listen", "tcp://127.0.0.1:0", *options)
    assert process.wait(PATIENCE_S) == 2
    log = (tmp_path / "log").read_text()
    assert "headrace: access.password_file: " in log
    assert log.count("headrace: access.password_file: ") == 1
