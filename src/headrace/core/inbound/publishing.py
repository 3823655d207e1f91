"""PUBLISH from a client: check, journal, acknowledge when it is durable (section 3.3, 4.3).

Runs on the loop. What cannot be taken now, because the disk is full or too much waits for it, is kept back by not
reading from its sender (`gate`).
"""

from __future__ import annotations

from typing import Final, cast

from mypy_extensions import i64

from headrace.core.commit import (
    SAY_PUBCOMP,
    SAY_PUBREC,
    SHARE_BYTES_LEAST,
    Answer,
    GroupCommit,
)
from headrace.core.inbound.admission import Admission, capped, may_be_too_deep
from headrace.core.inbound.following import Following
from headrace.core.inbound.gate import Gate, SpaceListener, weight_of
from headrace.core.outbound.routing import Router, targets_of
from headrace.core.ports.limits import NO_LIMIT
from headrace.core.ports.link import HELD_FOR_DISK, Link, WorkerPort
from headrace.core.ports.witness import Testimony
from headrace.core.records.message import NO_EXPIRY, FrameMessage, Message, message_flags
from headrace.core.records.record import (
    DROP_NOT_ACCEPTED,
    DROP_RETAINED_LIMIT,
    FLAG_FRAME,
    FLAG_PRODUCER,
    FLAG_QOS,
    FLAG_RETAIN,
)
from headrace.core.state.producers import MALFORMED, NEW, REPEATED, SEQUENCE_MARK, is_sequenced, owned
from headrace.core.state.session import Session, attached_to, session_of
from headrace.errors import ProtocolError
from headrace.mqtt import reason_codes as rc
from headrace.mqtt.packets import Publish
from headrace.mqtt.properties import Properties

NEVER_DURABLE: Final = -1
_PARKED_LEAST: Final = 64  # messages that wait for space, before those of closed connections are looked for
_REFUSED: Final = 0
_PASSED: Final = 1
_RETAINED: Final = 2
_DOLLAR: Final = 0x24
_DELAYED: Final = b"$delayed/"
_REASON_FITS: Final = 64  # an acknowledgement with the longest of our reason strings is shorter


class Publishing(SpaceListener):
    """Checks and journals the messages that clients publish, and answers for them."""

    def __init__(
        self,
        commit: GroupCommit,
        gate: Gate,
        router: Router,
        admission: Admission,
        testimony: Testimony,
        worker: WorkerPort,
    ) -> None:
        settings = worker.settings
        self.commit = commit
        self.progress = commit.progress
        self.router = router
        self.following = Following(commit, router, settings)
        self.admission = admission
        self.clock = worker.clock
        self.settings = settings
        self._testimony = testimony
        self._worker = worker
        self._format_check = settings.payload_format_check
        self._default_expiry_s: i64 = settings.default_message_expiry_s or NO_EXPIRY
        self.gate = gate
        gate.space = self
        self._parked: list[_Parked] = []
        self._parked_looked_at: i64 = _PARKED_LEAST
        self.sampled_us: i64 = (
            0  # when a message arrived that was acknowledged since the last flush; 0: none was
        )
        self.trace = b""  # what our bridges put on messages, as properties; b"" without bridges

    def publish(self, link: Link, packet: Publish, plain: bytes | None = None) -> None:
        """Handle PUBLISH (3.3.4): may it be published, is it new, then journal it; at QoS 0 it goes on without
        [MQTT-3.3.4-1]. `plain` is the packet as it came, where it may leave so (`forwarding`)."""
        if link.session is None:
            return
        session = attached_to(link)
        if self.gate.full and self._put_off(link, session, packet):
            return
        counters = session.tenant.counters
        counters.publishes_received += 1
        counters.bytes_received += len(packet.payload)
        if (link.rights is not None or len(self.trace) > 0) and not self._permits(link, session, packet):
            return
        retain = packet.retain  # [MQTT-3.3.1-5] [MQTT-3.3.1-8]
        topic = packet.topic
        if (
            retain
            or topic[0] == _DOLLAR
            or self._format_check
            or may_be_too_deep(session.tenant.limits, topic)
        ):
            found = self._looked_at(link, session, packet)
            if found == _REFUSED:
                return
            retain = found == _RETAINED
        message = session.message(
            self.clock.now_us,
            message_flags(packet.qos, retain, packet.dup, link.version),
            packet.packet_id,
            topic,
            packet.properties,
            self._expiry_of(packet),
            packet.payload,
        )
        if packet.qos == 0:
            self._publish_qos0(link, session, message, plain)
        else:
            self._publish_stored(link, session, packet, message)

    def _permits(self, link: Link, session: Session, packet: Publish) -> bool:
        """Return whether access control lets the client publish there, and it has not come round a ring of bridges;
        what is refused is answered."""
        rights = link.rights
        if rights is not None:
            code = self.admission.unsupported(session.tenant.limits, packet.qos, packet.retain)
            if code and not self._is_bridged(link, session, packet):
                self._reject_unsupported(link, session, packet, code)
                return False
            longest: i64 = session.tenant.limits.message_expiry_max_s
            if longest != NO_LIMIT:
                packet.message_expiry_s = capped(self._expiry_of(packet), longest)
            if not rights.may_publish(packet.topic):
                rights.note_denied("publish", packet.topic)
                self._reject(link, session, packet, rc.NOT_AUTHORIZED)
                return False
        if (
            len(packet.properties)
            and self.trace
            and (link.rendering is None or not link.rendering.bridges)
            and self.trace in packet.properties
        ):
            self._reject(link, session, packet, rc.SUCCESS)
            return False
        return True

    def _is_bridged(self, link: Link, session: Session, packet: Publish) -> bool:
        """Return whether a PUBLISH comes in over a bridge. The remote broker, which is no client of the tenant, was told
        nothing of what those cannot have: its message is taken at the QoS that it has, and not retained where the tenant
        retains nothing, which is counted."""
        rendering = link.rendering
        if rendering is None or not rendering.bridges:
            return False
        if packet.retain and not session.tenant.limits.retain_available:
            packet.retain = False
            session.tenant.count_drop(DROP_RETAINED_LIMIT, 1)
        return True

    def _reject_unsupported(self, link: Link, session: Session, packet: Publish, code: int) -> None:
        """Refuse a PUBLISH with what CONNACK has said that there is not [MQTT-3.2.2-11] [MQTT-3.2.2-14]: a client that
        was told so is ended, one of 3.x, which cannot be told, is not."""
        if link.version == 5:
            raise ProtocolError(code, "the tenant of the client has no such QoS, or no retained messages")
        self._reject(link, session, packet, code)

    def _publish_stored(self, link: Link, session: Session, packet: Publish, message: Message) -> None:
        """Publish at QoS 1 and 2, within Receive Maximum [MQTT-3.3.4-7]: journal what is new, answer behind it what is
        repeated. PUBACK or PUBREC follows when it is durable [MQTT-4.3.2-4] [MQTT-4.3.3-8]."""
        if packet.qos == 2 and self._repeated(link, session, packet.packet_id):
            return
        link.inbound += 1
        if link.inbound > session.tenant.limits.receive_maximum and link.version == 5:
            raise ProtocolError(rc.RECEIVE_MAXIMUM_EXCEEDED, "more QoS > 0 messages than Receive Maximum")
        if (
            len(packet.properties)
            and SEQUENCE_MARK in packet.properties
            and not self._takes_sequence(link, session, packet, message)
        ):
            return
        message.link = link
        weight = weight_of(packet.payload)
        waiting: i64 = link.deferred + weight
        link.deferred = waiting
        if waiting > SHARE_BYTES_LEAST:
            self.gate.foresee(link, session, session.tenant, packet.topic, weight)
            self.gate.keep_share(link, waiting)
        try:
            offset = self.commit.append(message)
        except BaseException:  # no memory now: whoever sends it again must not hear that it is stored
            if message.flags & FLAG_PRODUCER:
                session.tenant.producers.give_back()
            raise
        link.effective_at = self.commit.entered
        self.commit.deferred_bytes += weight
        if message.flags & FLAG_RETAIN:
            session.tenant.retained.arrive(message)
        if packet.qos == 2:
            self._note_incoming(session, packet.packet_id, offset)
        self.gate.keep_pace(link)

    def _looked_at(self, link: Link, session: Session, packet: Publish) -> int:
        """Return what becomes of a PUBLISH that is not like most of them; a refusal is answered."""
        rights = link.rights
        if packet.retain and rights is not None and not rights.ask_retain(packet.topic):
            rights.note_denied("retain", packet.topic)
            self._reject(link, session, packet, rc.NOT_AUTHORIZED)
            return _REFUSED
        code = self.admission.refusal(link.version, session.tenant, packet)
        if code:
            self._reject(link, session, packet, code)
            self._testimony.rejected(link, "publish", packet.topic.decode("utf-8"), code)
            return _REFUSED
        if packet.topic.startswith(_DELAYED):
            self._testimony.not_delayed(link, packet.topic.decode("utf-8"))
        return _RETAINED if packet.retain and self._keeps(session, packet) else _PASSED

    def _takes_sequence(self, link: Link, session: Session, packet: Publish, message: Message) -> bool:
        """Return whether a message with a sequence is to be journaled; a repeated one is acknowledged behind the
        first."""
        if not is_sequenced(packet.properties):
            return True
        if link.producer_refused:
            link.inbound -= 1
            self._reject(link, session, packet, link.producer_refused)
            return False
        message.properties = owned(packet.properties, link.identity.user, link.rights is not None)
        found = session.tenant.producers.take(message)
        if found == NEW:
            message.flags |= FLAG_PRODUCER
        elif found == REPEATED:
            session.tenant.counters.publishes_repeated += 1
            self.commit.defer(Answer(link, packet.qos, packet.packet_id))
            if packet.qos == 1:
                link.inbound -= 1
            else:
                self._note_incoming(session, packet.packet_id, NEVER_DURABLE)
            return False
        elif found == MALFORMED:
            link.inbound -= 1
            self._reject(link, session, packet, rc.IMPLEMENTATION_SPECIFIC_ERROR)
            return False
        return True

    def _expiry_of(self, packet: Publish) -> i64:
        expiry_s = packet.message_expiry_s
        return self._default_expiry_s if expiry_s < 0 else expiry_s

    def _keeps(self, session: Session, packet: Publish) -> bool:
        """Return whether a retained message is kept; above the limit it is delivered as any other, and that is
        counted."""
        size = len(packet.topic) + len(packet.properties) + len(packet.payload)
        if self.admission.keeps(session.tenant, packet.topic, size, len(packet.payload)):
            return True
        session.tenant.count_drop(DROP_RETAINED_LIMIT, 1)
        return False

    def _reject(self, link: Link, session: Session, packet: Publish, code: int) -> None:
        """Refuse a PUBLISH; where the version or QoS has no answer for that it is acknowledged, dropped and counted."""
        session.tenant.count_drop(DROP_NOT_ACCEPTED, 1)
        if code:
            session.tenant.counters.refuse("publish", code)
        if packet.qos == 0:
            if code == rc.PAYLOAD_FORMAT_INVALID and link.version == 5:
                raise ProtocolError(code, "payload is not the UTF-8 that its format indicator promises")
            return
        known = packet.qos == 2 and session.incoming is not None and packet.packet_id in session.incoming
        if known:
            code = rc.SUCCESS  # [MQTT-4.3.3-10]
        self._stop_producer(link, packet, code)
        reason = self._reason(link, code) if code else None
        self.commit.defer(Answer(link, packet.qos, packet.packet_id, code, reason))

    def _stop_producer(self, link: Link, packet: Publish, code: int) -> None:
        """Stop a producer at a refused message: nothing overtakes it, or its sequence would pass for a repeated one
        later."""
        if code and is_sequenced(packet.properties):
            link.producer_refused = code

    def _reason(self, link: Link, code: int) -> Properties | None:
        """Return a Reason String, where the broker gives them and the client did not decline [MQTT-3.1.2-29]."""
        if not self.settings.reason_strings or not link.problem_information or link.version != 5:
            return None
        if link.max_packet_size and link.max_packet_size < _REASON_FITS:
            return None  # [MQTT-3.4.2-2] [MQTT-3.5.2-2]
        properties = Properties()
        properties.reason_string = rc.name(code)
        return properties

    def _publish_qos0(self, link: Link, session: Session, message: Message, plain: bytes | None) -> None:
        """Publish at QoS 0 without the journal, unless the message is retained; behind what the client has sent before
        and is not durable yet it keeps its place."""
        if message.retain:
            message.link = link
            weight = weight_of(message.payload)
            link.deferred += weight
            self.gate.foresee(link, session, session.tenant, message.topic, weight)
            self.gate.keep_share(link, link.deferred)
            self.commit.append(message)
            link.effective_at = self.commit.entered
            self.commit.deferred_bytes += weight
            session.tenant.retained.arrive(message)
            self.gate.keep_pace(link)
        elif link.effective_at > self.commit.in_effect:
            self.following.put(link, session.tenant, message, plain)
        else:
            link.spend(self.router.route_qos0(session.tenant, message, plain, link))

    def _repeated(self, link: Link, session: Session, packet_id: int) -> bool:
        """Return whether a packet id at QoS 2 was seen before its PUBREL: it is the same message then
        [MQTT-4.3.3-10]."""
        incoming = session.incoming
        if incoming is None or packet_id not in incoming:
            return False
        self.commit.defer(Answer(link, SAY_PUBREC, packet_id))
        return True

    def _note_incoming(self, session: Session, packet_id: int, offset: int) -> None:
        """Note that a packet id at QoS 2 is taken until PUBREL, and in a snapshot once `offset` is durable."""
        session.changed = True
        incoming = session.incoming
        if incoming is None:
            session.incoming = {packet_id: offset}
        else:
            incoming[packet_id] = offset

    # A full disk: nothing new from publishers until space returns (decision 22)

    def _put_off(self, link: Link, session: Session, packet: Publish) -> bool:
        """Refuse with 0x97 where that is wanted and the version has it, else keep the packet and stop reading. False for
        what needs no space: a repeated QoS 2 message is durable already."""
        if not packet.qos and not packet.retain:
            return False
        if packet.qos == 2 and session.incoming is not None and packet.packet_id in session.incoming:
            return False
        if packet.qos and link.version == 5 and self.settings.refuse_when_full:
            self._stop_producer(link, packet, rc.QUOTA_EXCEEDED)
            self.commit.defer(Answer(link, packet.qos, packet.packet_id, rc.QUOTA_EXCEEDED))
            return True
        if len(self._parked) >= self._parked_looked_at:  # whoever came and went leaves nothing behind
            self._parked = [item for item in self._parked if not item.link.closed]
            self._parked_looked_at = 2 * len(self._parked) + _PARKED_LEAST
        self._parked.append(_Parked(link, packet))
        self.gate.hold(link, HELD_FOR_DISK)
        return True

    def space_returned(self) -> None:
        parked = self._parked
        self._parked = []
        for item in parked:
            self.gate.free(item.link, HELD_FOR_DISK)
            if not item.link.closed and item.link.session is not None:
                try:
                    self._take_up(item)
                except Exception as error:  # noqa: BLE001  it costs this connection, and the others' messages go on
                    self._worker.contain("read", item.link, error)

    def _take_up(self, item: _Parked) -> None:
        try:
            self.publish(item.link, item.packet)
        except ProtocolError as error:
            item.link.on_protocol_error(error)

    def pubrel(self, link: Link, packet_id: int) -> None:
        """Handle PUBREL, which ends the exchange; PUBCOMP waits until that is durable (decision 10: what an answer
        waits for).

        An id that we do not know is one whose PUBCOMP was lost: the exchange is complete, and the client is told so
        [MQTT-4.3.3-11] (0x92 would make it report a failure that did not happen).
        """
        if link.session is None:
            return
        session = attached_to(link)
        incoming = session.incoming
        if incoming is not None and packet_id in incoming:
            del incoming[packet_id]
            session.changed = True
            link.inbound -= 1  # QoS 2 counts against Receive Maximum until PUBCOMP (4.9)
            if session.persistent:
                self.progress.released(session.incarnation, packet_id)
        self.commit.defer(Answer(link, SAY_PUBCOMP, packet_id))

    def acknowledge(self, link: Link, message: Message) -> None:
        """Send PUBACK or PUBREC, or what a device is answered: the high watermark has passed the record (P1)."""
        packet_id = message.packet_id
        weight = weight_of(message.payload)
        link.deferred -= weight
        self.commit.deferred_bytes -= weight
        qos: i64 = message.flags & FLAG_QOS
        if qos and self.sampled_us == 0:
            self.sampled_us = message.timestamp_us
        if qos == 1:
            link.inbound -= 1
            if message.flags & FLAG_FRAME:
                link.stored(cast(FrameMessage, message))
            elif link.version == 5 and self._unheard(link, message):
                link.answer(1, int(packet_id), rc.NO_MATCHING_SUBSCRIBERS, None)
            else:
                link.puback(packet_id)
            return
        if qos and link.session is not None:
            link.pubrec(packet_id)

    def _unheard(self, link: Link, message: Message) -> bool:
        session = session_of(link)
        if session is None or targets_of(session, session.tenant.tree, message.topic):
            return False
        others = self.router.others
        if others is not None and others.may_be_heard(message):
            return False
        return not session.tenant.is_heard(message.topic)

    def waiting(self) -> tuple[int, int]:
        """Return how many connections are not read from: until a batch is durable, and until the disk has space."""
        return self.gate.waiting(), len({id(item.link) for item in self._parked})


class _Parked:
    """A PUBLISH that waits for space on the disk."""

    def __init__(self, link: Link, packet: Publish) -> None:
        self.link = link
        self.packet = packet
