"""Places and packet ids."""

from __future__ import annotations

import asyncio

import pytest

from headrace.clients.window import Window

pytestmark = pytest.mark.asyncio


async def test_a_place_is_waited_for_in_the_order_of_asking() -> None:
    window = Window()
    window.open(2)
    assert [await window.enter(), await window.enter()] == [1, 2]
    order: list[int] = []

    async def enter(number: int) -> None:
        await window.enter()
        order.append(number)

    tasks = [asyncio.create_task(enter(number)) for number in range(3)]
    await asyncio.sleep(0)
    assert window.in_flight == 2
    for packet_id in (2, 1, 3):
        window.leave(packet_id)
        await asyncio.sleep(0)
    await asyncio.gather(*tasks)
    assert order == [0, 1, 2]
    assert window.in_flight == 2


async def test_ids_in_use_are_passed_over() -> None:
    window = Window()
    window.open(3)
    first = await window.enter()
    window._last_id = 65_534
    assert window.take_id() == 65_535
    assert window.take_id() == first + 1
    window.free_id(first)
    window._last_id = 0
    assert window.take_id() == first


async def test_all_ids_in_use() -> None:
    window = Window()
    for _ in range(65_535):
        window.take_id()
    with pytest.raises(OverflowError):
        window.take_id()


async def test_who_gives_up_waiting_loses_no_place() -> None:
    window = Window()
    window.open(1)
    first = await window.enter()
    gives_up, stays = asyncio.create_task(window.enter()), asyncio.create_task(window.enter())
    await asyncio.sleep(0)
    window.leave(first)
    gives_up.cancel()
    assert await stays > 0
    window.leave(2)
    assert window.in_flight == 0


async def test_fail_wakes_everybody() -> None:
    window = Window()
    window.open(0)
    waiting = asyncio.create_task(window.enter())
    await asyncio.sleep(0)
    window.fail(ValueError("over"))
    with pytest.raises(ValueError, match="over"):
        await waiting


async def test_qos_0_takes_no_place() -> None:
    window = Window()
    window.open(1)
    window.leave(0)
    assert window.in_flight == 0
