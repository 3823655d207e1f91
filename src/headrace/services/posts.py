"""Messages that somebody posts into the shards of a worker, and retained messages that somebody deletes, answered when
that is durable.

Runs on the loop. The home of its topic takes a message: so what is posted to one topic one after the other stays in
order, and what that shard says of retained messages is true. What a message is made of is checked as the packet that it
would be.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Final

from headrace.core.broker import Broker
from headrace.core.inbound.posting import Post
from headrace.errors import NotThere, PacketTooLarge, ProtocolError, ShardAway
from headrace.mqtt import codec
from headrace.mqtt import reason_codes as rc
from headrace.mqtt.data_types import read_varint, varint_size
from headrace.mqtt.packets import NO_EXPIRY, VERSION_5, Publish
from headrace.mqtt.properties import Properties
from headrace.mqtt.publish import TopicAliases, decode_publish
from headrace.services.paging import NOBODY_AWAY, Away
from headrace.services.removals import until_durable

_PACKET_ID: Final = 1  # of the packet that a post is checked as; it leaves for nobody


@dataclass(frozen=True, slots=True)
class Posted:
    """What has become of a post. `is_stored`: it is in the journal; `is_repeated`: it was before, and its producer has
    posted it again. `matching` sessions and shared subscriptions of the worker that took it were to get it; `elsewhere`:
    other workers have such as well, or may have. `reason_code` is what a client would have been answered: 0, or 16 (No
    matching subscribers)."""

    tenant: str
    topic: str
    qos: int
    retain: bool
    size: int
    is_stored: bool
    is_repeated: bool
    matching: int
    elsewhere: bool
    reason_code: int


@dataclass(frozen=True, slots=True)
class Deleted:
    """The end of a retained message of `size` bytes, which `client_id` had published."""

    tenant: str
    topic: str
    size: int
    client_id: str


class Posts:
    """Publishes into the brokers of one process. `away`: shards of this process that nobody has now, each with the
    reason; their brokers are not in `brokers`."""

    def __init__(self, brokers: Sequence[Broker], away: Away = NOBODY_AWAY) -> None:
        self._brokers = brokers
        self._away = away

    async def publish(self, tenant: str, packet: Publish) -> dict[str, object]:
        """Publish a message, and return what has become of it. Raises NotTaken, NotThere for a tenant of whom nothing is
        known here; NotDurable, ShardAway."""
        topic = packet.topic.decode("utf-8")
        broker = self._home(tenant, topic)
        if not any(tenant in each.fold.tenants for each in self._brokers):
            raise NotThere(f"there is no tenant {tenant!r} here: none of its clients has ever come")
        post = _posted(broker, tenant, packet)
        await until_durable(broker, post)
        matching = post.matching + self._matching(tenant, packet.topic, broker)
        elsewhere = post.elsewhere and len(self._brokers) < broker.worker.homes.shards
        found = Posted(
            tenant,
            topic,
            int(packet.qos),
            packet.retain,
            len(packet.topic) + len(packet.properties) + len(packet.payload),
            post.is_stored,
            post.is_repeated,
            matching,
            elsewhere,
            rc.SUCCESS if matching or elsewhere else rc.NO_MATCHING_SUBSCRIBERS,
        )
        return asdict(found)

    async def delete(self, tenant: str, topic: str) -> dict[str, object]:
        """Delete the retained message of a topic as a client does, by an empty one, which whoever is subscribed and
        connected gets. Raises NotThere, NotTaken, NotDurable, ShardAway."""
        broker, name = self._home(tenant, topic), topic.encode("utf-8")
        of_tenant = broker.fold.tenants.get(tenant)
        found = None if of_tenant is None else of_tenant.retained.get(name)
        if found is None or found.expired(broker.worker.clock.now_us):
            raise NotThere(f"tenant {tenant} has no retained message on {topic!r}")
        post = _posted(broker, tenant, Publish(name, 0, True, False, 0, b"", NO_EXPIRY, b""))
        await until_durable(broker, post)
        return asdict(Deleted(tenant, topic, found.size, found.client_id))

    def packet(
        self, topic: str, payload: bytes, qos: int, retain: bool, properties: Properties, expiry_s: int
    ) -> Publish:
        """Return the PUBLISH that says this, `expiry_s` NO_EXPIRY for none. Raises ValueError for what no PUBLISH can
        say, or this broker does not read."""
        name = topic.encode("utf-8")
        packet_id = _PACKET_ID if qos else 0
        area = properties.encode()
        data = codec.encode_publish(VERSION_5, name, payload, qos, retain, False, packet_id, area, expiry_s)
        most = min((broker.worker.settings.packet_bytes_max for broker in self._brokers), default=len(data))
        try:
            if len(data) > most:
                raise PacketTooLarge(len(data), most)
            begin = 1 + int(varint_size(read_varint(data, 1, len(data))))
            return decode_publish(data, data[0] & 0x0F, begin, len(data), VERSION_5, TopicAliases(0), False)
        except ProtocolError as error:
            raise ValueError(str(error)) from None

    def _matching(self, tenant: str, topic: bytes, home: Broker) -> int:
        """Return how many sessions and shared subscriptions a topic is for in the other shards of this process."""
        count = 0
        for broker in self._brokers:
            found = broker.fold.tenants.get(tenant)
            if broker is not home and found is not None:
                count += len(found.tree.match(topic)) + len(found.shared_tree.match(topic))
        return count

    def _home(self, tenant: str, topic: str) -> Broker:
        """Return the broker of the shard where a topic is at home. Raises ShardAway, NotThere if that is another
        worker's."""
        number = None
        for broker in self._brokers:
            number = broker.worker.homes.of_topic(tenant, topic)
            if broker.shard == number:
                return broker
        for shard, why in self._away.items():
            if number is None or shard == number:
                raise ShardAway(shard, why)
        raise NotThere(f"{topic!r} of tenant {tenant} is at home in a shard which is not here")


def _posted(broker: Broker, tenant: str, packet: Publish) -> Post:
    """Begin to publish, as of now: the clock is set by the connection that is the first to read in a pass of the loop,
    and one of HTTP is none of those."""
    worker = broker.worker
    if worker.clock.stale:
        worker.clock.stale = False
        worker.request_tick()
        worker.clock.now_us = time.time_ns() // 1000
        worker.clock.mono_ms = time.monotonic_ns() // 1_000_000
    return broker.posting().post(tenant, packet)
