"""A client of a history: publishes, subscribes, acknowledges as it is told, and holds the broker to its promises.

It keeps over connections what the specification makes a client keep: unacknowledged PUBLISH and PUBREL of its own,
and the packet ids of QoS 2 messages it has not seen the PUBREL of.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from faults.model.reference import GROUP, LastWill, Publication
from faults.model.world import Violation, World
from headrace.mqtt import codec
from headrace.mqtt.packets import Connect, SubscriptionRequest, Will
from headrace.mqtt.properties import Properties
from headrace.mqtt.protocol import ServerProtocol
from headrace.storage.memory import MemoryLink

if TYPE_CHECKING:
    from faults.model.reference import Reference

# Draws of a group use the upper packet ids from the bottom, direct entries from the top; no history needs half of them.
SHARED_IDS = range(49_152, 57_344)
CLEARED = -1_000_000  # stands for every message that has no payload
NO, MAYBE, YES = "no", "maybe", "yes"


def packets_of(data: bytes) -> Iterator[tuple[int, bytes]]:
    """(first byte, rest) of each packet."""
    pos = 0
    while pos < len(data):
        length, shift, at = 0, 0, pos + 1
        while True:
            length |= (data[at] & 127) << shift
            shift += 7
            at += 1
            if data[at - 1] < 128:
                break
        yield data[pos], data[at : at + length]
        pos = at + length


class Outgoing:
    """A QoS 1 or 2 message of this client on its way to the broker."""

    def __init__(self, publication: Publication) -> None:
        self.publication = publication
        self.released = False  # PUBREC was seen: PUBREL is what is repeated


class Actor:
    """One client id. Its epoch counts its sessions."""

    def __init__(self, world: World, reference: Reference, name: str) -> None:
        self.world = world
        self.reference = reference
        self.name = name
        self.version = 4
        self.link: MemoryLink | None = None
        self.ready = False
        self.transient = False
        self.window = 65_535
        self.exists = NO
        self.will: LastWill | None = None
        self._next_id = 0
        self._deliveries = 0
        self.in_group = False  # it may be a member, in this session or in one whose end was lost
        self.epoch = 0
        self._new_epoch()

    def _new_epoch(self) -> None:
        self.epoch += 1
        self.subscriptions: dict[str, int] = {}
        self._asked: dict[int, tuple[str, int]] = {}
        self.outgoing: dict[int, Outgoing] = {}
        self.unacked: dict[int, int] = {}  # packet id -> publication: not answered yet
        self.qos_of: dict[int, int] = {}
        self.incoming: dict[int, int] = {}  # QoS 2: PUBREC sent, PUBREL not seen
        self.completing: list[int] = []  # PUBREL seen, PUBCOMP not sent
        self.fresh: dict[int, int] = {}  # publication -> how often it was delivered as something new
        self.seen: set[tuple[int, int]] = set()  # publication and its packet id
        self.last: dict[tuple[str, str, int, int], int] = {}
        self.must_return: list[int] = []
        self.in_window: set[int] = set()
        self.came: dict[
            tuple[int, int], int
        ] = {}  # packet id and publication -> when they came first, in deliveries
        self.unplaced: set[int] = set()  # packet ids of which nobody can say when they came
        self.kept_back: set[int] = set()  # packet ids that it does not answer for now
        if self.in_group:
            self.reference.group_left(self.name)

    def fail(self, text: str) -> None:
        raise Violation(f"{self.name} (epoch {self.epoch}): {text}")

    # Connection

    def connect(
        self, version: int, clean: bool, window: int, will_delay_s: int, expiry_s: int = 0xFFFFFFFF
    ) -> None:
        """Send CONNECT; an open connection is taken over."""
        if self.link is not None:
            self._connection_ended()
            if self.transient:
                self._forget()
                self.exists = NO
        self.version = version
        self.link = MemoryLink(self.world.worker)
        self.protocol = ServerProtocol(self.link, 1 << 20, 16)
        self.ready = False
        properties = Properties()
        if version == 5:
            properties.receive_maximum = window
            properties.session_expiry_interval = 0 if clean else expiry_s
        self.window = window if version == 5 else 65_535
        self.will, will = None, None
        if will_delay_s >= 0:
            self.will = LastWill(b"w%d" % len(self.reference.wills), will_delay_s if version == 5 else 0)
            self.reference.wills[self.will] = self.name
            will = Will("w/" + self.name, self.will.payload, 1, False, b"", self.will.delay_s, -1)
        if clean:
            for old in self.reference.wills_of(self.name):
                if old.state == LastWill.WAITING:
                    old.state = LastWill.EITHER  # it fires now, or goes with a session that lasts no longer
            for publication in self.reference.publications.values():
                publication.wants.pop(self.name, None)
            self._new_epoch()
            self.exists = NO
        elif self.exists == NO:
            self.exists = MAYBE
        self.transient = clean
        self.feed(codec.encode_connect(Connect(version, self.name, clean, 0, None, None, will, properties)))

    def feed(self, data: bytes) -> None:
        self.world.set_clock()
        link = self.link
        if link is None or (link.closed and link.broker is link.worker.reception):
            return  # its shard was given up, and nobody reads from it
        self.protocol.receive_data(data)

    def disconnect(self) -> None:
        """DISCONNECT: the will goes."""
        if self.will is not None and self.will.state == LastWill.ARMED:
            self.will.decide(
                LastWill.NEVER if self.ready else LastWill.EITHER, self.world.broker.commit.next_offset + 10
            )
        self.feed(codec.encode_disconnect(self.version))
        self._gone()

    def lose(self) -> None:
        """The connection breaks."""
        link = self.link
        if link is not None and not link.closed:
            link.closed = True
            link.broker.on_connection_lost(link)
            self._connection_ended()
        self._gone()

    def _connection_ended(self) -> None:
        will = self.will
        if will is None or will.state != LastWill.ARMED:
            return
        if not self.ready:
            will.state = LastWill.EITHER
        elif will.delay_s == 0 or self.transient:
            will.decide(LastWill.MUST, self.world.broker.commit.next_offset + 10)
        else:
            will.wait(self.world.now_us, will.delay_s)

    def _gone(self) -> None:
        self.link = None
        self.ready = False
        self._asked = {}
        if self.transient:
            self.exists = NO
            self._forget()

    def _forget(self) -> None:
        for publication in self.reference.publications.values():
            publication.wants.pop(self.name, None)
        self._new_epoch()

    def broker_crashed(self, durable: int) -> None:
        """The broker is a new one; `durable` is what its journal kept."""
        grace_s = self.world.settings.restart_grace_ms / 1000
        for will in self.reference.wills_of(self.name):
            if will.state == LastWill.ARMED:
                will.wait(self.world.started_us, (0 if self.transient else will.delay_s) + grace_s)
                if not self.ready:
                    will.state = LastWill.EITHER
            elif self._undone(will, durable) or (self.world.jumped and will.state == LastWill.WAITING):
                will.state = LastWill.EITHER  # over a start only the clock says how long it has waited
        self._gone()

    def _undone(self, will: LastWill, durable: int) -> bool:
        """What decided it may be lost, or was on its way."""
        if will.state == LastWill.WAITING:
            return self.link is not None and not self.ready
        return will.state in (LastWill.MUST, LastWill.NEVER) and will.offset >= durable

    # What it sends

    def publish(self, publication: Publication) -> None:
        packet_id = 0
        if publication.qos:
            packet_id = self._free_id()
            self.outgoing[packet_id] = Outgoing(publication)
        self._send_publish(publication, packet_id, False)

    def _free_id(self) -> int:
        self._next_id = self._next_id % 65_535 + 1
        while self._next_id in self.outgoing:
            self._next_id = self._next_id % 65_535 + 1
        return self._next_id

    def _send_publish(self, publication: Publication, packet_id: int, dup: bool) -> None:
        publication.sends += 1
        self.feed(
            codec.encode_publish(
                self.version,
                publication.topic.encode(),
                publication.payload,
                publication.qos,
                publication.retain,
                dup,
                packet_id,
                b"",
                self._expiry_s(publication) if publication.expires and self.version == 5 else -1,
            )
        )

    def _expiry_s(self, publication: Publication) -> int:
        """Two seconds; once the clock was set, the longest there is."""
        return 0xFFFFFFFF if self.world.jumped else 2

    def subscribe(self, topic_filter: str, qos: int) -> None:
        if topic_filter == GROUP:
            qos = max(qos, 1)
            self.in_group = True
        elif qos == 0:
            self.subscriptions.pop(topic_filter, None)
            self.reference.left(self.name, topic_filter)
        packet_id = self._free_id()
        self._asked[packet_id] = (topic_filter, qos)
        self.reference.asked(self, packet_id, topic_filter)
        request = SubscriptionRequest(topic_filter, qos, False, False, 0)
        self.feed(codec.encode_subscribe(self.version, packet_id, [request], Properties()))

    def unsubscribe(self, topic_filter: str) -> None:
        if topic_filter == GROUP:
            self.reference.group_unsubscribed(self.name)
        self.subscriptions.pop(topic_filter, None)
        self._asked = {k: v for k, v in self._asked.items() if v[0] != topic_filter}
        self.reference.left(self.name, topic_filter)
        self.feed(codec.encode_unsubscribe(self.version, self._free_id(), [topic_filter]))

    def answer(self, which: int, refuse: bool = False) -> bool:
        """Acknowledge one of the messages that wait for it; False when none does."""
        # What has not come back on this connection cannot be answered yet.
        waiting = [p for p in self.unacked if p not in self.must_return] + self.completing
        waiting = [p for p in waiting if p not in self.kept_back]
        if not waiting or not self.ready:
            return False
        packet_id = waiting[which % len(waiting)]
        if packet_id in self.completing:
            self.completing.remove(packet_id)
            self.in_window.discard(packet_id)
            self.feed(codec.encode_pubcomp(self.version, packet_id))
            return True
        number = self.unacked.pop(packet_id)
        if self.qos_of[packet_id] == 1:
            self.in_window.discard(packet_id)
            self.feed(codec.encode_puback(self.version, packet_id))
        else:
            self.incoming[packet_id] = number
            self.feed(codec.encode_pubrec(self.version, packet_id))
        return True

    def hold(self, which: int) -> None:
        """From now on leave one of the messages unanswered."""
        if self.unacked:
            self.kept_back.add(list(self.unacked)[which % len(self.unacked)])

    def let_go(self) -> None:
        self.kept_back.clear()

    # What it receives

    def read(self) -> int:
        """Take in what the broker has written; returns the number of packets."""
        link, count = self.link, 0
        if link is None:
            return 0
        link.flush()
        data, link.sent = link.sent, b""
        for first, body in packets_of(data):
            count += 1
            kind = first >> 4
            if kind == 2:
                self._on_connack(body)
            elif kind == 3:
                self._on_publish(first, body)
            elif kind in (4, 5, 6, 7):
                self._on_acknowledgement(kind, int.from_bytes(body[:2], "big"))
            elif kind == 9:
                self._on_suback(int.from_bytes(body[:2], "big"), body[-1])
            elif kind == 14 and body[:1] not in (b"\x8e", b"\x8b"):
                self.fail(f"DISCONNECT {body.hex()}")
        return count

    def _on_connack(self, body: bytes) -> None:
        if body[1]:
            self.fail(f"CONNACK {body[1]}")
        present = bool(body[0])
        if self.exists == YES and not present and not self.transient:
            self.fail("P2: the session is lost")
        if present and self.transient:
            self.fail("a clean start found a session")
        for will in self.reference.wills_of(self.name):
            if will is not self.will and will.state == LastWill.WAITING:
                state = LastWill.EITHER if self.transient else will.returned(self.world.now_us)
                will.decide(state, 0)
        self.exists = NO if self.transient else YES
        self.ready = True
        self.in_window = set()
        # QoS 1 of a shared subscription may go to another member; the rest comes back.
        for packet_id in [p for p in self.unacked if p in SHARED_IDS and self.qos_of[p] == 1]:
            del self.unacked[packet_id]
        direct = [p for p in self.unacked if p not in SHARED_IDS]
        self.must_return = sorted(direct, key=lambda p: self.came[p, self.unacked[p]])
        self.completing = []
        if present:
            self._resend()
        else:
            self._start_anew()

    def _resend(self) -> None:
        for packet_id, out in list(self.outgoing.items()):
            if out.released:
                self.feed(codec.encode_pubrel(self.version, packet_id))
            else:
                self._send_publish(out.publication, packet_id, True)

    def _start_anew(self) -> None:
        """No session: QoS 1 is published again, QoS 2 cannot be repeated safely."""
        pending = [out.publication for out in self.outgoing.values() if out.publication.qos == 1]
        subscriptions = self._asked
        self._forget()
        self._asked = subscriptions
        for packet_id, (topic_filter, _) in subscriptions.items():
            self.reference.asked(self, packet_id, topic_filter)
        for publication in pending:
            if not publication.acked:
                self.publish(publication)

    def _on_suback(self, packet_id: int, code: int) -> None:
        before = list(self._asked)
        asked = self._asked.pop(packet_id, None)
        if asked is None or code >= 0x80:
            return
        topic_filter, qos = asked
        for older in before[: before.index(packet_id)]:
            if (
                self._asked[older][0] == topic_filter != GROUP
            ):  # answered later, since its retained messages came late
                del self._asked[older]
        if topic_filter == GROUP:
            self.reference.group_members[self.name] = 1
        elif (topic_filter, 0) not in self._asked.values():  # else it is on its way to be QoS 0 already
            self.subscriptions[topic_filter] = qos
            self.reference.granted(self, packet_id, topic_filter, qos)

    def _on_acknowledgement(self, kind: int, packet_id: int) -> None:
        if kind == 6:  # PUBREL
            self.incoming.pop(packet_id, None)
            if self.qos_of.get(packet_id) == 2:
                self.unacked.pop(
                    packet_id, None
                )  # it came again before the broker had seen PUBREC, which it has by now
            self.completing.append(packet_id)
            return
        out = self.outgoing.get(packet_id)
        if out is None:
            return
        out.publication.acked = True
        if kind == 5:
            out.released = True
            self.feed(codec.encode_pubrel(self.version, packet_id))
        else:
            del self.outgoing[packet_id]

    def _on_publish(self, first: int, body: bytes) -> None:
        qos, dup, retained = first >> 1 & 3, bool(first & 8), bool(first & 1)
        at = 2 + int.from_bytes(body[:2], "big")
        topic = body[2:at].decode()
        packet_id = 0
        if qos:
            packet_id = int.from_bytes(body[at : at + 2], "big")
            at += 2
        if self.version == 5:
            at += 1 + body[at]
        payload = body[at:]
        if not payload or payload.startswith(b"w"):
            if qos:
                self._take_will(packet_id, qos, -1 - int(payload[1:]) if payload else CLEARED, dup)
            return
        publication = self.reference.publications.get(int(payload))
        if publication is None or publication.topic != topic:
            self.fail(f"invented: {payload!r} on {topic}")
            return
        number = publication.number
        if not self.ready:
            self.fail("PUBLISH before CONNACK")
        if qos == 0:
            self._arrived(publication, qos, retained, 0)
            return
        self._into_window(packet_id)
        if packet_id in self.unacked:
            self._came_back(packet_id, number, dup)
        elif packet_id in self.incoming:
            if self.incoming.pop(packet_id) != number or not dup:
                self.fail(f"P4: packet id {packet_id} was used again before PUBREL")
            self.unacked[packet_id] = number
        else:
            if self.must_return and not dup and packet_id not in SHARED_IDS:
                self.fail(f"P4: {number} came before what was in flight: {self.must_return}")
            self._new_in_flight(packet_id, number, qos, dup)
            if dup and (number, packet_id) in self.seen and qos == 1:
                return  # the acknowledgement was lost
            self.seen.add((number, packet_id))
            self._arrived(publication, qos, retained, packet_id)

    def _take_will(self, packet_id: int, qos: int, number: int, dup: bool) -> None:
        self._into_window(packet_id)
        if self.unacked.get(packet_id, number) != number:
            self.fail(f"P4: packet id {packet_id} of {self.unacked[packet_id]} was used for a will")
        if packet_id not in self.unacked:
            self._new_in_flight(packet_id, number, qos, dup)
        if packet_id in self.must_return:
            self.must_return.remove(packet_id)

    def _new_in_flight(self, packet_id: int, number: int, qos: int, dup: bool) -> None:
        self.unacked[packet_id] = number
        self.qos_of[packet_id] = qos
        known = dup and (packet_id, number) in self.came
        if not known:
            self.came[packet_id, number] = self._deliveries
        self._deliveries += 1
        publication = self.reference.publications.get(number)
        if known and publication is not None and (publication.sends > 1 or publication.retain):
            self.unplaced.add(packet_id)  # its acknowledgement was lost, or another copy has that id now
        elif dup and not known and (self.reference.limited or (publication and publication.expires)):
            self.unplaced.add(packet_id)  # a crash took back that it was dropped, what is behind it has come
        else:
            self.unplaced.discard(packet_id)

    def _into_window(self, packet_id: int) -> None:
        if packet_id in self.in_window:
            self.fail(f"packet id {packet_id} sent twice on one connection")
        self.in_window.add(packet_id)
        if len(self.in_window) > self.window:
            self.fail(f"{len(self.in_window)} in flight, Receive Maximum {self.window}")

    def _came_back(self, packet_id: int, number: int, dup: bool) -> None:
        if packet_id in SHARED_IDS and self.qos_of[packet_id] == 1:
            self.unacked[packet_id] = number
            return
        if self.unacked[packet_id] != number or not dup:
            self.fail(
                f"P4: packet id {packet_id} was {self.unacked[packet_id]}, came back as {number} {dup=}"
            )
        if packet_id in self.must_return:
            placed = [p for p in self.must_return if p not in self.unplaced]
            if packet_id in placed and placed[0] != packet_id:
                self.fail(f"P3: {packet_id} came back before {placed[0]}")
            self.must_return.remove(packet_id)

    def _arrived(self, publication: Publication, qos: int, retained: bool, packet_id: int) -> None:
        """Something new for the application."""
        number = publication.number
        if packet_id in SHARED_IDS:
            delivered = self.reference.group_delivered
            delivered[number] = delivered.get(number, 0) + 1
            once = self.reference.group_once
            if qos == 2:
                if number in once:
                    self.fail(f"QoS 2 message {number} was delivered twice in the group")
                once.add(number)
            return
        self.reference.arrived(self, publication, qos, retained)
        if retained:
            self.fresh.setdefault(number, 0)
            return
        self.fresh[number] = self.fresh.get(number, 0) + 1
        allowed = 1 if publication.qos == 2 else max(1, publication.sends)
        if qos == 0:
            allowed += 1  # a member of the group may get its copy of it too
        if self.fresh[number] > allowed:
            self.fail(f"P2: {number} (QoS {publication.qos}) was delivered {self.fresh[number]} times as new")
        if self.fresh[number] > 1 or number not in self._in_order(publication):
            return
        if qos == 0 and self.in_group and self.reference.has_two_ways:
            return
        key = (publication.publisher, publication.topic, publication.qos, qos)
        if self.last.get(key, 0) > number:
            self.fail(f"P3: {number} came after {self.last[key]} {key}")
        self.last[key] = number

    def _in_order(self, publication: Publication) -> tuple[int, ...]:
        """Order is promised to whoever was subscribed when the message was first sent."""
        live = publication.qos == 0 and (not publication.retain or self.reference.qos0_in_order)
        wanted = live or publication.wants.get(self.name) == self.epoch
        if (self.reference.limited or publication.expires) and publication.sends > 1:
            wanted = False  # the first copy may have been dropped, and counted
        return (publication.number,) if wanted else ()
