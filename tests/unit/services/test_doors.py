"""The doors of a node over real sockets on loopback: limits, what is counted, what SIGHUP does."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import socket
import ssl
from collections.abc import Awaitable, Callable
from ipaddress import ip_network
from pathlib import Path

import pytest

from certificates import Authority
from headrace.core.ports.clock import Clock
from headrace.core.ports.settings import BrokerSettings
from headrace.core.worker import Worker
from headrace.errors import ConfigError
from headrace.net.gate import Allowance, GateSettings, Networks
from headrace.net.tls import TlsFiles, UnusableCertificate
from headrace.services.access import AccessSettings, FileAccess
from headrace.services.audit import Audit
from headrace.services.doors import Doors, DoorSettings, connections_allowed
from headrace.storage.memory import ManualScheduler, MemoryJournal

NO_FILES = TlsFiles("", "", "", "none")


class Told:
    """Lines for the log."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def __call__(self, what: str, **more: object) -> None:
        self.lines.append(f"{what} {more}")


def _worker() -> Worker:
    worker = Worker(ManualScheduler(), Clock(), BrokerSettings())
    worker.own(0, MemoryJournal())
    return worker


def run(test: Callable[[Worker, Told], Awaitable[None]]) -> Told:
    told = Told()

    async def main() -> None:
        await test(_worker(), told)

    asyncio.run(main())
    return told


async def ends(url: str) -> bytes:
    """What the broker sends to a connection that says nothing, until it ends."""
    reader, writer = await asyncio.open_connection("127.0.0.1", int(url.rpartition(":")[2]))
    try:
        return await asyncio.wait_for(reader.read(), 10)
    finally:
        writer.close()


def test_addresses_that_a_directory_bans_are_turned_away_and_come_again() -> None:
    async def body(worker: Worker, told: Told) -> None:
        doors = Doors(worker, DoorSettings(100, 5.0, 1 << 20, NO_FILES), None, told)
        doors.open("tcp://127.0.0.1:0")
        (listener,) = doors.listeners
        doors.ban(Networks([]))
        assert doors.gate is None  # nobody pays for a gate that turns nobody away
        doors.ban(Networks([ip_network("127.0.0.0/8")]))
        assert await ends(doors.urls[0]) == b""
        assert listener.connections.turned_away["banned"] == 1
        doors.ban(Networks([]))
        _, writer = await client(doors, int(doors.urls[0].rpartition(":")[2]), "c")
        doors.stop_accepting()
        doors.close()
        writer.close()

    run(body)


def test_more_than_the_limit_are_turned_away_and_said_once() -> None:
    async def body(worker: Worker, told: Told) -> None:
        doors = Doors(worker, DoorSettings(100, 5.0, 1 << 20, NO_FILES), None, told)
        doors.open("tcp://127.0.0.1:0?connections_max=2")
        (url,) = doors.urls
        port = int(url.rpartition(":")[2])
        held = [await client(doors, port, f"c{number}") for number in range(2)]
        for _ in range(3):
            assert await ends(url) == b""
        (listener,) = doors.listeners
        assert (listener.connections.accepted, len(listener.connections.open)) == (2, 2)
        assert listener.connections.turned_away["connections_max"] == 3
        doors.stop_accepting()
        doors.close()
        for reader, writer in held:
            assert await reader.read() == b""
            writer.close()

    told = run(body)
    assert "connection limit reached" in [line.partition(" {")[0] for line in told.lines]


@pytest.mark.parametrize("of_all", [False, True])
@pytest.mark.parametrize(
    ("scheme", "says"),
    [
        ("tcp", b""),
        ("tcp", b"\x10\x20\x00\x04MQ"),
        ("proxy", b"PROXY TC"),
        ("tls", b"\x16\x03\x01"),
        ("ws", b"GET /mqtt HTT"),
    ],
)
def test_who_says_no_connect_makes_room_for_who_comes(
    tmp_path: Path, scheme: str, says: bytes, of_all: bool
) -> None:
    """As many strangers as there may be connections, of the listener or of all: a client is let in, and stays when others
    come."""
    certificate, key = Authority(tmp_path / "ca").issue("server")
    urls = {
        "proxy": "tcp://127.0.0.1:0?proxy=required&",
        "tls": f"tls://127.0.0.1:0?cert={certificate}&key={key}&",
    }

    async def body(worker: Worker, told: Told) -> None:
        doors = Doors(worker, DoorSettings(3 if of_all else 100, 60.0, 1 << 20, NO_FILES), None, told)
        doors.open(urls.get(scheme, f"{scheme}://127.0.0.1:0?") + "connections_max=3")
        doors.open("tcp://127.0.0.1:0")
        theirs, ours = (int(one.url.rpartition(":")[2]) for one in doors.listeners)
        strangers = [await stranger(doors, theirs, says) for _ in range(3)]
        if of_all:
            held = await client(doors, ours, "c")
        else:
            strangers.append(await stranger(doors, theirs, says, more=False))
        oldest, *others = strangers
        assert await asyncio.wait_for(oldest[0].read(), 10) == b""
        assert not any(reader.at_eof() for reader, _ in others)
        counts = doors.listeners[0].connections.turned_away
        assert (counts["connections_max"], counts["crowded_out"], counts["handshake"]) == (0, 1, 0)
        if of_all:
            for _ in range(40):
                writer = (await asyncio.open_connection("127.0.0.1", theirs))[1]
                writer.close()
            held[1].write(b"\xc0\x00")
            await until(lambda: len(doors.listeners[0].connections.open) == 0)
            assert len(doors.listeners[1].connections.open) == 1
            held[1].close()
        for _, writer in strangers:
            writer.close()
        doors.stop_accepting()
        doors.close()

    run(body)


Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


async def until(true: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not true():
            await asyncio.sleep(0)


async def client(doors: Doors, port: int, client_id: str) -> Streams:
    """One that has said CONNECT, and was let in."""
    streams = await asyncio.open_connection("127.0.0.1", port)
    body = b"\x00\x04MQTT\x04\x02\x00\x00" + len(client_id).to_bytes(2, "big") + client_id.encode()
    streams[1].write(b"\x10" + bytes([len(body)]) + body)
    every = [one.connections.open for one in doors.listeners]
    await until(lambda: any(each.client_id == client_id for there in every for each in there))
    return streams


async def stranger(doors: Doors, port: int, says: bytes, more: bool = True) -> Streams:
    """One that says so much. With `more` it takes a place that was free."""
    (connections,) = [one.connections for one in doors.listeners if one.url.endswith(f":{port}")]
    before = len(connections.open) + connections.pending
    streams = await asyncio.open_connection("127.0.0.1", port)
    streams[1].write(says)
    await until(lambda: not more or len(connections.open) + connections.pending > before)
    return streams


@pytest.mark.parametrize("epoll", [True, False])
def test_a_banned_address_is_turned_away_and_goes_at_a_reload(
    tmp_path: Path, epoll: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headrace.services.doors.HAS_EPOLL", epoll)
    file = tmp_path / "bans"
    file.write_text("")

    async def body(worker: Worker, told: Told) -> None:
        gate = GateSettings(ban_file=str(file))
        doors = Doors(worker, DoorSettings(100, 5.0, 1 << 20, NO_FILES, gate=gate), None, told)
        doors.open("tcp://127.0.0.1:0")
        (url,) = doors.urls
        reader, writer = await asyncio.open_connection("127.0.0.1", int(url.rpartition(":")[2]))
        while not doors.listeners[0].connections.open:
            await asyncio.sleep(0)
        file.write_text("127.0.0.0/8\n")
        doors.reload()
        assert await asyncio.wait_for(reader.read(), 10) == b""
        writer.close()
        assert await ends(url) == b""
        assert doors.listeners[0].connections.turned_away["banned"] == 1
        file.write_text("nonsense\n")
        doors.reload()
        assert await ends(url) == b""
        doors.stop_accepting()
        doors.close()

    told = run(body)
    assert [line.partition(" {")[0] for line in told.lines] == [
        "put out",
        "bans not reloaded, the old ones stay",
    ]


@pytest.mark.parametrize("scheme", ["tcp", "tls", "ws", "wss"])
@pytest.mark.parametrize("proxied", [False, True])
def test_who_is_banned_costs_neither_a_handshake_nor_a_connection(
    tmp_path: Path, scheme: str, proxied: bool
) -> None:
    """It is closed although it has said nothing, or nothing but the PROXY header."""
    certificate, key = Authority(tmp_path / "ca").issue("server")
    file = tmp_path / "bans"
    file.write_text("192.0.2.0/24\n" if proxied else "127.0.0.1\n")

    async def body(worker: Worker, told: Told) -> None:
        files = TlsFiles(str(certificate), str(key), "", "none")
        gate = GateSettings(ban_file=str(file))
        doors = Doors(worker, DoorSettings(100, 60.0, 1 << 20, files, gate=gate), None, told)
        doors.open(f"{scheme}://127.0.0.1:0" + ("?proxy=required" if proxied else ""))
        (listener,) = doors.listeners
        port = int(listener.url.partition("?")[0].rpartition(":")[2])
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        if proxied:
            writer.write(b"PROXY TCP4 192.0.2.7 127.0.0.1 5 6\r\n")
        assert await asyncio.wait_for(reader.read(), 10) == b""
        writer.close()
        counts = listener.connections
        assert (counts.turned_away["banned"], counts.turned_away["handshake"]) == (1, 0)
        assert (counts.accepted, counts.pending) == (0, 0)
        doors.stop_accepting()
        doors.close()

    assert run(body).lines == []


def test_a_listener_accepts_so_many_in_a_second_and_the_others_wait() -> None:
    """They are in the backlog meanwhile, and nobody is refused. A reload lets the rest in."""

    async def body(worker: Worker, told: Told) -> None:
        settings = DoorSettings(100, 60.0, 1 << 20, NO_FILES, accepts_per_s=0.001)
        doors = Doors(worker, settings, None, told)
        doors.open("tcp://127.0.0.1:0?accepts_per_s=3")
        (listener,) = doors.listeners
        listener.connections.accepts = Allowance(0.5, 3.0, asyncio.get_running_loop().time)
        port = int(listener.url.partition("?")[0].rpartition(":")[2])
        held = [await asyncio.open_connection("127.0.0.1", port) for _ in range(4)]
        async with asyncio.timeout(10):
            while not listener.connections.held_back:
                await asyncio.sleep(0)
        assert listener.connections.accepted == 3
        async with asyncio.timeout(10):
            while listener.connections.accepted < 4:
                await asyncio.sleep(0.01)
        assert sum(listener.connections.turned_away.values()) == 0
        doors.stop_accepting()
        doors.close()
        for _, writer in held:
            writer.close()

    told = run(body)
    assert [line.partition(" {")[0] for line in told.lines] == [
        "more connections than a listener accepts in a second"
    ]


def test_limits_are_taken_over_by_who_is_connected() -> None:
    async def body(worker: Worker, told: Told) -> None:
        doors = Doors(worker, DoorSettings(100, 60.0, 1 << 20, NO_FILES), None, told)
        for option in ("", "?messages_per_s=7", "?accepts_per_s=2.5&subscriptions_max=5"):
            doors.open(f"tcp://127.0.0.1:0{option}")
        plain, paced, rated = doors.listeners
        _, writer = await asyncio.open_connection("127.0.0.1", int(plain.url.rpartition(":")[2]))
        while not plain.connections.open:
            await asyncio.sleep(0)
        gate = GateSettings(connections_per_s=5.0)
        doors.limit(DoorSettings(1, 1.0, 1, NO_FILES, gate=gate, messages_per_s=3, accepts_per_s=9.0))
        (connection,) = plain.connections.open
        assert connection.messages_per_s == 3
        assert [found.connections.messages_per_s for found in doors.listeners] == [3, 7, 3]
        assert rated.connections.subscriptions_max == 5
        assert paced.connections.gate is doors.gate is not None
        doors.limit(DoorSettings(1, 1.0, 1, NO_FILES))
        assert [found.connections.accepts is None for found in doors.listeners] == [True, True, False]
        writer.close()
        doors.stop_accepting()
        doors.close()

    assert run(body).lines == []


def test_who_is_banned_while_it_shakes_hands_is_cut(tmp_path: Path) -> None:
    certificate, key = Authority(tmp_path / "ca").issue("server")
    file = tmp_path / "bans"
    file.write_text("")

    async def body(worker: Worker, told: Told) -> None:
        files = TlsFiles(str(certificate), str(key), "", "none")
        gate = GateSettings(ban_file=str(file))
        doors = Doors(worker, DoorSettings(100, 60.0, 1 << 20, files, gate=gate), None, told)
        doors.open("tls://127.0.0.1:0")
        (listener,) = doors.listeners
        accepted = socket.create_connection(("127.0.0.1", int(listener.url.rpartition(":")[2])))
        while not listener.connections.pending:
            await asyncio.sleep(0)
        file.write_text("127.0.0.1\n")
        assert doors.reload() == []
        context = ssl.create_default_context(cafile=str(tmp_path / "ca" / "ca.pem"))
        with contextlib.suppress(OSError):
            reader, writer = await asyncio.open_connection(
                sock=accepted, ssl=context, server_hostname="localhost"
            )
            assert await asyncio.wait_for(reader.read(), 10) == b""
            writer.close()
        while listener.connections.open:
            await asyncio.sleep(0)
        assert listener.connections.turned_away["banned"] == 1
        doors.stop_accepting()
        doors.close()

    run(body)


def test_whose_certificate_is_revoked_while_it_shakes_hands_is_cut(tmp_path: Path) -> None:
    """Its handshake goes on with the list that was there when it began."""
    authority = Authority(tmp_path / "ca")
    certificate, key = authority.issue("server")
    ada, ada_key = authority.issue("ada")
    files = TlsFiles(str(certificate), str(key), str(authority.ca), "require", crl=str(authority.revoke()))

    async def body(worker: Worker, told: Told) -> None:
        doors = Doors(worker, DoorSettings(100, 60.0, 1 << 20, files), None, told)
        doors.open("tls://127.0.0.1:0")
        (listener,) = doors.listeners
        accepted = socket.create_connection(("127.0.0.1", int(listener.url.rpartition(":")[2])))
        await until(lambda: listener.connections.pending == 1)
        for _ in range(3):
            await asyncio.sleep(0)  # its task has begun, with the context of now
        authority.revoke(ada)
        assert doors.reload() == []
        context = ssl.create_default_context(cafile=str(authority.ca))
        context.load_cert_chain(ada, ada_key)
        with contextlib.suppress(OSError):
            reader, writer = await asyncio.open_connection(
                sock=accepted, ssl=context, server_hostname="localhost"
            )
            assert await asyncio.wait_for(reader.read(), 10) == b""
            writer.close()
        await until(lambda: listener.connections.pending == 0 and not listener.connections.open)
        assert listener.connections.turned_away["certificate_revoked"] == 1
        doors.stop_accepting()
        doors.close()

    run(body)


@pytest.mark.parametrize("epoll", [True, False])
def test_with_and_without_an_epoll_of_our_own(epoll: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headrace.services.doors.HAS_EPOLL", epoll)

    async def body(worker: Worker, told: Told) -> None:
        doors = Doors(worker, DoorSettings(100, 5.0, 1 << 20, NO_FILES), None, told)
        doors.open("tcp://127.0.0.1:0")
        (url,) = doors.urls
        reader, writer = await asyncio.open_connection("127.0.0.1", int(url.rpartition(":")[2]))
        writer.write(b"no MQTT")
        assert await asyncio.wait_for(reader.read(), 30) == b""
        writer.close()
        (listener,) = doors.listeners
        assert listener.connections.accepted == 1
        doors.stop_accepting()
        doors.close()

    run(body)


def test_a_listener_of_another_node_is_like_one_of_its_kind_here() -> None:
    async def body(worker: Worker, told: Told) -> None:
        doors = Doors(worker, DoorSettings(100, 5.0, 1 << 20, NO_FILES), None, told)
        doors.open("tcp://127.0.0.1:0")
        doors.open("ws://127.0.0.1:0")
        doors.open("ws://127.0.0.1:0?subscriptions_max=5")
        plain, web, limited = doors.urls
        assert doors.like("tcp://10.0.0.1:1883") == plain
        assert doors.like("ws://10.0.0.1:1") is None
        assert (doors.like(limited), doors.like(web)) == (limited, web)
        assert doors.like("tls://10.0.0.1:8883") is None
        doors.stop_accepting()
        doors.close()

    run(body)


def test_a_taken_address_is_named() -> None:
    async def body(worker: Worker, told: Told) -> None:
        doors = Doors(worker, DoorSettings(100, 5.0, 1 << 20, NO_FILES), None, told)
        doors.open("tcp://127.0.0.1:0")
        (url,) = doors.urls
        with pytest.raises(OSError, match=url):
            doors.open(url)
        with pytest.raises(UnusableCertificate):
            doors.open("tls://127.0.0.1:0")
        doors.stop_accepting()
        doors.close()

    run(body)


def test_a_reload_that_fails_is_said_and_changes_nothing(tmp_path: Path) -> None:
    certificate, key = Authority(tmp_path / "ca").issue("server")
    acl = tmp_path / "acl"
    acl.write_text("topic read a\n")

    async def body(worker: Worker, told: Told) -> None:
        access = FileAccess(AccessSettings(acl_file=str(acl)), Audit(told), asyncio.get_running_loop())
        files = TlsFiles(str(certificate), str(key), "", "none")
        doors = Doors(worker, DoorSettings(100, 5.0, 1 << 20, files), access, told)
        assert worker.brokers[0].sessions.access is access
        doors.open("tls://127.0.0.1:0")
        assert doors.reload() == []
        assert told.lines == []
        certificate.write_text("damaged")
        acl.write_text("nonsense\n")
        assert doors.reload() == [f"certificate of {doors.urls[0]}", "passwords and ACL"]
        assert len(told.lines) == 2
        acl.write_bytes(b"topic read \xff\n")
        doors.reload()
        doors.stop_accepting()
        doors.close()

    told = run(body)
    assert len(told.lines) == 4
    assert "not UTF-8" in told.lines[3]
    assert "server.pem" in told.lines[0]
    assert "line 1" in told.lines[1]


@pytest.mark.parametrize(
    ("wanted", "descriptors", "allowed"), [(0, 1024, 960), (900, 1024, 900), (0, 1 << 20, 100_000)]
)
def test_the_limit_of_connections_lies_below_that_of_descriptors(
    wanted: int, descriptors: int, allowed: int
) -> None:
    assert connections_allowed(wanted, descriptors) == allowed


@pytest.mark.parametrize(
    ("wanted", "descriptors", "named"), [(961, 1024, "limits.connections_max"), (0, 40, "ulimit")]
)
def test_a_limit_that_cannot_be_kept_is_refused_by_name(wanted: int, descriptors: int, named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        connections_allowed(wanted, descriptors)


class Accepting:
    """A listening socket whose accept fails as it is told, then hands out real connections."""

    def __init__(self, listening: socket.socket, errors: list[int]) -> None:
        self._listening = listening
        self.errors = errors

    def accept(self) -> tuple[socket.socket, object]:
        if self.errors:
            code = self.errors.pop(0)
            raise OSError(code, os.strerror(code))
        return self._listening.accept()

    def __getattr__(self, name: str) -> object:
        return getattr(self._listening, name)


async def served(doors: Doors, url: str) -> None:
    """A connection that comes is answered."""
    reader, writer = await asyncio.open_connection("127.0.0.1", int(url.rpartition(":")[2]))
    writer.write(b"no MQTT")
    assert await asyncio.wait_for(reader.read(), 30) == b""
    writer.close()


@pytest.mark.parametrize(
    "name", ["EMFILE", "ENFILE", "ENOMEM", "ENOBUFS", "ECONNABORTED", "EPROTO", "EINTR", "EINVAL", "EIO"]
)
def test_accepting_goes_on_after_whatever_error(name: str) -> None:
    async def body(worker: Worker, told: Told) -> None:
        doors = Doors(worker, DoorSettings(100, 5.0, 1 << 20, NO_FILES), None, told)
        doors.open("tcp://127.0.0.1:0")
        (listener,) = doors.listeners
        found: list[dict[str, object]] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, context: found.append(context))
        listener._socket = Accepting(listener._socket, [getattr(errno, name)] * 2)  # type: ignore[assignment]
        await served(doors, listener.url)
        assert found == []
        doors.stop_accepting()
        doors.close()

    told = run(body)
    passing = name in ("ECONNABORTED", "EPROTO", "EINTR")
    lines = [line.partition(" {")[0] for line in told.lines]
    assert [line for line in lines if line != "refused"] == ([] if passing else ["accepting pauses"])


@pytest.mark.parametrize("what", ["watch", "make"])
def test_what_fails_after_accept_costs_that_connection_alone(what: str) -> None:
    """A poller that the system lets watch no more, and a connection that cannot be made: no slot is lost for either."""

    async def body(worker: Worker, told: Told) -> None:
        doors = Doors(worker, DoorSettings(100, 5.0, 1 << 20, NO_FILES), None, told)
        doors.open("tcp://127.0.0.1:0?connections_max=3")
        (listener,) = doors.listeners
        make, poller = listener._make, listener._poller
        if what == "make":
            listener._make = None  # type: ignore[assignment]
        else:
            listener._poller = Unwatchable()  # type: ignore[assignment]
        for _ in range(5):
            assert await ends(listener.url) == b""
        assert listener.connections.turned_away["handshake"] == 5
        assert listener.connections.pending == 0
        listener._make, listener._poller = make, poller
        await served(doors, listener.url)
        doors.stop_accepting()
        doors.close()

    run(body)


class Unwatchable:
    def watch(self, fd: int, before: int, after: int, transport: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_accepted_sockets_are_asked_by_the_system_whether_somebody_is_there() -> None:
    async def body(worker: Worker, told: Told) -> None:
        doors = Doors(worker, DoorSettings(100, 5.0, 1 << 20, NO_FILES, 77), None, told)
        doors.open("tcp://127.0.0.1:0")
        (listener,) = doors.listeners
        seen: list[int] = []
        set_up = listener._set_up

        def look(accepted: socket.socket) -> None:
            set_up(accepted)
            seen.append(accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE))

        listener._set_up = look  # type: ignore[method-assign]
        await served(doors, listener.url)
        assert seen == [77]
        doors.stop_accepting()
        doors.close()

    run(body)
