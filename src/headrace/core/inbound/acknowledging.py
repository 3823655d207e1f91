"""Acknowledgements of a subscriber: PUBACK, PUBREC, PUBCOMP for what it was sent (section 4.3).

Runs on the loop. Packet ids above 49151 are those of shared subscriptions, and of entries that a record gave one.
"""

from __future__ import annotations

from mypy_extensions import i64, mypyc_attr

from headrace.core.commit import SAY_PUBREL, Answer, Deferred, GroupCommit
from headrace.core.outbound.delivery import Delivery
from headrace.core.outbound.group_delivery import Lending, SharedDelivery
from headrace.core.ports.link import Link
from headrace.core.records.record import DIRECT_IDS, DROP_REFUSED
from headrace.core.state.groups import Draw, membership_of
from headrace.core.state.inflight import NOT_IN_FLIGHT
from headrace.core.state.queue import REF_QOS, OutboundQueue
from headrace.core.state.session import Session, attached_to
from headrace.errors import ProtocolError
from headrace.mqtt import reason_codes as rc


class Acknowledging:
    """Takes what a subscriber has acknowledged out of its session's window."""

    def __init__(self, commit: GroupCommit, delivery: Delivery, sharing: SharedDelivery) -> None:
        self.commit = commit
        self.progress = commit.progress
        self.delivery = delivery
        self.sharing = sharing
        self.loans = Lending()

    def puback(self, link: Link, packet_id: int, reason_code: int) -> None:
        if link.session is None:
            return
        session = attached_to(link)
        if packet_id > DIRECT_IDS:
            draw = _draw_of(session, packet_id)
            if draw is not None:
                self.sharing.puback(session, draw, reason_code)
                return
            if self.loans.puback(session, packet_id, reason_code):
                return
        queue = session.queue
        if queue is None:
            return
        serial = queue.latest_of(packet_id)
        ref = queue.inflight.get(serial)
        if ref == NOT_IN_FLIGHT:
            return
        if ref & REF_QOS != 1:
            raise ProtocolError(rc.PROTOCOL_ERROR, "PUBACK for a QoS 2 message")
        self._finish(session, queue, serial, reason_code)

    def pubrec(self, link: Link, packet_id: int, reason_code: int) -> None:
        """Handle PUBREC: from here on PUBREL is what is repeated, so it leaves only when that is durable."""
        if link.session is None:
            return
        session = attached_to(link)
        if packet_id > DIRECT_IDS:
            draw = _draw_of(session, packet_id)
            if draw is not None:
                self.sharing.pubrec(session, link, draw, reason_code)
                return
            if self.loans.pubrec(session, link, packet_id, reason_code):
                return
        queue = session.queue
        serial: i64 = 0
        ref: i64 = NOT_IN_FLIGHT
        if queue is not None:
            serial = queue.latest_of(packet_id)
            ref = queue.inflight.get(serial)
        if queue is None or ref == NOT_IN_FLIGHT:
            if reason_code < 0x80:
                # Finished before, as far as we know: the client may have missed that [MQTT-4.3.3-4]. Behind a CONNACK
                # that still waits [MQTT-3.2.0-1].
                self.commit.defer(Answer(link, SAY_PUBREL, packet_id))
            return
        if ref & REF_QOS != 2:
            raise ProtocolError(rc.PROTOCOL_ERROR, "PUBREC for a QoS 1 message")
        if reason_code >= 0x80:
            self._finish(session, queue, serial, reason_code)
            return
        if session.persistent:
            self.progress.received(session.incarnation, serial)
        self.commit.defer(_Release(session, link, serial, packet_id))

    def pubcomp(self, link: Link, packet_id: int, reason_code: int) -> None:
        if link.session is None:
            return
        session = attached_to(link)
        if packet_id > DIRECT_IDS:
            draw = _draw_of(session, packet_id)
            if draw is not None:
                self.sharing.pubcomp(session, draw)
                return
            if self.loans.pubcomp(session, packet_id):
                return
        queue = session.queue
        if queue is None:
            return
        serial = queue.serial_of(packet_id)
        if serial == 0:
            return
        if not queue.inflight.is_received(serial):
            raise ProtocolError(rc.PROTOCOL_ERROR, "PUBCOMP before PUBREL")
        self._finish(session, queue, serial, rc.SUCCESS)

    def _finish(self, session: Session, queue: OutboundQueue, serial: i64, reason_code: int) -> None:
        """Take an entry that is done with out of the window; a refusal counts as a drop (decision 11: counted
        drops)."""
        if queue.bound is None and not queue.resend:
            queue.inflight.remove(serial)  # what `finish` comes to, mostly
        else:
            queue.finish(serial)
        if session.persistent:
            self.progress.acked(session.incarnation, serial)
        if reason_code >= 0x80:
            session.count_drop(DROP_REFUSED, 1)
        if queue.backlog.count or queue.resend or session.shared is not None:
            self.delivery.pump(session)


def _draw_of(session: Session, packet_id: int) -> Draw | None:
    """Return the shared entry in flight under `packet_id`."""
    membership = membership_of(session)
    return None if membership is None else membership.draws.get(packet_id)


@mypyc_attr(acyclic=True)
class _Release(Deferred):
    """Sends PUBREL once PUBREC is durable."""

    def __init__(self, session: Session, link: Link, serial: i64, packet_id: i64) -> None:
        super().__init__(link)
        self._session = session
        self._link = link
        self._serial = serial
        self._packet_id = packet_id

    def run(self) -> None:
        queue = self._session.queue
        if queue is not None and queue.inflight.get(self._serial) != NOT_IN_FLIGHT:
            queue.inflight.receive(self._serial)
            self._link.pubrel(self._packet_id)
