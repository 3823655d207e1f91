"""The loads of `curves.py`: what grows, and the step whose price is taken at each size."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from benchmarks.flood_packets import acknowledgement, connect, publish, subscribe, text, unsubscribe, varint
from headrace.core.ports.clock import Clock, Scheduler
from headrace.core.ports.settings import BrokerSettings
from headrace.core.state.snapshots import SnapshotPass
from headrace.core.worker import Worker
from headrace.journal.disk import Disk
from headrace.journal.log import LogSettings, SegmentedLog
from headrace.journal.segment import BATCH_HEADER_SIZE, BATCH_MAGIC
from headrace.mqtt.protocol import ServerProtocol
from headrace.storage.memory import MemoryJournal, MemoryLink

START_US = 1_790_000_000_000_000
MANY = 500  # units of a step where one is the smallest that can be done

Step = tuple[Callable[[], object], int]


class Asked(Scheduler):
    """The load ends its ticks itself."""

    def request_tick(self) -> None:
        return


class Client:
    """A link in memory and the protocol on it."""

    def __init__(self, load: Load, hello: bytes) -> None:
        self.link = MemoryLink(load.worker)
        self._wire = ServerProtocol(self.link, 256 << 20, 16)
        self.link.protocol = self._wire
        self.feed(hello)

    def feed(self, data: bytes) -> None:
        self._wire.receive_data(data)

    def take(self) -> bytes:
        """What it was sent."""
        self.link.flush()
        sent, self.link.sent = self.link.sent, b""
        return sent


class Load:
    """A broker that grows. `grow` to a size comes before the `step` at it, and sizes only rise."""

    def __init__(self) -> None:
        self.journal = MemoryJournal()
        self.clock = Clock()
        self.clock.now_us, self.clock.mono_ms = START_US, START_US // 1000
        settings = BrokerSettings()
        settings.packet_bytes_max = 256 << 20
        settings.retained_messages_max = settings.retained_bytes_max = 0
        settings.backlog_messages_max = 65_535
        settings.filter_levels_max = 0
        self.worker = Worker(Asked(), self.clock, settings)
        self.broker = self.worker.own(0, self.journal)
        self.broker.sessions.absences.start()
        self.size = 0
        self.clients: list[Client] = []
        self.sync()

    def sync(self) -> None:
        self.journal.sync(self.broker)

    def client(self, name: bytes, clean: bool = True, version: int = 4) -> Client:
        made = Client(self, connect(name, version, clean))
        self.clients.append(made)
        return made

    def empty(self) -> None:
        """Nobody keeps what was delivered, nor the journal what was written."""
        for client in self.clients:
            client.link.sent = b""

    def grow(self, size: int) -> None:
        for number in range(self.size, size):
            self.add(number)
            if number % 1000 == 999:
                self.sync()
                self.empty()
        self.size = size
        self.sync()
        self.empty()

    def add(self, number: int) -> None:
        """One more of what grows."""

    def step(self, size: int) -> Step:
        """What is to be measured, and of how many units it is."""
        raise NotImplementedError

    def close(self) -> None:
        self.clients.clear()


class Receivers(Load):
    """One message to so many subscribers."""

    qos = 0

    def __init__(self) -> None:
        super().__init__()
        self.publisher = self.client(b"publisher")

    def add(self, number: int) -> None:
        self.client(b"receiver-%d" % number).feed(subscribe(1, [b"fan"], self.qos))

    def step(self, size: int) -> Step:
        packet = publish(b"fan", qos=self.qos)
        count = max(1, MANY // size)

        def run() -> None:
            for _ in range(count):
                self.publisher.feed(packet)
                self.sync()

        self.empty()
        return run, count * size


class ReceiversQos1(Receivers):
    """The same at QoS 1: an entry for each."""

    qos = 1


class Topics(Load):
    """As many topics, each of which ten subscribers with one wildcard get."""

    def __init__(self) -> None:
        super().__init__()
        for number in range(10):
            self.client(b"receiver-%d" % number).feed(subscribe(1, [b"devices/#"]))
        self.publisher = self.client(b"publisher")
        self.sync()

    def step(self, size: int) -> Step:
        packets = [publish(b"devices/%d" % number) for number in range(size)]

        def run() -> None:
            for packet in packets:
                self.publisher.feed(packet)
            self.sync()

        self.empty()
        return run, size


class Subscriptions(Load):
    """One client that asks for ever more filters: a subscription, a message that one matches, and an unsubscription."""

    def __init__(self) -> None:
        super().__init__()
        self.subscriber = self.client(b"subscriber")
        self.publisher = self.client(b"publisher")

    def filter(self, number: int) -> bytes:
        return b"own/%d/+/state" % number if number % 2 else b"own/%d" % number

    def add(self, number: int) -> None:
        self.subscriber.feed(subscribe(1, [self.filter(number)]))

    def step(self, size: int) -> Step:
        fresh = [self.filter(number) for number in range(size, size + MANY)]

        def run() -> None:
            for one in fresh:
                self.subscriber.feed(subscribe(1, [one]))
                self.publisher.feed(publish(one.replace(b"+", b"x")))
            self.sync()
            for one in fresh:
                self.subscriber.feed(unsubscribe(1, [one]))
            self.sync()

        self.empty()
        return run, MANY


class Identifiers(Load):
    """Subscriptions of one client with a Subscription Identifier each, none of them twice."""

    def __init__(self) -> None:
        super().__init__()
        self.subscriber = self.client(b"subscriber", version=5)
        self._number = 0

    def add(self, number: int) -> None:
        self._number += 1
        self.subscriber.feed(subscribe(1, [b"own/%d" % self._number], 0, b"\x0b" + varint(self._number)))

    def step(self, size: int) -> Step:
        def run() -> None:
            for number in range(MANY):
                self.add(number)
            self.sync()

        self.empty()
        return run, MANY


class FiltersOfOnePacket(Load):
    """One SUBSCRIBE with so many filters, and its UNSUBSCRIBE."""

    def step(self, size: int) -> Step:
        client = self.client(b"subscriber")
        filters = [b"one/%d" % number for number in range(size)]
        ask, leave = subscribe(1, filters), unsubscribe(2, filters)

        def run() -> None:
            client.feed(ask)
            self.sync()
            client.feed(leave)
            self.sync()

        return run, size


class Retained(Load):
    """Retained messages: setting one more, and walking through all of them for a new subscription."""

    def __init__(self) -> None:
        super().__init__()
        self.publisher = self.client(b"publisher")

    def add(self, number: int) -> None:
        self.publisher.feed(publish(b"kept/%d/state" % number, b"on", retain=True))

    def step(self, size: int) -> Step:
        reader = self.client(b"reader")

        def run() -> None:
            reader.feed(subscribe(1, [b"kept/+/state"]))
            self.sync()

        return run, size


class Sessions(Load):
    """Persistent sessions that are away: one comes and goes, and all of them are written into a snapshot."""

    def add(self, number: int) -> None:
        self._visit(b"away-%d" % number)

    def _visit(self, name: bytes) -> None:
        client = Client(self, connect(name, 4, False) + subscribe(1, [b"fleet/" + name], 1))
        client.feed(b"\xe0\x00")
        self.broker.on_connection_lost(client.link)

    def step(self, size: int) -> Step:
        names = [b"away-%d" % (number * 7919 % size) for number in range(MANY)]

        def run() -> None:
            for name in names:
                self._visit(name)
            self.sync()

        return run, MANY


class Snapshots(Sessions):
    """The whole state of so many sessions as entries of a snapshot."""

    def step(self, size: int) -> Step:
        def run() -> None:
            for _ in SnapshotPass(self.broker.fold, self.broker.commit).slices():
                pass

        return run, size


class Backlog(Load):
    """Messages that wait for one session, and leave when it returns and acknowledges them."""

    def __init__(self) -> None:
        super().__init__()
        self.publisher = self.client(b"publisher")

    def step(self, size: int) -> Step:
        name = b"away-%d" % size
        away = Client(self, connect(name, 4, False) + subscribe(1, [b"queue"], 1))
        self.sync()
        away.feed(b"\xe0\x00")
        self.broker.on_connection_lost(away.link)
        packet = publish(b"queue", b"x", 1)

        def run() -> None:
            for number in range(size):
                self.publisher.feed(packet)
                if number % 500 == 499:
                    self.sync()
            self.sync()
            back = Client(self, connect(name, 4, False))
            self.sync()
            drain(back, self, size)
            back.feed(unsubscribe(2, [b"queue"]))
            self.sync()

        return run, size


def drain(client: Client, load: Load, count: int) -> None:
    """Acknowledge what comes until so many have come. Raises RuntimeError when nothing comes any more."""
    step = len(publish(b"queue", b"x", 1))
    while count > 0:
        sent = client.take()
        at = sent.find(b"\x00\x05queue")
        ids = []
        while 0 <= at < len(sent):
            ids.append(int.from_bytes(sent[at + 7 : at + 9], "big"))
            at = sent.find(b"\x00\x05queue", at + step - 2)
        if not ids:
            raise RuntimeError(f"{count} messages of a backlog did not come")
        count -= len(ids)
        for packet_id in ids:
            client.feed(acknowledgement(4, packet_id))
        load.sync()


class Unacknowledged(Load):
    """So many in flight, which are acknowledged from the last to the first."""

    def __init__(self) -> None:
        super().__init__()
        self.worker.settings.inflight_max = 49_151
        self.publisher = self.client(b"publisher")

    def step(self, size: int) -> Step:
        reader = Client(self, connect(b"reader-%d" % size, 4, False) + subscribe(1, [b"flight-%d" % size], 1))
        self.sync()
        topic = b"flight-%d" % size
        for _ in range(size):
            self.publisher.feed(publish(topic, b"x", 1))
        self.sync()
        acks = [acknowledgement(4, packet_id) for packet_id in range(size, 0, -1)]

        def run() -> None:
            for ack in acks:
                reader.feed(ack)
            self.sync()

        return run, size


class Deferred(Load):
    """PUBRELs that wait behind a record which is not durable yet, then take effect."""

    packet = staticmethod(lambda number: acknowledgement(6, number % 65_535 + 1))

    def step(self, size: int) -> Step:
        client = self.client(b"flood")
        self.sync()
        block = publish(b"first", b"x", 1) + b"".join(self.packet(number) for number in range(size))

        def run() -> None:
            client.feed(block)
            self.sync()

        self.empty()
        return run, size


class BehindRetained(Deferred):
    """QoS 0 that waits behind a retained message."""

    packet = staticmethod(lambda number: publish(b"other/%d" % (number % 100)))

    def step(self, size: int) -> Step:
        client = self.client(b"flood")
        self.sync()
        first = publish(b"first", b"x", 1, retain=True)
        block = first + b"".join(self.packet(number) for number in range(size))

        def run() -> None:
            client.feed(block)
            self.sync()

        return run, size


class Properties(Load):
    """User properties of one message, to one who gets them all."""

    def __init__(self) -> None:
        super().__init__()
        self.subscriber = self.client(b"subscriber", version=5)
        self.subscriber.feed(subscribe(1, [b"p"], 0, b""))
        self.publisher = self.client(b"publisher", version=5)

    def step(self, size: int) -> Step:
        packet = publish(b"p", b"x", 1, properties=(b"\x26" + text(b"n") + text(b"v")) * size)

        def run() -> None:
            self.publisher.feed(packet)
            self.sync()

        self.empty()
        return run, size


class Levels(Load):
    """Levels of a topic and of a filter that matches it."""

    def step(self, size: int) -> Step:
        client = self.client(b"deep")
        topic = b"/".join([b""] * (size + 1))
        count = max(1, MANY // size)

        def run() -> None:
            for _ in range(count):
                client.feed(subscribe(1, [topic[:-1] + b"+"]))
                client.feed(publish(topic))
                self.sync()
                client.feed(unsubscribe(1, [topic[:-1] + b"+"]))
                self.sync()

        self.empty()
        return run, size * count


class Payload(Load):
    """Bytes of one message to ten subscribers."""

    def __init__(self) -> None:
        super().__init__()
        for number in range(10):
            self.client(b"receiver-%d" % number).feed(subscribe(1, [b"large"]))
        self.publisher = self.client(b"publisher")
        self.sync()

    def step(self, size: int) -> Step:
        packet = publish(b"large", bytes(size), 1)
        count = max(1, 20_000 // size)

        def run() -> None:
            for _ in range(count):
                self.publisher.feed(packet)
                self.sync()

        self.empty()
        return run, count * size


class Members(Load):
    """Members of a shared group, one of which gets each message; joins and leaves."""

    def __init__(self) -> None:
        super().__init__()
        self.publisher = self.client(b"publisher")

    def add(self, number: int) -> None:
        self.client(b"member-%d" % number).feed(subscribe(1, [b"$share/g/s"]))

    def step(self, size: int) -> Step:
        packet = publish(b"s", b"x", 1)
        member = self.clients[-1]

        def run() -> None:
            for _ in range(MANY // 5):
                self.publisher.feed(packet)
                self.sync()
                member.feed(unsubscribe(2, [b"$share/g/s"]) + subscribe(1, [b"$share/g/s"]))
                self.sync()

        self.empty()
        return run, MANY // 5


class Unsynced(Disk):
    """A disk that promises nothing, so that ten thousand segments are made in seconds."""

    def fdatasync(self, fd: int) -> None:
        return

    def fsync(self, fd: int) -> None:
        return

    def fsync_directory(self, path: Path) -> None:
        return


class Segments(Load):
    """Segments of a journal: opening it, and asking what retention and compaction would do."""

    segment_bytes_max = 4096

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp(prefix="headrace-curves-"))

    def open(self) -> SegmentedLog:
        settings = LogSettings(durability="none", segment_bytes_max=self.segment_bytes_max, reserve_bytes=0)
        return SegmentedLog.open(self.folder, settings, lambda _: None, Unsynced())

    def append(self, batches: int, size: int) -> None:
        """Raises RuntimeError when the disk fails."""
        failures: list[BaseException] = []
        log = self.open()
        log.start(lambda _: None, failures.append)
        for _ in range(batches):
            log.append(bytes(size), 1, START_US, START_US)
        log.close()
        if failures:
            raise RuntimeError("the journal failed") from failures[0]

    def grow(self, size: int) -> None:
        """A segment for each batch, since one is as large as a segment."""
        self.append(size - self.size, self.segment_bytes_max)
        self.size = size

    def step(self, size: int) -> Step:
        def run() -> None:
            log = self.open()
            log.apply_retention()
            log.compactable()
            log.close()

        return run, size

    def close(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)


class TornTail(Segments):
    """Bytes of a torn last batch, in which a client wrote what looks like the beginnings of batches."""

    segment_bytes_max = 16 << 20

    def grow(self, size: int) -> None:
        shutil.rmtree(self.folder)
        self.append(1, 100)

    def step(self, size: int) -> Step:
        path = min((self.folder / "journal").glob("*.log"))
        whole = path.read_bytes().rstrip(b"\0")
        fakes = [
            BATCH_MAGIC + bytes(4) + max(0, size - at - BATCH_HEADER_SIZE).to_bytes(4, "little")
            for at in range(0, size, 12)
        ]
        path.write_bytes(whole + b"\1" + b"".join(fakes)[: size - 1])

        def run() -> None:
            self.open().close()

        return run, size


@dataclass(frozen=True)
class Curve:
    """How to make a load, up to what size, what a unit is, and whether a step leaves things as they were."""

    name: str
    make: Callable[[], Load]
    unit: str
    most: int = 1_000_000
    repeatable: bool = True


CURVES: dict[str, Curve] = {
    curve.name: curve
    for curve in (
        Curve("receivers", Receivers, "delivery", 100_000),
        Curve("receivers-qos1", ReceiversQos1, "delivery", 100_000),
        Curve("topics", Topics, "message"),
        Curve("subscriptions", Subscriptions, "subscription"),
        Curve("identifiers", Identifiers, "subscription", 100_000, repeatable=False),
        Curve("filters-of-packet", FiltersOfOnePacket, "filter"),
        Curve("retained", Retained, "message", repeatable=False),
        Curve("sessions", Sessions, "visit"),
        Curve("snapshot", Snapshots, "session"),
        Curve("backlog", Backlog, "message", 10_000, repeatable=False),
        Curve("in-flight", Unacknowledged, "PUBACK", 10_000, repeatable=False),
        Curve("deferred", Deferred, "PUBREL"),
        Curve("behind-retained", BehindRetained, "message"),
        Curve("properties", Properties, "property"),
        Curve("levels", Levels, "level", 10_000),
        Curve("payload", Payload, "byte"),
        Curve("members", Members, "message", 10_000),
        Curve("segments", Segments, "segment", 10_000),
        Curve("torn-tail", TornTail, "byte", repeatable=False),
    )
}
