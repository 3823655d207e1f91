"""Retained messages of one tenant: the last one of each topic, in journal order (P6)."""

from __future__ import annotations

import heapq
from typing import Final

from mypy_extensions import mypyc_attr

from headrace.core.records.message import Message
from headrace.core.state.retained_homes import RetainedHome
from headrace.core.state.retained_tree import RetainedTree, RetainedWalk

# Of a topic's levels LEVELS_FREE are thought to be part of its message; what there is beyond takes memory of its own.
LEVELS_FREE: Final = 8
LEVEL_BYTES: Final = 400


@mypyc_attr(allow_interpreted_subclasses=True)
class RetainedListener:
    """Hears of retained messages of one tenant, and of deletes, when they are appended."""

    def written(self, message: Message) -> None:
        """Note that a retained message was appended, wherever its topic is at home."""
        raise NotImplementedError


class RetainedStore:
    """The retained messages of one tenant, topic -> message. Messages are also found by offset, since session queues
    refer to them by it."""

    def __init__(self) -> None:
        self._by_topic: dict[bytes, Message] = {}
        self._by_offset: dict[int, Message] = {}
        self._tree = RetainedTree()
        self._expiring: list[tuple[int, int, bytes]] = []  # heap: due, offset, topic; may name replaced ones
        # On their way through the journal, with how many messages: topics that get one, topics that lose theirs.
        self._arriving: dict[bytes, int] = {}
        self._leaving: dict[bytes, int] = {}
        self._new = 0  # of those arriving: topics of which nothing is kept
        self._arriving_bytes = 0
        self.touched: set[bytes] = set()  # set, replaced or removed since the newest snapshot
        self.bytes = 0
        # Of the other shards of the node, when they were asked last: topics with a message, and their memory.
        self.messages_elsewhere = 0
        self.memory_elsewhere = 0
        self.home: RetainedHome | None = (
            None  # where there are other shards: only what is at home here is kept
        )
        self.listener: RetainedListener | None = None  # while somebody has to know

    def __len__(self) -> int:
        return len(self._by_topic)

    def get(self, topic: bytes) -> Message | None:
        return self._by_topic.get(topic)

    def at(self, offset: int) -> Message | None:
        """Return the retained message with this journal offset, while it is the one of its topic."""
        return self._by_offset.get(offset)

    def is_home(self, topic: bytes) -> bool:
        """Return whether the retained message of a topic is kept in this shard."""
        return self.home is None or self.home.has(topic)

    def has_room(self, message: Message, messages_max: int, bytes_max: int) -> bool:
        """Return whether a message may be kept within these limits, 0 is none; that is for its home to say."""
        return self.has_room_for(message.topic, message.size, len(message.payload), messages_max, bytes_max)

    def has_room_for(
        self, topic: bytes, size: int, payload_size: int, messages_max: int, bytes_max: int
    ) -> bool:
        """Return whether a retained message of `size` bytes may be kept. A delete always may, and so may what is no
        larger than the message that it replaces: shards that did not know of each other may have gone beyond a limit."""
        home = self.home
        if payload_size == 0 or (home is not None and not home.has(topic)):
            return True
        old = self._by_topic.get(topic)
        if old is not None and size <= old.size:
            return True
        if messages_max and old is None and self.topics_soon(topic) + self.messages_elsewhere > messages_max:
            return False
        return not bytes_max or self.memory_soon(topic, size) + self.memory_elsewhere <= bytes_max

    def arrive(self, message: Message) -> None:
        """Note that a retained message was appended, which `apply` gets when it is durable."""
        topic = message.topic
        home = self.home
        if self.listener is not None:
            self.listener.written(message)
        if home is not None and not home.has(topic):
            home.passes(message)
            return
        if not message.payload:
            self._leaving[topic] = self._leaving.get(topic, 0) + 1
            return
        before = self._arriving.get(topic, 0)
        self._arriving[topic] = before + 1
        self._arriving_bytes += message.size
        if before == 0 and topic not in self._by_topic:
            self._new += 1

    def _arrived(self, message: Message) -> None:
        """Note that a message has taken effect, or is about to."""
        topic = message.topic
        counts = self._arriving if message.payload else self._leaving
        left = counts.get(topic, 0) - 1
        if left < 0:
            return  # it was replayed
        if left:
            counts[topic] = left
        else:
            del counts[topic]
        if message.payload:
            self._arriving_bytes -= message.size
            if left == 0 and topic not in self._by_topic:
                self._new -= 1

    def is_arriving(self, topic: bytes) -> bool:
        """Return whether something newer for this topic, or its removal, is on its way."""
        return topic in self._arriving or topic in self._leaving

    def topics_soon(self, topic: bytes) -> int:
        """Return how many topics have a retained message once all that is on its way and one for `topic` are kept."""
        known = topic in self._by_topic or topic in self._arriving
        return len(self._by_topic) + self._new + (not known)

    def memory_soon(self, topic: bytes, size: int) -> int:
        """Return about how much memory messages and levels will take if the message on this topic has `size` bytes."""
        old = self._by_topic.get(topic)
        beyond = self._levels_beyond()
        if old is None:
            beyond += max(0, topic.count(b"/") + 1 - LEVELS_FREE)
        else:
            size -= old.size
        return self.bytes + self._arriving_bytes + size + LEVEL_BYTES * max(0, beyond)

    def memory(self) -> int:
        """Return about how much memory messages and levels take, with what is on its way."""
        return self.bytes + self._arriving_bytes + LEVEL_BYTES * max(0, self._levels_beyond())

    def _levels_beyond(self) -> int:
        return self._tree.levels - LEVELS_FREE * len(self._by_topic)

    def apply(self, message: Message) -> None:
        """Keep `message` for its topic; an empty payload deletes [MQTT-3.3.1-6]. Older than what is kept: ignored."""
        if self._arriving or self._leaving:
            self._arrived(message)
        self.keep(message)

    def keep(self, message: Message) -> None:
        """Keep a message that `apply` was called for and failed with: whatever it had done, all of it is done then."""
        if not self.is_home(message.topic):
            return
        self.touched.add(message.topic)
        old = self._by_topic.get(message.topic)
        if old is not None and old.offset > message.offset:
            return
        if message.payload:
            self._tree.put(message.topic, message)
            self._by_offset[message.offset] = message
            if message.message_expiry_s >= 0:
                self._note_expiry(message)
            if old is None and message.topic in self._arriving:
                self._new -= 1
            self._by_topic[message.topic] = message
            self.bytes += message.size
        elif old is not None:
            self._forget(message.topic)
        if old is not None and old is not message:
            self.bytes -= old.size
            self._by_offset.pop(old.offset, None)

    def _note_expiry(self, message: Message) -> None:
        due_us = message.timestamp_us + message.message_expiry_s * 1_000_000
        heapq.heappush(self._expiring, (due_us, message.offset, message.topic))
        if len(self._expiring) > 1024 + 2 * len(self._by_offset):
            self._expiring = [entry for entry in self._expiring if entry[1] in self._by_offset]
            heapq.heapify(self._expiring)

    def expire_later(self, message: Message) -> None:
        """Put back a message that was taken as expired when what was to be done about it failed."""
        self._note_expiry(message)

    def take_expired(self, now_us: int, count: int) -> list[Message]:
        """Return up to `count` messages whose expiry has passed, each named once; `remove` is what takes them out."""
        found: list[Message] = []
        while self._expiring and len(found) < count and self._expiring[0][0] <= now_us:
            message = self._by_offset.get(heapq.heappop(self._expiring)[1])
            if message is not None and message.expired(now_us):
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
        if topic in self._arriving:
            self._new += 1
        self._tree.remove(topic)

    def walk(self, topic_filter: str) -> RetainedWalk:
        """Return a walk over the retained messages that match a filter, in no particular order, to be taken in
        pieces."""
        return self._tree.walk(topic_filter)

    def walk_all(self) -> RetainedWalk:
        """Return a walk over all retained messages, to be taken in pieces while they come and go."""
        return self._tree.walk_all()

    def messages(self) -> list[Message]:
        """Yield all retained messages at once, for whoever holds nobody up."""
        return list(self._by_topic.values())

    def lowest_offset(self) -> int:
        """Return the oldest journal offset that holds a retained message, -1 if none."""
        return min(self._by_offset, default=-1)
