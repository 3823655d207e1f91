"""QoS 0 for many: messages wait in a lane of their publisher and leave to some sessions in each pass of the loop.

Runs on the loop, at the end of a tick. A message for a few sessions never comes here. One for more than are left in this
pass does, and then all that its publisher sends at QoS 0 until its lane is empty: so they keep their order, retained ones
and the will included. Consecutive messages for the same sessions are one job: a session gets all of it before the next
session's turn, in one write, so that a delivery costs the same whatever the number of receivers. Lanes take turns.

Nothing here is durable, and no record waits for it: who fans out at QoS 0 holds up neither the journal nor a snapshot.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final

from mypy_extensions import i64

from headrace.core.commit import ENTRY_BYTES, GroupCommit
from headrace.core.records.record import DROP_QOS0_SLOW
from headrace.mqtt.packets import VERSION_5

if TYPE_CHECKING:
    from headrace.core.ports.link import Link
    from headrace.core.records.message import Message
    from headrace.core.state.session import Commons, Target

FEW: Final = (
    8  # sessions: a message for no more than these is given to them at once, whatever else there is to do
)
WRITE_WORK: Final = 3  # what a write to a socket costs, in deliveries
TURN_WORK: Final = 500  # of one lane
JOB_MESSAGES_MAX: Final = 400
JOB_BYTES_MAX: Final = 64 << 10  # what one write to a socket may take at once, about
# Beyond it, what publishers who are gone left behind is dropped and counted. Those who are here are held to their shares.
LANES_BYTES_MAX: Final = 64 << 20


class _Job:
    """Messages of one publisher for the same sessions, of which those before `at` have them."""

    def __init__(self, tenant: Commons, targets: list[Target], payer: Link | None, version: i64) -> None:
        self.tenant = tenant
        self.targets = targets
        self.payer = payer
        self.version = version
        self.messages: list[Message] = []
        self.packets: list[bytes] = []  # as they came, if all of them may leave like that
        self.joined = b""
        self.largest: i64 = 0
        self.bytes: i64 = 0
        self.payload_bytes: i64 = 0
        self.weight: i64 = 8 * len(targets)
        self.at: i64 = 0

    def takes(self, targets: list[Target], payer: Link | None, plain: bool) -> bool:
        """Return whether one more message may go with those of the job."""
        if self.at or self.targets is not targets or self.payer is not payer:
            return False
        if (len(self.packets) > 0) != plain:
            return False
        return len(self.messages) < JOB_MESSAGES_MAX and self.bytes < JOB_BYTES_MAX


class _Lane:
    """The jobs of one publisher, the oldest first."""

    def __init__(self, incarnation: int) -> None:
        self.incarnation = incarnation
        self.jobs: deque[_Job] = deque()


class Offering:
    """Whoever gives a message to one session, or to a group (`routing`)."""

    def offer(self, target: Target, message: Message) -> None:
        raise NotImplementedError

    def missed(self, target: Target, message: Message, error: Exception) -> None:
        """Note that a session could not be given a message."""
        raise NotImplementedError


class FanOut:
    """Holds the lanes of all publishers. `left` is how many deliveries to more than a few sessions this pass may still
    begin with."""

    def __init__(self, offering: Offering, commit: GroupCommit, at_once: i64, high: i64) -> None:
        self._offering = offering
        self._commit = commit
        self._at_once: i64 = at_once
        self._high: i64 = high
        self._lanes: dict[int, _Lane] = {}
        self._turns: deque[_Lane] = deque()
        self.busy = False  # some lane is not empty
        self.left: i64 = at_once
        self.bytes: i64 = 0
        self._limit: i64 = LANES_BYTES_MAX  # of `bytes`, when those who are gone are looked for next

    def begins(self, count: i64) -> bool:
        """Return whether a message for `count` sessions may go to them at once."""
        if count > FEW:
            if count > self.left:
                return False
            self.left -= count
        return True

    def waits(self, incarnation: int) -> bool:
        """Return whether something of this publisher waits, behind which all it sends has to."""
        return self.busy and incarnation in self._lanes

    def add(
        self,
        tenant: Commons,
        message: Message,
        targets: list[Target],
        packet: bytes | None,
        payer: Link | None,
    ) -> None:
        """Put a message into the lane of its publisher. `packet` is the PUBLISH as it came, where it may leave so."""
        if self.bytes > self._limit:
            self._make_room()
        if self.bytes > LANES_BYTES_MAX and (payer is None or payer.closed):
            tenant.count_drop(DROP_QOS0_SLOW, 1)
            return
        lane = self._lanes.get(message.incarnation)
        if lane is None:
            lane = _Lane(message.incarnation)
            self._lanes[message.incarnation] = lane
            self._turns.append(lane)
            self.busy = True
        jobs = lane.jobs
        weight: i64 = ENTRY_BYTES + 2 * message.size
        job = jobs[-1] if jobs else None
        if job is None or not job.takes(targets, payer, packet is not None):
            job = _Job(tenant, targets, payer, 0 if payer is None else payer.version)
            jobs.append(job)
            weight += job.weight
            job.weight = 0
        job.messages.append(message)
        if packet is not None:
            job.packets.append(packet)
            job.largest = max(job.largest, len(packet))
        job.bytes += message.size
        job.payload_bytes += len(message.payload)
        job.weight += weight
        self.bytes += weight
        if payer is not None:
            self._commit.deferred_bytes += weight
            self._commit.charge(payer, weight)

    def _make_room(self) -> None:
        """Drop what publishers left behind who are gone, the longest waiting first, until half of the room is free."""
        left: deque[_Lane] = deque()
        for lane in self._turns:
            payer = lane.jobs[-1].payer
            if self.bytes > LANES_BYTES_MAX // 2 and (payer is None or payer.closed):
                for job in lane.jobs:
                    job.tenant.count_drop(DROP_QOS0_SLOW, len(job.messages))
                    self._end(job)
                del self._lanes[lane.incarnation]
            else:
                left.append(lane)
        self._turns = left
        self._limit = self.bytes + LANES_BYTES_MAX // 2

    def deliver_some(self) -> bool:
        """Give what waits to as many sessions as one pass should, at the end of a tick; return True if more is to
        do."""
        self.left = self._at_once
        if not self.busy:
            return False
        work = self._at_once * (WRITE_WORK + 1)
        turns = self._turns
        while work > 0 and turns:
            lane = turns.popleft()
            try:
                work -= self._turn(lane, min(work, TURN_WORK))
            finally:  # what raises is tried again in the next pass: a lane that is not empty has its turn
                if lane.jobs:
                    turns.append(lane)
                else:
                    del self._lanes[lane.incarnation]
        self.busy = len(turns) > 0
        self._limit = max(LANES_BYTES_MAX, min(self._limit, self.bytes + LANES_BYTES_MAX // 2))
        return self.busy

    def _turn(self, lane: _Lane, most: i64) -> i64:
        """Give the oldest job of a lane to as many sessions as `most` allows, one at least; return the work."""
        job = lane.jobs[0]
        if job.packets and not job.joined:
            job.joined = b"".join(job.packets)
        each: i64 = WRITE_WORK + len(job.messages)
        part = job.targets[job.at : job.at + max(1, most // each)]
        job.at += len(part)
        for target in part:
            try:
                self._give(job, target)
            except Exception as error:  # noqa: BLE001  it costs that session's connection
                self._offering.missed(target, job.messages[0], error)
        if job.at >= len(job.targets):
            lane.jobs.popleft()
            self._end(job)
        return each * len(part)

    def _give(self, job: _Job, target: Target) -> None:
        """Give all messages of the job to one session, if it is still there."""
        session = target.session
        receiver = session.link
        if receiver is not None and job.joined:
            topic = job.messages[0].topic
            if takes_as_it_is(receiver, target, job.version, job.largest, topic, self._high):
                receiver.writer().write(job.joined)
                counters = job.tenant.counters
                counters.publishes_sent += len(job.messages)
                counters.bytes_sent += job.payload_bytes
                return
        for message in job.messages:
            self._offering.offer(target, message)

    def _end(self, job: _Job) -> None:
        """End a job that all sessions have: the groups get it too, and it is taken off its publisher's share."""
        self.bytes -= job.weight
        payer = job.payer
        if payer is not None:
            payer.deferred -= job.weight
            self._commit.deferred_bytes -= job.weight


def takes_as_it_is(receiver: Link, target: Target, version: i64, size: i64, topic: bytes, high: i64) -> bool:
    """Return whether a plain PUBLISH of so many bytes, from a publisher of this version, can leave as it came."""
    if (receiver.version == VERSION_5) != (version == VERSION_5):
        return False
    if receiver.alias_maximum or receiver.rendering is not None:
        return False
    if not receiver.ready or receiver.paused or receiver.buffered() > high:
        return False
    if receiver.max_packet_size and size > receiver.max_packet_size:
        return False
    if target.no_local or len(target.ids) or target.session.ended:
        return False
    rights = receiver.rights
    return rights is None or rights.may_receive(topic)
