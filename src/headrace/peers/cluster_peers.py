"""The other nodes of a cluster: the same links, wires and channels as between the workers of a machine, over TCP.

Runs on the loop. A node is known by its `run`, the number of its start, of which each start in the cluster has another
one (`storage.kafka.roster`); of two nodes the later one dials. Nodes come and go while this one runs, and so do shards:
whoever reads the roster tells of both (`meet`, `moved`). What it tells may be late, so whom a shard belongs to is settled
between the shards themselves, by the epochs that they say first.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Callable, Mapping
from typing import Final, cast

from headrace.core.shards.neighbours import NOT_BEGUN
from headrace.core.worker import Worker
from headrace.peers.peer_frames import BrokenLink, Greeting
from headrace.peers.peer_link import PeerLink
from headrace.peers.peer_tls import PeerTls, names_of
from headrace.peers.peers import NODE_BYTES, STRANGERS_MAX, Peers
from headrace.peers.wires import LinkWire
from headrace.workers.owners import Owners
from headrace.workers.place import Place

LONGEST_S: Final = 5.0  # between two attempts to dial a node that is away
CONNECT_S: Final = 3.0
UNKNOWN_MAX: Final = 512  # connections whose handshake is not over
HANDSHAKE_S: Final = 3.0  # sooner than a greeting is due: what has said nothing holds no descriptor for long

Address = tuple[str, int]


class ClusterPeers(Peers):
    """All links of one node. `names` has what each run's node is called, for the log."""

    def __init__(
        self,
        run: int,
        cluster: bytes,
        listening: socket.socket,
        owners: Owners,
        worker: Worker,
        loop: asyncio.AbstractEventLoop,
        report: Callable[[str], None],
        tls: PeerTls | None = None,
    ) -> None:
        """Begin as the node of this run. `cluster`: 16 bytes that all nodes of the cluster have and no others;
        `listening`: the bound socket that the others dial, which is closed at the stop; `tls` None: links are not
        encrypted."""
        place = Place.alone(owners.shards, cluster.hex())
        super().__init__(place, owners, worker, loop, report)
        assert len(cluster) == NODE_BYTES, "as a greeting has it"
        self.run = run
        self.names: dict[int, str] = {}
        self._addresses: dict[int, Address] = {}
        self._listening = listening
        self._tls = tls
        self._certified: dict[PeerLink, list[str]] = {}  # names in certificates, until they are compared
        self._unknown: dict[
            PeerLink, None
        ] = {}  # dialled us, and have not shown a certificate yet; the oldest first
        self._failures: dict[int, str] = {}  # why nodes that were dialled were not linked, as it was told
        self._longest_s = LONGEST_S
        self._greeting = Greeting(0, 0, owners.shards, run, cluster)

    # Nodes and shards come and go

    def meet(self, nodes: Mapping[int, tuple[str, Address]]) -> None:
        """Know these nodes, all others that there are now: name and address by run."""
        self.names = {run: name for run, (name, _) in nodes.items()}
        self._addresses = {run: address for run, (_, address) in nodes.items()}
        for run in [run for run in self._dialling if run not in nodes]:
            self._dialling.pop(run).cancel()
        for run, link in list(self._links.items()):
            if run not in nodes and run < self.run:  # a later one may not have been read of yet
                link.end("stopped")
        if self._server is not None:
            self._dial_the_earlier()

    def moved(self, shard: int) -> None:
        """Speak no more with who had a shard before about it: it belongs to somebody else now, or to nobody."""
        owner = self._owners.of(shard)
        for run, link in list(self._links.items()):
            if run != owner:
                link.end_wires_of(shard)
        for follower in self._followers:
            if follower.source == shard:
                follower.due_s = 0.0
        self._follow()

    def is_heard(self, run: int) -> bool:
        """Return whether there is a link to a node, and something was heard on it a moment ago."""
        link = self._links.get(run)
        return link is not None and not link.quiet

    def heard(self) -> dict[str, bool]:
        """Return the other nodes by name, and whether each is heard now."""
        return {name: self.is_heard(run) for run, name in self.names.items()}

    def _dial_the_earlier(self) -> None:
        for run in self._addresses:
            if run < self.run and run not in self._dialling:
                self._dial_from_now(run)

    # Listening and dialling

    async def _reach_others(self) -> None:
        context = None if self._tls is None else self._tls.server
        self._server = await self._loop.create_server(
            self._accepted,
            sock=self._listening,
            ssl=context,
            ssl_handshake_timeout=None if context is None else HANDSHAKE_S,
        )
        self._dial_the_earlier()

    async def keep(self) -> None:
        """Do nothing: no file leads to this node."""

    def _unlink(self) -> None:
        """Do nothing: there is no file."""

    def _accepted(self) -> asyncio.Protocol:
        """Begin with somebody who has dialled: of too many that have not come so far the oldest are given up, since who
        has a certificate is soon through."""
        link = self._begin(-1)
        self._unknown[link] = None
        if len(self._unknown) > UNKNOWN_MAX:
            next(iter(self._unknown)).end("greeting", "too many connections have not said who they are")
        return cast("asyncio.Protocol", link)

    async def _connect_to(self, other: int, link: PeerLink) -> None:
        host, port = self._addresses[other]
        context = None if self._tls is None else self._tls.client
        name = None if self._tls is None else self.names[other]
        making = self._loop.create_connection(
            lambda: cast("asyncio.Protocol", link), host, port, ssl=context, server_hostname=name
        )
        try:
            await asyncio.wait_for(making, CONNECT_S)
        except TimeoutError:
            raise OSError(f"no answer of {host}:{port}") from None
        except ssl.SSLError as error:
            self._tell_failure(other, str(error))
            raise

    def _tell_failure(self, run: int, why: str) -> None:
        """Tell once why a node that was dialled was not linked: it is dialled for ever."""
        if self._failures.get(run) != why:
            self._failures[run] = why
            self._report(f"{self._named(run)} cannot be linked: {why}")

    def _named(self, peer: int) -> str:
        return f"node {self.names.get(peer, 'of start ' + str(peer))}"

    # Links

    def admit(self, link: PeerLink, transport: asyncio.Transport) -> None:
        self._unknown.pop(link, None)
        # Whoever has shown no certificate yet keeps nobody out who has one.
        waiting = len(self._strangers if self._tls is None else self._certified)
        if waiting > STRANGERS_MAX:
            raise BrokenLink("greeting", "too many connections have not said who they are")
        if self._tls is not None:
            self._certified[link] = names_of(transport)

    def check(self, link: PeerLink, theirs: Greeting) -> int:
        """Check who is at the other side; return its run. Raises BrokenLink."""
        mine = self._greeting
        if (theirs.node, theirs.shards) != (mine.node, mine.shards):
            raise BrokenLink("cluster", "it belongs to another cluster")
        expected = theirs.run == link.dialled if link.dialled >= 0 else theirs.run > self.run
        if not expected:
            raise BrokenLink("worker", f"the node of start {theirs.run} does not belong there")
        if self._tls is not None:
            self._check_name(link, theirs.run)
        return theirs.run

    def _check_name(self, link: PeerLink, run: int) -> None:
        """Check that a node's certificate has its name. Of one that was not read of yet nobody knows it: it comes again.
        Raises BrokenLink."""
        name = self.names.get(run)
        if name is None:
            raise BrokenLink("replaced", "")
        certified = [one.lower() for one in self._certified.get(link, ())]
        if name.lower() not in certified:
            raise BrokenLink(
                "user", f"its certificate is of {', '.join(certified) or 'nobody'}, not of {name}"
            )

    def opened(self, link: PeerLink) -> None:
        """Begin to use a link; it replaces one that there is to the same node."""
        self._certified.pop(link, None)
        self._failures.pop(link.peer, None)
        super().opened(link)

    def ended(self, link: PeerLink, reason: str, why: str) -> None:
        """Forget a link."""
        self._unknown.pop(link, None)
        self._certified.pop(link, None)
        if link.dialled >= 0 and link.peer < 0 and why:
            self._tell_failure(link.dialled, why)
        super().ended(link, reason, why)

    def follow(self, link: PeerLink, number: int, follower: int, source: int) -> LinkWire | None:
        """Return our side of a wire on which a shard of another node follows one of ours. Who owns the follower is for
        its epoch to say: what is known of that here may be late. Raises BrokenLink."""
        shards = self._owners.shards
        if follower >= shards or source >= shards or follower == source:
            raise BrokenLink("garbage", f"shard {follower} cannot follow shard {source}")
        near = self._owned.get(source)
        if near is None or near.epoch == NOT_BEGUN or follower in self._owned:
            return None
        return LinkWire(self, near, follower, False, link, number)
