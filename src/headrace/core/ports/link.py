"""A connection as the core sees it: packets come in through `on_*`, bytes go out through `writer`.

`links.stream_link` stands behind `Link`; the fake for tests is in `storage.memory`. The other side is the worker, which
all links of a process share from their start on, and the broker of the shard that a link belongs to from CONNECT on. Base
classes rather than protocols, because compiled code calls them per message (decision 27: hot ports).
"""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING, Final

from librt.strings import BytesWriter
from mypy_extensions import i64

from headrace.core.homes import Homes
from headrace.core.ports.buffers import Buffers
from headrace.core.ports.clock import Clock
from headrace.core.ports.failures import Failures
from headrace.core.ports.identity import Identity
from headrace.core.ports.owned import Owned
from headrace.core.ports.settings import BrokerSettings
from headrace.core.ports.tenancy import NO_TENANT, Quotas, Tenancy
from headrace.core.ports.timers import Timer, Timers
from headrace.mqtt.protocol import ServerHandler

if TYPE_CHECKING:
    from headrace.core.ports.rights import Rights
    from headrace.core.records.message import FrameMessage, Message
    from headrace.errors import ProtocolError
    from headrace.mqtt.packets import Auth, Connect, Disconnect, Publish, Subscribe, Unsubscribe
    from headrace.mqtt.properties import Properties


WORK_AT_ONCE: Final = (
    1024  # small packets that are handled in a pass of the loop of all who send without a pause
)


# Why nothing is read from a client: a set of these for each (`inbound.gate`).
HELD_FOR_SHARE: Final = 1  # what waits on its behalf is more than its share
HELD_FOR_DISK: Final = 2  # one of its messages waits until the disk has space
HELD_FOR_SHARD: Final = 4  # what it publishes piles up for another shard
HELD_FOR_HOME: Final = 8  # the home of a device is asked whether it may speak here
HELD_FOR_TURN: Final = 16  # for nothing else any more: others are read again before it


class Crowd:
    """Publishers whose messages pile up somewhere. While it is `crowded` those who join it are not read from; they are
    kept in `waiting`, and read from again in the order in which they came, some in each pass of the loop."""

    def __init__(self) -> None:
        self.crowded = False
        self.waiting: OrderedDict[Link, None] = OrderedDict()


class Crowds:
    """Whoever stops reading from publishers, and reads on."""

    def join(self, link: Link, crowd: Crowd) -> None:
        """Read nothing more of this client as long as what it publishes piles up there."""
        raise NotImplementedError

    def leave(self, link: Link) -> None:
        """Read again, soon, from this client, wherever it waits with others."""
        raise NotImplementedError

    def set_others_full(self, full: bool) -> None:
        """Take nothing that is published, or take it again: the disk is full for other shards, and nearly so for this
        one."""
        raise NotImplementedError

    def disperse(self, crowd: Crowd) -> None:
        """Read again, soon, from those who waited there: it is not crowded any more."""
        raise NotImplementedError


class Measure(Timer):
    """Measures what is read from a connection, and fires when more of it may be read."""

    def read(self, size: i64) -> None:
        """Note that so many bytes were read, before they are handled."""
        raise NotImplementedError

    def stop(self) -> None:
        """Measure nothing any more."""
        raise NotImplementedError


class Rendering:
    """Says how messages leave through a link whose receiver wants them in another form: a bridge maps topics, a client
    wants message ids. `bridges`: what comes in there has been through this broker before."""

    def __init__(self, bridges: bool = False) -> None:
        self.bridges = bridges

    def write(self, link: Link, message: Message, qos: i64, packet_id: i64, first: i64, ids: bytes) -> None:
        """Write one PUBLISH into the buffer of `link`; `first` is its first byte."""
        raise NotImplementedError

    def size(self, link: Link, message: Message, qos: i64, ids: bytes) -> i64:
        """Return the bytes of what `write` would append."""
        raise NotImplementedError


class WorkerPort:
    """What everything of a process shares, whichever shard it belongs to; in production `core.worker`.

    `timers` are of links that no broker serves yet, and of what a link has to do with its stream. `slow` counts the links
    whose socket is above its high mark, `bytes_received` and `bytes_sent` the bytes of whole packets, `dirty` those with
    bytes to write.
    `share` is what a link may have done when it is read, in small packets (`core.inbound.turns`). `anyone` is who
    everybody is that was not asked, of the default tenant; `tenancy` says who is of another one, `quotas` has the limits
    of each.
    """

    reception: BrokerPort  # serves links until they are bound to a broker

    def __init__(self, clock: Clock, settings: BrokerSettings, anyone: Identity, homes: Homes) -> None:
        self.clock = clock
        self.settings = settings
        self.anyone = anyone
        self.quotas = Quotas(settings)
        self.tenancy = Tenancy()
        self.homes = homes
        self.timers = Timers()
        self.buffers = Buffers()
        self.failures = Failures()
        self.owned = Owned()  # subscriptions of users
        self.owned_devices = Owned()
        # Those who have bytes to write, each with the next one: to take one out of a list costs a look at its class.
        self._first_dirty: Link | None = None
        self._last_dirty: Link | None = None
        self.dirty: i64 = 0
        self.slow = 0
        self.share: i64 = WORK_AT_ONCE
        self.bytes_received = 0  # as `$SYS` wants them; counted per read and per write
        self.bytes_sent = 0

    def place(self, link: Link, user: str | None) -> bool:
        """Note the tenant of a client that names itself, with this user or with none. False: no tenant may be called
        what it says, and it is refused."""
        tenant = self.tenancy.of_client(user, link.listener(), link.certificate_name)
        if tenant in (self.anyone.tenant, NO_TENANT):
            link.identity = self.anyone
        else:
            link.identity = Identity(tenant, None, self.quotas.look(tenant))
        return tenant != NO_TENANT

    def home_of(self, tenant: str, client_id: str) -> BrokerPort | None:
        """Return the broker where a client is at home, None if it is not in this process. A client without an id is at
        home wherever it comes."""
        raise NotImplementedError

    def request_tick(self) -> None:
        """Have the end of a tick called after what is readable now has been read."""
        raise NotImplementedError

    def end_tick(self) -> None:
        """Do what comes after everything readable was read: one append to each journal, one write per connection."""
        raise NotImplementedError

    def note_dirty(self, link: Link) -> None:
        """Note that a link has bytes to write at the end of this tick. While some have, a tick is asked for."""
        last = self._last_dirty
        self._last_dirty = link
        self.dirty += 1
        if last is None:
            self._first_dirty = link
            self.request_tick()
        else:
            last.next_dirty = link

    def flush(self) -> None:
        """Have every link write its bytes."""
        raise NotImplementedError

    def fire(self, timers: Timers, most: int) -> bool:
        """Fire at most so many timers that are due; True if there may be more. One that fails is tried again later, and
        the others have their turn."""
        raise NotImplementedError

    def take_turns(self, link: Link) -> None:
        """Let a link that has read more than its share go on in the next pass, when the others were read."""
        raise NotImplementedError

    def contain(self, place: str, link: Link | None, error: Exception) -> None:
        """Note that something failed at this place (`failures.PLACES`): it costs this connection, or nobody if there
        is none."""
        raise NotImplementedError


class BrokerPort:
    """Whoever serves the packets of a link: the broker of a shard, or what is there before one is known."""

    def on_writable(self, link: Link) -> None:
        """Note that the socket's buffer fell below its low mark."""
        raise NotImplementedError

    def on_connection_lost(self, link: Link) -> None:
        raise NotImplementedError

    def put_out(self, link: Link, code: int, why: str) -> None:
        """End a connection that may not stay: DISCONNECT with a reason code where the version has one, and its will."""
        raise NotImplementedError

    # A packet of the client, in the order of section 3

    def on_connect(self, link: Link, packet: Connect) -> None:
        raise NotImplementedError

    def on_publish(self, link: Link, packet: Publish) -> None:
        raise NotImplementedError

    def on_plain_publish(self, link: Link, topic: bytes, packet: bytes, payload_at: i64) -> None:
        """Handle a PUBLISH at QoS 0 with a topic and a payload alone, as the bytes it came in."""
        raise NotImplementedError

    def on_puback(self, link: Link, packet_id: int, reason_code: int) -> None:
        raise NotImplementedError

    def on_pubrec(self, link: Link, packet_id: int, reason_code: int) -> None:
        raise NotImplementedError

    def on_pubrel(self, link: Link, packet_id: int) -> None:
        raise NotImplementedError

    def on_pubcomp(self, link: Link, packet_id: int, reason_code: int) -> None:
        raise NotImplementedError

    def on_subscribe(self, link: Link, packet: Subscribe) -> None:
        raise NotImplementedError

    def on_unsubscribe(self, link: Link, packet: Unsubscribe) -> None:
        raise NotImplementedError

    def on_pingreq(self, link: Link) -> None:
        raise NotImplementedError

    def on_disconnect(self, link: Link, packet: Disconnect) -> None:
        raise NotImplementedError

    def on_auth(self, link: Link, packet: Auth) -> None:
        raise NotImplementedError

    def on_protocol_error(self, link: Link, error: ProtocolError) -> None:
        """Handle what is not MQTT, or not allowed: answer as the version knows it, and end the connection."""
        raise NotImplementedError


class Link(ServerHandler):
    """A connection as the core sees it: packets come in through `on_*`, bytes go out through `writer`.

    `window` is the client's Receive Maximum under our own cap, `max_packet_size` the client's Maximum Packet Size
    (0 = none), `inbound` the client's QoS > 0 publishes that we have not acknowledged. `ready` says CONNACK has been
    sent, `paused` that the socket's buffer is above its high mark. `came_ms`: when its CONNECT came to this machine, in
    milliseconds of the monotonic clock; 0: nobody has looked. `certificate_name`: where the listener takes the name in
    the client's certificate as user name, None if there is none in it, "" without a certificate and where nobody asks
    for one.
    """

    def __init__(self, worker: WorkerPort) -> None:
        # No `super().__init__()`: no base has one, and behind that of `object` compiled code looks at each use of an
        # attribute whether it is there.
        self.worker = worker
        self.broker: BrokerPort = worker.reception  # until CONNECT says where it is at home
        self.session: object | None = None  # the `state.session.Session` that is attached to it
        self.version: i64 = 0
        self.out: BytesWriter | None = None
        self.dirty = False
        self.next_dirty: Link | None = None  # who has bytes to write at the end of this tick as well
        self.ready = False
        self.paused = False
        self.hungry = False
        self.unread = False  # the next entry of its session's queue cannot be read now (`unread`)
        self.holds: i64 = 0  # why nothing is read from it: a set of HELD_FOR_* (`inbound.gate`)
        self.crowd: Crowd | None = None  # in which it waits, is about to, or has waited until now
        self.broken = False  # something failed on its behalf: it is about to be closed
        self.deferred: i64 = 0  # bytes that wait for the journal on its behalf (`commit`)
        # Bytes of entries of groups that it is given, and that wait for the record of that; of a member in another shard,
        # of all that it was sent and that are not done.
        self.drawing: i64 = 0
        self.fan: i64 = 0  # sessions that its last durable message went to, where they were many
        self.closed = False
        self.arrived = False  # another worker has handed it over: it goes nowhere from here
        self.came_ms: i64 = 0
        self.window: i64 = 0
        self.chunk: i64 = 64
        self.max_packet_size: i64 = 0
        self.inbound: i64 = 0
        self.effective_at: i64 = 0  # what it has sent has taken effect when `commit.in_effect` is that
        self.producer_refused: i64 = 0  # reason code of a refused message with a producer's sequence
        self.keep_alive_ms: int = 0
        self.last_seen_ms: int = 0
        self.since_us: i64 = 0  # when it got its session
        self.problem_information = True
        self.packet_bytes_max: i64 = worker.settings.packet_bytes_max
        self.certificate_name: str | None = ""
        self.messages_per_s: int = 0  # that it may publish; 0: as many as it likes
        self.meter: Measure | None = None  # of what is read from it; None: it may be as much as comes
        self.subscriptions_max: int = 0  # of its session; 0: as the settings say
        self.identity: Identity = worker.anyone  # whose from CONNECT on, who once it has signed in
        self.rights: Rights | None = None  # what it may do; None: everything
        self.client_id = ""
        self.grants: object | None = None  # what access control remembers of it
        self.timer: Timer | None = None
        self.bridge = False  # 3.x: the client said that it is another broker's bridge
        self.rendering: Rendering | None = None  # None: as they are
        self.alias_maximum: i64 = 0  # topic aliases towards the client
        self.aliases: dict[bytes, int] | None = None

    def writer(self) -> BytesWriter:
        """Return the bytes to be written at the end of the tick. Marks the link as having some."""
        if not self.dirty:
            self.dirty = True
            self.worker.note_dirty(self)
        out = self.out
        if out is None:
            out = self.worker.buffers.take()
            self.out = out
        return out

    def send(self, data: bytes) -> None:
        if not self.closed:
            self.writer().write(data)

    def buffered(self) -> i64:
        """Return the bytes that wait for the end of the tick."""
        out = self.out
        return 0 if out is None else len(out)

    def deaf(self) -> bool:
        """Return whether we have stopped reading, or have not looked at what was read: then its silence is ours."""
        return self.holds != 0

    def unheard_ms(self, due_ms: i64, now_ms: i64) -> i64:
        """Return for how many milliseconds nothing that the client said could come here since it was seen last: it is to
        be heard again until `due_ms`, and so much later for that."""
        clock = self.worker.clock
        return clock.stalled_ms if self.last_seen_ms < clock.awake_ms else 0

    # What the core says to its client: `links.mqtt_link` makes packets of it.

    def fits(self, answer: Properties) -> bool:
        """Return whether CONNACK with these properties is within the client's Maximum Packet Size."""
        raise NotImplementedError

    def accept(self, present: bool, answer: Properties) -> None:
        """Send CONNACK: the client is let in; `present`: it has found its session."""
        raise NotImplementedError

    def reject(self, reason_code: int) -> None:
        """Send CONNACK with a reason code of MQTT 5, as far as the client's version and its Maximum Packet Size have
        room."""
        raise NotImplementedError

    def puback(self, packet_id: i64) -> None:
        raise NotImplementedError

    def unbind(self) -> None:
        """Belong to no shard any more, and keep nothing of one: it is given up, and the connection about to be closed."""
        self.broker = self.worker.reception
        self.session = None
        self.ready = False
        self.crowd = None
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None
        if self.rights is not None:
            self.rights.ended()

    def stored(self, message: FrameMessage) -> None:
        """Send the answer to a message of a device, which is durable."""
        raise NotImplementedError

    def pubrec(self, packet_id: i64) -> None:
        raise NotImplementedError

    def pubrel(self, packet_id: i64) -> None:
        raise NotImplementedError

    def pubcomp(self, packet_id: i64) -> None:
        raise NotImplementedError

    def answer(self, qos: int, packet_id: int, reason_code: int, properties: Properties | None) -> None:
        """Send PUBACK at QoS 1, PUBREC at QoS 2, with a reason code where the version has one."""
        raise NotImplementedError

    def suback(self, packet_id: int, codes: list[int]) -> None:
        """Send SUBACK with one reason code of MQTT 5 for each filter."""
        raise NotImplementedError

    def unsuback(self, packet_id: int, codes: list[int]) -> None:
        """Send UNSUBACK with one reason code of MQTT 5 for each filter."""
        raise NotImplementedError

    def pingresp(self) -> None:
        raise NotImplementedError

    def disconnect(self, reason_code: int) -> None:
        """Say why the connection ends, where the version has words for it and CONNACK has gone before."""
        raise NotImplementedError

    # Implemented by `links.stream_link`, by those who stand on it, and by the fake.

    def let_in(self) -> None:
        """Note that the client is no longer a stranger: what it sends counts as everybody's."""

    def limit_packets(self, bytes_max: i64) -> None:
        """Take no packet from now on that is larger than this, or than its listener takes."""
        self.packet_bytes_max = min(self.packet_bytes_max, bytes_max)

    def flush(self) -> None:
        """Hand the buffered bytes to the transport."""
        raise NotImplementedError

    def close(self) -> None:
        """Send what is buffered, then close; nothing is read any more."""
        raise NotImplementedError

    def abort(self) -> None:
        """End the connection now: nobody reads what is buffered."""
        self.close()

    def refuse(self, error: ProtocolError) -> None:
        """Send what this version answers to `error`, if anything."""
        raise NotImplementedError

    def read_on(self) -> None:
        """Parse the next share of what was read and set aside."""
        raise NotImplementedError

    def pause_reading(self) -> None:
        raise NotImplementedError

    def resume_reading(self) -> None:
        raise NotImplementedError

    def hold(self) -> None:
        """Handle no packet after the current one until `release`."""
        raise NotImplementedError

    def release(self) -> None:
        raise NotImplementedError

    def leave(self) -> None:
        """Handle nothing any more, the packet in hand neither: another worker is to do it."""
        raise NotImplementedError

    def unparsed(self) -> bytes:
        """Return what was read and not handled by who has left, the packet first that was in hand then."""
        raise NotImplementedError

    def spend(self, units: i64) -> None:
        """Charge the packet that is handled now as much as so many more small ones: fewer are handled behind it in this
        pass. Says nothing where no packet is being handled."""

    def peer(self) -> str:
        """Return the remote address, for logs."""
        raise NotImplementedError

    def listener(self) -> str:
        """Return the listener's address, for logs; "" if it has none."""
        return ""

    def why_cut(self) -> str:
        """Return why we have cut it off, for logs; "" if we have not."""
        return ""

    def hung_up(self) -> bool:
        """Return whether the client has gone, or will send nothing more, though nothing is read from it."""
        return self.closed

    # ServerHandler: in packet order, from within the protocol's receive_data.

    def on_connect(self, packet: Connect) -> None:
        self.broker.on_connect(self, packet)

    def on_publish(self, packet: Publish) -> None:
        self.broker.on_publish(self, packet)

    def on_plain_publish(self, topic: bytes, packet: bytes, payload_at: i64) -> None:
        self.broker.on_plain_publish(self, topic, packet, payload_at)

    def on_puback(self, packet_id: int, reason_code: int) -> None:
        self.broker.on_puback(self, packet_id, reason_code)

    def on_pubrec(self, packet_id: int, reason_code: int) -> None:
        self.broker.on_pubrec(self, packet_id, reason_code)

    def on_pubrel(self, packet_id: int, reason_code: int) -> None:
        self.broker.on_pubrel(self, packet_id)

    def on_pubcomp(self, packet_id: int, reason_code: int) -> None:
        self.broker.on_pubcomp(self, packet_id, reason_code)

    def on_subscribe(self, packet: Subscribe) -> None:
        self.broker.on_subscribe(self, packet)

    def on_unsubscribe(self, packet: Unsubscribe) -> None:
        self.broker.on_unsubscribe(self, packet)

    def on_pingreq(self) -> None:
        self.broker.on_pingreq(self)

    def on_disconnect(self, packet: Disconnect) -> None:
        self.broker.on_disconnect(self, packet)

    def on_auth(self, packet: Auth) -> None:
        self.broker.on_auth(self, packet)

    def on_protocol_error(self, error: ProtocolError) -> None:
        self.broker.on_protocol_error(self, error)
