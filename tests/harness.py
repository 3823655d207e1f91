"""A broker over the in-memory journal, and clients that speak to it in packets: no sockets, no clock, no threads."""

from __future__ import annotations

from headrace.core.commit import GroupCommit
from headrace.core.ports.clock import Clock
from headrace.core.ports.settings import BrokerSettings
from headrace.core.records.message import Message, decode_batch, message_flags
from headrace.core.records.record import DROP_BYTES_LIMIT, DROP_EXPIRED, DROP_LIMIT
from headrace.core.state.replay import Replay
from headrace.core.state.snapshots import SnapshotPass, entry_of_group, entry_of_session, restore
from headrace.core.state.state import Fold
from headrace.core.worker import Worker
from headrace.mqtt import codec
from headrace.mqtt.packets import Connect, SubscriptionRequest, Will
from headrace.mqtt.properties import Properties
from headrace.mqtt.protocol import ServerProtocol
from headrace.storage.memory import ManualScheduler, MemoryJournal, MemoryLink

START_US = 1_790_000_000_000_000
JOURNALED_DROPS = (DROP_LIMIT, DROP_EXPIRED, DROP_BYTES_LIMIT)


def message(
    topic: bytes = b"a/b", payload: bytes = b"x", properties: bytes = b"", expiry_s: int = -1, qos: int = 1
) -> Message:
    """A message of client `client` in tenant `default`, received at the start."""
    flags = message_flags(qos, False, False, 5)
    return Message(
        START_US, flags, 7, 3, "default", b"defaultclient", 7, topic, properties, expiry_s, payload
    )


class Harness:
    """One broker; `crash` throws away what is not durable and recovers a new one from the journal."""

    def __init__(self, settings: BrokerSettings | None = None) -> None:
        self.settings = settings or BrokerSettings()
        self.now_us = START_US
        self.set_by_us = 0  # what somebody has set the clock of the wall forward by
        self.snapshot: tuple[int, list[bytes]] | None = None
        self._open([])

    def _open(self, bodies: list[bytes]) -> None:
        self.journal = MemoryJournal(bodies)
        self.clock = Clock()
        self._own()
        self._set_clock()
        recover(self.broker.fold, bodies, self.snapshot)
        self.broker.sessions.absences.start()
        self.sync()

    def _own(self) -> None:
        """Make a broker that knows nothing yet."""
        self.worker = Worker(ManualScheduler(), self.clock, self.settings)
        self.broker = self.worker.own(0, self.journal)

    def _set_clock(self) -> None:
        self.clock.now_us = self.now_us + self.set_by_us
        self.clock.mono_ms = self.clock.looked_ms = self.now_us // 1000

    def sync(self) -> None:
        """Make everything durable and let it take effect."""
        self.journal.sync(self.broker)

    def advance(self, seconds: float) -> None:
        self.now_us += int(seconds * 1_000_000)
        self._set_clock()
        self.worker.on_timer()
        self.sync()
        while self.worker.behind:
            self.worker.on_timer()
            self.sync()

    def take_snapshot(self) -> None:
        walk = SnapshotPass(self.broker.fold, self.broker.commit)
        self.snapshot = (walk.position, [entry for part in walk.slices() for entry in part])

    def crash(self) -> None:
        durable, count = [], 0
        for body in self.journal.bodies:
            if count >= self.journal.durable:
                break
            durable.append(body)
            count += len(decode_batch(body, 0))
        self._open(durable)

    def client(self, client_id: str, **options: object) -> Client:
        return Client(self, client_id, **options)  # type: ignore[arg-type]


def recover(fold: Fold, bodies: list[bytes], snapshot: tuple[int, list[bytes]] | None) -> None:
    position = 0
    if snapshot is not None:
        position = snapshot[0]
        restore(fold, [snapshot[1]])
    replay, offset = Replay(fold), 0
    for body in bodies:
        records = decode_batch(body, offset)
        for record in records:
            if record.offset >= position:
                replay.record(record)
        offset += len(records)


def state(fold: Fold, commit: GroupCommit | None = None) -> list[bytes]:
    """Persistent sessions as snapshot entries: equal states are equal bytes. What never matters is left out."""
    sessions = sorted(fold.by_incarnation.values(), key=lambda s: s.incarnation)
    for session in sessions:  # drops at QoS 0 and refusals are counted by the process, not by the journal
        counts = {
            reason: count for reason, count in (session.dropped or {}).items() if reason in JOURNALED_DROPS
        }
        session.dropped = counts or None
    entries = [entry_of_session(session, 1 << 40) for session in sessions if session.persistent]
    entries += [entry_of_group(group, 1 << 40) for group in fold.groups.all()]
    for tenant in fold.tenants.values():
        entries += sorted(m.topic + b"=" + m.payload for m in tenant.retained.messages())
        entries += sorted(repr(row[:2]).encode() for rows in tenant.producers.entries() for row in rows)
    return entries


def held(fold: Fold) -> tuple[list[list[int]], list[bytes]]:
    """What waits in each queue, taken out of it, and the state without: in which pages it is does not matter."""
    sessions = sorted(fold.by_incarnation.values(), key=lambda session: session.incarnation)
    backlogs = [
        session.queue.backlog for session in sessions if session.persistent and session.queue is not None
    ]
    backlogs += [group.backlog for group in fold.groups.all()]
    waiting = []
    for backlog in backlogs:
        waiting.append([backlog.pop() for _ in range(backlog.count)])
        backlog.ordered = True
    return waiting, state(fold)


class Client:
    """A client over a `MemoryLink`. `received` lists PUBLISH packets as (packet id, payload, dup, qos, retain)."""

    def __init__(
        self,
        harness: Harness,
        client_id: str,
        clean: bool = False,
        version: int = 4,
        receive_maximum: int | None = None,
        expiry_s: int = 0xFFFFFFFF,
        will: Will | None = None,
        sync: bool = True,
        username: str | None = None,
        keep_alive_s: int = 0,
        method: str | None = None,
        maximum_packet_size: int | None = None,
        came_ms: int = 0,
        gone: bool = False,
    ) -> None:
        self.harness = harness
        self.version = version
        self.link = MemoryLink(harness.worker)
        self.link.came_ms, self.link.gone = came_ms, gone
        self.protocol = ServerProtocol(self.link, 1 << 20, 16)
        self.link.parser = self.protocol
        properties = Properties()
        if version == 5:
            properties.receive_maximum = receive_maximum
            properties.maximum_packet_size = maximum_packet_size
            properties.session_expiry_interval = 0 if clean else expiry_s
            properties.authentication_method = method
        self.packets: list[tuple[int, bytes]] = []
        self.next_id = 1
        self.feed(
            codec.encode_connect(
                Connect(version, client_id, clean, keep_alive_s, username, None, will, properties)
            ),
            sync,
        )

    def feed(self, data: bytes, sync: bool = True) -> None:
        self.link.worker.clock.now_us = self.harness.now_us + self.harness.set_by_us
        self.protocol.receive_data(data)
        if sync:
            self.harness.sync()
        self.drain()

    def drain(self) -> list[tuple[int, bytes]]:
        """Take the packets sent so far: (first byte, body)."""
        self.link.flush()
        data, self.link.sent = self.link.sent, b""
        pos = 0
        while pos < len(data):
            length, shift, at = 0, 0, pos + 1
            while True:
                length |= (data[at] & 127) << shift
                shift += 7
                at += 1
                if data[at - 1] < 128:
                    break
            self.packets.append((data[pos], data[at : at + length]))
            pos = at + length
        return self.packets

    def take(self) -> list[tuple[int, bytes]]:
        self.drain()
        packets, self.packets = self.packets, []
        return packets

    def publishes(self) -> list[tuple[int, bytes, bool, int]]:
        """Take what was delivered: (packet id, payload, dup, qos)."""
        found = []
        for first, body in self.take():
            if first >> 4 != 3:
                continue
            qos = first >> 1 & 3
            at = 2 + int.from_bytes(body[:2], "big")
            packet_id = 0
            if qos:
                packet_id = int.from_bytes(body[at : at + 2], "big")
                at += 2
            if self.version == 5:
                at += 1 + body[at]  # tests use properties shorter than 128 bytes
            found.append((packet_id, body[at:], bool(first & 8), qos))
        return found

    def subscribe(self, topic_filter: str, qos: int = 1, **options: int) -> None:
        request = SubscriptionRequest(
            topic_filter,
            qos,
            bool(options.get("no_local", 0)),
            bool(options.get("retain_as_published", 0)),
            options.get("retain_handling", 0),
        )
        properties = Properties()
        if "identifier" in options:
            properties.subscription_identifiers = [options["identifier"]]
        self.feed(codec.encode_subscribe(self.version, self._id(), [request], properties))

    def publish(
        self,
        topic: str,
        payload: bytes,
        qos: int = 1,
        retain: bool = False,
        sync: bool = True,
        properties: bytes = b"",
        **more: int,
    ) -> int:
        packet_id = self._id() if qos else 0
        expiry = more.get("expiry_s", -1)
        data = codec.encode_publish(
            self.version,
            topic.encode(),
            payload,
            qos,
            retain,
            bool(more.get("dup", 0)),
            packet_id,
            properties,
            expiry,
        )
        self.feed(data, sync)
        return packet_id

    def ack(self, packet_id: int, sync: bool = True) -> None:
        self.feed(codec.encode_puback(self.version, packet_id), sync)

    def disconnect(self) -> None:
        self.feed(codec.encode_disconnect(self.version))

    def lose(self) -> None:
        """The connection breaks."""
        self.link.closed = True
        self.link.broker.on_connection_lost(self.link)
        self.harness.sync()

    def lose_unsynced(self) -> None:
        """The connection breaks before what it sent is durable."""
        self.link.closed = True
        self.link.broker.on_connection_lost(self.link)

    def _id(self) -> int:
        self.next_id += 1
        return self.next_id
