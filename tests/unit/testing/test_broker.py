"""The broker inside an asyncio program, on uvloop and on asyncio's own loop, in the main thread and in others."""

from __future__ import annotations

import asyncio
import gc
import logging
import signal
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import paho.mqtt.publish
import pytest
import uvloop

from headrace.clients.errors import ConnectRefused
from headrace.clients.mqtt import MqttClient
from headrace.errors import ConfigError
from headrace.journal.errors import JournalLocked
from headrace.mqtt.packets import Connect
from headrace.testing import Broker

LOOPS: list[Callable[[], asyncio.AbstractEventLoop]] = [uvloop.new_event_loop, asyncio.SelectorEventLoop]


def run(loop: Callable[[], asyncio.AbstractEventLoop], coroutine: Any) -> None:
    with asyncio.Runner(loop_factory=loop) as runner:
        runner.run(asyncio.wait_for(coroutine, 60))


async def publish(broker: Broker, topic: str, payload: str) -> None:
    def at_once() -> None:
        paho.mqtt.publish.single(topic, payload, qos=1, hostname=broker.host, port=broker.port)

    await asyncio.to_thread(at_once)


async def through_a_restart() -> None:
    async with Broker() as broker:
        port = broker.port
        await publish(broker, "plant/boiler", "1")
        await broker.restart()
        assert broker.port == port
        await publish(broker, "plant/boiler", "2")
        found = await broker.wait_until_published("plant/#", count=2)
        assert [message.text for message in found] == ["1", "2"]
        folder = broker.folder
        with pytest.raises(RuntimeError):
            await broker.start()
        await broker.stop()
        await broker.stop()  # once is as good as twice
        assert len(broker.messages()) == 2
        assert not broker.running
    assert not folder.exists()


@pytest.mark.parametrize("loop", LOOPS)
def test_it_runs_on_the_loop_of_the_caller(loop: Callable[[], asyncio.AbstractEventLoop]) -> None:
    run(loop, through_a_restart())


@pytest.mark.parametrize("loop", LOOPS)
def test_it_runs_in_a_thread_that_is_not_the_main_one(loop: Callable[[], asyncio.AbstractEventLoop]) -> None:
    failures: list[BaseException] = []

    def body() -> None:
        try:
            run(loop, through_a_restart())
        except BaseException as error:
            failures.append(error)

    thread = threading.Thread(target=body)
    thread.start()
    thread.join(60)
    assert not thread.is_alive()
    assert not failures, failures


def test_signals_and_the_collector_stay_the_program_s() -> None:
    async def main() -> None:
        taken: list[int] = []
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, taken.append, 1)
        before = gc.get_freeze_count(), gc.get_threshold()
        async with Broker() as broker:
            signal.raise_signal(signal.SIGTERM)
            await broker.wait_until(lambda: bool(taken))
            await publish(broker, "a", "it still runs")
        assert gc.get_freeze_count() <= before[0], "what was frozen before may have ended meanwhile"
        assert gc.get_threshold() == before[1]
        asyncio.get_running_loop().remove_signal_handler(signal.SIGTERM)

    asyncio.run(asyncio.wait_for(main(), 60))


def test_several_run_side_by_side() -> None:
    async def main() -> None:
        async with Broker() as one, Broker(session__inflight_max=3) as other:
            await publish(one, "a", "1")
            await publish(other, "b", "2")
            assert [m.topic for m in one.messages()] == ["a"]
            assert [m.topic for m in other.messages()] == ["b"]

    asyncio.run(asyncio.wait_for(main(), 60))


def test_a_start_that_fails_holds_nothing(tmp_path: Path) -> None:
    async def main() -> None:
        with socket.create_server(("127.0.0.1", 0)) as taken:
            broker = Broker(folder=tmp_path, port=taken.getsockname()[1])
            with pytest.raises(OSError, match=r"(?i)in use"):
                await broker.start()
        with pytest.raises(ConfigError, match=r"session\.inflight_mx"):
            await Broker(folder=tmp_path, session__inflight_mx=3).start()
        with pytest.raises(ConfigError, match=r"access\.password_file: /nowhere"):
            await Broker(folder=tmp_path, access__password_file="/nowhere/passwords").start()
        async with broker:  # the port is free again, and so is the data directory
            with pytest.raises(JournalLocked):
                await Broker(folder=tmp_path).start()
            await publish(broker, "a", "1")

    asyncio.run(asyncio.wait_for(main(), 60))


def test_nothing_of_it_goes_on_after_a_stop() -> None:
    async def main() -> None:
        async with Broker(sys_interval_s=1):
            """Its timers have begun."""
        assert asyncio.all_tasks() == {asyncio.current_task()}
        until = time.monotonic() + 30  # each timer that was set runs out, and sets no other
        while any(not timer.cancelled() for timer in vars(asyncio.get_running_loop())["_scheduled"]):
            assert time.monotonic() < until
            await asyncio.sleep(0)

    with asyncio.Runner(loop_factory=asyncio.SelectorEventLoop) as runner:
        runner.run(main())


def test_a_program_that_is_cancelled_leaves_the_directory_free(tmp_path: Path) -> None:
    async def hold() -> None:
        broker = Broker(folder=tmp_path)
        await broker.start()
        asyncio.current_task().cancel()  # type: ignore[union-attr]
        await asyncio.sleep(60)

    with pytest.raises(asyncio.CancelledError):
        asyncio.run(hold())

    async def again() -> None:
        async with Broker(folder=tmp_path) as broker:
            await publish(broker, "a", "1")

    asyncio.run(asyncio.wait_for(again(), 60))


def test_its_log_goes_by_logging(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        async with Broker() as broker:
            assert broker.url in caplog.text

    with caplog.at_level(logging.INFO, "headrace"):
        asyncio.run(asyncio.wait_for(main(), 60))
    assert {record.name for record in caplog.records} >= {"headrace"}


def test_who_is_refused_is_told_in_the_log_of_the_program(
    caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    (tmp_path / "passwords").touch()

    async def main() -> None:
        async with Broker(access__password_file=str(tmp_path / "passwords")) as broker:
            connect = Connect(5, "c", username="nobody", password=b"x")
            with pytest.raises(ConnectRefused):
                await MqttClient(broker.host, broker.port, connect).open()

    asyncio.run(asyncio.wait_for(main(), 60))
    [refused] = [record for record in caplog.records if "login failed" in record.getMessage()]
    assert (refused.name, refused.levelname) == ("headrace", "WARNING")
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]
