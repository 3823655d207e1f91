"""Devices that speak frames: who they are, what they publish.

Runs on the loop. A connection has no session: it carries the frames of one device or, behind a gateway, of many, each
under its own SN, which is its client id. A message becomes a record as one at QoS 1 does, is answered when it is durable
(P1), and goes to MQTT subscribers as any other. What a device repeats is answered with the id of the first copy.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final

from mypy_extensions import i64

from headrace.core.commit import Deferred, GroupCommit
from headrace.core.inbound.admission import capped, is_closed, is_too_deep
from headrace.core.inbound.claims import Claimant, Owners
from headrace.core.inbound.connect import Sessions
from headrace.core.inbound.consuming import Consuming, Requests
from headrace.core.inbound.gate import Gate, weight_of
from headrace.core.outbound.cluster_readers import Caller
from headrace.core.ports.access import PENDING, LinkRights, SignIn, SignInListener
from headrace.core.ports.identity import Identity
from headrace.core.ports.link import HELD_FOR_HOME, Link, WorkerPort
from headrace.core.ports.voice import Voice
from headrace.core.records.message import NO_EXPIRY, FrameMessage
from headrace.core.records.message_id import JournalName
from headrace.core.records.record import DROP_NOT_ACCEPTED
from headrace.core.state.devices import Seen, seen_of
from headrace.core.state.makers import Maker
from headrace.core.state.state import Fold
from headrace.core.state.tenant import Tenant
from headrace.errors import ProtocolError
from headrace.frames.frame import ACK, JOIN, LEAVE, NO_ID, PING, PUBLISH, PULL
from headrace.frames.server import FrameHandler, ServerFrames
from headrace.mqtt import reason_codes as rc
from headrace.mqtt.packets import Connect
from headrace.mqtt.topics import topic_or_none

_NAMES_MAX: Final = 1024  # devices of one connection that are remembered
_STRANGER: Final = 0
_ASKED: Final = 1  # access control looks at the password
_LET_IN: Final = 2


class Devices:
    """What the connections of devices share. `journal` is what message ids are made from."""

    def __init__(
        self,
        fold: Fold,
        commit: GroupCommit,
        sessions: Sessions,
        gate: Gate,
        consuming: Consuming,
        worker: WorkerPort,
    ) -> None:
        self.journal = JournalName()
        self.consuming = consuming
        self.requests: Requests = consuming  # who takes those of consumers
        self.owners = Owners(fold, commit, worker, sessions)
        self.clients: dict[DeviceLink, None] = {}
        self._fold = fold
        self._commit = commit
        self._sessions = sessions
        self._gate = gate
        self._worker = worker
        self._default_expiry_s: i64 = worker.settings.default_message_expiry_s or NO_EXPIRY

    # HELLO

    def sign_in(self, client: DeviceLink, sn: bytes, user: str | None, password: bytes, asked: bool) -> None:
        """Ask access control who a device is. `asked`: by HELLO, which is answered; else the device is anonymous."""
        link = client.link
        client_id = client.name_of(sn)
        access = self._sessions.access
        if link.rights is not None:
            link.rights.ended()
            link.rights = None
        bound, link.client_id = link.identity.tenant, client_id
        is_of_another = not self._worker.place(link, user) or link.identity.tenant != bound
        hello = _Hello(self, client, sn, asked)
        packet = Connect(0, client_id, True, 0, user, password)
        if is_of_another:  # the home of the first one is that of its tenant
            link.identity = Identity(bound, None, self._worker.quotas.look(bound))
            hello.signed_in(link, packet, rc.NOT_AUTHORIZED)
            return
        if access is None:
            allowed = self._worker.settings.allow_anonymous
            hello.signed_in(link, packet, link.identity if allowed else rc.NOT_AUTHORIZED)
            return
        link.rights = LinkRights(access, link)
        found = access.authenticate(SignIn(hello, link, packet))
        if found == PENDING:
            client.state = _ASKED
            link.hold()
        else:
            hello.signed_in(link, packet, found)

    def let_in(self, client: DeviceLink, sn: bytes, code: int, asked: bool) -> None:
        """Take the answer of access control: let the connection in, or say why not and close it."""
        if not code:
            code = self.owners.claim(client.name_of(sn), _Admitted(self, client, sn, asked))
        if code == PENDING:
            client.state = _ASKED
            client.wait()
        else:
            self.claimed(client, sn, code, asked)

    def claimed(self, client: DeviceLink, sn: bytes, code: int, asked: bool) -> None:
        """Take the answer of the home of a device that is to be let in."""
        link = client.link
        if code:
            counters = self._fold.counters_of(link)
            counters.connects_refused += 1
            counters.refuse("connect", code)
            client.state = _STRANGER
            if asked:
                client.voice.welcome(sn, code)
            else:
                client.voice.fail(code, rc.name(code))
            link.close()
            return
        tenant = self._fold.let_in(link)
        if client not in self.clients:
            tenant.counters.connects += 1
        client.admitted(sn)
        self.clients[client] = None
        link.let_in()
        link.keep_alive_ms = self._worker.settings.frame_idle_s * 1000
        self._sessions.watch(link)
        if asked:  # behind the record that the device is this user's, whoever appended it
            client.hellos += 1
            self._commit.then(client.link, partial(client.welcomed, sn))
        link.ready = client.hellos == 0

    def answer_ping(self, client: DeviceLink, sn: bytes) -> None:
        """Answer a PING: at once, but behind the answer to a HELLO before it."""
        if client.link.ready:
            client.voice.pong(sn)
        else:
            self._commit.then(client.link, partial(client.voice.pong, sn))

    def owner_of(self, name: str, client_id: str) -> str | None:
        """Return the user whom a client id of a tenant belongs to, as far as it is at home here; None: nobody."""
        tenant = self._fold.tenants.get(name)
        return None if tenant is None else self.owners.of(tenant, client_id)

    def speak_as(self, client: DeviceLink, sn: bytes, client_id: str, known: bool) -> bool:
        """Let another device speak on a connection; `known`: it has spoken there before. False: its home answers later.
        Raises ProtocolError if it is somebody else's."""
        link = client.link
        link.client_id = client_id
        code = rc.SUCCESS
        if link.rights is not None and not link.rights.renamed():
            code = rc.CLIENT_IDENTIFIER_NOT_VALID
        elif not known or self.owners.is_home(link, client_id):
            code = self.owners.claim(client_id, _Speaking(self, client, sn, client_id))
        if code == PENDING:
            client.wait()
            return False
        self.check_claim(link, client_id, code)
        return True

    def check_claim(self, link: Link, client_id: str, code: int) -> None:
        """Go on with another device of a connection. Raises ProtocolError where it may not speak there."""
        if code:
            self._fold.tenant_of(link).counters.refuse("connect", code)
            why = "cannot be asked for now" if code == rc.SERVER_UNAVAILABLE else "is not for this user"
            raise ProtocolError(code, f"the SN {client_id[:64]} {why}")
        self._gate.keep_pace(link)

    # PUBLISH

    def publish(self, client: DeviceLink, sn: bytes, sequence: i64, topic: bytes, payload: bytes) -> None:
        """Journal what is new; the answer follows when it is durable, in the order of the requests."""
        link = client.link
        tenant = self._fold.tenant_of(link)
        counters = tenant.counters
        counters.publishes_received += 1
        counters.bytes_received += len(payload)
        known_topic = topic_or_none(topic)
        code = self._refusal(link, known_topic)
        if code:
            tenant.count_drop(DROP_NOT_ACCEPTED, 1)
            counters.refuse("publish", code)
            self._commit.defer(_Published(client, sn, sequence, code, NO_ID))
            return
        message = FrameMessage(
            self._worker.clock.now_us,
            sequence,
            tenant.name,
            client.origin_in(tenant),
            tenant.name_bytes,
            known_topic,
            capped(self._default_expiry_s, tenant.limits.message_expiry_max_s),
            payload,
        )
        seen = seen_of(message)
        known = tenant.devices.find(seen)
        if known >= 0:
            counters.publishes_repeated += 1
            message.offset = known
            self._commit.defer(_Published(client, sn, sequence, rc.SUCCESS, self.id_of(message)))
        else:
            message.sn = sn
            self._store(client, tenant, message, seen)

    def _store(self, client: DeviceLink, tenant: Tenant, message: FrameMessage, seen: Seen) -> None:
        link, commit = client.link, self._commit
        message.link = link
        weight = weight_of(message.payload)
        link.deferred += weight
        self._gate.foresee(link, None, tenant, message.topic, weight)
        self._gate.keep_share(link, link.deferred)
        if message.topic not in tenant.queues or self.consuming.clusters.unused.ending:
            self.requests.open(tenant, message.topic, Maker(link.identity.user or "", link.client_id))
        seen.offset = commit.append(message)
        commit.deferred_bytes += weight
        tenant.devices.note(seen)
        self._gate.keep_pace(link)

    def _refusal(self, link: Link, topic: bytes) -> int:
        """Return the reason code of a PUBLISH that is not taken, 0 if it is. `topic`: b"" if it is none."""
        if not topic or is_too_deep(link.identity.limits, topic):
            return rc.TOPIC_NAME_INVALID
        rights = link.rights
        if rights is not None and not rights.may_publish(topic):
            rights.note_denied("publish", topic)
            return rc.NOT_AUTHORIZED
        if is_closed(topic):
            return rc.NOT_AUTHORIZED
        return rc.QUOTA_EXCEEDED if self._gate.full else rc.SUCCESS

    def id_of(self, message: FrameMessage) -> bytes:
        """Return the 16 bytes that name a message."""
        return self.journal.id_of(message)

    # The end

    def lost(self, client: DeviceLink, caller: Caller | None) -> None:
        """Note that the connection has ended; `caller`: what it is to topic queues, if it has asked for one."""
        if caller is not None:
            self.requests.lost(caller)
        if client in self.clients:
            del self.clients[client]
            self._fold.tenant_of(client.link).counters.disconnects += 1

    def name_journal(self, journal: JournalName) -> None:
        """Make message ids of this journal."""
        self.journal = journal
        self.consuming.clusters.journal_name = journal
        self._sessions.name_journal(journal)

    def stop(self) -> None:
        """Stop on SIGTERM: say goodbye."""
        self.consuming.clusters.stop()
        for client in list(self.clients):
            client.voice.fail(rc.SERVER_SHUTTING_DOWN, rc.name(rc.SERVER_SHUTTING_DOWN))
            client.link.close()


# A link goes to the shard where this client id, of the tenant of this user, is at home; None: to another worker, with
# all that it has sent.
Bind = Callable[[Link, str, str | None], Devices | None]


class DeviceLink(FrameHandler):
    """The state of one connection: whose it is, and who of its devices speaks."""

    def __init__(self, link: Link, voice: Voice, bind: Bind) -> None:
        self.link = link
        self.voice = voice
        self.frames: ServerFrames | None = None  # which knows the version
        self.state = _STRANGER
        self.hellos = 0  # that are not answered yet
        self._bind = bind
        self._devices: Devices | None = None  # of the shard where the first of them is at home
        self._sn = b""  # who has spoken last
        self._names: dict[bytes, str] | None = None  # of the devices behind a gateway
        self._caller: Caller | None = None
        self._aside: _Frame | None = None  # of a device whose home is asked
        self._origin = b""  # of whom `_origin_of` names in `_origin_in`
        self._origin_of = ""
        self._origin_in: Tenant | None = None

    def take(self, frames: ServerFrames) -> None:
        """Note who takes the bytes of the connection apart."""
        self.frames = frames
        self.voice.frames = frames

    @property
    def caller(self) -> Caller:
        """Return what the connection is to topic queues, made when it first asks for one."""
        caller = self._caller
        if caller is None:
            caller = self._caller = self._home().requests.caller(self.link, self.voice)
        return caller

    def lost(self) -> None:
        """Note that the connection has ended."""
        devices, caller = self._devices, self._caller
        self._caller = None
        if devices is not None:
            devices.lost(self, caller)

    def writable(self) -> None:
        """Note that something may be written: the socket's buffer has drained, or HELLO is answered."""
        if self._caller is not None:
            self._home().requests.writable(self._caller)

    @property
    def is_stranger(self) -> bool:
        """Return whether the connection has not been let in yet."""
        return self.state != _LET_IN

    def _bound(self, sn: bytes, user: str | None) -> Devices | None:
        """Return the devices of the shard that the connection is bound to; the first one that speaks, `sn` of this user,
        decides which that is. None: it is another worker's, who takes the connection. Raises ProtocolError if nobody
        does."""
        if self._devices is None:
            self._devices = self._bind(self.link, self.name_of(sn), user)
        return self._devices

    def _home(self) -> Devices:
        """Return the devices of the shard where somebody has spoken already."""
        devices = self._devices
        if devices is None:
            raise ProtocolError(rc.PROTOCOL_ERROR, "nobody has spoken yet")
        return devices

    def name_of(self, sn: bytes) -> str:
        """Return the client id of a device on this connection."""
        return self.voice.device(sn)

    def origin_in(self, tenant: Tenant) -> bytes:
        """Return the origin of what the device that speaks now publishes: tenant and client id."""
        client_id = self.link.client_id
        if client_id is not self._origin_of or tenant is not self._origin_in:
            self._origin = tenant.name_utf8 + client_id.encode("utf-8")
            self._origin_of = client_id
            self._origin_in = tenant
        return self._origin

    def admitted(self, sn: bytes) -> None:
        """Note that the connection is let in; its user may have changed."""
        self.state = _LET_IN
        self._sn = sn
        self._names = None

    def welcomed(self, sn: bytes) -> None:
        """Answer HELLO, and go on with what a consumer has asked for behind it."""
        self.voice.welcome(sn, rc.SUCCESS)
        self.hellos -= 1
        if not self.hellos:
            self.link.ready = True
            self.writable()

    def wait(self) -> None:
        """Handle nothing more before the home of the device has answered."""
        self.link.holds |= HELD_FOR_HOME
        self.link.hold()

    def home_answered(self) -> None:
        """Go on when it has: with the frame that had to wait, and with what follows it, unless too much waits for the
        disk. Raises ProtocolError."""
        link = self.link
        link.holds &= ~HELD_FOR_HOME
        frame, self._aside = self._aside, None
        if frame is not None:
            frame.run(self)
        if not link.holds:
            link.crowd = None  # which it has left while its home was asked
            if not link.closed:
                link.release()

    def speaks_now(self, sn: bytes, client_id: str) -> None:
        """Note that a device may speak, and does from now on."""
        names = self._names
        if names is None:
            names = self._names = {}
        elif len(names) >= _NAMES_MAX:
            names.clear()
        names[sn] = client_id
        self._sn = sn

    def _speaks(self, sn: bytes) -> bool:
        """Find out whose frame this is. False if the connection has not been let in, or waits for the home of the device.
        Raises ProtocolError if the device is somebody else's."""
        if sn == self._sn and self.state == _LET_IN:
            return True
        if self.state != _LET_IN:
            devices = self._bound(sn, None)
            if devices is None:
                return False
            devices.sign_in(self, sn, None, b"", False)
            if self.state == _ASKED:
                raise ProtocolError(rc.NOT_AUTHORIZED, "HELLO comes first")
            return self.state == _LET_IN
        names = self._names
        if names is None:
            names = self._names = {self._sn: self.link.client_id}
        known = names.get(sn)
        client_id = self.name_of(sn) if known is None else known
        if not self._home().speak_as(self, sn, client_id, known is not None):
            return False
        self.speaks_now(sn, client_id)
        return True

    def _put_aside(self, frame: _Frame) -> None:
        """Keep a frame that nobody has taken, where it waits for the home of its device."""
        if self.link.holds & HELD_FOR_HOME:
            self._aside = frame

    # FrameHandler

    def hello(self, sn: bytes, user: str, password: bytes) -> None:
        name = user if user or password else None
        devices = self._bound(sn, name)
        if devices is not None:
            devices.sign_in(self, sn, name, password, True)

    def publish(self, sn: bytes, seq: i64, topic: bytes, payload: bytes) -> None:
        if self._speaks(sn):
            self._home().publish(self, sn, seq, topic, payload)
        else:
            self._put_aside(_Frame(PUBLISH, sn, topic, payload, seq))

    def ping(self, sn: bytes) -> None:
        if self._speaks(sn):
            self._home().answer_ping(self, sn)
        else:
            self._put_aside(_Frame(PING, sn))

    def broken(self, error: ProtocolError) -> None:
        self.link.on_protocol_error(error)

    def join(self, sn: bytes, topic: bytes, cluster: bytes) -> None:
        if self._speaks(sn):
            self._home().requests.join(self.caller, sn, topic, cluster)
        else:
            self._put_aside(_Frame(JOIN, sn, topic, cluster))

    def leave(self, sn: bytes, topic: bytes, cluster: bytes) -> None:
        if self._speaks(sn):
            self._home().requests.leave(self.caller, sn, topic, cluster)
        else:
            self._put_aside(_Frame(LEAVE, sn, topic, cluster))

    def pull(self, sn: bytes, topic: bytes, cluster: bytes, most: i64, wait_ms: i64) -> None:
        if self._speaks(sn):
            self._home().requests.pull(self.caller, sn, topic, cluster, most, wait_ms)
        else:
            self._put_aside(_Frame(PULL, sn, topic, cluster, most, wait_ms))

    def ack(self, sn: bytes, topic: bytes, cluster: bytes, ids: list[bytes]) -> None:
        if self._speaks(sn):
            self._home().requests.ack(self.caller, sn, topic, cluster, ids)
        else:
            self._put_aside(_Frame(ACK, sn, topic, cluster, ids=ids))

    # From the journal

    def durable(self, message: FrameMessage) -> None:
        """Answer a message of one of the connection's devices, which is durable."""
        sn, message.sn = message.sn, b""
        self.voice.published(sn, message.sequence, rc.SUCCESS, self._home().id_of(message))


class _Frame:
    """A frame that waits until the home of its device has answered. `name` is the cluster, or of a PUBLISH the payload;
    `number` the sequence number, or of a PULL the most messages."""

    def __init__(
        self,
        opcode: int,
        sn: bytes,
        topic: bytes = b"",
        name: bytes = b"",
        number: i64 = 0,
        wait_ms: i64 = 0,
        ids: list[bytes] | None = None,
    ) -> None:
        self.opcode = opcode
        self.sn = sn
        self.topic = topic
        self.name = name
        self.number: i64 = number
        self.wait_ms: i64 = wait_ms
        self.ids: list[bytes] = [] if ids is None else ids

    def run(self, client: DeviceLink) -> None:
        """Hand it to the connection again, whose device may speak by now."""
        opcode = self.opcode
        if opcode == PUBLISH:
            client.publish(self.sn, self.number, self.topic, self.name)
        elif opcode == JOIN:
            client.join(self.sn, self.topic, self.name)
        elif opcode == LEAVE:
            client.leave(self.sn, self.topic, self.name)
        elif opcode == PULL:
            client.pull(self.sn, self.topic, self.name, self.number, self.wait_ms)
        elif opcode == ACK:
            client.ack(self.sn, self.topic, self.name, self.ids)
        else:
            client.ping(self.sn)


class _Admitted(Claimant):
    """Goes on with a sign-in, once the home of the device has answered."""

    def __init__(self, devices: Devices, client: DeviceLink, sn: bytes, asked: bool) -> None:
        super().__init__(client.link)
        self._devices = devices
        self._client = client
        self._sn = sn
        self._asked = asked

    def decided(self, code: int) -> None:
        self._devices.claimed(self._client, self._sn, code, self._asked)
        self._client.home_answered()


class _Speaking(Claimant):
    """Goes on with another device of a connection, once its home has answered."""

    def __init__(self, devices: Devices, client: DeviceLink, sn: bytes, client_id: str) -> None:
        super().__init__(client.link)
        self._devices = devices
        self._client = client
        self._sn = sn
        self._client_id = client_id

    def decided(self, code: int) -> None:
        try:
            self._devices.check_claim(self.link, self._client_id, code)
            self._client.speaks_now(self._sn, self._client_id)
            self._client.home_answered()
        except ProtocolError as error:
            self.link.on_protocol_error(error)


class _Hello(SignInListener):
    """Goes on with a device once access control has answered."""

    def __init__(self, devices: Devices, client: DeviceLink, sn: bytes, asked: bool) -> None:
        self._devices = devices
        self._client = client
        self._sn = sn
        self._asked = asked

    def signed_in(self, link: Link, packet: Connect, answer: Identity | int) -> None:
        code = rc.SUCCESS
        if isinstance(answer, int):
            code = answer
        elif answer.tenant != link.identity.tenant:
            code = rc.NOT_AUTHORIZED
        else:
            link.identity = answer
        self._devices.let_in(self._client, self._sn, code, self._asked)

    def waits(self) -> bool:
        return self._client.link.holds & HELD_FOR_HOME != 0

    def owner_of(self, tenant: str, client_id: str) -> str | None:
        return self._devices.owner_of(tenant, client_id)

    def user_before(self, tenant: str, client_id: str) -> str | None:
        """Return None: a connection of devices takes over none."""
        return None


class _Published(Deferred):
    """The answer to a PUBLISH that is refused or repeated, in its place behind those before it."""

    def __init__(self, client: DeviceLink, sn: bytes, sequence: i64, code: int, found: bytes) -> None:
        super().__init__(client.link)
        self._client = client
        self._sn = sn
        self._sequence: i64 = sequence
        self._code = code
        self._found = found

    def run(self) -> None:
        self._client.voice.published(self._sn, self._sequence, self._code, self._found)
