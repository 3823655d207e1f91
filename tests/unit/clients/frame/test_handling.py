"""What a handler returns is looked at: work that has only begun is not processed."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from sqlalchemy import create_engine, func, select

from databases import Databases
from headrace.clients.frame.handling import OnLoop, handling_of
from headrace.clients.frame.message import Message
from headrace.clients.frame.processed import PROCESSED

MESSAGE = Message(bytes(16), "doors", "door-1", 0, b"open", False)


async def store(*_: object) -> None:
    raise AssertionError("nobody runs it")


def wrapped(*arguments: object) -> Any:
    return store(*arguments)


def generates(*_: object) -> Iterator[int]:
    yield 0


async def generates_on_loop(*_: object) -> AsyncIterator[int]:
    yield 0


@pytest.mark.asyncio
@pytest.mark.parametrize("function", [wrapped, generates, generates_on_loop])
async def test_what_has_only_begun_is_an_error(function: Callable[..., Any], databases: Databases) -> None:
    engine = create_engine(databases.url("sqlite"))
    with ThreadPoolExecutor(1) as executor:
        for database in (None, engine):
            handling = handling_of(function, database, b"log", executor)
            await handling.prepare()
            with pytest.raises(TypeError, match="which nobody runs"):
                await handling.handle(MESSAGE, function)
    with engine.connect() as db:
        assert db.execute(select(func.count()).select_from(PROCESSED)).scalar_one() == 0
    engine.dispose()


@pytest.mark.asyncio
async def test_an_object_that_is_called_as_a_coroutine_runs_on_the_loop() -> None:
    class Store:
        done = 0

        async def __call__(self, message: Message) -> None:
            self.done += 1

    handler = Store()
    with ThreadPoolExecutor(1) as executor:
        handling = handling_of(handler, None, b"log", executor)
    assert isinstance(handling, OnLoop)
    assert await handling.handle(MESSAGE, handler)
    assert handler.done == 1
