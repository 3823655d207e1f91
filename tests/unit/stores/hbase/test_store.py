"""The store of queues in HBase over gateways that answer from memory: what is asked of them, and what is not."""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from contract.test_queue_store import Heard, name
from headrace.core.ports.queue_store import DONE, UNSURE, QueueName
from headrace.stores.hbase import store as hbase_store
from headrace.stores.hbase.address import parse
from headrace.stores.hbase.gateway import TYPES, Gateway, GatewayPool, HBaseError
from headrace.stores.hbase.store import READ_FIRST, HBaseStore
from headrace.stores.hbase.table import DELETES_AT_ONCE, ROWS_AT_ONCE, row_of
from headrace.stores.names import HBaseNames

WITHIN_S = 30.0


class Rows:
    """The rows of a table, and what was asked of it. `trouble` is raised once by the next call of a name."""

    def __init__(self) -> None:
        self.rows: dict[bytes, dict[bytes, bytes]] = {}
        self.calls: list[str] = []
        self.answered: list[int] = []  # bytes of the values of a scan
        self.trouble: dict[str, Exception] = {}
        self.pace: Callable[[], None] | None = None  # before each scan

    def call(self, method: str, *arguments: Any) -> Any:
        self.calls.append(method)
        error = self.trouble.pop(method, None)
        if error is not None:
            raise error
        return getattr(self, method)(*arguments)

    def exists(self, table: bytes, get: Any) -> bool:
        return False

    def tableExists(self, table: Any) -> bool:  # noqa: N802  as HBase has it
        return True

    def putMultiple(self, table: bytes, puts: list[Any]) -> None:  # noqa: N802
        for put in puts:
            row = self.rows.setdefault(put.row, {})
            row.update({cell.qualifier: cell.value for cell in put.columnValues})

    def deleteMultiple(self, table: bytes, deletes: list[Any]) -> list[Any]:  # noqa: N802
        assert 0 < len(deletes) <= DELETES_AT_ONCE
        for delete in deletes:
            self.rows.pop(delete.row, None)
        return []

    def getScannerResults(self, table: bytes, scan: Any, count: int) -> list[Any]:  # noqa: N802
        if self.pace is not None:
            self.pace()
        wanted = None if scan.columns is None else {column.qualifier for column in scan.columns}
        found: list[Any] = []
        size = 0
        for key in sorted(key for key in self.rows if scan.startRow <= key < scan.stopRow)[:count]:
            cells = [
                TYPES.TColumnValue(family=b"q", qualifier=at, value=b"" if scan.filterString else value)
                for at, value in sorted(self.rows[key].items())
                if wanted is None or at in wanted
            ]
            size += sum(len(cell.value) for cell in cells)
            if cells:
                found.append(TYPES.TResult(row=key, columnValues=cells))
        self.answered.append(size)
        return found

    def fill(self, whose: QueueName, rows: int) -> None:
        """Put whole rows of one stream, from its serial number 64 on."""
        start = HBaseNames.stream(whose)
        for block in range(1, rows + 1):
            self.rows[row_of(start, block)] = {b"%02x" % number: b"x" for number in range(64)}


class Use:
    """A store over the rows."""

    def __init__(self, rows: Rows) -> None:
        self.rows = rows
        self.raised: list[Exception] = []
        self.store = HBaseStore(parse("hbase://127.0.0.1:1/p"), self.raised.append)
        self.heard = Heard()
        self.store.listener = self.heard
        self._number = 0

    async def ask(self, method: Callable[..., None], *arguments: Any) -> tuple[Any, ...]:
        self._number += 1
        method(self._number, *arguments)
        await self.until(lambda: self._number in self.heard.answers)
        return self.heard.answers[self._number]

    async def until(self, condition: Callable[[], object]) -> None:
        deadline = time.monotonic() + WITHIN_S
        while not condition():
            assert time.monotonic() < deadline, self.store.why_not()
            await asyncio.sleep(0.001)


@pytest.fixture
def rows(monkeypatch: pytest.MonkeyPatch) -> Rows:
    made = Rows()
    monkeypatch.setattr(Gateway, "call", made.call)
    return made


def use(rows: Rows, look: Callable[[Use], Awaitable[None]]) -> None:
    async def life() -> None:
        used = Use(rows)
        try:
            await used.until(used.store.room)
            await look(used)
        finally:
            used.store.close()

    asyncio.run(life())


def test_a_long_stream_of_before_is_known_in_the_end_however_little_time_each_request_has(
    rows: Rows, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows.fill(name(), 10 * ROWS_AT_ONCE)
    rows.pace = lambda: time.sleep(0.1)
    monkeypatch.setattr(hbase_store, "JOB_S", 0.5)

    async def look(used: Use) -> None:
        outcomes = [UNSURE]
        while outcomes[-1] == UNSURE:
            assert len(outcomes) < 50
            outcomes.append((await used.ask(used.store.look, name()))[0])
        assert outcomes[-1] == DONE
        last = 64 * (10 * ROWS_AT_ONCE + 1) - 1
        found = await used.ask(used.store.look, name())
        assert found[1] == (64, last, last - 63)

    use(rows, look)


def test_while_a_long_stream_is_deleted_others_have_their_turns(rows: Rows) -> None:
    clients = [name(f"c{number}") for number in range(3)]  # as many as there are connections
    for client in clients:
        rows.fill(client, 4 * DELETES_AT_ONCE)
    rows.fill(name("other"), 1)

    async def look(used: Use) -> None:
        gate = threading.Semaphore(0)

        def wait() -> None:
            gate.acquire(timeout=WITHIN_S)

        rows.pace = wait
        for number, client in enumerate(clients, 1000):
            used.store.delete(number, client)
        used.store.read(2000, name("other"), 64, 4)
        for _ in range(6):  # the first slice of each, and what came behind them
            gate.release()
        await used.until(lambda: 2000 in used.heard.answers)
        assert 1000 not in used.heard.answers
        gate.release(100)
        await used.until(lambda: {1000, 1001, 1002} <= used.heard.answers.keys())
        assert len(rows.rows) == 1

    use(rows, look)


def test_large_entries_are_read_a_few_at_a_time_and_a_look_reads_one(rows: Rows) -> None:
    async def look(used: Use) -> None:
        large = [b"%04d" % number + b"x" * 60_000 for number in range(150)]
        for first in range(0, 150, 4):
            entries = large[first : first + 4]
            assert (await used.ask(used.store.put, name(), first + 1, entries, not first))[0] == DONE
        rows.answered.clear()
        read: dict[int, bytes] = {}
        while len(read) < 150:
            _, up_to, found = await used.ask(used.store.read, name(), len(read) + 1, 150 - len(read))
            assert up_to == len(read) + len(found)
            read |= found
        assert list(read.values()) == large
        assert max(rows.answered) <= READ_FIRST * 60_004
        rows.answered.clear()
        assert (await used.ask(used.store.look, name()))[1] == (1, 150, 150)
        assert max(rows.answered) == 60_004

    use(rows, look)


def test_small_entries_are_read_many_at_a_time(rows: Rows) -> None:
    rows.fill(name(), 3)

    async def look(used: Use) -> None:
        rows.calls.clear()
        _, up_to, found = await used.ask(used.store.read, name(), 70, 500)
        assert (up_to, len(found)) == (197, 128)
        assert rows.calls.count("getScannerResults") == 2

    use(rows, look)


def test_a_put_that_fails_as_nobody_has_foreseen_is_told_and_the_next_one_is_sent(rows: Rows) -> None:
    async def look(used: Use) -> None:
        rows.trouble["putMultiple"] = MemoryError("no memory for a moment")
        assert (await used.ask(used.store.put, name(), 1, [b"1"], True))[0] == UNSURE
        assert [str(error) for error in used.raised] == ["no memory for a moment"]
        assert (await used.ask(used.store.put, name(), 1, [b"1"], True))[0] == DONE

    use(rows, look)


def test_whoever_looks_whether_hbase_answers_goes_on_whatever_is_raised(rows: Rows) -> None:
    rows.trouble["exists"] = HBaseError("TIOError", "no", answered=True)
    rows.trouble["tableExists"] = MemoryError("no memory for a moment")

    async def look(used: Use) -> None:
        assert used.store.room()
        assert [str(error) for error in used.raised] == ["no memory for a moment"]

    use(rows, look)


def test_a_closed_pool_connects_no_more_whatever_its_threads_are_at() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        pool = GatewayPool([server.getsockname()[:2]], 1, "test")
        began, closed, ended = threading.Event(), threading.Event(), threading.Event()
        raised: list[HBaseError] = []

        def work(gateway: Gateway) -> None:
            began.set()
            assert closed.wait(WITHIN_S)
            for _ in range(2):
                with pytest.raises(HBaseError) as caught:
                    gateway.call("exists", b"t", TYPES.TGet(row=b"r"))
                raised.append(caught.value)
            ended.set()

        async def life() -> None:
            asked = asyncio.ensure_future(pool.run(work))
            assert await asyncio.to_thread(began.wait, WITHIN_S)
            pool.close()
            closed.set()
            assert await asyncio.to_thread(ended.wait, WITHIN_S)
            await asked

        began_s = time.monotonic()
        asyncio.run(life())
        assert time.monotonic() - began_s < 5, "nobody waits for an answer"
        assert [str(error) for error in raised] == ["the store is closed"] * 2
