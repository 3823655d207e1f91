"""The store of queues in a real HBase, on bad days: its gateway and HBase itself killed, standing still, its table
disabled and deleted by somebody else."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from itertools import count

import pytest

from contract.test_queue_store import Engine, User, name
from hbase_server import HBaseServer, table_name
from headrace.core.ports.queue_store import ABSENT, DONE, THERE, UNSURE, QueueName
from headrace.stores.hbase.address import parse
from headrace.stores.hbase.gateway import TYPES
from headrace.stores.hbase.store import HBaseStore

pytestmark = [pytest.mark.hbase, pytest.mark.time_limit(600)]
DEADLINE_S = 200.0
RAISED: list[Exception] = []
PREFIXES = count()


class PatientUser(User):
    """Waits for as long as HBase may take to be back."""

    async def _ask(self, ask: Callable[[int], None]) -> tuple[object, ...]:
        self._number += 1
        number = self._number
        ask(number)
        deadline = time.monotonic() + DEADLINE_S
        while number not in self.heard.answers:
            assert time.monotonic() < deadline
            await asyncio.sleep(0.002)
        return self.heard.answers[number]


class Use:
    """A store that is tried."""

    def __init__(self, server: HBaseServer, prefix: str) -> None:
        self.server = server
        self.prefix = prefix
        self.table = f"{prefix}.queues"
        address = parse(f"hbase://{server.address}/{prefix}?regions=2")
        self.store = HBaseStore(address, RAISED.append, call_s=20.0)  # beside other suites
        self.user = PatientUser(Engine(), self.store)

    async def until(self, condition: Callable[[], object], what: str) -> None:
        deadline = time.monotonic() + DEADLINE_S
        while not condition():
            assert time.monotonic() < deadline, f"{what}: {self.store.why_not()} {self.store.counters.faults}"
            await asyncio.sleep(0.02)

    async def put(self, whose: QueueName, first: int, *entries: bytes, begins: bool = False) -> int:
        return (await self.user.put(whose, first, *entries, begins=begins))[0]

    async def looked(self, whose: QueueName) -> tuple[object, ...]:
        """What a look finds that is made again until it is answered for certain."""
        deadline = time.monotonic() + DEADLINE_S
        while True:
            found = await self.user.look(whose)
            if found[0] in (DONE, ABSENT):
                return found
            assert time.monotonic() < deadline, self.store.counters.faults
            await asyncio.sleep(0.1)

    async def goes_on(self, whose: QueueName, last: int) -> None:
        """Put one more after a put that nobody knows about, as the policy does, and read all of them."""
        found = await self.looked(whose)
        assert found in ((DONE, (1, last - 1, last - 1)), (DONE, (1, last, last)))
        if found[1] == (1, last - 1, last - 1):
            assert await self.put(whose, last, b"%d" % last) == DONE
        assert await self.put(whose, last + 1, b"%d" % (last + 1)) == DONE
        read = await self.user.read(whose, 1, last + 5)
        assert read == {number: b"%d" % number for number in range(1, last + 2)}


def use(server: HBaseServer, look: Callable[[Use], Awaitable[None]], prefix: str = "") -> str:
    """Try a store, in a table of its own unless one is given; returns its prefix."""
    prefix = prefix or f"faults{next(PREFIXES)}"

    async def life() -> None:
        used = Use(server, prefix)
        try:
            await used.until(used.store.room, "it is up")
            await look(used)
        finally:
            used.store.close()

    asyncio.run(life())
    raised = list(RAISED)
    RAISED.clear()
    assert raised == []
    return prefix


async def fill(used: Use) -> None:
    assert await used.put(name(), 1, b"1", b"2", b"3", begins=True) == DONE, used.store.counters.faults


def test_another_process_finds_what_is_there_and_goes_on(hbase: HBaseServer) -> None:
    async def go_on(used: Use) -> None:
        assert await used.put(name(), 1, b"x", begins=True) == THERE
        assert await used.user.look(name()) == (DONE, (1, 3, 3))
        assert await used.put(name(), 4, b"4") == DONE
        assert await used.user.read(name(), 1, 9) == {n: b"%d" % n for n in range(1, 5)}

    use(hbase, go_on, use(hbase, fill))


def test_the_table_is_kept_in_memory_and_compacted_there(hbase: HBaseServer) -> None:
    async def look(used: Use) -> None:
        found = hbase.ask("getTableDescriptor", table_name(used.table))
        assert found.columns[0].attributes[b"IN_MEMORY_COMPACTION"] == b"BASIC"
        assert found.columns[0].maxVersions == 1

    use(hbase, look)


def test_one_put_that_hbase_refuses_costs_the_others_nothing(hbase: HBaseServer) -> None:
    async def look(used: Use) -> None:
        clients = [name(f"c{number}") for number in range(8)]
        huge = b"x" * (11 << 20)  # HBase takes no cell of more than 10 MiB
        puts = [used.put(client, 1, b"1", begins=True) for client in clients]
        outcomes = await asyncio.gather(used.put(name("huge"), 1, huge, begins=True), *puts)
        assert outcomes == [UNSURE] + [DONE] * len(clients)
        assert (await used.looked(name("huge")))[0] == ABSENT

    use(hbase, look)


def test_a_table_that_was_deleted_by_hand_is_made_again_and_named(hbase: HBaseServer) -> None:
    async def look(used: Use) -> None:
        await fill(used)
        await asyncio.to_thread(hbase.drop, used.table)
        await used.put(name(), 4, b"4")  # HBase is asked, and says that it is not there
        await used.until(lambda: used.store.up() and used.store.doubt(), "it is made again")
        assert used.table in used.store.doubt()
        found = await used.looked(name())
        assert found[0] == ABSENT or found[1] == (4, 4, 1)

    use(hbase, look)


def test_a_table_that_is_disabled_is_waited_for(hbase: HBaseServer) -> None:
    """As with a region that nobody serves."""

    async def look(used: Use) -> None:
        await fill(used)
        await asyncio.to_thread(hbase.ask, "disableTable", table_name(used.table))
        assert await used.put(name(), 4, b"4") == UNSURE
        await used.until(lambda: used.store.room() == 0, "it is seen to be away")
        assert "disabled" in used.store.why_not()
        await asyncio.to_thread(hbase.ask, "enableTable", table_name(used.table))
        await used.until(used.store.room, "it is back")
        await used.goes_on(name(), 4)
        assert not used.store.doubt()

    use(hbase, look)


def test_while_the_gateway_is_dead_nothing_is_put_and_it_is_said_why(hbase: HBaseServer) -> None:
    async def look(used: Use) -> None:
        await fill(used)
        hbase.kill_gateway()
        assert await used.put(name(), 4, b"4") == UNSURE
        await used.until(lambda: used.store.room() == 0, "it is seen to be away")
        assert used.store.why_not()
        await asyncio.to_thread(hbase.start)
        await used.until(used.store.room, "it is back")
        await used.goes_on(name(), 4)

    use(hbase, look)


def test_what_hbase_has_answered_is_there_when_it_was_killed(hbase: HBaseServer) -> None:
    """While it stands still nothing is answered, and nobody waits for it; then it is killed as kill -9 does."""

    async def look(used: Use) -> None:
        await fill(used)
        with hbase.stopped():
            assert await used.put(name(), 4, b"4") == UNSURE
            await used.until(lambda: used.store.room() == 0, "it is seen to be away")
            assert used.store.why_not()
            hbase.kill_engine()
        await asyncio.to_thread(hbase.start)
        await used.until(used.store.room, "it is back")
        await used.goes_on(name(), 4)

    use(hbase, look)


def test_what_the_gateway_is_told_is_a_part_of_what_it_knows() -> None:
    """Numbers of HBase's own hbase.thrift."""
    assert [field[1] for field in TYPES.TPut.thrift_spec.values()] == ["row", "columnValues", "durability"]
    assert sorted(TYPES.TScan.thrift_spec) == [1, 2, 3, 4, 7, 15]
    assert TYPES.TDurability.FSYNC_WAL == 4
