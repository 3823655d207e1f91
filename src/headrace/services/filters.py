"""Rules as a tree of topic levels: which rights a topic has, and which of them overlap or cover a filter (section 4.7).

Every question is one walk, level by level, over the rules that still fit, so it costs at most as many steps as the rules
have levels, however long the topic or the filter is. Levels of a rule may hold marks, `%c` for the client id and `%u` for
the user name; they are filled in while walking, so that one tree serves all clients.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from headrace.mqtt.topics import split_share

_MARK = re.compile("%[cu]")
_BEYOND_A_LEVEL = re.compile("[+#/]")
_CLIENT_ID, _USER = 1, 2
_BOTH = 4  # combinations of names that may be filled in


class Names:
    """What one client's name and user name fill in. A name that is empty, or could mean more than one level of that very
    name (it holds `+`, `#` or `/`), fills in nothing, and every level with its mark is void."""

    __slots__ = ("_filled", "_values", "usable")

    def __init__(self, client_id: str, user: str | None) -> None:
        self._values = {"%c": client_id, "%u": user or ""}
        self.usable = (_CLIENT_ID if _fills_a_level(client_id) else 0) | (
            _USER if _fills_a_level(user or "") else 0
        )
        self._filled: dict[str, str] = {}

    def fill(self, level: str) -> str:
        """Return a level with its marks replaced, all at once: what a name brings in is no mark again."""
        found = self._filled.get(level)
        if found is None:
            found = self._filled[level] = _MARK.sub(lambda mark: self._values[mark[0]], level)
        return found


def _fills_a_level(name: str) -> bool:
    return bool(name) and _BEYOND_A_LEVEL.search(name) is None


class _Node:
    """The rules that begin with the same levels. `here`: rights of those that end, `below`: of those that go on with #;
    `under`: of all of them, by what names are usable."""

    __slots__ = ("below", "exact", "here", "marked", "plus", "under")

    def __init__(self) -> None:
        self.exact: dict[str, _Node] = {}
        self.marked: list[tuple[str, int, _Node]] = []  # a level with marks, which they are
        self.plus: _Node | None = None
        self.here = 0
        self.below = 0
        self.under = [0] * _BOTH

    def next(self, level: str, marked: bool) -> _Node:
        if level == "+":
            self.plus = self.plus or _Node()
            return self.plus
        if not marked or _MARK.search(level) is None:
            return self.exact.setdefault(level, _Node())
        for known, _, node in self.marked:
            if known == level:
                return node
        wanted = (_CLIENT_ID if "%c" in level else 0) | (_USER if "%u" in level else 0)
        self.marked.append((level, wanted, _Node()))
        return self.marked[-1][2]


class RuleTree:
    """Topic filters, each with rights in bits. Filters are never looked into for a share name: `$share` is a level."""

    def __init__(self) -> None:
        self._root = _Node()
        self._levels_max = 0
        self.marks_client_id = False
        self.rights = 0  # of all rules

    def add(self, topic_filter: str, rights: int, *, marked: bool) -> None:
        """Add a rule. `marked`: `%c` and `%u` in it are marks."""
        levels = topic_filter.split("/")
        self._levels_max = max(self._levels_max, len(levels))
        self.marks_client_id |= marked and "%c" in topic_filter
        self.rights |= rights
        node, way, wanted = self._root, [self._root], 0
        for level in levels:
            if level == "#":
                break
            if marked and "%" in level:
                wanted |= (_CLIENT_ID if "%c" in level else 0) | (_USER if "%u" in level else 0)
            node = node.next(level, marked)
            way.append(node)
        if levels[-1] == "#":
            node.below |= rights
        else:
            node.here |= rights
        for passed in way:
            for usable in range(_BOTH):
                if wanted & ~usable == 0:
                    passed.under[usable] |= rights

    def of_topic(self, topic: str, names: Names) -> int:
        """Return the rights of all rules that match a topic name."""
        levels = topic.split("/", self._levels_max)  # no rule tells deeper levels apart
        hidden = topic.startswith("$")  # wildcards do not reach topics of the broker [MQTT-4.7.2-1]
        nodes, found = [self._root], 0
        for level in levels:
            ahead: list[_Node] = []
            for node in nodes:
                if not hidden:
                    found |= node.below
                    if node.plus is not None:
                        ahead.append(node.plus)
                exact = node.exact.get(level)
                if exact is not None:
                    ahead.append(exact)
                if node.marked:
                    ahead += _filled_in(node, level, names, node is self._root)
            nodes, hidden = ahead, False
            if not nodes:
                return found
        for node in nodes:
            found |= node.here | node.below
        return found

    def covering(self, topic_filter: str, names: Names) -> int:
        """Return the rights of rules each of which matches every topic that the filter matches."""
        hidden = topic_filter.startswith("$")
        nodes, found = [self._root], 0
        for level in topic_filter.split("/", self._levels_max):
            ahead: list[_Node] = []
            for node in nodes:
                if not hidden:
                    found |= node.below
                    if node.plus is not None and level != "#":
                        ahead.append(node.plus)
                if level not in ("+", "#"):
                    ahead += _named(node, level, names, node is self._root)
            nodes, hidden = ahead, False
            if not nodes:
                return found
        for node in nodes:
            found |= node.here | node.below
        return found

    def overlapping(self, topic_filter: str, names: Names) -> int:
        """Return the rights of rules that match some topic that the filter matches."""
        hidden = topic_filter.startswith("$")
        nodes, found = [self._root], 0
        for level in topic_filter.split("/", self._levels_max):
            if level == "#":
                return found | _all_under(nodes, names, first=nodes == [self._root])
            ahead: list[_Node] = []
            for node in nodes:
                if not hidden:
                    found |= node.below
                    if node.plus is not None:
                        ahead.append(node.plus)
                first = node is self._root
                ahead += _all_named(node, names, first) if level == "+" else _named(node, level, names, first)
            nodes, hidden = ahead, False
            if not nodes:
                return found
        for node in nodes:
            found |= node.here | node.below
        return found


def may_receive(
    trees: Sequence[RuleTree], names: Names, topic_filter: str, allowed: int, denied: int
) -> bool:
    """Return whether anything that a filter matches could be received by the rules of some trees, of which `allowed` and
    `denied` are the rights. A shared subscription needs all of it: one rule that allows it all, none that denies some."""
    group, wanted = split_share(topic_filter)
    whole = bool(group)
    return _any(trees, names, wanted, allowed, covering=whole) and not _any(
        trees, names, wanted, denied, covering=not whole
    )


def _any(trees: Sequence[RuleTree], names: Names, wanted: str, right: int, *, covering: bool) -> bool:
    """Return whether a rule about this right covers, or else overlaps, the filter."""
    for tree in trees:
        if tree.rights & right:
            ask = tree.covering if covering else tree.overlapping
            if ask(wanted, names) & right:
                return True
    return False


def _named(node: _Node, level: str, names: Names, first: bool) -> list[_Node]:
    """Return what follows by this very level."""
    found = _filled_in(node, level, names, first) if node.marked else []
    exact = node.exact.get(level)
    if exact is not None:
        found.append(exact)
    return found


def _filled_in(node: _Node, level: str, names: Names, first: bool) -> list[_Node]:
    """Return what follows by this level where marks are replaced."""
    found = []
    for template, wanted, then in node.marked:
        if (
            wanted & ~names.usable == 0
            and names.fill(template) == level
            and not _led_astray(template, level, first)
        ):
            found.append(then)
    return found


def _all_named(node: _Node, names: Names, first: bool) -> Iterator[_Node]:
    """Yield what follows by any level that `+` reaches."""
    for level, then in node.exact.items():
        if not (first and level.startswith("$")):
            yield then
    for template, wanted, then in node.marked:
        if wanted & ~names.usable == 0 and not (first and names.fill(template).startswith("$")):
            yield then


def _led_astray(template: str, filled: str, first: bool) -> bool:
    """Return whether a name would make a rule into one about topics of the broker."""
    return first and filled.startswith("$") and not template.startswith("$")


def _all_under(nodes: list[_Node], names: Names, *, first: bool) -> int:
    """Return the rights that a final # reaches."""
    found = 0
    for node in nodes:
        if not first:
            found |= node.under[names.usable]
            continue
        found |= node.below
        for then in _all_named(node, names, first):
            found |= then.under[names.usable]
        if node.plus is not None:
            found |= node.plus.under[names.usable]
    return found
