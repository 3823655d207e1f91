"""One node's share of the shards of its cluster: what Kafka's group names it for it takes, what the group names another
for it gives up, and whom the other shards belong to it hears from the roster.

Runs on the loop, which polls the group: so a node whose loop stands still leaves it. What the group and the roster say is
advice. Who owns a shard its partition says, so whatever is late here costs time and nothing else.
"""

from __future__ import annotations

import asyncio
import random
import socket
import threading
import time
from collections.abc import Callable
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, Final

import msgspec

from headrace.config import PEER_TLS, Config, host_and_port, show, without_secrets
from headrace.naming import keys_named
from headrace.node.holdings import Holdings
from headrace.node.members import Members
from headrace.peers.cluster_handover import ClusterHandOver
from headrace.peers.cluster_peers import Address, ClusterPeers
from headrace.peers.peer_tls import PeerTls
from headrace.workers.owners import NOBODY, Owners

if TYPE_CHECKING:
    from headrace.storage.kafka.cluster import Cluster
    from headrace.storage.kafka.registry import Record
    from headrace.storage.kafka.roster import ShardEntry

POLL_S: Final = 0.1
SETTLE_S: Final = (
    20.0  # a node that has come waits so long for all shards to be somebody's before it says that it is ready
)
HAND_OVER_S: Final = 10.0  # an owner that is told to give a shard up has so long
LEAVE_WITHIN_S: Final = 5.0


class Sharing:
    """One node's. `run` is the number of its start; `is_over`: another node has its name. `lost` says of shards that are
    named for it why it cannot take them."""

    def __init__(self, config: Config, cluster: Cluster, listening: socket.socket, log: Any) -> None:
        """Enter the roster, as a node that is reached where it says or where it listens. Waits for Kafka. Raises
        NotAdmitted, KafkaUnusable."""
        from headrace.storage.kafka.claims import STANDS_S, Claims

        self.listening = listening
        self.tls = peer_tls(config)
        self.lost: dict[int, str] = {}
        self.is_over = False
        self._log = log
        self._cluster = cluster
        self._enrolment = cluster.enter(advertised(config, listening), digest_of(config))
        self.run = self._enrolment.run
        self.owners = Owners.unowned(cluster.shards)
        self._claims = Claims(cluster.shards, random.random, time.monotonic(), STANDS_S, self._is_others)
        self._group = cluster.join(self._claims)
        self._told = ""
        self._is_resting = False
        self._tasks: set[asyncio.Task[None]] = set()
        self._holdings: Holdings | None = None
        self._peers: ClusterPeers | None = None
        self._handover: ClusterHandOver | None = None
        self._members: Members | None = None
        self._end: Callable[[], None] = lambda: None
        self._loop = asyncio.get_running_loop()

    def begin(
        self,
        holdings: Holdings,
        peers: ClusterPeers,
        handover: ClusterHandOver,
        end: Callable[[], None],
        members: Members,
    ) -> None:
        """Take and give up shards from now on, for which `poll` is called. `end` ends the node in good order; `members`
        hears how the other nodes are."""
        self._members = members
        self._holdings, self._peers, self._handover, self._end = holdings, peers, handover, end
        holdings.gone = self._on_gone
        self._look()
        self._enrolment.start(self._deliver)

    @property
    def id(self) -> bytes:
        """Return 16 bytes that all nodes of the cluster have, and no others."""
        return self._cluster.id

    @property
    def trouble(self) -> str:
        """Return which shard is named for this node and cannot be taken, or what is wrong with the group; "" if all is
        well."""
        return next(iter(self.lost.values()), "") or self._group.trouble

    async def settle(self, is_over: Callable[[], bool]) -> None:
        """Wait until every shard is somebody's, for a bounded time."""
        until_s = self._loop.time() + SETTLE_S
        while self._loop.time() < until_s and not is_over():
            if all(self.owners.of(shard) != NOBODY for shard in range(self.owners.shards)):
                return
            await asyncio.sleep(POLL_S)

    # The group

    def _is_others(self, shard: int) -> bool:
        """Return whether another node that is heard owns a shard."""
        return self._peers is not None and self._peers.is_heard(self.owners.of(shard))

    def poll(self) -> float:
        """Hear what the group says, and do what comes of it. Returns the seconds until the next time."""
        from headrace.storage.kafka.claims import HandOver, JoinAnew, Take

        self._group.poll()
        if self._group.trouble != self._told:
            self._told = self._group.trouble
            self._log.warning("the group of the cluster's nodes", detail=self._told or "it answers again")
        if self._is_resting:
            return POLL_S
        self._look_at_members()
        self._claims.on_time(time.monotonic())
        for action in self._claims.take_actions():
            if isinstance(action, Take):
                self._start(self._take(action.shard))
            elif isinstance(action, HandOver):
                self._start(self._give_up(action.shard))
            elif isinstance(action, JoinAnew):
                threading.Thread(target=self._group.join_anew().close, daemon=True).start()
        return POLL_S

    def _look_at_members(self) -> None:
        """Tell how the other nodes are, where that has changed."""
        if self._members is not None and self._peers is not None:
            names = self._peers.names
            owning = {self.owners.of(shard) for shard in range(self.owners.shards)}
            owners = [name for run, name in names.items() if run in owning]
            self._members.look(self._loop.time(), self._peers.heard(), owners)

    def _start(self, work: Any) -> None:
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _take(self, shard: int) -> None:
        """Take a shard; if that cannot be, the claims have it tried again."""
        assert self._holdings is not None, "begun"
        try:
            await self._wait_for_hand_over(shard)
            await self._holdings.take(shard)
        except Exception as error:  # noqa: BLE001  it is tried again, here or elsewhere
            self._claims.on_ended(shard, time.monotonic())
            self._note_lost(shard, error)
            return
        self._claims.on_owned(shard, time.monotonic())
        self.lost.pop(shard, None)
        self._enrolment.tell_owner(shard, self._epoch_of(shard))
        self._moved(shard)

    async def _wait_for_hand_over(self, shard: int) -> None:
        """Let an owner that is heard give a shard up in good order, which the group has told it to: to take it at once
        would cost its clients what was on its way."""
        assert self._peers is not None, "begun"
        until_s = self._loop.time() + HAND_OVER_S
        while self._loop.time() < until_s and not self._is_resting:
            if not self._peers.is_heard(self.owners.of(shard)):
                return
            await asyncio.sleep(POLL_S)

    def _note_lost(self, shard: int, error: Exception) -> None:
        """Note why a shard could not be taken, unless that passes by itself."""
        from headrace.storage.kafka.storage import NotNamed, ShardElsewhere

        if self._is_resting:
            return
        why = f"shard {shard}: {error}"
        if isinstance(error, NotNamed | ShardElsewhere):
            self.lost.pop(shard, None)
            self._log.info("the shard is another node's, as yet", shard=shard, detail=str(error))
        elif self.lost.get(shard) != why:
            self.lost[shard] = why
            self._log.error("the shard cannot be taken yet", shard=shard, error=str(error))

    async def _give_up(self, shard: int) -> None:
        """Give up a shard that another node is to have."""
        assert self._holdings is not None, "begun"
        epoch = self._epoch_of(shard)
        if epoch < 0 or self.owners.of(shard) != self.run:
            return  # it has failed meanwhile, and goes for that
        try:
            await self._holdings.give_up(shard)
        except Exception as error:  # noqa: BLE001  nobody knows what is left of it
            self._log.error("the shard could not be given up", shard=shard, error=str(error))
            self._end()
            return
        self._enrolment.tell_given_up(shard, epoch)
        self._claims.on_ended(shard, time.monotonic())

    def _on_gone(self, shard: int, why: str) -> None:
        """Note that a shard was given up since its journal takes nothing more."""
        self._log.warning("the shard is lost", shard=shard, reason=why)
        self._claims.on_ended(shard, time.monotonic())
        self._look()

    def _epoch_of(self, shard: int) -> int:
        assert self._holdings is not None, "begun"
        return next((one.epoch for one in self._holdings.shards if one.number == shard), -1)

    # The roster

    def _deliver(self, records: list[Record]) -> None:
        """Hand records to the loop. Runs on the registry's thread, and may find the loop closed."""
        try:
            self._loop.call_soon_threadsafe(self._hear, records)
        except RuntimeError:
            return

    def _hear(self, records: list[Record]) -> None:
        roster = self._enrolment.roster
        roster.take_all(records)
        if self._is_resting:
            return
        self._look()
        for shard in self.owners.shards_of(self.run):
            if shard in roster.shards:
                self._compare(shard, roster.shards[shard], shard in roster.late)
        roster.late.clear()

    def _compare(self, shard: int, entry: ShardEntry, was_told_late: bool) -> None:
        """Give up a shard that another node has come to own since, and tell again that this one owns it where another
        one has told later that it did before."""
        from headrace.storage.kafka.storage import ShardElsewhere

        assert self._holdings is not None, "begun"
        held = next((one for one in self._holdings.shards if one.number == shard), None)
        if held is None:
            return
        if entry.epoch > held.epoch:
            held.lose(ShardElsewhere(f"shard {shard}: another node owns it"))
        elif was_told_late:
            self._enrolment.tell_owner(shard, held.epoch)

    def _look(self) -> None:
        """Know the nodes and the owners that the roster has now."""
        assert self._peers is not None, "begun"
        roster = self._enrolment.roster
        own = roster.nodes.get(self._enrolment.node)
        if own is None or own.run != self.run:
            self._on_replaced()
            return
        others = {node.run: node for node in roster.nodes.values() if node.run != self.run}
        self._peers.meet({run: (node.name, address_of(node.entry.peer)) for run, node in others.items()})
        for shard in range(self.owners.shards):
            entry = roster.shards.get(shard)
            owner = entry.run if entry is not None and entry.run in others else NOBODY
            if self.owners.of(shard) not in (self.run, owner):
                self.owners.move(shard, owner)
                self._moved(shard)

    def _moved(self, shard: int) -> None:
        if self._peers is not None and self._handover is not None:
            self._peers.moved(shard)
            self._handover.moved(shard)

    def _on_replaced(self) -> None:
        """End: another node of this name has come, as one was started in the place of this one, which stood still."""
        if not self.is_over:
            self.is_over = True
            self._log.error("another node of this name has joined the cluster since: this one ends")
            self._end()

    # The end

    async def rest(self) -> None:
        """Take and give up nothing any more; what is under way comes to its end."""
        self._is_resting = True
        self._cluster.rest()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def leave(self) -> None:
        """Let others have the shards, once nothing of them is held here. Waits for Kafka, and not for long."""

        def leave() -> None:
            self._group.close()
            self._enrolment.leave()

        thread = threading.Thread(target=leave, name="kafka-leave", daemon=True)
        thread.start()
        thread.join(LEAVE_WITHIN_S)
        self.listening.close()


OF_ONE_NODE: Final = (
    "data_dir",
    "listeners",
    "admin",
    "admin_names",
    "node",
    "peer_listen",
    "peer_advertise",
    *PEER_TLS,
)


def digest_of(config: Config) -> str:
    """Return a digest of what all nodes of a cluster should have alike in their configurations. No secret goes into it:
    it stands in Kafka and in what anybody may read of the cluster, where a password could be guessed by it."""
    own = {key: getattr(Config(), key) for key in OF_ONE_NODE}
    text = show(without_secrets(msgspec.structs.replace(config, **own)))
    return blake2b(text.encode(), digest_size=6).hexdigest()


def peer_tls(config: Config) -> PeerTls | None:
    """Return the contexts of links to other nodes; None: they are not encrypted. Raises UnusableCertificate."""
    if not config.peer_certificate:
        return None
    with keys_named(config, "peer_certificate"):
        return PeerTls.load(config.peer_ca, config.peer_certificate, config.peer_key)


def advertised(config: Config, listening: socket.socket) -> str:
    """Return HOST:PORT where other nodes reach this one."""
    if config.peer_advertise:
        return config.peer_advertise
    host, port = listening.getsockname()[:2]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def address_of(peer: str) -> Address:
    """Return an address of the roster as host and port."""
    found = host_and_port("peer_advertise", peer)
    return found.host, found.port
