"""The levels of retained topics, and the walk over those that a filter matches, a bounded piece at a time.

A walk may lie still between two pieces while topics come and go: whatever was there when it began and still is gets found
once, what came later may or may not be.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from headrace.core.records.message import Message

VISITS_MAX: Final = 4096  # levels looked at in one piece of a walk, whether or not something was found
_WIDE: Final = 128  # children that a walk may copy at once


class _Level:
    """A level of the tree. A wide one keeps its children in `order` too, each at its `place` for as long as it lives, so
    that a walk can stop between any two of them; places of children that are gone (`free`) are used again."""

    def __init__(self, hidden: bool) -> None:
        self.hidden = hidden  # a first level that starts with $ [MQTT-4.7.2-1]
        self.message: Message | None = None
        self.children: dict[bytes, _Level] | None = None
        self.order: list[_Level | None] | None = None
        self.free: list[int] | None = None
        self.place: int = -1

    def child(self, name: bytes) -> _Level | None:
        children = self.children
        return None if children is None else children.get(name)

    def grow(self, name: bytes, hidden: bool) -> _Level:
        """Add the child `name`."""
        child = _Level(hidden)
        children = self.children
        if children is None:
            children = {}
            self.children = children
        children[name] = child
        order = self.order
        if order is not None:
            self._place(order, child)
        elif len(children) > _WIDE:
            self.order = list(children.values())
            for place, member in enumerate(children.values()):
                member.place = place
        return child

    def _place(self, order: list[_Level | None], child: _Level) -> None:
        if self.free:
            child.place = self.free.pop()
            order[child.place] = child
        else:
            child.place = len(order)
            order.append(child)

    def prune(self, name: bytes) -> None:
        """Remove the child `name`."""
        children = self.children
        if children is None:
            return
        place = children.pop(name).place
        if not children:
            self.children = self.order = self.free = None
        elif self.order is not None:
            self.order[place] = None
            if self.free is None:
                self.free = []
            self.free.append(place)


class RetainedTree:
    """Retained messages by the levels of their topics."""

    def __init__(self) -> None:
        self._root = _Level(False)
        self.levels = 0  # of all topics, each counted once

    def put(self, topic: bytes, message: Message) -> None:
        """Keep `message`, in place of the one that the topic has."""
        level = self._root
        for depth, name in enumerate(topic.split(b"/")):
            below = level.child(name)
            if below is None:
                below = level.grow(name, depth == 0 and name.startswith(b"$"))
                self.levels += 1
            level = below
        level.message = message

    def remove(self, topic: bytes) -> None:
        trail: list[tuple[_Level, bytes]] = []
        level = self._root
        for name in topic.split(b"/"):
            below = level.child(name)
            if below is None:
                return
            trail.append((level, name))
            level = below
        level.message = None
        for parent, name in reversed(trail):
            below = parent.child(name)
            if below is None or below.message is not None or below.children is not None:
                return
            parent.prune(name)
            self.levels -= 1

    def walk(self, topic_filter: str) -> RetainedWalk:
        return RetainedWalk(self._root, topic_filter.encode("utf-8").split(b"/"), False)

    def walk_all(self) -> RetainedWalk:
        """Return a walk over every message, those that no wildcard finds too."""
        return RetainedWalk(self._root, [b"#"], True)


class _Frame:
    """The children of one level on their way through a walk. `depth` is the part of the filter that they are held to."""

    def __init__(self, level: _Level, depth: int, top: bool) -> None:
        self.level = level
        self.depth = depth
        self.top = top
        self.at: int = 0
        self.copied: list[_Level] | None = None
        if level.order is None:
            self.copied = [] if level.children is None else list(level.children.values())

    def exhausted(self) -> bool:
        if self.copied is not None:
            return self.at >= len(self.copied)
        order = self.level.order
        return order is None or self.at >= len(order)

    def step(self) -> _Level | None:
        """Return the next child, None where one was."""
        at = self.at
        self.at = at + 1
        if self.copied is not None:
            return self.copied[at]
        order = self.level.order
        return None if order is None else order[at]


class RetainedWalk:
    """The messages that match one filter. `done` after the last piece; `visits` counts the levels looked at so far."""

    def __init__(self, root: _Level, names: list[bytes], hidden: bool) -> None:
        self._names = names
        self._hidden = hidden  # whether wildcards find what starts with $
        self._root: _Level | None = root
        self._frames: list[_Frame] = []
        self.done = False
        self.visits: int = 0

    def take(self, count: int) -> list[Message]:
        """Return at most `count` messages, after looking at VISITS_MAX levels at most; fewer say nothing about the
        rest."""
        found: list[Message] = []
        root = self._root
        if root is not None:
            self._root = None
            self._enter(root, 0, not self._hidden, found)
        end = self.visits + VISITS_MAX
        frames = self._frames
        while frames and len(found) < count and self.visits < end:
            frame = frames[-1]
            if frame.exhausted():
                frames.pop()
                continue
            self.visits += 1
            level = frame.step()
            if level is not None and not (frame.top and level.hidden):
                self._enter(level, frame.depth, False, found)
        self.done = not frames
        return found

    def _enter(self, level: _Level, depth: int, top: bool, found: list[Message]) -> None:
        """Enter a level that matches the filter as far as `depth`: take its message, or line up its children."""
        names = self._names
        while depth < len(names):
            name = names[depth]
            if name == b"#":
                self._frames.append(_Frame(level, depth, top))
                break  # `a/#` matches `a` too (4.7.1.2)
            if name == b"+":
                self._frames.append(_Frame(level, depth + 1, top))
                return
            below = level.child(name)
            if below is None:
                return
            level = below
            depth += 1
            top = False
        if level.message is not None:
            found.append(level.message)
