"""Retained messages of one tenant: the last one of each topic, in journal order (P6)."""

from __future__ import annotations

import heapq

from headrace.core.message import Message


class RetainedStore:
    """Topic -> message. Messages are also found by offset, since session queues refer to them by it."""

    def __init__(self) -> None:
        self._by_topic: dict[bytes, Message] = {}
        self._by_offset: dict[int, Message] = {}
        self._root = _Level()
        self._expiring: list[tuple[int, int, bytes]] = []  # heap: due, offset, topic; may name replaced ones
        self.arriving: set[bytes] = set()  # new topics on their way through the journal, for the limit
        self.touched: set[bytes] = set()  # set, replaced or removed since the newest snapshot
        self.bytes = 0

    def __len__(self) -> int:
        return len(self._by_topic)

    def get(self, topic: bytes) -> Message | None:
        return self._by_topic.get(topic)

    def at(self, offset: int) -> Message | None:
        """The retained message with this journal offset, while it is the one of its topic."""
        return self._by_offset.get(offset)

    def apply(self, message: Message) -> None:
        """Keep `message` for its topic; an empty payload deletes [MQTT-3.3.1-6]. Older than what is kept: ignored."""
        if self.arriving:
            self.arriving.discard(message.topic)
        self.touched.add(message.topic)
        old = self._by_topic.get(message.topic)
        if old is not None:
            if old.offset > message.offset:
                return
            self.bytes -= old.size
            self._by_offset.pop(old.offset, None)
        if message.payload:
            self._by_topic[message.topic] = message
            self._by_offset[message.offset] = message
            self.bytes += message.size
            if message.message_expiry_s >= 0:
                self._note_expiry(message)
            if old is None:
                self._root.add(message.topic)
        elif old is not None:
            self._forget(message.topic)

    def _note_expiry(self, message: Message) -> None:
        due_us = message.timestamp_us + message.message_expiry_s * 1_000_000
        heapq.heappush(self._expiring, (due_us, message.offset, message.topic))
        if len(self._expiring) > 1024 + 2 * len(self._by_offset):
            self._expiring = [entry for entry in self._expiring if entry[1] in self._by_offset]
            heapq.heapify(self._expiring)

    def take_expired(self, now_us: int, count: int) -> list[Message]:
        """Up to `count` messages whose expiry has passed, each named once; `remove` is what takes them out."""
        found: list[Message] = []
        while self._expiring and len(found) < count and self._expiring[0][0] <= now_us:
            message = self._by_offset.get(heapq.heappop(self._expiring)[1])
            if message is not None:
                found.append(message)
        return found

    def remove(self, topic: bytes, offset: int) -> bool:
        """Remove the message of `topic` if it is still the one at `offset` (expiry)."""
        old = self._by_topic.get(topic)
        if old is None or old.offset != offset:
            return False
        self.touched.add(topic)
        self.bytes -= old.size
        self._by_offset.pop(offset, None)
        self._forget(topic)
        return True

    def _forget(self, topic: bytes) -> None:
        del self._by_topic[topic]
        self._root.remove(topic)

    def matching(self, topic_filter: str) -> list[Message]:
        """The retained messages that match a filter, oldest first."""
        path = topic_filter.encode("utf-8")
        if b"+" not in path and b"#" not in path:
            message = self._by_topic.get(path)
            return [message] if message is not None else []
        topics: list[bytes] = []
        _walk(self._root, path.split(b"/"), topics)
        found = [self._by_topic[topic] for topic in topics]
        found.sort(key=_offset)
        return found

    def messages(self) -> list[Message]:
        return list(self._by_topic.values())

    def lowest_offset(self) -> int:
        """The oldest journal offset that holds a retained message, -1 if none."""
        return min(self._by_offset, default=-1)


class _Level:
    """A level of the topic tree. `ends` says that a retained topic ends here."""

    def __init__(self) -> None:
        self.children: dict[bytes, _Level] | None = None
        self.ends = False

    def add(self, topic: bytes) -> None:
        level = self
        for name in topic.split(b"/"):
            if level.children is None:
                level.children = {}
            child = level.children.get(name)
            if child is None:
                child = _Level()
                level.children[name] = child
            level = child
        level.ends = True

    def remove(self, topic: bytes) -> None:
        trail: list[tuple[_Level, bytes]] = []
        level = self
        for name in topic.split(b"/"):
            if level.children is None or name not in level.children:
                return
            trail.append((level, name))
            level = level.children[name]
        level.ends = False
        for parent, name in reversed(trail):
            children = parent.children
            if children is None or children[name].ends or children[name].children:
                break
            del children[name]


def _walk(root: _Level, names: list[bytes], found: list[bytes]) -> None:
    """The topics below `root` that match; the lists replace recursion, since topics may be deep."""
    at: list[tuple[_Level, bytes]] = [(root, b"")]
    for depth, name in enumerate(names):
        if name == b"#":
            for level, prefix in at:
                _everything(level, prefix, depth == 0, found)
            return
        below: list[tuple[_Level, bytes]] = []
        for level, prefix in at:
            if level.children is None:
                continue
            if name != b"+":
                child = level.children.get(name)
                if child is not None:
                    below.append((child, _join(prefix, name, depth)))
                continue
            for child_name, child in level.children.items():
                if depth or not child_name.startswith(b"$"):  # [MQTT-4.7.2-1]
                    below.append((child, _join(prefix, child_name, depth)))
        at = below
    found.extend([prefix for level, prefix in at if level.ends])


def _everything(top: _Level, prefix: bytes, at_root: bool, found: list[bytes]) -> None:
    """All topics at and below a level: `a/#` matches `a` too (4.7.1.2)."""
    at: list[tuple[_Level, bytes, bool]] = [(top, prefix, at_root)]
    while at:
        level, path, root = at.pop()
        if level.ends:
            found.append(path)
        for name, child in (level.children or {}).items():
            if root and name.startswith(b"$"):  # [MQTT-4.7.2-1]
                continue
            at.append((child, name if root else path + b"/" + name, False))


def _join(prefix: bytes, name: bytes, depth: int) -> bytes:
    return name if depth == 0 else prefix + b"/" + name


def _offset(message: Message) -> int:
    return message.offset
