"""The store of queues in HBase: a row for 64 messages of a client, a cell a message (B8).

HBase has no append on a condition. So what a stream has is read once, and remembered (`stream_log`); whoever has the
shard alone puts into it. A put that comes twice, or late, writes the same cells again. All that is asked of one stream is
done in order, one after the other; puts of many streams go together. Where nobody knows whether something was done, the
stream is read again from its last row on before anything else. Runs on the loop; calls run on threads (`gateway`). No
answer is given from within a request.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any, Final

from headrace.backoff import Backoff
from headrace.core.ports.queue_store import (
    ABSENT,
    ANOTHER,
    DONE,
    REFUSED,
    SAME,
    THERE,
    UNSURE,
    Context,
    Primary,
    QueueName,
    QueueStore,
    StoreCapabilities,
    StoreListener,
)
from headrace.core.ports.queue_store import Found as FoundInStream
from headrace.stores.hbase.address import HBaseAddress
from headrace.stores.hbase.gateway import CALL_S, GatewayPool, HBaseError
from headrace.stores.hbase.put_batches import PutBatches
from headrace.stores.hbase.stream_log import StreamLog
from headrace.stores.hbase.table import DELETES_AT_ONCE, Table, row_end, row_of
from headrace.stores.names import HBaseNames

UNDER_WAY_MAX: Final = 8 << 20  # bytes of entries without an answer
READ_MAX: Final = 128  # entries of one read
READ_FIRST: Final = 16  # of them, after which it is known whether they are
SMALL: Final = 32 << 10  # bytes
SCAN_STREAMS: Final = 50  # of one scan
KNOWN_MAX: Final = (
    50_000  # streams of which is remembered what they have; others are read again when they are put into
)
PUTTING: Final = 2  # connections
ASKING: Final = 3
LOOK_S: Final = 5.0  # between two looks whether HBase answers
AGAIN_S: Final = (0.1, 1.0)
JOB_S: Final = 25.0  # then whoever asked has given it up

HBASE_CAPABILITIES: Final = StoreCapabilities(
    "hbase",
    atomic_put=False,
    dense_ids=True,
    tells_primary=False,
    waits_for_replicas=True,
    forgets_ms=0,
    entry_bytes_max=1 << 20,
    put_bytes_max=256 << 10,
    put_entries_max=128,
    keeps_context=False,
)

Job = Callable[["Stream"], Coroutine[Any, Any, None]]


class HBaseCounters:
    """What went wrong, by its name, since the start."""

    def __init__(self) -> None:
        self.faults: dict[str, int] = {}
        self.unsettled: dict[str, int] = {}

    def note(self, fault: str) -> None:
        """Count a fault."""
        self.faults[fault] = self.faults.get(fault, 0) + 1


class Stream:
    """A stream: what is known of it, and what is still to be done in it. `start` is what its rows begin with."""

    def __init__(self, start: bytes) -> None:
        self.start = start
        self.log: StreamLog | None = None
        self.is_known = False  # `log` is all that there is; None: there is nothing
        self.is_served = False
        self.jobs: deque[tuple[Job, Callable[[int], None]]] = deque()


class HBaseStore(QueueStore):
    """The store. Made on the loop; it connects by itself and makes its table, and while HBase does not answer `room` is 0
    and the journal keeps what waits. `why_not` says why that is so. `contain` gets what should not have been raised."""

    def __init__(
        self, address: HBaseAddress, contain: Callable[[Exception], None], *, call_s: float = CALL_S
    ) -> None:
        """Begin to connect. `call_s`: what is not answered by then is not waited for."""
        super().__init__(HBASE_CAPABILITIES)
        self.counters = HBaseCounters()
        self.contain = contain
        self._table_name = address.table
        self._loop = asyncio.get_running_loop()
        self._primary = Primary("hbase")
        self._table = Table(address)
        places = list(address.places)
        self._putting = GatewayPool(places, PUTTING, "hbase-store-put", call_s)
        self._asking = GatewayPool(places, ASKING, "hbase-store-ask", call_s)
        self._looking = GatewayPool(places, 1, "hbase-store-look", call_s)
        self._batches = PutBatches(self._table, self._putting, PUTTING, contain)
        self._streams: dict[bytes, Stream] = {}
        self._was_there = False
        self._doubt = ""
        self._why_not = "it was not reached yet"
        self._bytes = 0
        self._asked = 0
        self._tasks: set[asyncio.Task[None]] = set()
        self._look_now = asyncio.Event()
        self._watching = self._loop.create_task(self._watch())

    def close(self) -> None:
        """End all connections. What is under way fails."""
        self._watching.cancel()
        for task in self._tasks:
            task.cancel()
        self._batches.close()
        for pool in (self._putting, self._asking, self._looking):
            pool.close()

    @property
    def commands(self) -> int:
        """Return how many calls were made for streams."""
        return self._asked + self._batches.calls

    def why_not(self) -> str:
        """Return why HBase cannot be used now, in words; "" if it can."""
        return self._why_not

    def doubt(self) -> str:
        """Return what was lost though HBase can be used, in words; "" if nothing was."""
        return self._doubt

    def up(self) -> int:
        """Return 1 while HBase answers."""
        return int(not self._why_not)

    def room(self) -> int:
        return max(0, UNDER_WAY_MAX - self._bytes) if self.up() else 0

    def place(self, name: str, tenant: str, client_id: str) -> str:
        return f"{name}, rows {HBaseNames.client(tenant, client_id)}"

    # Requests

    def put(self, number: int, name: QueueName, first: int, entries: list[bytes], begins: bool) -> None:
        listener = self._listener()
        size = sum(map(len, entries))
        self._bytes += size

        async def job(stream: Stream) -> None:
            answered(await self._put(stream, first, entries, begins))

        def answered(outcome: int) -> None:
            nonlocal size
            self._bytes -= size
            size = 0  # also where whoever is told raises, and is told again that it has failed
            listener.took(number, outcome, self._primary if outcome == DONE else None)

        self._do(name, job, answered)

    def look(self, number: int, name: QueueName) -> None:
        listener = self._listener()

        async def job(stream: Stream) -> None:
            found = await self._look(stream)
            listener.looked(number, ABSENT if found is None else DONE, found, self._primary)

        self._do(name, job, lambda outcome: listener.looked(number, outcome, None, None))

    def read(self, number: int, name: QueueName, first: int, count: int) -> None:
        listener = self._listener()
        up_to = first + min(count, READ_MAX) - 1

        async def job(stream: Stream) -> None:
            floor = 0 if stream.log is None else stream.log.floor
            found, end = await self._read(stream.start, max(first, floor), up_to)
            listener.read_back(number, DONE, end, list(found), list(found.values()))

        self._do(name, job, lambda outcome: listener.read_back(number, outcome, 0, [], []))

    def trim(self, number: int, name: QueueName, floor: int) -> None:
        async def job(stream: Stream) -> None:
            log = await self._known(stream)
            if log is not None:
                log.trim(floor)
                while blocks := log.needless_rows()[:DELETES_AT_ONCE]:
                    await self._ask(self._table.delete_rows, stream.start, blocks)
                    log.block = blocks.stop

        self._finish(number, name, job)

    def delete(self, number: int, name: QueueName) -> None:
        async def job(stream: Stream) -> None:
            block = 0 if stream.log is None else stream.log.block
            stream.is_known = False
            start = row_of(stream.start, block)
            while (
                start
            ):  # in slices: others have their turns between, and who gives it up leaves one of them behind
                start = await self._ask(self._table.delete_from, stream.start, start)
            stream.log, stream.is_known = None, True

        self._finish(number, name, job)

    def sight(self, number: int, primary: Primary) -> None:
        outcome = SAME if primary is self._primary else ANOTHER
        self._loop.call_soon(self._listener().seen, number, outcome)

    def keep_context(self, number: int, name: QueueName, context: Context | None) -> None:
        self._loop.call_soon(self._listener().finished, number, DONE)

    def scan(self, number: int, cursor: str) -> None:
        listener = self._listener()

        async def scan() -> None:
            try:
                names, then = await self._ask(self._table.streams, cursor, SCAN_STREAMS)
            except HBaseError as error:
                self._note_fault(error)
                listener.scanned(number, REFUSED, [], "")
            else:
                listener.scanned(number, DONE, names, then)

        self._start(scan())

    def _finish(self, number: int, name: QueueName, work: Job) -> None:
        """Do something of which only is asked whether it was done."""
        listener = self._listener()

        async def job(stream: Stream) -> None:
            await work(stream)
            listener.finished(number, DONE)

        self._do(name, job, lambda outcome: listener.finished(number, outcome))

    def _listener(self) -> StoreListener:
        assert self.listener is not None
        return self.listener

    # One stream

    def _do(self, name: QueueName, job: Job, failed: Callable[[int], None]) -> None:
        """Have something done in a stream, behind what was asked for before; `failed` answers if it could not be done."""
        start = HBaseNames.stream(name)
        stream = self._streams.pop(start, None) or Stream(start)
        self._streams[start] = stream  # the newest is the last one
        stream.jobs.append((job, failed))
        if not stream.is_served:
            stream.is_served = True
            self._start(self._serve(stream))

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _serve(self, stream: Stream) -> None:
        """Do what is asked for in a stream until nothing is left."""
        while stream.jobs:
            job, failed = stream.jobs.popleft()
            try:
                await asyncio.wait_for(job(stream), JOB_S)
            except HBaseError as error:
                stream.is_known = False
                self._note_fault(error)
                failed(UNSURE)
            except TimeoutError:
                stream.is_known = False
                self.counters.note("late")
                failed(UNSURE)
            except Exception as error:  # noqa: BLE001  whatever it is, the next request is served
                stream.is_known = False
                self.contain(error)
                failed(UNSURE)
        stream.is_served = False
        if stream.log is None:
            self._streams.pop(stream.start, None)
        self._forget()

    def _forget(self) -> None:
        """Forget what is known of the streams that were not used for longest, where there are many."""
        while len(self._streams) > KNOWN_MAX:
            oldest = next(iter(self._streams.values()))
            if oldest.is_served:
                return
            del self._streams[oldest.start]

    def _note_fault(self, error: HBaseError) -> None:
        """Count what HBase has answered, or has not, and look soon whether it answers at all."""
        self.counters.note(error.fault)
        self._look_now.set()

    async def _ask(self, work: Callable[..., Any], *arguments: Any) -> Any:
        """Return the answer to what is asked of the table. Raises HBaseError."""
        self._asked += 1
        return await self._asking.run(lambda gateway: work(gateway, *arguments))

    async def _known(self, stream: Stream) -> StreamLog | None:
        """Return what a stream has, None if there is none: it is found out unless it is known."""
        return stream.log if stream.is_known else await self._learn(stream)

    async def _learn(self, stream: Stream) -> StreamLog | None:
        """Find out what a stream has: its last row and those behind it, or all of them where its first one is not what it
        was."""
        stream.is_known = False
        log = stream.log
        first = None if log is None else log.first_row()
        if log is not None and first is not None:
            there = await self._ask(self._table.first_row, stream.start, first)
            if there != first:
                self.counters.note("rows_missing")
                log = None
        if log is None:
            log = StreamLog()
        start = row_of(stream.start, log.reopen())
        while start:  # what is found out of a long one counts though there was no time for the rest
            serials, start = await self._ask(self._table.serials, stream.start, start)
            log.note(serials)
            stream.log = log if log.last else None
        stream.is_known = True
        return stream.log

    # What is done

    async def _put(self, stream: Stream, first: int, entries: list[bytes], begins: bool) -> int:
        """Put entries; returns the outcome."""
        log = await self._known(stream)
        if log is None and not begins:
            self.counters.note("rows_missing")
            return ABSENT
        if log is not None and (begins or first <= log.last):
            return THERE
        stream.is_known = False
        await self._batches.put(self._table.rows(stream.start, first, entries), sum(map(len, entries)))
        if log is None:
            log = stream.log = StreamLog()
        log.note(range(first, first + len(entries)))
        stream.is_known = True
        return DONE

    async def _read(self, start: bytes, first: int, up_to: int) -> tuple[dict[int, bytes], int]:
        """Return the entries between two serial numbers, and up to where: a few, and the others only if these are small,
        since entries of 128 MiB at once are too much for everybody on the way."""
        few = min(up_to, first + READ_FIRST - 1, row_end(first))
        found = await self._ask(self._table.entries, start, first, few)
        if few < up_to and max(map(len, found.values()), default=0) <= SMALL:
            found |= await self._ask(self._table.entries, start, few + 1, up_to)
            few = up_to
        return found, few

    async def _look(self, stream: Stream) -> FoundInStream | None:
        """Look what is in a stream, and at its last entry itself; None if there is no stream."""
        log = await self._learn(stream)
        if log is None:
            return None
        entry = None
        if log.runs:
            last = log.runs[-1][1]
            entry = (await self._ask(self._table.entries, stream.start, last, last)).get(last)
            if entry is None:
                stream.is_known = False
                raise HBaseError("rows_missing", "a row was deleted meanwhile", answered=True)
        return log.found(entry)

    # HBase itself

    async def _watch(self) -> None:
        """Look whether HBase answers, for as long as the store is open."""
        backoff = Backoff(*AGAIN_S)
        while True:
            try:
                if not await self._reaches():
                    await asyncio.sleep(backoff.next_s())
                    continue
                self._is_there(backoff)
            except Exception as error:  # noqa: BLE001  whatever it is, HBase is tried again
                self._why_not = f"{type(error).__name__}: {error}"
                self.contain(error)
                await asyncio.sleep(backoff.next_s())
                continue
            self._look_now.clear()
            try:
                await asyncio.wait_for(self._look_now.wait(), LOOK_S)
            except TimeoutError:
                continue
            await asyncio.sleep(AGAIN_S[0])  # many faults, one look

    async def _reaches(self) -> bool:
        """Return whether HBase answers; where its table is not there, it is made."""
        try:
            await self._looking.run(self._table.reach)
        except HBaseError as error:
            self._why_not = str(error)
            if error.answered:
                await self._make_if_absent()
            return False
        return True

    def _is_there(self, backoff: Backoff) -> None:
        """Note that HBase answers."""
        had_room = not self._why_not
        self._why_not = ""
        self._was_there = True
        if not had_room:
            backoff.lasted(AGAIN_S[1])
            if self.listener is not None:
                self.listener.has_room()

    async def _make_if_absent(self) -> None:
        """Make the table, unless it is there; where it was there before, say that somebody has deleted it."""
        try:
            if await self._looking.run(self._table.is_there):
                return
            if self._was_there:
                self._was_there = False
                self.counters.note("table_made_again")
                self._doubt = f"the table {self._table_name} was deleted by somebody else since the start"
            await self._looking.run(self._table.make)
        except HBaseError as error:
            self._why_not = f"its table cannot be made: {error}"
            self.counters.note(error.fault)
