"""JOIN, LEAVE, PULL and ACK: what the consumers of topic queues ask.

Runs on the loop. A queue or a cluster that is made is a record; when it is durable it takes effect and JOIN is answered.
So is an ACK: what was answered with success is never delivered again to this cluster. A queue is in the shard that is the
home of its topic; where there are others, `far_queues` takes the requests of connections and brings them here.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final, cast

from mypy_extensions import i64

from headrace.core.commit import Deferred, GroupCommit
from headrace.core.outbound.cluster_readers import Caller, Guest, Pull
from headrace.core.outbound.clusters import CONSUMERS_MAX, Clusters
from headrace.core.ports.identity import DEFAULT_TENANT
from headrace.core.ports.link import Link, WorkerPort
from headrace.core.ports.voice import Voice
from headrace.core.records.queue_record import (
    CLUSTER_MADE,
    QUEUE_CLOSED,
    QUEUE_OPENED,
    number_record,
    queue_record,
)
from headrace.core.shards.alone import Alone
from headrace.core.shards.holding import Held
from headrace.core.state.makers import NO_MAKER, Maker, Makers
from headrace.core.state.state import Fold
from headrace.core.state.tenant import Tenant
from headrace.errors import NotReadableNow, ProtocolError
from headrace.mqtt import reason_codes as rc
from headrace.mqtt.topics import checked_topic, matches, valid_topic

if TYPE_CHECKING:
    from headrace.core.state.topic_queues import Cluster, TopicQueue

CLUSTER_BYTES_MAX: Final = 255
_TOPIC_BYTES_MAX: Final = 256  # of those that are remembered: anybody may publish to ever new ones


class Requests:
    """Takes what the consumers of a connection ask for, and has topics get their queues."""

    def open(self, tenant: Tenant, topic: bytes, maker: Maker = NO_MAKER) -> int:
        """Have a topic that a device publishes to get its queue, if it has none: begun by `maker`. Returns the reason
        code where it may not have one."""
        raise NotImplementedError

    def caller(self, link: Link, voice: Voice) -> Caller:
        """Return what stands for a connection in the requests below."""
        raise NotImplementedError

    def join(self, caller: Caller, sn: bytes, topic: bytes, name: bytes) -> None:
        """Let one consumer more join; the queue and the cluster are made if they are not there."""
        raise NotImplementedError

    def leave(self, caller: Caller, sn: bytes, topic: bytes, name: bytes) -> None:
        """Let a consumer leave."""
        raise NotImplementedError

    def pull(self, caller: Caller, sn: bytes, topic: bytes, name: bytes, most: i64, wait_ms: i64) -> None:
        """Answer a PULL now, or when there is something to answer with. Raises ProtocolError: there is no code in the
        answer."""
        raise NotImplementedError

    def ack(self, caller: Caller, sn: bytes, topic: bytes, name: bytes, ids: list[bytes]) -> None:
        """Acknowledge what is known; the answer says whether all was, when that is durable."""
        raise NotImplementedError

    def lost(self, caller: Caller) -> None:
        """Note that the connection has ended."""
        raise NotImplementedError

    def writable(self, caller: Caller) -> None:
        """Note that the socket's buffer has drained."""
        raise NotImplementedError


class Consuming(Requests):
    """Handles what consumers ask for of the topic queues of one shard."""

    def __init__(
        self, shard: int, fold: Fold, commit: GroupCommit, clusters: Clusters, worker: WorkerPort
    ) -> None:
        self.clusters = clusters
        self.neighbours = Alone()
        self._shard = shard
        self._fold = fold
        self._commit = commit
        self._worker = worker
        self._settings = worker.settings
        self._opening: set[tuple[str, bytes]] = set()  # topics whose queues are on their way to the journal
        # Names of clusters that are on their way, by tenant and topic
        self._making: dict[tuple[str, bytes], dict[bytes, Maker]] = {}
        self._coming = Makers()  # of both
        self._coming_bytes = 0
        self._has_queue: dict[bytes, bool] = {}  # by the configuration

    # Which topics have queues

    def start(self) -> None:
        """Do as the configuration says now: queues of topics that have none any more end, those that it names begin. So
        do those of topics that are at home in another shard, which shards had before clusters read them."""
        for queue in list(self._fold.queues.by_id.values()):
            if not self.may_have(queue.topic) or not self.is_home(queue.tenant, queue.topic):
                self._fold.queues.closed(queue)
                self._commit.append(number_record(QUEUE_CLOSED, self._worker.clock.now_us, [queue.queue_id]))
        if self._fold.queues.by_id:
            self.clusters.trimming.begin()
        for topic_filter in self._settings.queue_topics:
            topic = topic_filter.encode("utf-8")
            if valid_topic(topic) and self.is_home(DEFAULT_TENANT, topic):
                self.open(self._fold.make(DEFAULT_TENANT), topic, NO_MAKER)

    def home_of(self, tenant: str, topic: bytes) -> int:
        """Return the shard where a topic has its queue."""
        return self._worker.homes.of_retained(tenant.encode("utf-8"), topic)

    def is_home(self, tenant: str, topic: bytes) -> bool:
        """Return whether that is this shard."""
        return self._worker.homes.shards == 1 or self.home_of(tenant, topic) == self._shard

    def may_have(self, topic: bytes) -> bool:
        """Return whether a topic has a queue, by the configuration."""
        known = self._has_queue.get(topic)
        if known is None:
            text = topic.decode("utf-8")
            known = any(matches(topic_filter, text) for topic_filter in self._settings.queue_topics)
            if len(topic) <= _TOPIC_BYTES_MAX:
                self._remember(topic, known)
        return known

    def _remember(self, topic: bytes, has_queue: bool) -> None:
        """Remember what the configuration says of a topic, of as many as may have queues."""
        if len(self._has_queue) >= self._worker.quotas.usual.queues_max:
            self._has_queue.clear()
        self._has_queue[topic] = has_queue

    def open(self, tenant: Tenant, topic: bytes, maker: Maker = NO_MAKER) -> int:
        queues = tenant.queues
        queue = queues.get(topic)
        if queue is not None and queue.queue_id not in self.clusters.unused.ending:
            return rc.SUCCESS
        key = (tenant.name, topic)
        if key in self._opening:
            return rc.SUCCESS
        if not self.may_have(topic):
            return rc.TOPIC_NAME_INVALID
        if len(queues) + len(self._opening) + tenant.queues_elsewhere >= tenant.limits.queues_max:
            return rc.QUOTA_EXCEEDED
        if not self._has_room(tenant, maker, len(topic)):
            return rc.QUOTA_EXCEEDED
        fields: dict[str, object] = {"t": tenant.name, "topic": topic}
        if maker is not NO_MAKER:
            fields |= maker.fields()
        self._commit.append(queue_record(QUEUE_OPENED, self._worker.clock.now_us, fields))
        self._commit.then(None, partial(self.opened, key, maker))
        self._opening.add(key)  # last: what failed before is tried again
        self._comes(tenant.name, maker, len(topic), 1)
        self.clusters.trimming.begin()
        return rc.SUCCESS

    def _has_room(self, tenant: Tenant, maker: Maker, size: int) -> bool:
        """Return whether there may be one queue or cluster more, with a name of so many bytes, by who begins it."""
        settings, queues, coming = self._settings, self._fold.queues, self._coming
        if 0 < settings.names_bytes_max < queues.names_bytes + self._coming_bytes + size:
            return False
        if maker is NO_MAKER:
            return True
        name = tenant.name
        of_user = queues.makers.of_user(name, maker) + coming.of_user(name, maker)
        of_device = queues.makers.of_device(name, maker) + coming.of_device(name, maker)
        limits = tenant.limits
        return not (0 < limits.user_queues_max <= of_user or 0 < limits.device_queues_max <= of_device)

    def _comes(self, tenant: str, maker: Maker, size: int, more: int) -> None:
        """Count what is on its way to the journal, or what has come there."""
        self._coming_bytes += more * size
        self._coming.add(tenant, maker, more)

    def opened(self, key: tuple[str, bytes], maker: Maker) -> None:
        """Note that a queue that was being opened is no longer on its way."""
        self._opening.discard(key)
        self._comes(key[0], maker, len(key[1]), -1)

    # JOIN

    def caller(self, link: Link, voice: Voice) -> Caller:
        return Guest(link, voice)

    def join(self, caller: Caller, sn: bytes, topic: bytes, name: bytes) -> None:
        guest = cast(Guest, caller)
        tenant = self._fold.tenant_of(guest.link)
        code = self.refusal(guest.link, topic, name)
        if not code and not self.is_home(tenant.name, topic):
            code = rc.SERVER_UNAVAILABLE  # nobody asks here
        if not code and len(guest.consumers) + guest.joining >= CONSUMERS_MAX:
            code = rc.QUOTA_EXCEEDED
        maker = Maker(guest.link.identity.user or "", guest.voice.device(sn))
        code = code or self.open(tenant, topic, maker)
        if not code:
            code = self._make(tenant, topic, name, maker)
        guest.joining += 1
        if not code:
            self.clusters.readers.joins(tenant.name, topic, name, 1)
        self._commit.defer(_Joined(self, guest, sn, topic, name, code))

    def refusal(self, link: Link, topic: bytes, name: bytes) -> int:
        """Return the reason code where a connection may not ask this of a cluster, 0 where it may."""
        if not valid_topic(topic) or not 0 < len(name) <= CLUSTER_BYTES_MAX:
            return rc.TOPIC_NAME_INVALID
        if not self._may_read(link, topic):
            return rc.NOT_AUTHORIZED
        return rc.SUCCESS

    def hold(self, held: Held) -> bool:
        """Keep an answer back until the other shards look for what has a queue by now; False if they do."""
        return self.neighbours.hold(held)

    def check_pull(self, link: Link, topic: bytes) -> None:
        """Raise ProtocolError where a connection may not PULL from a topic: there is no code in the answer."""
        if not valid_topic(topic) or not self._may_read(link, topic):
            raise ProtocolError(rc.NOT_AUTHORIZED, "PULL from a topic that may not be read")

    def _may_read(self, link: Link, topic: bytes) -> bool:
        rights = link.rights
        if rights is None or rights.may_receive(checked_topic(topic)):
            return True
        rights.note_denied("subscribe", topic)
        return False

    def _make(self, tenant: Tenant, topic: bytes, name: bytes, maker: Maker) -> int:
        """Have a cluster made, if there is none; twice is no harm."""
        queue = tenant.queues.get(topic)
        ending = self.clusters.unused.ending
        found = None if queue is None else queue.clusters.get(name)
        if found is not None and found.cluster_id not in ending:
            return rc.SUCCESS
        making = self._making.get((tenant.name, topic), {})
        made = len(making) if queue is None else len(making) + len(queue.clusters)
        has_room = made < tenant.limits.clusters_max and self._has_room(tenant, maker, len(name))
        if name not in making and not has_room:
            return rc.QUOTA_EXCEEDED
        try:
            at = self._start_of(queue)
        except NotReadableNow:
            return rc.SERVER_BUSY
        fields: dict[str, object] = {"t": tenant.name, "topic": topic, "name": name, "at": at}
        self._commit.append(queue_record(CLUSTER_MADE, self._worker.clock.now_us, fields | maker.fields()))
        if name not in making:
            self._making.setdefault((tenant.name, topic), {})[name] = maker
            self._comes(tenant.name, maker, len(name), 1)
        return rc.SUCCESS

    def _start_of(self, queue: TopicQueue | None) -> int:
        start = self._settings.cluster_start_us
        if start <= 0 or queue is None:
            return start if start < 0 else 0
        return self.clusters.trimming.serial_at(queue, start)

    def made(self, guest: Guest, topic: bytes, name: bytes) -> None:
        """Note that a cluster that was being made is no longer on its way: it is there, or could not be made."""
        key = (self._fold.tenant_of(guest.link).name, topic)
        making = self._making.get(key)
        if making is not None:
            maker = making.pop(name, None)
            if maker is not None:
                self._comes(key[0], maker, len(name), -1)
            if not making:
                del self._making[key]

    def joined(self, guest: Guest, sn: bytes, topic: bytes, name: bytes, code: int) -> None:
        """Answer a JOIN: the cluster is there, or `code` says why it is not."""
        guest.joining -= 1
        if not code:
            self.clusters.readers.joins(self._fold.tenant_of(guest.link).name, topic, name, -1)
        if guest.link.closed:
            return
        cluster = self._found(guest, topic, name)
        if cluster is None:
            code = code or rc.QUOTA_EXCEEDED
        guest.voice.joined(sn, code)
        if cluster is not None and not code:
            self.clusters.join(guest, sn, cluster)

    def _found(self, caller: Caller, topic: bytes, name: bytes) -> Cluster | None:
        """Return the cluster of this name, if its topic has a queue and the queue has it."""
        queue = self._fold.tenant_of(caller.link).queues.get(topic)
        return None if queue is None else queue.clusters.get(name)

    # The others wait for a JOIN that is not answered yet

    def leave(self, caller: Caller, sn: bytes, topic: bytes, name: bytes) -> None:
        self._commit.defer(_Left(self, cast(Guest, caller), sn, topic, name))

    def pull(self, caller: Caller, sn: bytes, topic: bytes, name: bytes, most: i64, wait_ms: i64) -> None:
        guest = cast(Guest, caller)
        self.check_pull(guest.link, topic)
        until_ms = self._worker.clock.mono_ms + int(wait_ms)
        if guest.joining:
            self._commit.defer(_Pulled(self, guest, sn, topic, name, most, until_ms))
        else:
            self.pulled(guest, sn, topic, name, most, until_ms)

    def pulled(self, guest: Guest, sn: bytes, topic: bytes, name: bytes, most: i64, until_ms: int) -> None:
        consumer = guest.consumers.get((sn, topic, name))
        if consumer is None:
            raise ProtocolError(rc.PROTOCOL_ERROR, "PULL without JOIN")
        self.clusters.pull(Pull(consumer, most, until_ms))

    def ack(self, caller: Caller, sn: bytes, topic: bytes, name: bytes, ids: list[bytes]) -> None:
        code = self.refusal(caller.link, topic, name)
        if not code:
            cluster = self._found(caller, topic, name)
            is_there = cluster is not None and not self.clusters.unused.ends(cluster)
            if cluster is None or not is_there or not self.clusters.ack(cluster, ids):
                code = rc.PACKET_IDENTIFIER_NOT_FOUND
        if code:
            self._fold.tenant_of(caller.link).counters.refuse("ack", code)
        self._commit.defer(_Acked(caller, sn, code))

    def lost(self, caller: Caller) -> None:
        self.clusters.lost(cast(Guest, caller))

    def writable(self, caller: Caller) -> None:
        self.clusters.resume(cast(Guest, caller))


class _OfCluster(Held):
    """A request that a connection has for a cluster, in its place behind what was appended before it, when the other
    shards look for the topics whose queues were opened by then."""

    def __init__(self, consuming: Consuming, guest: Guest, sn: bytes, topic: bytes, name: bytes) -> None:
        super().__init__(guest.link, len(topic) + len(name))
        self.consuming = consuming
        self.guest = guest
        self.sn = sn
        self.topic = topic
        self.name = name

    def run(self) -> None:
        if not self.consuming.hold(self):
            self.finish()


class _Joined(_OfCluster):
    """Answers JOIN, when the queue and the cluster are durable."""

    def __init__(
        self, consuming: Consuming, guest: Guest, sn: bytes, topic: bytes, name: bytes, code: int
    ) -> None:
        super().__init__(consuming, guest, sn, topic, name)
        self._code = code

    def run(self) -> None:
        self.consuming.made(self.guest, self.topic, self.name)
        super().run()

    def finish(self) -> None:
        self.consuming.joined(self.guest, self.sn, self.topic, self.name, self._code)


class _Left(_OfCluster):
    """Handles LEAVE, behind the JOINs before it."""

    def finish(self) -> None:
        found = self.consuming.clusters.leave(self.guest, self.sn, self.topic, self.name)
        self.guest.voice.left(self.sn, rc.SUCCESS if found else rc.NO_SUBSCRIPTION_EXISTED)


class _Pulled(_OfCluster):
    """Handles PULL, behind the JOINs before it."""

    def __init__(
        self,
        consuming: Consuming,
        guest: Guest,
        sn: bytes,
        topic: bytes,
        name: bytes,
        most: i64,
        until_ms: int,
    ) -> None:
        super().__init__(consuming, guest, sn, topic, name)
        self._most: i64 = most
        self._until_ms = until_ms

    def finish(self) -> None:
        if self.guest.link.closed:
            return
        try:
            self.consuming.pulled(self.guest, self.sn, self.topic, self.name, self._most, self._until_ms)
        except ProtocolError as error:
            self.guest.link.on_protocol_error(error)


class _Acked(Deferred):
    """Answers ACK once it is durable."""

    def __init__(self, caller: Caller, sn: bytes, code: int) -> None:
        super().__init__(caller.link)
        self._caller = caller
        self._sn = sn
        self._code = code

    def run(self) -> None:
        self._caller.voice.acknowledged(self._sn, self._code)
