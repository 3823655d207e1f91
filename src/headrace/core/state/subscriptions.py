"""Which sessions get a topic: the subscription tree of one tenant, and the routes it remembers.

Filters without wildcards live in one dictionary, the others in a tree of levels. The result of a match is kept per
topic until a subscription changes, so that the usual PUBLISH costs one dictionary look-up.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from mypy_extensions import i64

from headrace.core.records.event import SubscriptionRow
from headrace.core.records.message import encode_varint

if TYPE_CHECKING:
    from headrace.core.records.message import Message
    from headrace.core.state.session import Session

# What is remembered: so many topics and so many targets; one made for a session with several matching filters is more.
_ROUTES_MAX: Final = 100_000
_ROUTED_TARGETS_MAX: Final = 1 << 20
_MERGED_TARGET: Final = 32
_ROUTE_TOPIC_BYTES_MAX: Final = 256  # longer topics are matched anew: what is remembered stays small
_LOOKS: Final = 8  # levels looked at, or filters found, that cost as much as a delivery
_PLUS: Final = b"+"
_HASH: Final = b"#"


class Target:
    """Says how one session gets a message: the granted QoS, Retain As Published, its encoded Subscription Identifiers.

    `members` are the single subscriptions behind it when several overlap (one copy is sent, with the highest QoS and
    all identifiers [MQTT-3.3.4-2, MQTT-3.3.4-4]).
    """

    def __init__(
        self, session: Session, qos: int, retain_as_published: bool, ids: bytes, no_local: bool
    ) -> None:
        self.session = session
        self.qos = qos
        self.retain_as_published = retain_as_published
        self.ids = ids
        self.ids_index = session.ids_index(ids)
        self.no_local = no_local
        self.members: list[Subscription] | None = None


class Route:
    """Says who gets what is published to one topic, while the tree's `changes` are so many."""

    def __init__(self, topic: bytes, changes: i64, targets: list[Target]) -> None:
        self.topic = topic
        self.changes: i64 = changes
        self.targets = targets


class Subscription(Target):
    """One filter of one session with its options (3.8.3.1). `subscription_id` 0 is none."""

    def __init__(
        self,
        session: Session,
        topic_filter: str,
        qos: int,
        no_local: bool,
        retain_as_published: bool,
        retain_handling: int,
        subscription_id: int,
        encoded_id: bytes,
    ) -> None:
        super().__init__(session, qos, retain_as_published, encoded_id, no_local)
        self.filter = topic_filter
        self.retain_handling = retain_handling
        self.subscription_id = subscription_id

    def row(self) -> SubscriptionRow:
        """What events and snapshots have of it."""
        return SubscriptionRow(
            self.filter,
            self.qos,
            self.no_local,
            self.retain_as_published,
            self.retain_handling,
            self.subscription_id,
        )


def subscription_from(session: Session, row: SubscriptionRow) -> Subscription:
    """The subscription of a session that a row in an event or a snapshot tells of."""
    identifier = row.subscription_id
    encoded = b"\x0b" + encode_varint(identifier) if identifier else b""
    return Subscription(
        session,
        row.filter,
        row.qos,
        row.no_local,
        row.retain_as_published,
        row.retain_handling,
        identifier,
        encoded,
    )


def for_publisher(target: Target, message: Message) -> Target | None:
    """The target as it is for this publisher: No Local takes out the session that published [MQTT-3.8.3-3]."""
    if not target.no_local or target.session.origin != message.origin:
        return target
    if target.members is None:
        return None
    rest = [member for member in target.members if not member.no_local]
    if not rest:
        return None
    return Target(
        target.session,
        max([member.qos for member in rest]),
        any(member.retain_as_published for member in rest),
        b"".join(sorted([member.ids for member in rest])),
        False,
    )


def memory_of(topic_filter: str) -> i64:
    """Bytes that a subscription to this filter takes, about: those with a wildcard have a node for each level."""
    taken: i64 = 300 + 2 * len(topic_filter)
    if "+" in topic_filter or "#" in topic_filter:
        taken += 350 * (topic_filter.count("/") + 1)
    return taken


def merge(members: list[Subscription]) -> Target:
    """One target for the overlapping subscriptions of one session."""
    first = members[0]
    if len(members) == 1:
        return first
    ids: list[bytes] = []
    qos = 0
    rap = False
    no_local = False
    for member in members:
        qos = max(qos, member.qos)
        rap = rap or member.retain_as_published
        no_local = no_local or member.no_local
        if member.ids:
            ids.append(member.ids)
    ids.sort()  # equal ones too (3.3.2.3.8)
    target = Target(first.session, qos, rap, b"".join(ids), no_local)
    target.members = members
    return target


class _Node:
    """A level of the tree. `here` are filters that end at this level, `rest` those that end in `#` below it.

    Most levels of a large fleet have one of the three: the others are None, so that a match among a million touches
    nothing that is not there."""

    def __init__(self) -> None:
        self.children: dict[bytes, _Node] | None = None
        self.here: dict[Session, Subscription] | None = None
        self.rest: dict[Session, Subscription] | None = None

    def child(self, level: bytes) -> _Node | None:
        children = self.children
        return None if children is None else children.get(level)

    def grow(self, level: bytes) -> _Node:
        """The child of this name, made if it is not there."""
        children = self.children
        if children is None:
            children = {}
            self.children = children
        child = children.get(level)
        if child is None:
            child = _Node()
            children[level] = child
        return child

    def prune(self, level: bytes) -> None:
        """Take out a child."""
        children = self.children
        if children is not None:
            del children[level]
            if not children:
                self.children = None

    def holders(self, rest: bool) -> dict[Session, Subscription]:
        """`rest` or `here`, made if it is not there."""
        found = self.rest if rest else self.here
        if found is None:
            found = {}
            if rest:
                self.rest = found
            else:
                self.here = found
        return found

    def remove(self, session: Session, rest: bool) -> bool:
        """Take a session out of `rest` or `here`; False when it was not there."""
        found = self.rest if rest else self.here
        if found is None or found.pop(session, None) is None:
            return False
        if found:
            return True
        if rest:
            self.rest = None
        else:
            self.here = None
        return True

    def empty(self) -> bool:
        return self.children is None and self.here is None and self.rest is None


class SubscriptionTree:
    """The subscriptions of one tenant, by filter."""

    def __init__(self) -> None:
        self._single: dict[bytes, Subscription] = {}  # filters without wildcards that one session has
        self._exact: dict[bytes, dict[Session, Subscription]] = {}  # ... that several have
        self._root = _Node()
        self._routes: dict[bytes, list[Target]] = {}
        self._routed: i64 = 0  # targets in there
        self.count = 0
        self.changes: i64 = 0  # a match that is remembered elsewhere holds as long as this stays
        self.worked: i64 = 0  # what matches have cost since `take_work`, in deliveries of a message

    def add(self, topic_filter: str, subscription: Subscription) -> bool:
        """Add or replace; True when it is new. The filter is valid and not shared."""
        path = topic_filter.encode("utf-8")
        self.changes += 1
        if b"+" in path or b"#" in path:
            self._forget_all()
            holders = self._wildcard_holders(path)
        else:
            self._forget(path)
            found = self._exact.get(path)
            if found is None:
                return self._add_single(path, subscription)
            holders = found
        new = subscription.session not in holders
        holders[subscription.session] = subscription
        self.count += new
        return new

    def _add_single(self, path: bytes, subscription: Subscription) -> bool:
        """Most filters of a fleet have one holder, which needs no dictionary."""
        held = self._single.get(path)
        if held is None or held.session is subscription.session:
            self._single[path] = subscription
            self.count += held is None
            return held is None
        del self._single[path]
        self._exact[path] = {held.session: held, subscription.session: subscription}
        self.count += 1
        return True

    def _wildcard_holders(self, path: bytes) -> dict[Session, Subscription]:
        node = self._root
        for level in path.split(b"/"):
            if level == _HASH:
                return node.holders(True)
            node = node.grow(level)
        return node.holders(False)

    def remove(self, topic_filter: str, session: Session) -> bool:
        """Remove the session's subscription to this very filter; False when there was none."""
        path = topic_filter.encode("utf-8")
        self.changes += 1
        if b"+" in path or b"#" in path:
            removed = self._remove_wildcard(path, session)
        else:
            removed = self._remove_exact(path, session)
        self.count -= removed
        return removed

    def _remove_exact(self, path: bytes, session: Session) -> bool:
        self._forget(path)
        held = self._single.get(path)
        if held is not None:
            if held.session is not session:
                return False
            del self._single[path]
            return True
        holders = self._exact.get(path)
        if holders is None or holders.pop(session, None) is None:
            return False
        if not holders:
            del self._exact[path]
        return True

    def _remove_wildcard(self, path: bytes, session: Session) -> bool:
        self._forget_all()
        trail: list[tuple[_Node, bytes]] = []
        node = self._root
        rest = False
        for level in path.split(b"/"):
            if level == _HASH:
                rest = True
                break
            child = node.child(level)
            if child is None:
                return False
            trail.append((node, level))
            node = child
        if not node.remove(session, rest):
            return False
        for parent, level in reversed(trail):
            if not node.empty():
                break
            parent.prune(level)
            node = parent
        return True

    def match(self, topic: bytes) -> list[Target]:
        """The targets of `topic`, one per session. The list is shared: do not change it."""
        route = self._routes.get(topic)
        if route is None:
            route = self._match(topic)
            if len(topic) <= _ROUTE_TOPIC_BYTES_MAX:
                self._remember(topic, route)
        return route

    def take_work(self) -> i64:
        """What matches have cost since the last call, in deliveries of a message: those that were remembered nothing."""
        work = self.worked
        self.worked = 0
        return work

    def _remember(self, topic: bytes, route: list[Target]) -> None:
        targets = _weight(route)
        if len(self._routes) >= _ROUTES_MAX or self._routed + targets > _ROUTED_TARGETS_MAX:
            self._forget_all()
        self._routes[topic] = route
        self._routed += targets

    def _forget(self, topic: bytes) -> None:
        route = self._routes.pop(topic, None)
        if route is not None:
            self._routed -= _weight(route)

    def _forget_all(self) -> None:
        self._routes.clear()
        self._routed = 0

    def _match(self, topic: bytes) -> list[Target]:
        found: list[Subscription] = []
        single = self._single.get(topic)
        if single is not None:
            found.append(single)
        exact = self._exact.get(topic)
        if exact is not None:
            found.extend(exact.values())
        root = self._root
        if not root.empty():
            # A filter that starts with a wildcard does not match a $-topic [MQTT-4.7.2-1].
            self.worked += _collect(root, topic.split(b"/"), topic.startswith(b"$"), found) // _LOOKS
        if len(found) < 2:
            return list(found)
        self.worked += len(found) // _LOOKS
        by_session: dict[Session, list[Subscription]] = {}
        for subscription in found:
            members = by_session.get(subscription.session)
            if members is None:
                by_session[subscription.session] = [subscription]
            else:
                members.append(subscription)
        return [merge(members) for members in by_session.values()]


def _weight(route: list[Target]) -> i64:
    """Return how many targets a route counts as."""
    found: i64 = len(route)
    for target in route:
        if target.members is not None:
            found += _MERGED_TARGET + len(target.members)
    return found


def _descend(children: dict[bytes, _Node], level: bytes, hidden: bool, below: list[_Node]) -> None:
    """The nodes under this level of a topic. `hidden`: + does not match it [MQTT-4.7.2-1]."""
    child = children.get(level)
    if child is not None:
        below.append(child)
    if not hidden:
        child = children.get(_PLUS)
        if child is not None:
            below.append(child)


def _collect(root: _Node, levels: list[bytes], dollar: bool, found: list[Subscription]) -> i64:
    """Every filter that matches; returns how many levels of the tree were looked at. A list of nodes per level instead of
    recursion: filters may be deep."""
    at = [root]
    looks: i64 = 0
    for depth, level in enumerate(levels):
        hidden = dollar and depth == 0
        below: list[_Node] = []
        looks += len(at)
        for node in at:
            rest = node.rest
            if rest is not None and not hidden:
                found.extend(rest.values())
            if node.children is not None:
                _descend(node.children, level, hidden, below)
        if not below:
            return looks
        at = below
    for node in at:
        rest, here = node.rest, node.here
        if rest is not None:
            found.extend(rest.values())  # `a/#` matches `a` too (4.7.1.2)
        if here is not None:
            found.extend(here.values())
    return looks
