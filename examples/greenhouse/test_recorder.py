from __future__ import annotations

import asyncio
import contextlib
import sqlite3

import aiomqtt
import pytest
import pytest_asyncio
from recorder import Recorder

from headrace.testing import Broker

pytestmark = pytest.mark.asyncio


@pytest_asyncio.fixture
async def broker():
    """One in the loop of the test."""
    async with Broker() as found:
        yield found


@contextlib.asynccontextmanager
async def recording(host, port):
    recorder = Recorder(host, port, sqlite3.connect(":memory:"))
    running = asyncio.create_task(recorder.run())
    yield recorder
    running.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await running


async def publish(broker, room, *readings):
    async with aiomqtt.Client(broker.host, broker.port) as client:
        for number, celsius in readings:
            await client.publish(f"greenhouse/{room}/temperature/{number}", str(celsius), qos=1)


async def test_it_records_what_was_read_once(broker):
    async with recording(broker.host, broker.port) as recorder:
        await broker.wait_until(lambda: recorder.connections == 1, "connected")
        await publish(broker, "ferns", (1, 20.5), (2, 21), (1, 20.5), (3, 21.5))
        await broker.wait_until(lambda: len(recorder.readings("ferns")) == 3, "recorded")
        assert recorder.readings("ferns") == [20.5, 21, 21.5]


async def test_it_comes_back_after_a_restart_and_misses_nothing(broker):
    async with recording(broker.host, broker.port) as recorder:
        await broker.wait_until(lambda: recorder.connections == 1, "connected")
        await broker.restart()
        await publish(broker, "ferns", (1, 20.5))
        await broker.wait_until(lambda: recorder.readings("ferns") == [20.5], "recorded")


async def test_a_kill_loses_nothing_that_was_acknowledged(headrace_broker):
    """In a process of its own, which can be killed; its waits block, so a thread has them."""
    async with recording(headrace_broker.host, headrace_broker.port) as recorder:
        await asyncio.to_thread(headrace_broker.wait_until_connected, "recorder")
        await publish(headrace_broker, "ferns", *((number, 20) for number in range(100)))
        headrace_broker.kill()
        await asyncio.to_thread(headrace_broker.start)
        await asyncio.to_thread(headrace_broker.wait_until, lambda: recorder.connections == 2, "back")
        async with asyncio.timeout(10):
            while len(recorder.readings("ferns")) < 100:
                await asyncio.sleep(0.01)
    messages = headrace_broker.messages("greenhouse/ferns/#")
    assert len({message.topic for message in messages}) == 100
