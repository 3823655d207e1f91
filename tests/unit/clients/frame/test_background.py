"""A loop in a thread: what was submitted comes to an end, and nobody waits for ever."""

from __future__ import annotations

import asyncio
import threading

import pytest

from broker_process import free_port
from headrace.clients.frame import Closed
from headrace.clients.frame.background import LoopThread
from headrace.clients.frame.sync import Producer


async def answer(begun: threading.Event, turns: int) -> int:
    begun.set()
    for _ in range(turns):
        await asyncio.sleep(0)
    return turns


def test_what_was_submitted_comes_to_its_end() -> None:
    thread = LoopThread("test")
    begun = threading.Event()
    found = thread.submit(answer(begun, 1000))
    assert begun.wait(60)
    thread.stop()
    assert found.result(60) == 1000
    with pytest.raises(Closed):
        thread.submit(answer(begun, 1))


def test_what_does_not_end_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headrace.clients.frame.background._FAREWELL_S", 0.01)
    thread = LoopThread("test")
    found = thread.submit(asyncio.Event().wait())
    thread.stop()
    assert found.cancelled()


def test_threads_that_publish_while_the_producer_is_closed_hear_of_it() -> None:
    told: list[type[BaseException]] = []
    begun = threading.Barrier(9)
    producer = Producer(f"frame://127.0.0.1:{free_port()}", "d", in_flight_max=2)

    def publish() -> None:
        begun.wait(60)
        try:
            producer.publish("doors", b"open")
        except BaseException as error:
            told.append(type(error))

    with producer:
        threads = [threading.Thread(target=publish, daemon=True) for _ in range(8)]
        for thread in threads:
            thread.start()
        begun.wait(60)
    for thread in threads:
        thread.join(60)
    assert told == [Closed] * 8
