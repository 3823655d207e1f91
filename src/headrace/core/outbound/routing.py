"""The router: the only consumer of the journal that fills queues.

Runs on the loop, for every durable message in journal order: the retained message of its topic, then one entry for
each matched session and for each matching group, which stands behind them in the same list. Applying a record twice is
prevented by its offset, never by luck. A durable message for very many goes to some of them at a time; meanwhile it is
`unfinished`, and nothing else is routed. One at QoS 0 goes by `fan_out`.
"""

from __future__ import annotations

from typing import Final

from mypy_extensions import i64

from headrace.core.commit import UNFINISHED, GroupCommit
from headrace.core.outbound.delivery import Delivery
from headrace.core.outbound.fan_out import WRITE_WORK, FanOut, Offering
from headrace.core.outbound.group_delivery import SharedDelivery
from headrace.core.ports.link import Link, WorkerPort
from headrace.core.records.message import Message
from headrace.core.records.record import FLAG_QOS, FLAG_RETAIN
from headrace.core.state.backlog import REF_OFFSET_SHIFT
from headrace.core.state.groups import group_of
from headrace.core.state.inflight import NOT_IN_FLIGHT
from headrace.core.state.queue import OutboundQueue, reference
from headrace.core.state.session import Commons, FarAudience, Route, Session, Target, session_of
from headrace.core.state.subscription_tree import SubscriptionTree
from headrace.core.state.subscriptions import for_publisher

_REMEMBERED_TARGETS_MAX: Final = 64  # in a session: for more of them a look-up is nothing


class Passing:
    """Passes on to other shards what is published here; this one, of a shard alone, passes nothing on. Who wants the
    topic is looked up, unless `known` says it, and returned: to be handed in with the next message on it. The publisher
    may have to wait."""

    def passed(
        self, message: Message, known: FarAudience | None, publisher: Link | None
    ) -> FarAudience | None:
        """Note that a durable message takes effect. Raises nothing."""
        return None

    def passed_live(
        self, message: Message, known: FarAudience | None, publisher: Link | None
    ) -> FarAudience | None:
        """Note that a message at QoS 0 goes to its sessions."""
        return None

    def may_be_heard(self, message: Message) -> bool:
        """Return whether somebody may be subscribed to the message in another shard."""
        return False


class Router(Offering):
    """Puts each durable message into the queues of the sessions and groups that it is for."""

    def __init__(
        self, delivery: Delivery, sharing: SharedDelivery, commit: GroupCommit, worker: WorkerPort
    ) -> None:
        self._delivery = delivery
        self._sharing = sharing
        self._at_once: i64 = worker.settings.deliveries_at_once
        self._rest: _Rest | None = None
        self._joined = _Joined([], [])
        self._worker = worker
        # None where there are no other shards: it is asked for each message, and a test costs less than a call.
        self.others: Passing | None = None
        self.fan_out = FanOut(self, commit, self._at_once, worker.settings.write_buffer_high)

    def _contain(self, place: str, link: Link | None, error: Exception) -> None:
        self._worker.contain(place, link, error)

    def unfinished(self) -> bool:
        return self._rest is not None

    def apply(self, tenant: Commons, message: Message, publisher: Link | None) -> i64:
        """Apply a message that is durable: keep it if it is retained, give it to every matched session. `publisher` is
        None when it is no longer connected. Returns the work, or UNFINISHED."""
        if message.flags & FLAG_RETAIN:
            self.keep(tenant, message)
        others = self.others
        if others is not None:
            route = _remembered(publisher, message.topic)
            if route is None:
                others.passed(message, None, publisher)
            else:
                route.elsewhere = others.passed(message, route.elsewhere, publisher)
        return self.route(tenant, message, publisher)

    def keep(self, tenant: Commons, message: Message) -> None:
        """Keep a retained message, if it is at home in this shard."""
        try:
            tenant.retained.apply(message)
        except Exception as error:  # noqa: BLE001  who is subscribed gets it all the same
            self._contain("retained", None, error)
            tenant.retained.keep(message)  # whole, however far it came; raises what is there to stay

    def route(self, tenant: Commons, message: Message, publisher: Link | None) -> i64:
        """Give a message to the sessions of its topic, as `apply` does."""
        try:
            targets = targets_of(
                None if publisher is None else session_of(publisher), tenant.tree, message.topic
            )
            if tenant.shared_tree.count:
                targets = self._with_groups(tenant, message, targets)
        except Exception as error:  # noqa: BLE001
            self._contain("apply", None, error)
            targets = tenant.tree.match(message.topic)  # what fails twice is there to stay
            targets = self._with_groups(tenant, message, targets)
        count: i64 = len(targets)
        if publisher is not None and (count > _REMEMBERED_TARGETS_MAX or publisher.fan):
            publisher.fan = count
        if count > self._at_once or self.fan_out.busy:
            if message.flags & FLAG_QOS == 0:
                return self._route_qos0(tenant, message, targets, None, publisher)
            if count > self._at_once:
                self._rest = _Rest(message, targets)
                return self.route_on()
        self._give_to(targets, message, 0, count)
        return count + 1 + tenant.tree.take_work()

    def _with_groups(self, tenant: Commons, message: Message, targets: list[Target]) -> list[Target]:
        """Return the sessions of a message, and behind them the groups. For the same of both it is the same list."""
        groups = tenant.shared_tree.match(message.topic)
        tenant.tree.worked += tenant.shared_tree.take_work()
        if not groups:
            return targets
        joined = self._joined
        if joined.targets is not targets or joined.groups is not groups:
            joined = _Joined(targets, groups)
            self._joined = joined
        return joined.both

    def route_qos0(self, tenant: Commons, message: Message, packet: bytes | None, publisher: Link) -> i64:
        """Give a message at QoS 0 to the sessions of its topic: at once, or when it is its turn. `packet` is the PUBLISH
        as it came, where it may leave so."""
        others = self.others
        if others is not None:
            route = _remembered(publisher, message.topic)
            if route is None:
                others.passed_live(message, None, publisher)
            else:
                route.elsewhere = others.passed_live(message, route.elsewhere, publisher)
        targets = targets_of(session_of(publisher), tenant.tree, message.topic)
        if tenant.shared_tree.count:
            targets = self._with_groups(tenant, message, targets)
        return self._route_qos0(tenant, message, targets, packet, publisher)

    def route_live(self, tenant: Commons, message: Message) -> i64:
        """Give a message at QoS 0 that came over no connection to the sessions of its topic, as `route_qos0` does."""
        if self.others is not None:
            self.others.passed_live(message, None, None)
        targets = tenant.tree.match(message.topic)
        if tenant.shared_tree.count:
            targets = self._with_groups(tenant, message, targets)
        return self._route_qos0(tenant, message, targets, None, None)

    def _route_qos0(
        self,
        tenant: Commons,
        message: Message,
        targets: list[Target],
        packet: bytes | None,
        publisher: Link | None,
    ) -> i64:
        fan_out = self.fan_out
        if fan_out.waits(message.incarnation) or not fan_out.begins(len(targets)):
            fan_out.add(tenant, message, targets, packet, publisher)
            return 1 + tenant.tree.take_work()
        self._give_to(targets, message, 0, len(targets))
        return len(targets) + 1 + tenant.tree.take_work()

    def route_on(self) -> i64:
        """Go on with what is unfinished."""
        rest = self._rest
        if rest is None:
            return 0
        targets = rest.targets
        start: i64 = rest.at
        end: i64 = start
        size: i64 = len(targets)
        left: i64 = self._at_once
        while end < size and left > 0:
            left -= 1 if targets[end].session.link is None else 1 + WRITE_WORK
            end += 1
        rest.at = end
        if end < size:
            self._give_to(targets, rest.message, start, end)
            return UNFINISHED
        self._rest = None
        self._give_to(targets, rest.message, start, end)
        return self._at_once - left

    def give_up(self) -> None:
        """Forget what raised unexpectedly: the next message is not to go on with this one."""
        self._rest = None

    def _give_to(self, targets: list[Target], message: Message, at: i64, end: i64) -> None:
        """Offer the message to the targets from `at` up to `end`; what fails for one of them costs that one."""
        while at < end:
            try:
                while at < end:
                    self.offer(targets[at], message)
                    at += 1
            except Exception as error:  # noqa: BLE001
                self.missed(targets[at], message, error)
                at += 1

    def missed(self, target: Target, message: Message, error: Exception) -> None:
        """Note that a session could not be given a message: its connection goes, and its queue holds the message all
        the same, as it will when the journal is replayed; or it is owed the message, before anything else is put there.
        Raises nothing: the sessions behind it have their turn."""
        session = target.session
        group = group_of(session)
        place = "delivery" if group is None else "group"
        self._contain(place, session.link, error)
        try:
            self._number(target, message)
        except Exception as second:  # noqa: BLE001
            if session.link is not None:
                session.link.ready = False  # nothing more is sent on it
            self._contain(place, session.link, second)
        if group is not None:
            self._delivery.hand_out_later(group)

    def _number(self, target: Target, message: Message) -> None:
        """Put a message behind the backlog of a session, unless it was numbered there before something failed."""
        session = target.session
        qos: i64 = min(message.flags & FLAG_QOS, target.qos)
        ids_index, retain = 0, message.flags & FLAG_RETAIN != 0
        group = group_of(session)
        if group is None:
            allowed = for_publisher(target, message) if target.no_local else target
            if allowed is None or session.ended or _is_newest(session.outbound(), message.offset):
                return
            ids_index, retain = allowed.ids_index, allowed.retain_as_published and retain
        elif group.is_newest(message.offset):
            return
        if qos:
            message.waits = True
            session.owe(reference(message.offset, ids_index, retain, qos), message.size)
            session.settle()

    def offer(self, target: Target, message: Message) -> None:
        """Give the message to one matched session, unless it is its publisher's and No Local, or to a group."""
        if target.session.ended:
            return
        if target.no_local:
            self._offer_some(target, message)
        else:
            self._delivery.offer(target, message)

    def _offer_some(self, target: Target, message: Message) -> None:
        group = group_of(target.session)
        if group is not None:
            self._sharing.offer(group, message)
            return
        allowed = for_publisher(target, message)
        if allowed is not None:
            self._delivery.offer(allowed, message)


def _is_newest(queue: OutboundQueue, offset: int) -> bool:
    """Return whether the entry that was numbered last is this message, even if it was dropped since."""
    if queue.backlog.newest() >> REF_OFFSET_SHIFT == offset:
        return True
    ref = queue.inflight.get(queue.next_serial - 1)
    return ref != NOT_IN_FLIGHT and ref >> REF_OFFSET_SHIFT == offset


class _Joined:
    """The sessions and the groups that a message was for."""

    def __init__(self, targets: list[Target], groups: list[Target]) -> None:
        self.targets = targets
        self.groups = groups
        self.both = targets + groups


class _Rest:
    """A message on its way to the sessions and groups of its topic, which were found in one go."""

    def __init__(self, message: Message, targets: list[Target]) -> None:
        self.message = message
        self.targets = targets
        self.at: i64 = 0


def targets_of(publisher: Session | None, tree: SubscriptionTree[Target], topic: bytes) -> list[Target]:
    """Return the targets of `tree.match`. A connection mostly publishes to the topic of the time before, which is one
    object: without look-up it is 150 instructions less."""
    if publisher is None:
        return tree.match(topic)
    route = publisher.route
    if route is not None and route.topic is topic and route.changes == tree.changes:
        return route.targets
    targets = tree.match(topic)
    if len(targets) > _REMEMBERED_TARGETS_MAX:
        publisher.route = None  # the tree remembers it, once for all who publish there
    elif route is None:
        publisher.route = Route(topic, tree.changes, targets)
    else:
        if route.topic is not topic:
            route.topic = topic
            route.elsewhere = None
        route.changes = tree.changes
        route.targets = targets
    return targets


def many(publisher: Session | None, tenant: Commons, topic: bytes) -> i64:
    """Return how many sessions and groups a topic is for, 0 if they are no more than a connection remembers."""
    count: i64 = len(targets_of(publisher, tenant.tree, topic))
    if tenant.shared_tree.count:
        count += len(tenant.shared_tree.match(topic))
    return count if count > _REMEMBERED_TARGETS_MAX else 0


def _remembered(publisher: Link | None, topic: bytes) -> Route | None:
    """Return what a connection has remembered of a topic, if it was that of the time before."""
    session = None if publisher is None else session_of(publisher)
    route = None if session is None else session.route
    return route if route is not None and route.topic is topic else None
