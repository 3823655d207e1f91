"""Messages that somebody posts who operates the broker, over no connection of MQTT.

Runs on the loop. A post is checked, journaled and routed as a PUBLISH of a client without an id, whom access control lets
do everything; who has waited for it hears when it has taken effect. One at QoS 0 that is not retained goes to whoever is
connected, and into no journal. A post of a producer (`state.producers`) that comes again is not stored again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from headrace.core.commit import Deferred, GroupCommit
from headrace.core.inbound.admission import Admission, capped
from headrace.core.inbound.gate import Gate
from headrace.core.outbound.routing import Router
from headrace.core.ports.link import WorkerPort
from headrace.core.records.message import NO_EXPIRY, Message, broker_message, message_flags
from headrace.core.records.record import FLAG_PRODUCER
from headrace.core.state.producers import MALFORMED, NEW, REPEATED, is_sequenced, owned
from headrace.errors import NotTaken
from headrace.mqtt import reason_codes as rc
from headrace.mqtt.packets import VERSION_5, Publish

if TYPE_CHECKING:
    from headrace.core.state.session import Commons
    from headrace.core.state.state import Fold

_BUSY: Final = "too much waits for the disk now"
_NO_SPACE: Final = "the disk is full: nothing new is stored"


class Post(Deferred):
    """A message that was posted. `over`: it has taken effect, and is durable if it `is_stored`; then `matching` sessions
    and shared subscriptions of this shard were to get it, and `elsewhere` says whether other shards want it. One that
    `is_repeated` was stored before."""

    def __init__(self, router: Router, tenant: Commons, message: Message) -> None:
        super().__init__()
        self.over = False
        self.is_stored = False
        self.is_repeated = False
        self.matching = 0
        self.elsewhere = False
        self._router = router
        self._tenant = tenant
        self._message = message

    def run(self) -> None:
        tenant, message, others = self._tenant, self._message, self._router.others
        self.matching = len(tenant.tree.match(message.topic)) + len(tenant.shared_tree.match(message.topic))
        self.elsewhere = others is not None and others.may_be_heard(message)
        self.over = True


class Posting:
    """Takes the posts for one shard, which is the home of their topics."""

    def __init__(
        self,
        fold: Fold,
        commit: GroupCommit,
        gate: Gate,
        router: Router,
        admission: Admission,
        worker: WorkerPort,
    ) -> None:
        self._fold = fold
        self._commit = commit
        self._gate = gate
        self._router = router
        self._admission = admission
        self._worker = worker
        self._clock = worker.clock
        self._settings = worker.settings

    def post(self, tenant: str, packet: Publish) -> Post:
        """Begin to publish a message in a tenant. Raises NotTaken, with the reason code that a client would get."""
        of = self._fold.make(tenant)
        counters = of.counters
        counters.publishes_received += 1
        counters.bytes_received += len(packet.payload)
        self._check(of, packet)
        expiry_s = packet.message_expiry_s
        message = broker_message(
            self._clock.now_us,
            message_flags(packet.qos, packet.retain, False, VERSION_5),
            tenant,
            packet.topic,
            packet.payload,
            packet.properties,
        )
        default_s = self._settings.default_message_expiry_s or NO_EXPIRY
        longest = of.limits.message_expiry_max_s
        message.message_expiry_s = capped(default_s if expiry_s < 0 else expiry_s, longest)
        post = Post(self._router, of, message)
        if packet.qos or packet.retain:
            self._store(of, message, post)
            self._commit.defer(post)
        else:
            self._router.route_live(of, message)
            post.run()
            self._worker.request_tick()  # nobody has read: what goes to many goes on at the end of one
        return post

    def _check(self, tenant: Commons, packet: Publish) -> None:
        """Raise NotTaken for what cannot be taken, and count it."""
        code, why = self._refusal(tenant, packet), ""
        if code == rc.QUOTA_EXCEEDED:
            why = "the tenant has as many retained messages, or bytes of them, as it may"
        elif not code and (packet.qos or packet.retain):
            if self._gate.full:
                code, why = rc.QUOTA_EXCEEDED, _NO_SPACE
            elif self._commit.pending_bytes > self._settings.commit_bytes_max:
                code, why = rc.SERVER_BUSY, _BUSY
        if code:
            tenant.counters.refuse("publish", code)
            raise NotTaken(code, why or f"the broker does not take it: {rc.name(code)}")

    def _refusal(self, tenant: Commons, packet: Publish) -> int:
        """Return the reason code of a message that is not taken whatever the disk does, 0 if it is. A delete needs
        nothing that a tenant could lack."""
        keeps = packet.retain and len(packet.payload) > 0
        code = self._admission.unsupported(tenant.limits, packet.qos, keeps)
        code = code or self._admission.refusal(VERSION_5, tenant, packet)
        size = len(packet.topic) + len(packet.properties) + len(packet.payload)
        if not code and 0 < tenant.limits.tenant_packet_bytes_max < size:
            return rc.PACKET_TOO_LARGE
        if code or not packet.retain:
            return code
        has_room = self._admission.keeps(tenant, packet.topic, size, len(packet.payload))
        return 0 if has_room else rc.QUOTA_EXCEEDED

    def _store(self, tenant: Commons, message: Message, post: Post) -> None:
        """Append a message to the journal, unless it is a producer's that is stored already."""
        producers = tenant.producers
        if message.qos and is_sequenced(message.properties):
            message.properties = owned(message.properties, None, False)
            found = producers.take(message)
            if found == MALFORMED:
                raise NotTaken(
                    rc.IMPLEMENTATION_SPECIFIC_ERROR, "its producer-id or producer-sequence is not taken"
                )
            if found == REPEATED:
                tenant.counters.publishes_repeated += 1
                post.is_stored = post.is_repeated = True
                return
            if found == NEW:
                message.flags |= FLAG_PRODUCER
        try:
            self._commit.append(message)
        except BaseException:  # no memory now: whoever posts it again must not hear that it is stored
            if message.flags & FLAG_PRODUCER:
                producers.give_back()
            raise
        post.is_stored = True
        if message.retain:
            tenant.retained.arrive(message)
