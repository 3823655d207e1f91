"""The store of queues in Redis: a stream a client, an entry a message, ids that are serial numbers (T3, T4).

All keys of a queue have one hash tag, so each change is one command, or one MULTI of one slot: several entries of a
session are there together or not at all. There is no script, no TTL, and nothing is trimmed but what core asks for. A
command that the server of its slot does not take any more (MOVED, ASK) goes on to the one it names; the map of slots is
read again then, after a connection was lost, and every `MAP_S`. Runs on the loop. No answer is given from within a
request.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import Any, Final

from hiredis import HiredisError, ReplyError

from headrace.core.ports.queue_store import (
    ABSENT,
    ANOTHER,
    DONE,
    REFUSED,
    UNSURE,
    Context,
    Found,
    Primary,
    QueueName,
    QueueStore,
    StoreCapabilities,
    StoreListener,
)
from headrace.stores.names import RedisNames
from headrace.stores.redis.address import Place, RedisAddress
from headrace.stores.redis.connection import Command, Meter, packed
from headrace.stores.redis.node import RedisNode
from headrace.stores.redis.replies import (
    FIELD,
    SLOTS,
    entries_of,
    fault_of,
    first_error,
    found_in,
    is_foreign,
    is_no_key,
    is_smaller,
    owners_of,
    put_outcome,
    redirection,
    slot_of,
)
from headrace.stores.redis.succession import Standing, Succession

UNDER_WAY_MAX: Final = 8 << 20  # bytes of commands without an answer
READ_MAX: Final = 128  # entries of one read
SCAN_COUNT: Final = 200
REDIRECTS_MAX: Final = 4  # of one command
MAP_S: Final = 10.0
MAP_AGAIN_S: Final = 0.2
_MULTI: Final = packed(b"MULTI")
_EXEC: Final = packed(b"EXEC")
_ASKING: Final = packed(b"ASKING")
_ROLE: Final = packed(b"ROLE")

REDIS_CAPABILITIES: Final = StoreCapabilities(
    "redis",
    atomic_put=True,
    dense_ids=True,
    tells_primary=True,
    waits_for_replicas=True,
    forgets_ms=2000,  # appendfsync everysec may be late by a second; replication usually is not
    entry_bytes_max=1 << 20,
    put_bytes_max=256 << 10,
    put_entries_max=128,
)

Answered = Callable[[list[Any], "RedisNode"], None]


class RedisCounters:
    """What went wrong, by fault (`replies.FAULTS`), since the start."""

    def __init__(self) -> None:
        self.faults: dict[str, int] = {}
        self.unsettled: dict[str, int] = {}  # looks after which the journal keeps what was put, by why
        self.redirects = 0
        self.connections_lost = 0

    def note(self, error: ReplyError) -> str:
        """Count an error and return its fault."""
        fault = fault_of(error)
        self.faults[fault] = self.faults.get(fault, 0) + 1
        return fault


class _Request(Command):
    """A command of core. It is sent on to whoever its key has moved to."""

    __slots__ = ("_answered", "_failed", "_store", "key", "node", "reads", "redirects")

    def __init__(
        self,
        store: RedisStore,
        key: bytes,
        data: bytes,
        replies: int,
        answered: Answered,
        failed: Callable[[int], None],
        *,
        writes: bool = False,
        reads: bool = False,
    ) -> None:
        super().__init__(data, replies, writes)
        self._store = store
        self._answered = answered
        self._failed = failed
        self.key = key
        self.reads = reads
        self.redirects = 0
        self.node: RedisNode | None = None

    def done(self, replies: list[Any]) -> None:
        error = first_error(replies)
        if error is not None and self._store.redirected(self, error):
            return
        if self.packed.startswith(_ASKING):
            del replies[0]
        assert self.node is not None
        self._answered(replies, self.node)

    def failed(self, outcome: int) -> None:
        self._failed(outcome)


class RedisStore(QueueStore):
    """The store. Made on the loop; it connects by itself, and while no server can be used `room` is 0 and the journal
    keeps what waits. `why_not` says why that is so. `contain` gets what should not have been raised."""

    def __init__(self, address: RedisAddress, contain: Callable[[Exception], None]) -> None:
        super().__init__(REDIS_CAPABILITIES)
        self.counters = RedisCounters()
        self.meter = Meter()
        self.contain = contain
        self._address = address
        self._names = RedisNames(address.prefix)
        self._loop = asyncio.get_running_loop()
        self._nodes: dict[Place, RedisNode] = {}
        self._slots: list[RedisNode | None] | None = None  # of a cluster
        self._had_room = False
        self._succession = Succession()
        self._chosen: RedisNode | None = None  # of those that are no cluster: who is asked
        self._map_wanted = asyncio.Event()
        for place in address.places:
            self._node_at(place)
        self._mapping = self._loop.create_task(self._keep_map())

    def close(self) -> None:
        """End all connections. What is under way fails."""
        self._mapping.cancel()
        for node in self._nodes.values():
            node.close()

    @property
    def commands(self) -> int:
        """Return how many commands were sent."""
        return self.meter.commands

    def why_not(self) -> str:
        """Return why no server can be used now, in words; "" if one can."""
        if self.up():
            return ""
        return "; ".join(sorted({node.why_not for node in self._nodes.values()}))

    def doubt(self) -> str:
        """Return why the journal keeps all that is put, in words, "" if it need not. What can be used may be put into
        all the same."""
        used = [node for node in self._nodes.values() if node.primary is not None and node.doubt]
        return "; ".join(sorted({f"the journal keeps everything: {node.doubt}" for node in used}))

    def up(self) -> int:
        """Return how many servers can be used, each once for every place that it is known under. Those of a cluster
        count when the map of slots is known."""
        nodes = [node for node in self._nodes.values() if node.primary is not None]
        return len([node for node in nodes if not node.is_cluster or self._slots is not None])

    def room(self) -> int:
        return max(0, UNDER_WAY_MAX - self.meter.bytes) if self.up() else 0

    # Requests

    def put(self, number: int, name: QueueName, first: int, entries: list[bytes], begins: bool) -> None:
        key = self._names.stream(name)
        absent: tuple[bytes, ...] = () if begins else (b"NOMKSTREAM",)
        adds = [
            packed(b"XADD", key, *absent, b"%d-0" % serial, FIELD, entry)
            for serial, entry in enumerate(entries, first)
        ]
        if begins:
            adds.append(packed(b"XLEN", key))
        is_one = len(adds) == 1
        data = adds[0] if is_one else b"".join((_MULTI, *adds, _EXEC))
        replies = 1 if is_one else len(adds) + 2
        count = len(entries)
        listener = self._listener()

        def answered(found: list[Any], node: RedisNode) -> None:
            outcome = put_outcome(found, count, begins)
            error = first_error(found)
            if error is not None and not is_smaller(error):
                self._note_fault(error, node)
            if outcome == DONE and node.primary is None:
                outcome = UNSURE
            listener.took(number, outcome, node.primary if outcome == DONE else None)

        def failed(outcome: int) -> None:
            listener.took(number, outcome, None)

        self._send(_Request(self, key, data, replies, answered, failed, writes=True))

    def look(self, number: int, name: QueueName) -> None:
        key = self._names.stream(name)
        listener = self._listener()

        def answered(found: list[Any], node: RedisNode) -> None:
            if is_no_key(found[0]):
                listener.looked(number, ABSENT, None, node.primary)
                return
            foreign = is_foreign(found[0])
            if self._is_fault(found[0], node) and not foreign:
                listener.looked(number, REFUSED, None, None)
                return
            if foreign:
                listener.looked(
                    number, DONE, Found(0, 1, 0), node.primary
                )  # nothing of ours: made anew elsewhere
                return
            listener.looked(number, DONE, found_in(found[0]), node.primary)

        def failed(outcome: int) -> None:
            listener.looked(number, outcome, None, None)

        self._send(_Request(self, key, packed(b"XINFO", b"STREAM", key), 1, answered, failed))

    def read(self, number: int, name: QueueName, first: int, count: int) -> None:
        key = self._names.stream(name)
        up_to = first + min(count, READ_MAX) - 1
        listener = self._listener()

        def answered(found: list[Any], node: RedisNode) -> None:
            foreign = is_foreign(found[0])
            if self._is_fault(found[0], node) and not foreign:
                listener.read_back(number, REFUSED, 0, [], [])
            elif isinstance(found[1], ReplyError) or found[1][0] != b"master":
                node.reopen()  # what a replica has not may be there all the same
                listener.read_back(number, REFUSED, 0, [], [])
            else:
                there = ([], []) if foreign else entries_of(found[0])
                self._give_back(listener, number, (first, up_to), there, node)

        def failed(outcome: int) -> None:
            listener.read_back(number, outcome, 0, [], [])

        data = packed(b"XRANGE", key, b"%d-0" % first, b"%d-0" % up_to) + _ROLE
        self._send(_Request(self, key, data, 2, answered, failed, reads=True))

    def _give_back(
        self,
        listener: StoreListener,
        number: int,
        asked: tuple[int, int],
        found: tuple[list[int], list[bytes]],
        node: RedisNode,
    ) -> None:
        """Answer a read of `asked`, first and last serial number. What lacks is gone if the server is to be believed;
        else the answer ends before it, and a later one may have it."""
        first, up_to = asked
        serials, entries = found
        if len(serials) <= up_to - first and self.doubt_of(node):
            whole = 0
            while whole < len(serials) and serials[whole] == first + whole:
                whole += 1
            if not whole:
                listener.read_back(number, REFUSED, 0, [], [])
                return
            up_to, serials, entries = first + whole - 1, serials[:whole], entries[:whole]
        listener.read_back(number, DONE, up_to, serials, entries)

    def trim(self, number: int, name: QueueName, floor: int) -> None:
        key = self._names.stream(name)
        self._finish(number, key, packed(b"XTRIM", key, b"MINID", b"%d-0" % floor))

    def delete(self, number: int, name: QueueName) -> None:
        key = self._names.stream(name)
        self._finish(number, key, packed(b"UNLINK", key))

    def keep_context(self, number: int, name: QueueName, context: Context | None) -> None:
        key = self._names.context(name)
        if context is None:
            data = packed(b"UNLINK", key)
        else:
            fields = (b"last_packet_id", context.last_packet_id, b"last_serial", context.last_serial)
            data = packed(b"HSET", key, *fields, b"updated_us", context.updated_us)
        self._finish(number, key, data)

    def sight(self, number: int, primary: Primary) -> None:
        listener = self._listener()
        node = next((node for node in self._nodes.values() if node.primary is primary), None)
        if node is None:
            self._loop.call_soon(listener.seen, number, ANOTHER)
            return
        node.look(lambda outcome: listener.seen(number, outcome))

    def scan(self, number: int, cursor: str) -> None:
        listener = self._listener()
        up = [node for node in self._nodes.values() if node.primary is not None]
        nodes = {f"{node.place[0]} {node.place[1]}": node for node in up}
        at, _, within = cursor.rpartition(" ")
        here = next((place for place in sorted(nodes) if place >= at), None)
        if here is None:
            self._loop.call_soon(listener.scanned, number, DONE if nodes else REFUSED, [], "")
            return
        data = packed(
            b"SCAN", within if here == at else b"0", b"MATCH", self._names.pattern(), b"COUNT", SCAN_COUNT
        )

        def answered(found: list[Any], node: RedisNode) -> None:
            if self._is_fault(found[0], node):
                listener.scanned(number, REFUSED, [], "")
                return
            after, keys = found[0]
            names = [name for name in map(self._names.name_of, keys) if name is not None]
            # "!" is behind every port: the next server in order.
            then = f"{here}! 0" if after == b"0" else f"{here} {after.decode()}"
            listener.scanned(number, DONE, names, then)

        def failed(outcome: int) -> None:
            listener.scanned(number, outcome, [], "")

        self._send_to(nodes[here], _Request(self, b"", data, 1, answered, failed, reads=True))

    def _finish(self, number: int, key: bytes, data: bytes) -> None:
        """Send a command of which only is asked whether it was done, among what is put."""
        listener = self._listener()

        def answered(found: list[Any], node: RedisNode) -> None:
            fault = self._is_fault(found[0], node) and not is_foreign(found[0])
            listener.finished(number, REFUSED if fault else DONE)

        def failed(outcome: int) -> None:
            listener.finished(number, outcome)

        self._send(_Request(self, key, data, 1, answered, failed))

    def _listener(self) -> StoreListener:
        assert self.listener is not None
        return self.listener

    # Who has a key

    def _send(self, request: _Request) -> None:
        """Send a request to the server of its key."""
        if self._slots is not None:
            node = self._slots[slot_of(request.key)]
        else:
            node = self._chosen
        self._send_to(node, request)

    def _send_to(self, node: RedisNode | None, request: _Request) -> None:
        if node is None or node.primary is None:
            self._loop.call_soon(request.failed, REFUSED)
            return
        request.node = node
        node.send(request, request.reads)

    def redirected(self, request: _Request, error: ReplyError) -> bool:
        """Send a request on that its server has not done because the key is elsewhere. Returns False if that is not
        what the error says, or it was sent on too often."""
        to = redirection(error)
        if to is None or request.redirects >= REDIRECTS_MAX or not request.key:
            return False
        self.counters.redirects += 1
        self.counters.note(error)
        kind, host, port = to
        if not host and request.node is not None:
            host = request.node.place[0]
        node = self._node_at((host, port))
        request.redirects += 1
        was_asking = request.packed.startswith(_ASKING)
        if was_asking and kind == "MOVED":
            request.packed, request.replies = request.packed[len(_ASKING) :], request.replies - 1
        elif not was_asking and kind == "ASK":
            request.packed, request.replies = _ASKING + request.packed, request.replies + 1
        if kind == "MOVED":
            self._map_wanted.set()
            if self._slots is not None:
                self._slots[slot_of(request.key)] = node
        self._send_to(node, request)
        return True

    def _note_fault(self, error: ReplyError, node: RedisNode) -> None:
        """Count an error, and do about it what helps."""
        fault = self.counters.note(error)
        if fault in ("readonly", "auth", "loading"):
            node.why_not = str(error)
            node.reopen()
        if fault in ("readonly", "clusterdown", "moved"):
            self._map_wanted.set()

    def _is_fault(self, reply: Any, node: RedisNode) -> bool:
        """Return whether a reply is an error, which is counted then."""
        if not isinstance(reply, ReplyError):
            return False
        self._note_fault(reply, node)
        return True

    # Servers come and go

    def _node_at(self, place: Place) -> RedisNode:
        """Return the server at a place, which is connected to from now on."""
        node = self._nodes.get(place)
        if node is None:
            node = RedisNode(place, self._address, self._names, self.meter, self, self._loop)
            self._nodes[place] = node
        return node

    def node_is_up(self, node: RedisNode) -> None:
        """Note that a server can be used. One of a cluster knows the others."""
        self._choose()
        if node.is_cluster:
            self._map_wanted.set()
        self._note_room()

    def _note_room(self) -> None:
        """Tell core when there is room again."""
        before, self._had_room = self._had_room, self.up() > 0
        if self._had_room and not before and self.listener is not None:
            self.listener.has_room()

    def node_is_lost(self, node: RedisNode, primary: Primary) -> None:
        """Note that a server cannot be used any more; another one may have its slots."""
        self.counters.connections_lost += 1
        self._choose()
        self._map_wanted.set()
        self._note_room()
        if self.listener is not None:
            self.listener.lost(primary)

    def unsettled(self, why: str) -> None:
        """Count a look at a server that was not enough for the journal to let go."""
        self.counters.unsettled[why] = self.counters.unsettled.get(why, 0) + 1

    def _choose(self) -> None:
        """Choose among servers that are no cluster who is asked from now on: usually there is one primary."""
        standings = {node.place: node for node in self._nodes.values() if not node.is_cluster}
        place = self._succession.choose(map(_standing, standings.values()))
        self._chosen = None if place is None else standings[place]
        if self._chosen is not None:
            self.doubt_of(self._chosen)

    def doubt_of(self, node: RedisNode) -> str:
        """Return why a server is not to be believed when it lacks something, "" if it is: another of those that are
        named may be the primary, and have it."""
        named = self._address.places
        if node.is_cluster or len(named) == 1:
            return ""
        others = [_standing(self._nodes[place]) for place in named if place != node.place]
        return self._succession.doubt(_standing(node), others, self._loop.time())

    async def _keep_map(self) -> None:
        """Read the map of slots again when it is wanted, and every `MAP_S`, as long as the store is open."""
        while True:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._map_wanted.wait(), MAP_S)
            self._map_wanted.clear()
            for node in list(self._nodes.values()):
                if node.primary is not None and node.is_cluster and await self._read_map(node):
                    break
            await asyncio.sleep(MAP_AGAIN_S)

    async def _read_map(self, node: RedisNode) -> bool:
        """Take over the map of slots as a server has it. Returns False if it could not say."""
        try:
            async with asyncio.timeout(2.0):
                owners = owners_of(await node.call(b"CLUSTER", b"SLOTS"), node.place[0])
        except (OSError, TimeoutError, HiredisError):
            return False
        except Exception as error:  # noqa: BLE001  an answer of another form: the map stays as it is
            self.contain(error)
            return False
        slots: list[RedisNode | None] = [None] * SLOTS
        for first, last, place in owners:
            slots[first : last + 1] = [self._node_at(place)] * (last - first + 1)
        self._slots = slots
        used = {place for _, _, place in owners} | set(self._address.places)
        for place in self._nodes.keys() - used:
            self._nodes.pop(place).close()
        self._note_room()
        return True


def _standing(node: RedisNode) -> Standing:
    """Return what is known of a server."""
    return Standing(node.place, node.server, node.since_s)
