"""The home of topic queues: the connections in other shards whose consumers read them, each with a stand-in here.

Runs on the loop. A stand-in is a `Guest` as a connection here has, whose voice says what it has to say on the wire. So
clusters, what is in flight, and its return know no difference. A connection ends here when it says so, or when its wire
does: what its consumers hold goes to others. Of what was poured, only so many bytes are on their way at a time.
"""

from __future__ import annotations

from typing import Final

from mypy_extensions import i64

from headrace.core.inbound.consuming import Consuming
from headrace.core.outbound.cluster_readers import Guest
from headrace.core.ports.identity import Identity
from headrace.core.ports.link import WorkerPort
from headrace.core.ports.voice import Draught, Voice
from headrace.core.shards import queue_frames as frames
from headrace.core.shards.far_link import FarLink
from headrace.core.shards.peer import Hearing, Wire
from headrace.errors import ProtocolError

POURED_BYTES_MAX: Final = 4 << 20  # on their way to one shard; it may be one answer more


class Outlet:
    """The wire to the shard of connections, and who is connected there."""

    def __init__(self, wire: Wire) -> None:
        self.wire = wire
        self.guests: dict[int, Guest] = {}
        self.full = False
        self._poured: i64 = 0
        self._taken: i64 = 0

    def pour(self, connection: int, messages: list[Draught]) -> None:
        """Answer a PULL; nothing more is drawn for this shard while too much is on its way."""
        self._poured += frames.weight_of_all(messages)
        self.wire.say(frames.Poured(connection, messages))
        if not self.full and self._poured - self._taken > POURED_BYTES_MAX:
            self._note(True)

    def take(self, taken: int) -> bool:
        """Note how many bytes have come; True if more may be drawn now, and might not before."""
        self._taken = max(self._taken, taken)
        if self.full and self._poured - self._taken <= POURED_BYTES_MAX:
            self._note(False)
            return True
        return False

    def _note(self, full: bool) -> None:
        self.full = full
        for guest in self.guests.values():
            guest.link.paused = full


class Visitors:
    """The stand-ins of one shard for connections in others, by shard and connection."""

    def __init__(self, consuming: Consuming, worker: WorkerPort) -> None:
        self._consuming = consuming
        self._worker = worker
        self._outlets: dict[int, Outlet] = {}

    def hears(self, of_follower: Hearing[Wire]) -> None:
        """Say what is done with what the shard of a connection says on its newest wire."""
        of_follower.on(frames.Requested, self._requested)
        of_follower.on(frames.Departed, self._departed)
        of_follower.on(frames.Arrived, self._taken)

    def _outlet(self, wire: Wire) -> Outlet:
        """Return what is at the other end of a wire; all that was at that of an older one has left."""
        outlet = self._outlets.get(wire.far)
        if outlet is None or outlet.wire is not wire:
            self.closed(wire.far)
            outlet = self._outlets[wire.far] = Outlet(wire)
        return outlet

    def _departed(self, wire: Wire, frame: frames.Departed) -> None:
        self._leave(self._outlet(wire), frame.connection)

    def _taken(self, wire: Wire, frame: frames.Arrived) -> None:
        outlet = self._outlet(wire)
        if outlet.take(frame.taken):
            for guest in list(outlet.guests.values()):
                self._consuming.writable(guest)

    def closed(self, shard: int) -> None:
        """Note that the wire of a shard has ended: so have the connections there, as far as queues are concerned."""
        outlet = self._outlets.pop(shard, None)
        if outlet is not None:
            for connection in list(outlet.guests):
                self._leave(outlet, connection)

    def _leave(self, outlet: Outlet, connection: int) -> None:
        guest = outlet.guests.pop(connection, None)
        if guest is not None:
            guest.link.closed = True
            self._consuming.lost(guest)

    def _guest(self, outlet: Outlet, frame: frames.Requested) -> Guest:
        guest = outlet.guests.get(frame.connection)
        if guest is None:
            link = VisitorLink(self._worker, outlet.wire, frame.connection)
            link.paused = outlet.full
            guest = outlet.guests[frame.connection] = Guest(link, FarVoice(outlet, frame.connection))
        if guest.link.identity.tenant != frame.tenant:
            guest.link.identity = Identity(frame.tenant, None, self._worker.quotas.look(frame.tenant))
        if frame.verb == frames.JOINS:  # who makes the cluster, if it is new
            guest.link.identity = Identity(frame.tenant, frame.user or None, guest.link.identity.limits)
            if isinstance(guest.voice, FarVoice):
                guest.voice.named = frame.device
        return guest

    def _requested(self, wire: Wire, frame: frames.Requested) -> None:
        """Do as for a connection here. Its own shard has looked at what it may read."""
        consuming, guest = self._consuming, self._guest(self._outlet(wire), frame)
        sn, topic, name = frame.sn, frame.topic, frame.cluster
        if frame.verb == frames.JOINS:
            consuming.join(guest, sn, topic, name)
        elif frame.verb == frames.LEAVES:
            consuming.leave(guest, sn, topic, name)
        elif frame.verb == frames.ACKS:
            consuming.ack(guest, sn, topic, name, frame.ids)
        else:
            try:
                consuming.pull(guest, sn, topic, name, frame.most, frame.wait_ms)
            except ProtocolError as error:
                guest.link.on_protocol_error(error)


class FarVoice(Voice):
    """Says on the wire what the core has to say to a consumer elsewhere."""

    def __init__(self, outlet: Outlet, connection: int) -> None:
        super().__init__()
        self._outlet = outlet
        self._connection = connection
        self.named = ""  # the device that joins

    def device(self, sn: bytes) -> str:
        return self.named

    def _answer(self, verb: int, code: int) -> None:
        self._outlet.wire.say(frames.Answered(self._connection, verb, code))

    def joined(self, sn: bytes, code: int) -> None:
        self._answer(frames.JOINS, code)

    def left(self, sn: bytes, code: int) -> None:
        self._answer(frames.LEAVES, code)

    def acknowledged(self, sn: bytes, code: int) -> None:
        self._answer(frames.ACKS, code)

    def pulled(self, sn: bytes, messages: list[Draught]) -> None:
        self._outlet.pour(self._connection, messages)

    def notify(self, sn: bytes, topic: bytes, cluster: bytes, available: i64) -> None:
        self._outlet.wire.say(frames.Notified(self._connection, sn, topic, cluster, int(available)))

    def fail(self, code: int, reason: str) -> None:
        self._outlet.wire.say(frames.Refused(self._connection, code, reason))


class VisitorLink(FarLink):
    """The connection of consumers elsewhere. `paused`: too much is on its way to their shard."""

    def on_protocol_error(self, error: ProtocolError) -> None:
        self.refuse(error)

    def refuse(self, error: ProtocolError) -> None:
        """Have the connection ended where it is; that it has ended is heard from there."""
        if not self.closed:
            self.wire.say(frames.Refused(self.connection, error.reason_code, error.message))
