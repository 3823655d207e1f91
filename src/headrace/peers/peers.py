"""The other workers of this node: links to them, the wires of the streams on those, and channels of bytes.

Runs on the loop. A worker listens on `<runtime>/peer-<index>.sock`; of two workers the one with the smaller index dials,
for ever, with pauses that grow. When a link is up, each shard of this worker follows each shard of the other one; a wire
that has ended is opened again, on a link on which the other worker is heard. Between two shards of this worker wires are
local.
"""

from __future__ import annotations

import asyncio
import os
import socket
import struct
from collections.abc import Callable
from contextlib import suppress
from typing import cast

from headrace.backoff import Backoff
from headrace.core.shards.neighbours import NOT_BEGUN, Neighbours
from headrace.core.worker import Worker
from headrace.mqtt import reason_codes as rc
from headrace.peers.channel import Channel
from headrace.peers.peer_frames import BrokenLink, Greeting
from headrace.peers.peer_link import FRAME_BYTES_MAX, REASONS, TICK_S, LinkOwner, PeerLink
from headrace.peers.standing import refusals, settled, trouble
from headrace.peers.wires import Exchange, LinkWire, ShardWire
from headrace.workers.owners import NOBODY, Owners
from headrace.workers.place import Place
from headrace.workers.runtime import identity

SHORTEST_S, LONGEST_S = 0.05, 0.5  # between two attempts to dial, which cost little on one machine
REFUSED_S = 10.0  # between two attempts to follow, each of which begins with all filters
SETTLE_INTERVAL_S = 0.01
STRANGERS_MAX = 64  # connections that have not said who they are
NODE_BYTES = 16
LEAVE_AT_ONCE = 256  # connections that end in a pass of the loop
EXPECTED = {"closed", "stopped", "replaced"}  # ends of links that nobody need look into

Accept = Callable[[Channel, bytes], None]


class Follower:
    """The attempts of one shard of this worker to follow another shard."""

    def __init__(self, near: Neighbours, source: int) -> None:
        self.near = near
        self.source = source
        self.due_s = 0.0
        self._backoff = Backoff(SHORTEST_S, REFUSED_S)
        self._tried_s = 0.0

    def tried(self, now_s: float) -> None:
        """Note that a wire is opened now: the next one follows later, the sooner the longer the one before lasted. One on
        which nothing was sent was refused, however long it took to say so: to read all filters takes its time."""
        answered = self.near.was_answered(self.source)
        self._backoff.lasted(now_s - self._tried_s if answered else 0.0)
        self._tried_s = now_s
        self.due_s = now_s + self._backoff.next_s()


class Peers(LinkOwner):
    """All links of one worker. `accept` takes the channels of bytes that others open; without it they are closed.

    `counts` holds how many links have ended, by `peer_link.REASONS`; `report` is told a line when a link to a worker
    comes up, when it ends, and for the first of each kind that was refused.
    """

    def __init__(
        self,
        place: Place,
        owners: Owners,
        worker: Worker,
        loop: asyncio.AbstractEventLoop,
        report: Callable[[str], None],
    ) -> None:
        super().__init__()
        self.accept: Accept | None = None
        self.linked: Callable[[int], None] | None = None  # told of a worker before its shards are followed
        self.counts = dict.fromkeys(REASONS, 0)
        self._place = place
        self._owners = owners
        self._worker = worker
        self._loop = loop
        self._report = report
        node = bytes.fromhex(place.node) if place.node else bytes(NODE_BYTES)
        self._longest_s = LONGEST_S
        self._greeting = Greeting(place.index, place.workers, place.shards, place.run, node)
        self._owned: dict[int, Neighbours] = {}
        self._followers: list[Follower] = []
        self._links: dict[int, PeerLink] = {}  # by worker: those that are up
        self._strangers: set[PeerLink] = set()
        self._silent: set[int] = set()  # workers whose link has ended since nothing was heard
        self._sent_bytes = self._received_bytes = 0  # by links that have ended
        self._told: set[str] = set()
        self._told_estranged: set[tuple[int, int]] = set()
        self._exchange = Exchange(loop.call_soon)
        self._unfollowed = True
        self._server: asyncio.AbstractServer | None = None
        self._identity: tuple[int, int] | None = None  # of the file under which others find it
        self._dialling: dict[int, asyncio.Task[None]] = {}  # by worker
        self._ends: dict[PeerLink, asyncio.Event] = {}  # of those that we have dialled
        self._timer: asyncio.TimerHandle | None = None

    @property
    def path(self) -> str:
        """Return where this worker listens."""
        return self._path_of(self._place.index)

    @property
    def trouble(self) -> str:
        """Return which stream between a shard of this worker and another one is refused, or not up; "" when all are."""
        return trouble(self._owned.values())

    async def settle(self, within_s: float, is_over: Callable[[], bool]) -> None:
        """Wait until all streams of this worker are up or refused, for a bounded time: a worker that is away must not
        keep this one from its clients. Returns as soon as `is_over`."""
        until_s = self._loop.time() + within_s
        while not settled(self._owned.values()) and self._loop.time() < until_s and not is_over():
            await asyncio.sleep(SETTLE_INTERVAL_S)

    @property
    def links_up(self) -> int:
        """Return to how many other workers there is a link."""
        return len(self._links)

    def carried(self) -> tuple[int, int]:
        """Return how many bytes all links have sent and received."""
        links = [*self._links.values(), *self._strangers]
        sent = self._sent_bytes + sum(int(link.sent_bytes) for link in links)
        return sent, self._received_bytes + sum(int(link.received_bytes) for link in links)

    async def start(self) -> None:
        """Begin when all shards of this worker have begun: listen, dial, follow. Raises OSError."""
        for broker in self._worker.brokers:
            if isinstance(broker.neighbours, Neighbours):
                self._add(broker.neighbours)
        await self._reach_others()
        self._tick()

    async def _reach_others(self) -> None:
        """Begin to listen and to dial. Raises OSError."""
        if not self._place.is_alone:
            await self._listen()
            others = range(self._place.index + 1, self._place.workers)
            for other in others:
                self._dial_from_now(other)

    def own(self, near: Neighbours) -> None:
        """Let a shard that this worker has taken, and that has begun, follow and be followed from now on."""
        self._add(near)
        self._follow()

    def _add(self, near: Neighbours) -> None:
        self._owned[near.shard] = near
        self._followers += [Follower(near, source) for source in near.others]

    def disown(self, shard: int) -> None:
        """Cut all streams from and to a shard that this worker gives up. For the others it is away."""
        near = self._owned.pop(shard, None)
        if near is not None:
            self._followers = [follower for follower in self._followers if follower.near is not near]
            near.leave()

    async def stop(self) -> None:
        """Close all links; nobody is dialled any more."""
        server = self._server
        self._server = None
        self._end_timer()
        for task in self._dialling.values():
            task.cancel()
        await asyncio.gather(*self._dialling.values(), return_exceptions=True)
        self._end_links()
        if server is not None:
            server.close()
            self._unlink()
        await asyncio.sleep(0)  # the transports close in the next pass

    def _unlink(self) -> None:
        with suppress(FileNotFoundError):
            os.unlink(self.path)

    def abandon(self) -> None:
        """Let go of everything at once: the start has failed, or the program has cancelled the task."""
        self._end_timer()
        for task in self._dialling.values():
            task.cancel()
        if self._server is not None:
            self._server.close()
        self._end_links()

    def open_channel(self, worker: int, opening: bytes) -> Channel | None:
        """Open a channel of bytes to another worker; None while there is no link to it, or it is not heard."""
        link = self._usable(worker)
        return None if link is None else link.open_channel(opening)

    def is_silent(self, worker: int) -> bool:
        """Return whether another worker stands still, as far as this one knows: it would take what it is given, and do
        nothing with it."""
        link = self._links.get(worker)
        return worker in self._silent if link is None else link.quiet

    def _usable(self, worker: int) -> PeerLink | None:
        """Return the link to another worker if something can begin on it now. One whose numbers of channels are all used
        ends here, and the two workers are linked anew."""
        link = self._links.get(worker)
        if link is None or link.quiet:
            return None
        if link.used_up:
            link.end("stopped", "all numbers of channels were used")
            return None
        return link

    def _end_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _end_links(self) -> None:
        for link in [*self._links.values(), *self._strangers]:
            link.end("stopped")

    # Listening and dialling

    def _path_of(self, worker: int) -> str:
        return str(self._place.runtime / f"peer-{worker}.sock")

    async def _listen(self) -> None:
        with suppress(FileNotFoundError):
            os.unlink(self.path)  # of a worker that is dead: there is one of this index at a time
        listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            listening.bind(self.path)
            listening.setblocking(False)
            self._identity = identity(self.path)
            self._server = await self._loop.create_unix_server(self._accepted, sock=listening)
        except OSError as error:
            listening.close()
            raise OSError(error.errno, f"{self.path}: {error.strerror or error}") from None

    async def keep(self) -> None:
        """Listen anew where another program has removed the socket, or was put in its place; links stay. Raises
        OSError."""
        before = self._server
        if before is not None and identity(self.path) != self._identity:
            await self._listen()
            before.close()

    def _accepted(self) -> asyncio.Protocol:
        return cast("asyncio.Protocol", self._begin(-1))

    def _begin(self, dialled: int) -> PeerLink:
        link = PeerLink(self, self._greeting, dialled, FRAME_BYTES_MAX, self._worker, self._loop.call_soon)
        self._strangers.add(link)
        return link

    def _dial_from_now(self, other: int) -> None:
        self._dialling[other] = self._loop.create_task(self._keep_dialling(other))

    async def _keep_dialling(self, other: int) -> None:
        """Dial a worker whenever the link that was dialled last has ended."""
        backoff = Backoff(SHORTEST_S, self._longest_s)
        while True:
            began = self._loop.time()
            try:
                await self._dial(other)
            except Exception as error:  # noqa: BLE001  nobody else dials this worker
                self.failed(error)
            backoff.lasted(self._loop.time() - began)
            await asyncio.sleep(backoff.next_s())

    async def _dial(self, other: int) -> None:
        """Dial a worker, and return when that link has ended, or could not be made."""
        link = self._begin(other)
        ended = asyncio.Event()
        try:
            self._ends[link] = ended
            await self._connect_to(other, link)
            await ended.wait()
        except OSError:
            return
        except asyncio.CancelledError:
            link.end("stopped")
            raise
        finally:
            self._strangers.discard(link)
            self._ends.pop(link, None)

    async def _connect_to(self, other: int, link: PeerLink) -> None:
        """Connect a link to a worker. Raises OSError."""
        await self._loop.create_unix_connection(lambda: cast("asyncio.Protocol", link), self._path_of(other))

    # Links

    def admit(self, link: PeerLink, transport: asyncio.Transport) -> None:
        """Let a connection of our own user say who it is, unless too many do. Raises BrokenLink."""
        uid = user_of(transport.get_extra_info("socket").fileno())
        if uid not in (None, os.geteuid()):
            raise BrokenLink("user", f"it runs as user {uid}")
        if len(self._strangers) > STRANGERS_MAX:
            raise BrokenLink("greeting", "too many connections have not said who they are")

    def check(self, link: PeerLink, theirs: Greeting) -> int:
        """Check who is at the other side; return its index. Raises BrokenLink."""
        mine = self._greeting
        if theirs.node != mine.node:
            raise BrokenLink(
                "cluster", f"it belongs to node {theirs.node.hex()}, this worker to {mine.node.hex()}"
            )
        if (theirs.workers, theirs.shards) != (mine.workers, mine.shards):
            of = f"{theirs.workers} workers with {theirs.shards} shards"
            raise BrokenLink("worker", f"it is one of {of}, here there are {mine.workers} with {mine.shards}")
        expected = link.dialled == theirs.worker if link.dialled >= 0 else theirs.worker < mine.worker
        if not expected:
            raise BrokenLink("worker", f"worker {theirs.worker} does not belong there")
        return theirs.worker

    def _named(self, peer: int) -> str:
        """Return what a line for the log calls another worker."""
        return f"worker {peer}"

    def opened(self, link: PeerLink) -> None:
        """Begin to use a link; it replaces one that there is to the same worker."""
        self._strangers.discard(link)
        before = self._links.get(link.peer)
        if before is not None:
            before.end("replaced")
        self._links[link.peer] = link
        self._silent.discard(link.peer)
        self._told.clear()
        self._report(f"linked to {self._named(link.peer)}")
        if self.linked is not None:
            self.linked(link.peer)
        for follower in self._followers:
            if self._owners.of(follower.source) == link.peer:
                follower.due_s = 0.0
        self._follow()

    def ended(self, link: PeerLink, reason: str, why: str) -> None:
        """Forget a link."""
        self.counts[reason] += 1
        self._sent_bytes += int(link.sent_bytes)
        self._received_bytes += int(link.received_bytes)
        self._strangers.discard(link)
        self._unfollowed = True
        if link in self._ends:
            self._ends[link].set()
        of = self._named(link.peer)
        if self._links.get(link.peer) is link:
            del self._links[link.peer]
            if reason == "silent":
                self._silent.add(link.peer)
        elif reason in EXPECTED or reason in self._told:
            return
        else:
            of = self._named(link.dialled) if link.dialled >= 0 else "somebody who has dialled"
            self._told.add(reason)
        if why or reason != "stopped":
            self._report(f"the link to {of} has ended ({reason}){': ' if why else ''}{why}")

    def say_leaving(self) -> None:
        """Tell all others that this one stops: clients whose sockets are here are to hear it from their homes."""
        for link in list(self._links.values()):
            link.say_leaving()

    def leaving(self, link: PeerLink, channels: list[Channel]) -> None:
        """End the connections whose sockets are at a node that stops, some in each pass of the loop."""
        for channel in channels[:LEAVE_AT_ONCE]:
            channel.leaving(rc.SERVER_SHUTTING_DOWN, "the node of its socket stops")
        if len(channels) > LEAVE_AT_ONCE:
            self._loop.call_soon(self.leaving, link, channels[LEAVE_AT_ONCE:])

    # Wires

    def _follow(self) -> None:
        """Let shards of this worker follow those that they do not follow now, as far as that is possible."""
        now_s = self._loop.time()
        self._unfollowed = False
        for follower in self._followers:
            if follower.near.follows(follower.source):
                continue
            if follower.due_s > now_s or not self._try(follower, now_s):
                self._unfollowed = True

    def _try(self, follower: Follower, now_s: float) -> bool:
        """Open a wire; False if it is to be tried again. What raises, for want of memory, costs this attempt alone."""
        try:
            self._connect(follower, now_s)
        except Exception as error:  # noqa: BLE001
            self.failed(error)
        return follower.near.follows(follower.source)

    def _connect(self, follower: Follower, now_s: float) -> None:
        """Open a wire, if there is somebody to talk to. It begins with all filters that are wanted here: behind much that
        waits to be written they would wait in memory, those of each pair of shards, until the link was too slow."""
        near, source = follower.near, follower.source
        if near.epoch == NOT_BEGUN:
            return
        local = self._owned.get(source)
        if local is not None:
            follower.tried(now_s)
            near.connect(source, self._exchange.pair(self, near, local))
            return
        link = self._usable(self._owners.of(source))
        if link is None or link.full:
            return
        wire = LinkWire(self, near, source, True, link, link.number())
        follower.tried(now_s)
        link.open_wire(wire)
        near.connect(source, wire)

    def follow(self, link: PeerLink, number: int, follower: int, source: int) -> LinkWire | None:
        """Return our side of a wire on which a shard of another worker follows one of ours. Raises BrokenLink."""
        owners = self._owners
        asked = owners.of(source) if source < owners.shards else link.peer
        if asked == link.peer or follower >= owners.shards or owners.of(follower) not in (link.peer, NOBODY):
            raise BrokenLink(
                "garbage", f"shard {follower} of worker {link.peer} cannot follow shard {source} here"
            )
        near = self._owned.get(source)
        if near is None or near.epoch == NOT_BEGUN:  # it is being taken, or was given up
            return None
        return LinkWire(self, near, follower, False, link, number)

    def wire_ended(self, wire: ShardWire) -> None:
        """Open a wire again later, if it was one on which a shard of this worker follows."""
        if wire.follows:
            self._unfollowed = True

    def take_channel(self, channel: Channel, opening: bytes) -> None:
        """Hand on a channel of bytes that another worker has opened."""
        if self.accept is None:
            channel.close()
            return
        try:
            self.accept(channel, opening)
        except Exception as error:  # noqa: BLE001  it costs this channel and nobody else
            self.failed(error)
            channel.abort()

    def failed(self, error: Exception) -> None:
        """Note what was raised where nothing should be."""
        self._worker.failures.note("peer", "", error)

    # Time

    def _tell_estranged(self) -> None:
        """Tell once of each shard that gets nothing of one of ours, since the two journals do not fit each other."""
        for refused in refusals(self._owned.values()):
            pair = (refused.source, refused.follower)
            if pair not in self._told_estranged:
                self._told_estranged.add(pair)
                self._report(str(refused))

    def _tick(self) -> None:
        self._timer = self._loop.call_later(TICK_S, self._tick)
        try:
            for link in [*self._links.values(), *self._strangers]:
                link.tick()
            if self._unfollowed:
                self._follow()
            self._tell_estranged()
        except Exception as error:  # noqa: BLE001  the next tick comes
            self.failed(error)


def user_of(descriptor: int) -> int | None:
    """Return the user who runs the process at the other side of a Unix socket; None where the system does not tell.
    Needs no descriptor of its own: there may be none."""
    option = getattr(socket, "SO_PEERCRED", None)
    if option is None:
        return None
    asked = socket.socket(fileno=descriptor)
    try:
        _, uid, _ = struct.unpack("iII", asked.getsockopt(socket.SOL_SOCKET, option, 12))
    finally:
        asked.detach()
    return int(uid)
