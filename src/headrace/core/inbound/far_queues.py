"""Where there are several shards: the requests of the consumers whose connections are here, on their way to the queues.

Runs on the loop. A queue is in the shard that is the home of its topic, and so is all that is decided about it. Requests
go there, to this shard too, and answers come back; here is kept that they come in the order of the requests, as a client
counts them by their opcodes: of JOIN and LEAVE, and of ACK, what is under way is with one home at a time, and of PULL it
is one, so that no more is read than the client takes. Nothing of it is journaled. A connection whose consumers have lost
the wire to a home ends: what they hold was given back there.
"""

from __future__ import annotations

from collections import deque
from functools import partial
from typing import cast

from mypy_extensions import i64

from headrace.core.commit import Deferred, GroupCommit
from headrace.core.inbound.consuming import Consuming, Requests
from headrace.core.outbound.cluster_readers import Caller
from headrace.core.outbound.clusters import CONSUMERS_MAX, PULLS_MAX
from headrace.core.ports.link import Link, WorkerPort
from headrace.core.ports.reading import Reading
from headrace.core.ports.voice import Voice
from headrace.core.shards import queue_frames as frames
from headrace.core.shards.peer import Hearing, Wire
from headrace.core.shards.queue_frames import ACKS, JOINS, LEAVES, PULLS
from headrace.core.state.makers import NO_MAKER, Maker
from headrace.core.state.state import Fold
from headrace.core.state.tenant import Tenant
from headrace.errors import ProtocolError
from headrace.mqtt import reason_codes as rc


class Stay:
    """A consumer from its first JOIN to its LEAVE, which ends it when it is asked for. `joins` of its JOINs have no
    answer yet; `joined`: one was answered with success."""

    def __init__(self, key: tuple[bytes, bytes, bytes], home: int, reading: Reading) -> None:
        self.key = key
        self.reading = reading
        self.home = home
        self.joins: i64 = 0
        self.joined = False
        self.over = False


class Errand(Deferred):
    """A request on its way. `code`: it is refused with it, in its turn; `stay`: of a JOIN or a PULL, its consumer."""

    def __init__(
        self, caller: Caller, verb: int, sn: bytes, topic: bytes, name: bytes, home: int, ids: list[bytes]
    ) -> None:
        super().__init__(caller.link, len(topic) + len(name) + frames.ID_BYTES * len(ids))
        self.verb = verb
        self.sn = sn
        self.topic = topic
        self.name = name
        self.home = home
        self.ids = ids
        self.stay: Stay | None = None
        self.code = rc.SUCCESS
        self.most = 0
        self.until_ms = 0  # of a PULL: when it is answered at the latest
        self.away_ms = 0  # it waits no longer than this for a home that is away

    @property
    def over(self) -> bool:
        """Return whether its consumer has left."""
        return self.stay is not None and self.stay.over


class Line:
    """The requests of a connection whose answers come in one order: those that were asked, and those that wait."""

    def __init__(self) -> None:
        self.asked: deque[Errand] = deque()
        self.waiting: deque[Errand] = deque()

    def homes(self) -> set[int]:
        """Return where something is under way."""
        return {errand.home for errand in self.asked}


class FarCaller(Caller):
    """A connection whose devices ask the homes of queues. `stays` are those of its consumers, by SN, topic and cluster;
    `told` are the homes that know of it."""

    def __init__(self, link: Link, voice: Voice, number: int) -> None:
        super().__init__(link, voice)
        self.number = number
        self.members = Line()  # JOIN and LEAVE
        self.acks = Line()
        self.pulls = Line()
        self.stays: dict[tuple[bytes, bytes, bytes], Stay] = {}
        self.told: set[int] = set()
        self.again = False  # it is looked at again when what it has to read was written

    def lines(self) -> list[Line]:
        return [self.members, self.acks, self.pulls]

    def needs(self, home: int) -> bool:
        """Return whether it has something at a home that ends with the wire there."""
        if any(stay.joined and stay.home == home for stay in self.stays.values()):
            return True
        return any(home in line.homes() for line in self.lines())


class FarQueues(Requests):
    """Takes the requests of consumers, and brings them to the homes of their queues."""

    def __init__(
        self,
        fold: Fold,
        commit: GroupCommit,
        consuming: Consuming,
        worker: WorkerPort,
        answer_within_ms: int,
    ) -> None:
        self._fold = fold
        self._commit = commit
        self._consuming = consuming
        self._worker = worker
        self._answer_within_ms = answer_within_ms
        self._wires: dict[int, Wire] = {}
        self._taken: dict[int, int] = {}  # bytes that were poured on each of them
        self._callers: dict[int, FarCaller] = {}  # by number
        self._stuck: dict[FarCaller, None] = {}  # their homes are away
        self._topics: dict[bytes, bytes] = {}  # of consumers: there once, however many they are
        self._number = 0

    # What a connection asks for

    def open(self, tenant: Tenant, topic: bytes, maker: Maker = NO_MAKER) -> int:
        if not self._consuming.is_home(tenant.name, topic):
            return rc.SUCCESS  # its home is told with the message
        return self._consuming.open(tenant, topic, maker)

    def caller(self, link: Link, voice: Voice) -> Caller:
        self._number += 1
        found = self._callers[self._number] = FarCaller(link, voice, self._number)
        return found

    def join(self, caller: Caller, sn: bytes, topic: bytes, name: bytes) -> None:
        caller = cast(FarCaller, caller)
        errand = self._errand(caller, JOINS, sn, self._topics.get(topic, topic), name)
        key = (sn, errand.topic, name)
        stay = caller.stays.get(key)
        if not errand.code and stay is None and len(caller.stays) >= CONSUMERS_MAX:
            errand.code = rc.QUOTA_EXCEEDED
        if not errand.code:
            if stay is None:
                reading = Reading(caller.link, caller.voice.device(sn), errand.topic)
                stay = caller.stays[key] = Stay(key, errand.home, reading)
            stay.joins += 1
            errand.stay = stay
        self._wait(caller, caller.members, errand)

    def leave(self, caller: Caller, sn: bytes, topic: bytes, name: bytes) -> None:
        caller = cast(FarCaller, caller)
        stay = caller.stays.pop((sn, topic, name), None)
        if stay is not None:
            stay.over = True
        self._wait(caller, caller.members, self._errand(caller, LEAVES, sn, topic, name))

    def ack(self, caller: Caller, sn: bytes, topic: bytes, name: bytes, ids: list[bytes]) -> None:
        caller = cast(FarCaller, caller)
        errand = self._errand(caller, ACKS, sn, topic, name, ids)
        if errand.code:
            self._fold.tenant_of(caller.link).counters.refuse("ack", errand.code)
        self._wait(caller, caller.acks, errand)

    def pull(self, caller: Caller, sn: bytes, topic: bytes, name: bytes, most: i64, wait_ms: i64) -> None:
        self._consuming.check_pull(caller.link, topic)
        caller = cast(FarCaller, caller)
        if len(caller.pulls.waiting) + len(caller.pulls.asked) >= PULLS_MAX:
            raise ProtocolError(rc.RECEIVE_MAXIMUM_EXCEEDED, "more PULLs than may wait")
        stay = caller.stays.get((sn, topic, name))
        if stay is None:
            raise ProtocolError(rc.PROTOCOL_ERROR, "PULL without JOIN")
        _, topic, name = stay.key  # which are there already
        errand = Errand(caller, PULLS, sn, topic, name, stay.home, [])
        errand.stay = stay
        errand.most = int(most)
        errand.until_ms = self._worker.clock.mono_ms + int(wait_ms)
        errand.away_ms = self._worker.clock.mono_ms + self._answer_within_ms
        caller.pulls.waiting.append(errand)
        self._send(caller)

    def _errand(
        self, caller: Caller, verb: int, sn: bytes, topic: bytes, name: bytes, ids: list[bytes] | None = None
    ) -> Errand:
        """Return a request, with the reason code where it is refused here."""
        link = caller.link
        home = self._consuming.home_of(link.identity.tenant, topic)
        errand = Errand(caller, verb, sn, topic, name, home, ids or [])
        if verb != LEAVES:
            errand.code = self._consuming.refusal(link, topic, name)
        errand.away_ms = self._worker.clock.mono_ms + self._answer_within_ms
        return errand

    def lost(self, caller: Caller) -> None:
        caller = cast(FarCaller, caller)
        if self._callers.pop(caller.number, None) is None:
            return
        self._stuck.pop(caller, None)
        if not self._callers:
            self._topics.clear()
        for line in (caller.members, caller.acks):
            for errand in (*line.asked, *line.waiting):
                self._commit.ran(errand)
        for home in sorted(caller.told):
            wire = self._wires.get(home)
            if wire is not None:
                wire.say(frames.Departed(caller.number))

    def writable(self, caller: Caller) -> None:
        caller = cast(FarCaller, caller)
        if caller.number in self._callers:
            self._send(caller)

    # Requests leave

    def _wait(self, caller: FarCaller, line: Line, errand: Errand) -> None:
        """Put a request behind the others of its line. It is charged to the connection until it is answered."""
        line.waiting.append(errand)
        self._commit.deferred_bytes += errand.weight
        self._commit.charge(caller.link, errand.weight)
        self._send(caller)

    def _send(self, caller: FarCaller) -> None:
        """Ask the homes for what may be asked now; of what follows a HELLO, nothing before that is answered."""
        if not caller.link.ready:
            return
        for line in (caller.members, caller.acks):
            while line.waiting and self._leaves(caller, line, line.waiting[0]):
                pass
        pulls = caller.pulls
        while pulls.waiting and not pulls.asked and self._pulls(caller, pulls.waiting[0]):
            pass

    def _leaves(self, caller: FarCaller, line: Line, errand: Errand) -> bool:
        """Let the first of a line leave, if nothing of another home is under way; one that is refused is answered."""
        if errand.code:
            if line.asked:
                return False
            line.asked.append(line.waiting.popleft())
            self._answer(caller, line, errand.code)
            return True
        if line.asked and line.asked[0].home != errand.home:
            return False
        return self._ask(caller, line, errand)

    def _pulls(self, caller: FarCaller, errand: Errand) -> bool:
        """Let the first PULL leave, if the client has room for its answer, behind what was to join or to leave."""
        link = caller.link
        if errand.over:
            caller.pulls.waiting.popleft()
            caller.voice.pulled(errand.sn, [])
            return True
        if caller.members.waiting or link.paused:
            return False
        if link.buffered() > self._worker.settings.write_buffer_high:
            if not caller.again:
                caller.again = True
                self._commit.then(caller.link, partial(self.written, caller))
            return False
        if errand.stay is not None and not errand.stay.reading.holds():
            errand.stay.reading.end()
            return False
        return self._ask(caller, caller.pulls, errand)

    def _ask(self, caller: FarCaller, line: Line, errand: Errand) -> bool:
        """Ask the home; False if it is away."""
        wire = self._wires.get(errand.home)
        if wire is None:
            self._stuck[caller] = None
            return False
        line.asked.append(line.waiting.popleft())
        caller.told.add(errand.home)
        wait_ms = max(0, errand.until_ms - self._worker.clock.mono_ms)
        joins = errand.verb == JOINS
        wire.say(
            frames.Requested(
                caller.number,
                errand.verb,
                caller.link.identity.tenant,
                errand.sn,
                errand.topic,
                errand.name,
                errand.most,
                wait_ms,
                errand.ids,
                caller.link.identity.user or "" if joins else "",
                caller.voice.device(errand.sn) if joins else "",
            )
        )
        return True

    def written(self, caller: FarCaller) -> None:
        """Go on with a connection for whom what it has to read was written, or waits for it."""
        caller.again = False
        if not caller.link.closed:
            self._send(caller)

    # Answers come

    def hears(self, of_home: Hearing[Wire]) -> None:
        """Say what is done with what a home says."""
        of_home.on(frames.Poured, self._poured)
        of_home.on(frames.Answered, self._answered)
        of_home.on(frames.Notified, self._notified)
        of_home.on(frames.Refused, self._refused)

    def _poured(self, wire: Wire, frame: frames.Poured) -> None:
        """Answer a PULL. What its consumer may not read any more its home takes back, since the connection ends."""
        self._count(wire.far, int(frames.weight_of_all(frame.messages)))
        caller = self._callers.get(frame.connection)
        if caller is None:
            return  # it has ended
        pull = _first(caller.pulls, wire.far)
        caller.pulls.asked.popleft()
        if pull.stay is not None and not pull.stay.reading.holds():
            pull.stay.reading.end()
            return
        caller.voice.pulled(pull.sn, frame.messages)
        if frame.messages:
            caller.link.spend(len(frame.messages))
        self._send(caller)

    def _answered(self, wire: Wire, frame: frames.Answered) -> None:
        caller = self._callers.get(frame.connection)
        if caller is not None:
            line = caller.acks if frame.verb == ACKS else caller.members
            _first(line, wire.far)
            self._answer(caller, line, frame.code)
            self._send(caller)

    def _notified(self, wire: Wire, frame: frames.Notified) -> None:
        caller = self._callers.get(frame.connection)
        if caller is not None:
            stay = caller.stays.get((frame.sn, frame.topic, frame.cluster))
            if stay is None or stay.reading.holds():
                caller.voice.notify(frame.sn, frame.topic, frame.cluster, frame.available)
            self._send(caller)

    def _refused(self, wire: Wire, frame: frames.Refused) -> None:
        caller = self._callers.get(frame.connection)
        if caller is not None:
            caller.link.on_protocol_error(ProtocolError(frame.code, frame.reason))

    def _count(self, home: int, weight: int) -> None:
        """Tell a home that what it has poured has come."""
        wire = self._wires.get(home)
        if wire is not None and weight:
            self._taken[home] += weight
            wire.say(frames.Arrived(self._taken[home]))

    def _answer(self, caller: FarCaller, line: Line, code: int) -> None:
        """Answer the first request of a line."""
        errand = line.asked.popleft()
        self._commit.ran(errand)
        voice = caller.voice
        if errand.verb == ACKS:
            voice.acknowledged(errand.sn, code)
        elif errand.verb == LEAVES:
            voice.left(errand.sn, code)
        else:
            voice.joined(errand.sn, code)
            if errand.stay is not None:
                self._joined(caller, errand.stay, code)

    def _joined(self, caller: FarCaller, stay: Stay, code: int) -> None:
        """Note the answer to a JOIN. Where it was the last one and nobody has joined, there is no such consumer. If it
        has a PULL waiting, that ends the connection: it would keep names that nobody has."""
        stay.joins -= 1
        if not code:
            stay.joined = True
            topic = stay.key[1]
            self._topics.setdefault(topic, topic)
        elif not stay.joined and not stay.joins and not stay.over:
            del caller.stays[stay.key]
            if any(pull.stay is stay for pull in caller.pulls.waiting):
                caller.link.on_protocol_error(ProtocolError(code, "PULL by who may not JOIN"))

    # Wires

    def reached(self, home: int, wire: Wire) -> None:
        """Note a new wire to a home: what waits for it leaves."""
        self._wires[home] = wire
        self._taken[home] = 0
        for caller in list(self._stuck):
            self._send_alone(caller)

    def cut(self, home: int) -> None:
        """Note that there is no wire to a home any more: connections that had something there end."""
        if self._wires.pop(home, None) is None:
            return
        for caller in list(self._callers.values()):
            if caller.needs(home):
                self._end(caller)
            caller.told.discard(home)

    def _end(self, caller: FarCaller) -> None:
        """End a connection, one of many: what is raised costs no other one."""
        link = caller.link
        try:
            caller.voice.fail(rc.SERVER_UNAVAILABLE, "the shard of a topic queue is away")
            link.close()
        except Exception as error:  # noqa: BLE001
            self._worker.contain("group", link, error)

    def _send_alone(self, caller: FarCaller) -> None:
        """Go on with a connection whose homes were away, one of many: what is raised costs no other one."""
        self._stuck.pop(caller, None)
        try:
            self._send(caller)
        except Exception as error:  # noqa: BLE001
            self._worker.contain("group", caller.link, error)

    def on_timer(self) -> None:
        """Answer those whose homes have been away for too long."""
        for caller in list(self._stuck):
            self._give_up(caller, self._worker.clock.mono_ms)

    def _give_up(self, caller: FarCaller, now_ms: int) -> None:
        for line in (caller.members, caller.acks):
            for errand in line.waiting:
                if errand.away_ms <= now_ms and errand.home not in self._wires and not errand.code:
                    errand.code = rc.SERVER_UNAVAILABLE
        pulls = caller.pulls.waiting
        if pulls and not pulls[0].over and pulls[0].away_ms <= now_ms and pulls[0].home not in self._wires:
            self._stuck.pop(caller, None)
            self._end(caller)
        else:
            self._send_alone(caller)


def _first(line: Line, home: int) -> Errand:
    """Return the request that a home answers. Raises ProtocolError where it was asked for nothing."""
    if not line.asked or line.asked[0].home != home:
        raise ProtocolError(rc.PROTOCOL_ERROR, "a shard has answered what it was not asked")
    return line.asked[0]
