"""Which entries a topic leads to: a tree of filters, and the routes it remembers.

Filters without wildcards live in one dictionary, the others in a tree of levels. The result of a match is kept per
topic until an entry changes, so that the usual PUBLISH costs one dictionary look-up. The tree is told what its entries
are by its owner: for sessions they are `session.Target`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Generic, TypeVar, cast

from mypy_extensions import i64

# What is remembered: so many topics and so many entries; one that was made of several is more.
_ROUTES_MAX: Final = 100_000
_ROUTED_ENTRIES_MAX: Final = 1 << 20
_ROUTE_TOPIC_BYTES_MAX: Final = 256  # longer topics are matched anew: what is remembered stays small
_LOOKS: Final = 8  # levels looked at, or filters found, that cost as much as a delivery
_PLUS: Final = b"+"
_HASH: Final = b"#"


class Entry:
    """What a tree holds under a filter, on behalf of its holder: one for each filter and holder."""

    def holder(self) -> object:
        """Return whose entry this is."""
        raise NotImplementedError

    def weight(self) -> i64:
        """Return what it costs to remember this entry, in single entries."""
        return 1


E = TypeVar("E", bound=Entry)


def memory_of(topic_filter: str) -> i64:
    """Return about how many bytes a subscription to this filter takes: filters with a wildcard have a node for each
    level."""
    taken: i64 = 300 + 2 * len(topic_filter)
    if "+" in topic_filter or "#" in topic_filter:
        taken += 350 * (topic_filter.count("/") + 1)
    return taken


class _Node:
    """A level of the tree. `here` are filters that end at this level, `rest` those that end in `#` below it.

    Most levels of a large fleet have one of the three: the others are None, so that a match among a million touches
    nothing that is not there."""

    def __init__(self) -> None:
        self.children: dict[bytes, _Node] | None = None
        self.here: dict[object, Entry] | None = None
        self.rest: dict[object, Entry] | None = None

    def child(self, level: bytes) -> _Node | None:
        children = self.children
        return None if children is None else children.get(level)

    def grow(self, level: bytes) -> _Node:
        """Return the child of this name, made if it is not there."""
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
        """Take a child out of the node."""
        children = self.children
        if children is not None:
            del children[level]
            if not children:
                self.children = None

    def holders(self, rest: bool) -> dict[object, Entry]:
        """Return `rest` or `here`, made if it is not there."""
        found = self.rest if rest else self.here
        if found is None:
            found = {}
            if rest:
                self.rest = found
            else:
                self.here = found
        return found

    def remove(self, holder: object, rest: bool) -> bool:
        """Take a holder out of `rest` or `here`; False when it was not there."""
        found = self.rest if rest else self.here
        if found is None or found.pop(holder, None) is None:
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


class SubscriptionTree(Generic[E]):
    """Entries by topic filter. `merge` makes one of those that a holder has for the same topic."""

    def __init__(self, merge: Callable[[list[E]], E]) -> None:
        self._merge = merge
        self._single: dict[bytes, Entry] = {}  # under filters without wildcards that one holder has
        self._exact: dict[bytes, dict[object, Entry]] = {}  # ... that several have
        self._root: _Node = _Node()
        self._routes: dict[bytes, list[E]] = {}
        self._routed: i64 = 0  # entries in there, by their weight
        self.count: i64 = 0
        self.changes: i64 = 0  # a match that is remembered elsewhere holds as long as this stays
        self.worked: i64 = 0  # what matches have cost since `take_work`, in deliveries of a message

    def add(self, topic_filter: str, entry: E) -> bool:
        """Add or replace an entry; True when it is new. The filter is valid and not shared."""
        path = topic_filter.encode("utf-8")
        self.changes += 1
        if b"+" in path or b"#" in path:
            self._forget_all()
            holders = self._wildcard_holders(path)
        else:
            self._forget(path)
            found = self._exact.get(path)
            if found is None:
                return self._add_single(path, entry)
            holders = found
        holder = entry.holder()
        new = holder not in holders
        holders[holder] = entry
        self.count += new
        return new

    def _add_single(self, path: bytes, entry: E) -> bool:
        """Add an entry to a filter that has no other holder, as most filters of a fleet: it needs no dictionary."""
        held = self._single.get(path)
        if held is None or held.holder() is entry.holder():
            self._single[path] = entry
            self.count += held is None
            return held is None
        del self._single[path]
        self._exact[path] = {held.holder(): held, entry.holder(): entry}
        self.count += 1
        return True

    def _wildcard_holders(self, path: bytes) -> dict[object, Entry]:
        node = self._root
        for level in path.split(b"/"):
            if level == _HASH:
                return node.holders(True)
            node = node.grow(level)
        return node.holders(False)

    def remove(self, topic_filter: str, holder: object) -> bool:
        """Remove the holder's entry under this very filter; False when there was none."""
        path = topic_filter.encode("utf-8")
        self.changes += 1
        if b"+" in path or b"#" in path:
            removed = self._remove_wildcard(path, holder)
        else:
            removed = self._remove_exact(path, holder)
        self.count -= removed
        return removed

    def _remove_exact(self, path: bytes, holder: object) -> bool:
        self._forget(path)
        held = self._single.get(path)
        if held is not None:
            if held.holder() is not holder:
                return False
            del self._single[path]
            return True
        holders = self._exact.get(path)
        if holders is None or holders.pop(holder, None) is None:
            return False
        if not holders:
            del self._exact[path]
        return True

    def _remove_wildcard(self, path: bytes, holder: object) -> bool:
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
        if not node.remove(holder, rest):
            return False
        for parent, level in reversed(trail):
            if not node.empty():
                break
            parent.prune(level)
            node = parent
        return True

    def match(self, topic: bytes) -> list[E]:
        """Return the entries of `topic`, one per holder. The list is shared: do not change it."""
        route = self._routes.get(topic)
        if route is None:
            route = self._match(topic)
            if len(topic) <= _ROUTE_TOPIC_BYTES_MAX:
                self._remember(topic, route)
        return route

    def take_work(self) -> i64:
        """Return what matches have cost since the last call, in deliveries of a message: those that were remembered
        cost nothing."""
        work = self.worked
        self.worked = 0
        return work

    def _remember(self, topic: bytes, route: list[E]) -> None:
        weight = _weight(route)
        if len(self._routes) >= _ROUTES_MAX or self._routed + weight > _ROUTED_ENTRIES_MAX:
            self._forget_all()
        self._routes[topic] = route
        self._routed += weight

    def _forget(self, topic: bytes) -> None:
        route = self._routes.pop(topic, None)
        if route is not None:
            self._routed -= _weight(route)

    def _forget_all(self) -> None:
        self._routes.clear()
        self._routed = 0

    def _match(self, topic: bytes) -> list[E]:
        found: list[Entry] = []
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
            return cast("list[E]", found)
        self.worked += len(found) // _LOOKS
        by_holder: dict[object, list[Entry]] = {}
        for entry in found:
            holder = entry.holder()
            held = by_holder.get(holder)
            if held is None:
                by_holder[holder] = [entry]
            else:
                held.append(entry)
        groups = [cast("list[E]", held) for held in by_holder.values()]
        return [held[0] if len(held) == 1 else self._merge(held) for held in groups]


def _weight(route: list[E]) -> i64:
    """Return how many entries a route counts as."""
    found: i64 = 0
    for entry in route:
        found += entry.weight()
    return found


def _descend(children: dict[bytes, _Node], level: bytes, hidden: bool, below: list[_Node]) -> None:
    """Add the nodes under this level of a topic to `below`. `hidden`: + does not match it [MQTT-4.7.2-1]."""
    child = children.get(level)
    if child is not None:
        below.append(child)
    if not hidden:
        child = children.get(_PLUS)
        if child is not None:
            below.append(child)


def _collect(root: _Node, levels: list[bytes], dollar: bool, found: list[Entry]) -> i64:
    """Collect the entries of every filter that matches; return how many levels of the tree were looked at. A list of
    nodes per level instead of recursion: filters may be deep."""
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
