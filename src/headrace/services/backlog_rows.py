"""What waits for a session, oldest first, a page at a time: for somebody who looks. Nothing of it is consumed.

An entry has a serial number for as long as its session lives, over starts of the broker as well: a page begins with the
lowest one from a number on that is there when it is made, so what stays is met once, whatever is acknowledged, dropped or
published meanwhile. What is read from the disk is read as it is for a client, little of it in a pass of the loop. What
waits in a shared subscription is not in it. Runs on the loop.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_left
from dataclasses import asdict, dataclass
from typing import Final

from headrace.core.broker import Broker
from headrace.core.ports.journal import Absent
from headrace.core.records.message import NO_EXPIRY, Message
from headrace.core.state.queue import REF_QOS, REF_RETAIN, OutboundQueue
from headrace.core.state.session import Session
from headrace.errors import NotReadableNow, NotThere
from headrace.services.paging import Place, Rows
from headrace.services.retained_rows import PublishProperties, content_of

WAITING: Final = "waiting"
SENT: Final = "sent"
RECEIVED: Final = "received"
PAYLOAD_BYTES_MAX: Final = 64 << 10  # of a payload; the rest is cut off
PAGE_BYTES_MAX: Final = 256 << 10  # of payloads in a page, and one more
_IN_STORE: Final = "a store has it, and the journal does not"
_AT_ONCE: Final = 16  # entries in a pass of the loop, ...
_BYTES_AT_ONCE: Final = 64 << 10  # ... or so many bytes of messages


@dataclass(frozen=True, slots=True)
class BacklogRow:
    """An entry of a session's queue. `state`: it is waiting; or sent under `packet_id` and not acknowledged; or received,
    which is behind PUBREC. `absent` is why nobody can say what is in it, "" if it can be read: else there is no topic.
    `is_expired`: it is dropped when its turn comes. `size` counts topic, properties and payload, `payload` is in base64,
    and as `text` where it is UTF-8; `is_cut`: it is the beginning of it alone."""

    serial: int
    state: str
    packet_id: int | None
    qos: int
    retain: bool
    absent: str
    topic: str | None = None
    size: int = 0
    client_id: str = ""
    received_at_us: int = 0
    expires_at_us: int | None = None
    is_expired: bool = False
    payload: str = ""
    text: str | None = None
    is_cut: bool = False
    properties: PublishProperties | None = None


class BacklogRows:
    """Lists what waits for the sessions of one shard."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    async def page(self, tenant: str, client_id: str, limit: int, place: Place) -> tuple[Rows, Place | None]:
        """Return (at most `limit` rows from `place` on, where the next page goes on or None). A page with much in it is
        short. Raises NotThere, NotReadableNow, and ValueError for a place in the queue of an earlier session."""
        session = self._session(tenant, client_id)
        if place.inner not in (-1, session.incarnation):
            raise ValueError("from: it is another session by now: begin anew, without `from`")
        found: Rows = []
        serial, left, at_once = place.number, PAGE_BYTES_MAX, _BYTES_AT_ONCE
        while not session.ended:
            wanted = min(_AT_ONCE, limit - len(found))
            entries = _entries(session.queue, serial, wanted)
            if entries is None:
                raise NotReadableNow("what waits cannot be read from the disk now")
            for serial_of, ref in entries:
                row, read = self._row(session, serial_of, ref)
                found.append(row)
                serial, left, at_once = serial_of + 1, left - read, at_once - read
                if left <= 0 or at_once <= 0:
                    break
            if not entries:
                return found, None
            if len(found) >= limit or left <= 0:
                return found, Place(serial, session.incarnation)
            at_once = _BYTES_AT_ONCE
            await asyncio.sleep(0)
        return found, None

    def _session(self, tenant: str, client_id: str) -> Session:
        of_tenant = self._broker.fold.tenants.get(tenant)
        found = None if of_tenant is None else of_tenant.sessions.get(client_id)
        if found is None:
            raise NotThere(f"tenant {tenant} has no session {client_id!r}")
        return found

    def _row(self, session: Session, serial: int, ref: int) -> tuple[dict[str, object], int]:
        """Return (the row of an entry, how many bytes of its message it took to read)."""
        queue = session.queue
        assert queue is not None, "an entry is in one"
        is_sent = serial < queue.head_serial()
        state = WAITING
        if is_sent:
            state = RECEIVED if queue.inflight.is_received(serial) else SENT
        about = (serial, state, int(queue.packet_id(serial)) if is_sent else None, ref & REF_QOS)
        retain = ref & REF_RETAIN != 0
        message = self._broker.delivery.reader.peek(session, serial, ref)
        if not isinstance(message, Message):
            return asdict(BacklogRow(*about, retain, _why(queue, serial, message))), 0
        payload = message.payload
        cut = message.of_nobody(message.topic, int(message.flags))
        cut.payload = payload[:PAYLOAD_BYTES_MAX]
        expiry_s = message.message_expiry_s
        row = BacklogRow(
            *about,
            retain,
            "",
            message.topic.decode("utf-8"),
            message.size,
            message.client_id,
            message.timestamp_us,
            None if expiry_s == NO_EXPIRY else message.timestamp_us + expiry_s * 1_000_000,
            message.expired(self._broker.worker.clock.now_us),
            is_cut=len(payload) > PAYLOAD_BYTES_MAX,
        )
        return asdict(row) | content_of(cut), len(cut.payload)


def _entries(queue: OutboundQueue | None, first: int, count: int) -> list[tuple[int, int]] | None:
    """Return (serial number, reference) of up to `count` entries from a serial number on, those in flight before those
    that wait; None where these cannot be read now."""
    if queue is None:
        return []
    found: list[tuple[int, int]] = []
    head = int(queue.head_serial())
    if first < head:
        serials = queue.inflight.serials()
        begin = bisect_left(serials, first)
        found = [(serial, int(queue.inflight.get(serial))) for serial in serials[begin : begin + count]]
    if len(found) < count and queue.backlog.count:
        at = max(first, head) - head
        waiting = queue.backlog.entries_from(at, count - len(found))
        if waiting is None:
            return found or None
        found += [(head + at + place, ref) for place, ref in enumerate(waiting[0])]
    return found


def _why(queue: OutboundQueue, serial: int, absent: Absent) -> str:
    """Return why the message of an entry is not there."""
    if queue.rows is not None and serial <= queue.rows.let_go:
        return _IN_STORE
    return absent.reason
