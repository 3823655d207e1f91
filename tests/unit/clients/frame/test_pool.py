"""The workers of a consumer: how many messages are taken, how many are handled at a time."""

from __future__ import annotations

import asyncio

import pytest

from headrace.clients.frame.message import Message
from headrace.clients.frame.pool import PULLED_MAX, Pool


def message(number: int) -> Message:
    return Message(b"%16d" % number, "doors", "door-1", 0, b"", False)


class Work:
    """Handles a message when the test says so, or at once."""

    def __init__(self, at_once: bool = False) -> None:
        self.begun: list[Message] = []
        self.may_end = asyncio.Semaphore(0)
        self.at_once = at_once

    async def __call__(self, message: Message) -> None:
        self.begun.append(message)
        if not self.at_once:
            await self.may_end.acquire()


async def settle() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


@pytest.mark.asyncio
async def test_nothing_waits_here_while_handlers_are_slow() -> None:
    work = Work()
    pool = Pool(work, 3, 3)
    pool.start()
    assert await pool.wait_for_room() == 3
    pool.put([message(1), message(2)], in_full=False)
    await settle()
    assert (len(work.begun), pool.room()) == (2, 1)
    pool.put([message(3)], in_full=True)
    await settle()
    assert (len(work.begun), pool.room(), pool.size) == (3, 0, 3)
    waiting = asyncio.ensure_future(pool.wait_for_room())
    await settle()
    assert not waiting.done()
    work.may_end.release()
    assert await asyncio.wait_for(waiting, 60) >= 1
    for _ in range(9):
        work.may_end.release()
    await pool.finish()
    assert pool.size == 0


@pytest.mark.asyncio
async def test_fast_handlers_take_many_at_a_time() -> None:
    work = Work(at_once=True)
    pool = Pool(work, 2, 2)
    pool.start()
    for number in range(200):
        await pool.wait_for_room()
        pool.put([message(number)], in_full=False)
        await settle()
    assert 2 < await pool.wait_for_room() <= PULLED_MAX
    assert len(work.begun) == 200
    await pool.finish()


@pytest.mark.asyncio
async def test_it_doubles_with_lag_up_to_its_limit() -> None:
    work = Work()
    pool = Pool(work, 1, 6)
    pool.start()
    sizes = []
    for number in range(0, 60, 10):
        pool.put([message(number + extra) for extra in range(pool.room())], in_full=True)
        await settle()
        sizes.append(pool.size)
    assert sizes == [2, 4, 6, 6, 6, 6]
    assert len(work.begun) == 6
    for _ in range(6):
        work.may_end.release()
    await pool.finish()


@pytest.mark.asyncio
async def test_it_grows_when_the_broker_says_that_messages_wait_and_all_are_busy() -> None:
    work = Work()
    pool = Pool(work, 1, 4)
    pool.start()
    pool.behind()
    await settle()
    assert pool.size == 1  # it has time
    pool.put([message(0)], in_full=False)
    await settle()
    pool.behind()
    assert pool.size == 2
    work.may_end.release()
    await pool.finish()


@pytest.mark.asyncio
async def test_workers_that_have_nothing_to_do_go_down_to_the_least() -> None:
    work = Work(at_once=True)
    pool = Pool(work, 2, 8, idle_s=0.01)
    pool.start()
    pool.put([message(number) for number in range(10)], in_full=True)
    assert pool.size == 4
    async with asyncio.timeout(60):
        while pool.size > 2:
            await asyncio.sleep(0.01)
    await asyncio.sleep(0.05)
    assert pool.size == 2
    pool.put([message(number) for number in range(10, 20)], in_full=False)
    await settle()
    assert len(work.begun) == 20
    await pool.finish()


@pytest.mark.asyncio
async def test_at_the_end_what_was_begun_is_finished_and_the_rest_forgotten() -> None:
    work = Work()
    pool = Pool(work, 1, 1)
    pool.start()
    pool.put([message(1), message(2)], in_full=False)
    await settle()
    ending = asyncio.ensure_future(pool.finish())
    await settle()
    assert not ending.done()
    work.may_end.release()
    await asyncio.wait_for(ending, 60)
    pool.put([message(3)], in_full=True)
    await settle()
    assert [one.message_id for one in work.begun] == [message(1).message_id]


@pytest.mark.asyncio
async def test_a_pool_that_has_finished_may_start_again() -> None:
    work = Work(at_once=True)
    pool = Pool(work, 2, 2)
    for number in range(2):
        pool.start()
        assert await asyncio.wait_for(pool.wait_for_room(), 60) >= 2
        pool.put([message(number)], in_full=False)
        await settle()
        await pool.finish()
        assert (len(work.begun), pool.size) == (number + 1, 0)
    pool.put([message(3)], in_full=True)
    assert pool.size == 0
