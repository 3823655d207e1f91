"""One Redis server, as a primary: two connections, one for what is put and one for what is read, since a WAIT holds up
the first; who it is; and coming back after it was away.

It is used while it is a primary, is not loading, and would evict nothing. Whoever it is was seen at the start of its
connections, and is looked at again behind what was put: another process, another line of replication, other slots, or
none of what it had are another primary. A key of its own, `names.RedisNames.marker`, tells a server that was emptied.

A look is believed where what was put outlasts the server: it has an append-only file; where it has had replicas one of
them has everything (a WAIT of the look's own: a primary that was cut off from the others, and will be replaced, has
none); no slot of it is on its way to another one; and no other of those that are named may be the primary
(`succession`). Else the journal keeps what was put, `unsettled` counts why, and `doubt` says it. Whoever puts nothing is
looked at every `LOOK_S` all the same, so that it is said what a server lacks before something waits for it.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from collections.abc import Callable
from typing import Any, Final, Protocol

from hiredis import HiredisError, ReplyError

from headrace.backoff import Backoff
from headrace.core.ports.queue_store import ANOTHER, SAME, UNSETTLED, Primary
from headrace.stores.names import RedisNames
from headrace.stores.redis.address import Place, RedisAddress
from headrace.stores.redis.connection import WAIT, Command, Meter, RedisConnection, packed
from headrace.stores.redis.replies import Server, server_of, tag_in

OPEN_S: Final = 5.0  # to connect, sign in and say who it is
AGAIN_S: Final = (0.05, 1.0)
LOOK_S: Final = 10.0
_INFO: Final = packed(b"INFO", b"server", b"replication", b"memory", b"persistence", b"cluster")
_NODES: Final = packed(b"CLUSTER", b"NODES")


class UnusableServer(Exception):
    """A server that is there and must not be used as it is. The message says why, and what to do."""


class NodeOwner(Protocol):
    """Whoever uses the servers."""

    def node_is_up(self, node: RedisNode) -> None: ...

    def node_is_lost(self, node: RedisNode, primary: Primary) -> None: ...

    def unsettled(self, why: str) -> None: ...

    def doubt_of(self, node: RedisNode) -> str: ...

    def contain(self, error: Exception) -> None: ...


class Sight(Command):
    """A look at who a server is, behind what was put. `told` gets SAME, ANOTHER or UNSETTLED."""

    __slots__ = ("node", "told")

    def __init__(self, node: RedisNode, data: bytes, replies: int, told: Callable[[int], None]) -> None:
        super().__init__(data, replies)
        self.node = node
        self.told = told

    def done(self, replies: list[Any]) -> None:
        self.told(self.node.compare(replies))

    def failed(self, outcome: int) -> None:
        self.told(ANOTHER)


class _Mark(Command):
    """SET of the marker; the next look says what became of it."""

    __slots__ = ()

    def done(self, replies: list[Any]) -> None:
        """Do nothing: whatever became of it is read back."""

    def failed(self, outcome: int) -> None:
        """Do nothing: the next connection marks again."""


def _tell_nobody(outcome: int) -> None:
    """Hear of a look that nobody waits for: what it found is noted at the server."""


class RedisNode:
    """A server and the connections to it. `primary` is who takes puts; None while it is not used, and `why_not` says
    why."""

    def __init__(
        self,
        place: Place,
        address: RedisAddress,
        names: RedisNames,
        meter: Meter,
        owner: NodeOwner,
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        self.place = place
        self.primary: Primary | None = None
        self.is_cluster = False
        self.why_not = "it was not reached yet"
        self.doubt = ""  # why what is put would not outlast it, as far as it is known
        self.server: Server | None = (
            None  # what it said of itself last, also a replica; None while it is away
        )
        self.since_s = -1.0  # when its use as a primary began
        self._address = address
        self._names = names
        self._meter = meter
        self._owner = owner
        self._loop = loop
        self._marker = b""
        self._has_copies = False  # or had some, and they are to come back
        self._puts: RedisConnection | None = None
        self._reads: RedisConnection | None = None
        self._over: asyncio.Event | None = None
        self._task = loop.create_task(self._keep())

    # What it is used for

    def send(self, command: Command, reads: bool) -> None:
        """Send a command to a server that is up: among what is put, or what is read."""
        connection = self._reads if reads else self._puts
        assert connection is not None
        connection.send(command)

    async def call(self, *words: bytes | int) -> Any:
        """Send a command among what is read and return its reply. Raises OSError, ReplyError."""
        if self._reads is None:
            raise ConnectionResetError("the server is away")
        return (await self._reads.call(packed(*words)))[0]

    def look(self, told: Callable[[int], None]) -> None:
        """Look who it is, behind what was put."""
        data, replies = self._looks()
        self.send(Sight(self, data, replies, told), reads=False)

    def compare(self, replies: list[Any]) -> int:
        """Return whether the server that answered is the one that it was: SAME, ANOTHER or UNSETTLED. One that may not
        be used any more is left."""
        before = self.primary
        try:
            server, name = self._read(replies)
            self._check(server)
        except (ReplyError, UnusableServer, KeyError, ValueError) as error:
            self.why_not = str(error)
            self.reopen()
            return UNSETTLED
        waited = replies[-1] if len(replies) > self._names_end() else 1
        self._note(server)
        self.doubt = self._doubt(server, waited)
        if before is None or before.name != name:
            self.primary = Primary(name)
            self._mark()
            return ANOTHER
        if self.doubt:
            self._owner.unsettled(self.doubt)
            return UNSETTLED
        return SAME

    def _doubt(self, server: Server, waited: int) -> str:
        """Return why what was put may not outlast the server, "" if it does. `waited`: how many replicas have it."""
        if server.is_moving:
            return "moving"
        if not server.appends:
            return "no append-only file"
        if not waited:
            return "no replica"
        return self._owner.doubt_of(self) if self._address.copies else ""

    def reopen(self) -> None:
        """Leave the server, and come back: it is not what it was, or wants something else of who connects."""
        for connection in (self._puts, self._reads):
            if connection is not None:
                connection.abort()

    def close(self) -> None:
        """Leave the server for good."""
        self._task.cancel()
        self.reopen()

    # Who it is

    def _looks(self) -> tuple[bytes, int]:
        """Return the commands that say who it is, and how many replies they have."""
        found = [_INFO]
        if self.is_cluster:
            found.append(_NODES)
        if self._marker:
            found.append(packed(b"GET", self._marker))
        if self._has_copies:
            found.append(WAIT)
        return b"".join(found), len(found)

    def _names_end(self) -> int:
        """Return how many replies say who it is, before the one that says how many replicas have everything."""
        return 1 + self.is_cluster + bool(self._marker)

    def _mark(self) -> None:
        """Mark the server, unless it is: one that has lost everything has lost the mark. Without memory left it stays
        unmarked, and is told by what else it says."""
        if self._puts is not None:
            self._puts.send(_Mark(packed(b"SET", self._marker, secrets.token_hex(16), b"NX")))

    def _read(self, replies: list[Any]) -> tuple[Server, str]:
        """Return what the replies to `_looks` say, and the name of the primary. Raises ReplyError, KeyError,
        ValueError."""
        for reply in replies:
            if isinstance(reply, ReplyError):
                raise reply
        server = server_of(replies[0], replies[1] if self.is_cluster else None)
        mark: bytes | None = replies[1 + self.is_cluster] if self._marker else None
        return server, f"{server.history} {'' if mark is None else mark.decode()}"

    def _check(self, server: Server) -> None:
        """Raise UnusableServer for one that must not be used."""
        host, port = self.place
        if not server.is_primary:
            raise UnusableServer(f"{host}:{port} is a replica")
        if server.is_loading:
            raise UnusableServer(f"{host}:{port} is loading its data")
        if server.policy != "noeviction":
            raise UnusableServer(
                f"{host}:{port} has maxmemory-policy {server.policy}, which deletes messages when memory is short: "
                "set it to noeviction"
            )
        if server.is_cluster and self._address.database:
            raise UnusableServer(f"{host}:{port} is of a cluster, which has database 0 alone")

    def _note(self, server: Server) -> None:
        """Note what may change while it stays the same."""
        self.why_not = ""
        self.server = server
        if self._address.copies and server.replicas:
            self._has_copies = True
        if self._puts is not None:
            self._puts.waits = self._address.copies and server.replicas > 0

    # Its connections

    async def _keep(self) -> None:
        """Connect, and connect again whenever a connection has ended: within a second, for as long as it takes."""
        backoff = Backoff(*AGAIN_S)
        while True:
            began_s = self._loop.time()
            self._over = asyncio.Event()
            try:
                await asyncio.wait_for(self._open(), OPEN_S)
                await self._stay(self._over)
                backoff.lasted(self._loop.time() - began_s)
                self.server = None
            except UnusableServer as error:
                self.why_not = str(error)
            except (OSError, TimeoutError, HiredisError, KeyError, ValueError) as error:
                self.why_not = str(error) or type(error).__name__
                self.server = None
            except Exception as error:  # noqa: BLE001  whatever it is, the server is tried again
                self.server = None
                self.why_not = f"{type(error).__name__}: {error}"
                self._owner.contain(error)
            finally:
                self._leave()
            await asyncio.sleep(backoff.next_s())

    async def _stay(self, over: asyncio.Event) -> None:
        """Look who it is now and then, until one of the connections is over."""
        while not over.is_set():
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(over.wait(), LOOK_S)
            if not over.is_set():
                self.look(_tell_nobody)

    async def _open(self) -> None:
        """Open both connections and find out who answers. Raises what `_keep` notes."""
        self._marker = b""
        self.is_cluster = False
        puts = self._puts = await self._connect()
        reads = self._reads = await self._connect()
        reads.patient = False
        server, _ = self._read(await puts.call(*self._looks()))
        if server.is_cluster:
            self.is_cluster = True
            server, _ = self._read(await puts.call(*self._looks()))
        self.server = server
        self._check(server)
        if server.is_cluster and not server.slots:
            raise UnusableServer(f"{self.place[0]}:{self.place[1]} has no slots")
        self._marker = self._names.marker(tag_in(server.slots) if server.is_cluster else "headrace")
        self._mark()
        server, name = self._read(await puts.call(*self._looks()))
        self._check(server)
        if self._read(await reads.call(*self._looks()))[1] != name:
            raise UnusableServer(f"two connections to {self.place[0]}:{self.place[1]} reach two servers")
        self._note(server)
        self.primary = Primary(name)
        self.since_s = self._loop.time()
        self.doubt = self._doubt(server, server.replicas if self._has_copies else 1)
        self._owner.node_is_up(self)

    async def _connect(self) -> RedisConnection:
        """Open one connection and sign in. Raises OSError, ReplyError."""
        host, port = self.place
        address = self._address
        over = self._over

        def lost(error: Exception | None) -> None:
            if over is self._over:  # else it is one of before, whose end is known
                self._on_lost(error)

        connection = RedisConnection(self._loop, self._meter, lost, self._owner.contain)
        options: dict[str, Any] = {}
        if address.tls is not None:
            options = {"ssl": address.tls, "server_hostname": host}
        await self._loop.create_connection(lambda: connection, host, port, **options)
        try:
            if address.password:
                user = (address.username,) if address.username else ()
                await connection.call(packed(b"AUTH", *user, address.password))
            if address.database:
                await connection.call(packed(b"SELECT", address.database))
        except BaseException:
            connection.abort()
            raise
        return connection

    def _on_lost(self, error: Exception | None) -> None:
        """Note that one of the connections is over: the other one ends too, and both come back together."""
        if error is not None or not self.why_not:
            self.why_not = str(error or "") or "the connection has ended"
        if self._over is not None:
            self._over.set()
        self._leave()

    def _leave(self) -> None:
        """Use the server no more, until it is connected again."""
        primary, self.primary = self.primary, None
        self.since_s = -1.0
        self.doubt = ""
        for connection in (self._puts, self._reads):
            if connection is not None:
                connection.abort()
        self._puts = self._reads = None
        if primary is not None:
            self._owner.node_is_lost(self, primary)
