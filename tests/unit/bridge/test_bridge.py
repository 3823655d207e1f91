"""What keeps a bridge alive: any attempt may fail for any reason, and the next one follows."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import replace
from typing import Any

import pytest

from harness import Harness
from headrace.bridge.address import parse
from headrace.bridge.bridge import Bridge
from headrace.bridge.link import RemoteLink
from headrace.bridge.settings import BridgeSettings, RemoteTls
from headrace.bridge.topics import Rule
from headrace.links.stream_link import PENDING_BYTES_MAX
from headrace.mqtt import codec
from unit.bridge.remote import FakeTransport, Remote


def settings(*urls: str) -> BridgeSettings:
    return BridgeSettings(
        name="b",
        addresses=tuple(parse(url) for url in urls),
        rules=(Rule("t/#", "both", 1, "", ""),),
        version=5,
        client_id="",
        username="",
        password="",
        password_file="",
        clean_session=False,
        session_expiry_s=100,
        keep_alive_s=0,
        inflight_max=10,
        packet_bytes_max=100_000,
        try_private=True,
        notifications="none",
        notification_topic="",
        connect_timeout_s=1.0,
        reconnect_min_s=0.001,
        reconnect_max_s=0.002,
        tls=RemoteTls("", "", "", False),
    )


class Watched:
    """A bridge that runs until it has failed so many times; `told` are the reasons in the log."""

    def __init__(self, *urls: str, timeout_s: float = 1.0) -> None:
        self.harness = Harness()
        self.told: list[str] = []
        self.states: list[bool] = []
        self.bridge = Bridge(
            replace(settings(*urls), connect_timeout_s=timeout_s),
            self.harness.broker,
            self.harness.broker.bridging(),
            "id",
            lambda *_, **__: None,
            self._warn,
            lambda _, up: self.states.append(up),
        )

    def _warn(self, what: str, **more: Any) -> None:
        self.told.append(f"{what}: {more.get('reason')}")

    async def fails(self, times: int) -> None:
        task = asyncio.get_running_loop().create_task(self.bridge.run())
        async with asyncio.timeout(30):
            while self.bridge.counters.failures < times:
                assert not task.done(), task
                await asyncio.sleep(0.001)
        task.cancel()
        await asyncio.wait((task,))


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        ("tcp://" + "a" * 64 + ".example:1883", "label"),  # IDNA knows no such name: a UnicodeError
        ("unix:///" + "p" * 200, "too long"),
        ("tcp://127.0.0.1:1", "refused|Connect call failed|Errno"),
    ],
)
def test_an_address_that_cannot_be_used_is_said_and_tried_again(url: str, reason: str) -> None:
    watched = Watched(url)
    asyncio.run(watched.fails(5))
    assert len(watched.told) == 1  # once a minute
    assert any(word in watched.told[0] for word in reason.split("|"))


@pytest.mark.parametrize(
    "error", [RuntimeError("x"), ValueError(), KeyError("k"), MemoryError(), AssertionError()]
)
def test_an_exception_of_any_kind_in_an_attempt_is_an_attempt_that_failed(
    error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    watched = Watched("tcp://127.0.0.1:1")

    async def fail(*_: object) -> None:
        raise error

    monkeypatch.setattr(watched.bridge, "_open", fail)
    asyncio.run(watched.fails(3))
    assert watched.told


def test_one_bad_address_does_not_keep_the_next_from_being_tried() -> None:
    watched = Watched("tcp://" + "a" * 64 + ".example:1883", "tcp://127.0.0.1:1")
    asyncio.run(watched.fails(4))
    assert len(watched.told) == 2


def test_a_log_that_cannot_be_written_ends_no_bridge(monkeypatch: pytest.MonkeyPatch) -> None:
    watched = Watched("tcp://127.0.0.1:1")

    def broken(what: str, **more: object) -> None:
        raise BrokenPipeError

    monkeypatch.setattr(watched.bridge, "_warn", broken)
    asyncio.run(watched.fails(3))


@pytest.mark.parametrize("scheme", ["tcp", "ws"])
def test_a_remote_broker_that_says_nothing_is_left_before_the_next_attempt(scheme: str) -> None:
    """It accepts and is silent: no connection of an attempt that failed stays open, whatever layer it waited for."""

    async def main() -> None:
        open_now: set[asyncio.StreamWriter] = set()
        most = 0

        async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            nonlocal most
            open_now.add(writer)
            most = max(most, len(open_now))
            with suppress(ConnectionResetError):
                while await reader.read(1000):
                    pass
            open_now.discard(writer)
            writer.close()

        server = await asyncio.start_server(silent, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        watched = Watched(f"{scheme}://127.0.0.1:{port}", timeout_s=0.05)
        await watched.fails(5)
        assert most <= 2  # the end of one may be heard of after the beginning of the next
        assert "no answer in time" in watched.told[0]
        server.close()

    asyncio.run(main())


def test_reasons_of_the_remote_broker_do_not_pile_up() -> None:
    watched = Watched("tcp://127.0.0.1:1")
    [address] = watched.bridge.settings.addresses
    for number in range(1000):
        watched.bridge._failed(address, f"reason {number}")
    assert len(watched.bridge._told) <= 64


# The link


def up() -> tuple[Remote, FakeTransport]:
    remote = Remote(Harness())
    remote.accept()
    return remote, remote.transport


def test_a_remote_broker_that_sends_without_a_pause_takes_turns() -> None:
    remote, transport = up()
    broker = remote.harness.broker
    packet = codec.encode_publish(5, b"down/x", b"x", 0, False, False, 0)
    remote.link.data_received(packet * 5000)
    seen, turns = 0, 0
    while not transport.reading:
        assert 0 < remote.counters.received - seen <= 1024
        seen = remote.counters.received
        broker.worker.end_tick()
        turns += 1
    assert remote.counters.received == 5000
    assert turns == 4


def test_a_remote_broker_that_does_not_read_its_answers_is_cut() -> None:
    remote, transport = up()
    remote.link.pause_writing()
    transport.get_write_buffer_size = lambda: PENDING_BYTES_MAX + 1  # type: ignore[method-assign]
    remote.link.send(b"an answer")
    remote.link.flush()
    assert transport.aborted


@pytest.mark.interpreted
def test_the_end_is_told_whatever_goes_wrong_in_it(monkeypatch: pytest.MonkeyPatch) -> None:
    remote, _ = up()

    class Broken:
        def on_connection_lost(self, link: RemoteLink) -> None:
            raise RuntimeError("a defect")

    monkeypatch.setattr(remote.link, "broker", Broken())
    with pytest.raises(RuntimeError):
        remote.link.connection_lost(None)
    assert remote.ended
