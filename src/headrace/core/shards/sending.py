"""The sending side of a stream: what one shard's journal holds for another, on one wire.

A sender is *live* when everything durable has been looked at for it: then each message passes by as it takes effect.
What it has no credit for it *owes*: it notes the offset, and fetches the message, which the journal has in memory, once
the other side has granted more; so it does while far too much waits to leave on the link, of whatever stream. When it
owes too many it *lags*: then it reads from the journal, some records in each pass, from the offset that it has come to.
To look at a record again costs several times what it costs to send it when it passes by, so a sender that lags for want
of a moment's credit would not catch up with publishers that go on: those wait while it falls behind.

Copies are of messages that clients published here; copies of other shards go no further.
"""

from __future__ import annotations

from collections import deque
from typing import Final

from mypy_extensions import i64

from headrace.core.homes import Homes
from headrace.core.ports.journal import NOT_NOW
from headrace.core.ports.link import Crowd
from headrace.core.ports.queue_reader import QueueReader
from headrace.core.ports.waiting import QueueOwner
from headrace.core.records.message import Message, copy_of
from headrace.core.records.record import FLAG_FRAME, FLAG_QOS, FLAG_RETAIN, KIND_MESSAGE
from headrace.core.shards.peer import Copied, Looked, Passed, Wire, weight_of
from headrace.core.shards.queue_port import QueuePort
from headrace.core.shards.routes import Routes
from headrace.core.shards.stream_settings import StreamSettings
from headrace.core.state.queue import reference

LITTLE: Final = 4  # times the messages that a sender may owe: for more records nobody waits


class Sender(QueueOwner):
    """The stream to one shard, on one wire. `slot` holds the routes that were announced on it. `unread`: what is next
    cannot be read now, and nothing is read until somebody says so."""

    def __init__(
        self,
        wire: Wire,
        source: int,
        shard: int,
        slot: int,
        homes: Homes,
        queues: QueuePort,
        settings: StreamSettings,
    ) -> None:
        self.wire = wire
        self._homes = homes
        self._queues = queues
        self.shard = shard
        self.slot = slot
        self.following = False
        self.greeted = False  # groups are spoken of
        self.live = False
        self.unread = False
        self.copies = 0  # sent
        self._source = source
        self._owed_max: i64 = settings.owed_max
        self._crowded_at: i64 = settings.crowded_at
        self._crowded_ms_max: i64 = settings.crowded_ms_max
        self._owed: deque[int] = deque()  # live: offsets of what it wants and has no credit for, oldest first
        self._at: i64 = 0  # lagging: the next offset to be looked at
        self._outrun = False  # and it does not catch up: publishers wait
        self._behind: i64 = 0  # records, when that was looked at last
        self._behind_at_first: i64 = 0  # and when it was found that it does not catch up
        self._said: i64 = 0  # everything below it the other side knows to be looked at
        self._left: i64 = 0  # bytes that may be sent, below 0 by the last message at most
        self._granted: i64 = 0
        self._granted_before: i64 = 0  # when was asked last whether it starves
        self.crowd = Crowd()  # publishers that wait until less is owed
        # When somebody might first have waited since more was granted; -1: nobody has.
        self._short_ms: i64 = -1
        self._crowd_granted: i64 = 0  # what was granted when the crowd began
        self._crowd_owed: i64 = -1  # and the newest that was owed; -1: nothing was

    def follow(self, offset: i64, granted: i64) -> None:
        """Begin at an offset of the journal."""
        self.following = True
        self.live = self._outrun = self.unread = False
        self._owed.clear()
        self._at = self._said = offset
        self.grant(granted)

    def grant(self, granted: i64) -> None:
        """Note how many bytes may be sent in all."""
        self._short_ms = -1
        if granted > self._granted:
            self._left += granted - self._granted
            self._granted = granted

    @property
    def reads(self) -> bool:
        """Return whether the sender has something to read from the journal now."""
        return self.waits and not self.unread and self._may_send

    @property
    def _may_send(self) -> bool:
        """Return whether there is credit, and what was sent has not piled up on its way out."""
        return self._left > 0 and not self.wire.full

    def passes(self, message: Message) -> bool:
        """Send a durable message that the other shard wants: it takes effect here. Return False when so many are owed
        that whoever publishes had better wait."""
        if self.live:
            if not self._owed and self._may_send:
                self._copy(message)
                return True
            if len(self._owed) < self._owed_max:
                message.waits = True  # for this sender: it stays in memory
                self._owed.append(message.offset)
                return len(self._owed) < self._crowded_at
            self.fall_back(message.offset)
        return not self._outrun

    def passes_live(self, message: Message) -> bool:
        """Send a message at QoS 0 that the other shard wants; return False when it is dropped."""
        if not self.live or self._owed or not self._may_send:
            return False
        self.wire.say(Passed(message.of_nobody(message.topic, message.flags)))
        self._left -= weight_of(message)
        return True

    def is_crowded(self, now_ms: i64) -> bool:
        """Return whether publishers wait, or go on to: much is owed to a shard that takes more all the time. Whoever has
        not granted anything while they might have waited for some time stands still, and nobody waits for that."""
        if not self.live and not self._outrun:
            return False
        if self._short_ms < 0:
            self._short_ms = now_ms
        if now_ms - self._short_ms > self._crowded_ms_max:
            return False
        return not self.live or not self._may_send or len(self._owed) > self._crowded_at // 4

    @property
    def waits(self) -> bool:
        """Return whether there is something that was not sent yet."""
        return self.following and (not self.live or len(self._owed) > 0)

    def starves(self) -> bool:
        """Return whether something waits for credit, and none was granted since this was asked last."""
        before, self._granted_before = self._granted_before, self._granted
        return self.waits and self._left <= 0 and before == self._granted

    def note_lag(self, end: i64) -> None:
        """Note, from time to time, whether publishers outrun a sender that lags: they wait then until it has caught up by
        half. Where it is far behind, since the other shard was away, nobody waits."""
        behind: i64 = 0 if self.live or not self.following else end - self._at
        if self._outrun:
            self._outrun = 2 * behind > self._behind_at_first
        elif self._crowded_at <= behind <= LITTLE * self._owed_max and behind > self._behind:
            self._outrun = True
            self._behind_at_first = behind
        self._behind = behind

    def gather(self, offset: i64) -> None:
        """Let publishers wait, until much of what is owed now has been sent, all of it at most. `offset`: of the message
        for which they do, if it has one."""
        if not self.crowd.crowded:
            self.crowd.crowded = True
            self._crowd_granted = self._granted
            self._crowd_owed = self._owed[-1] if self._owed else offset

    @property
    def has_paid(self) -> bool:
        """Return whether all is sent that was owed when the crowd began: what is owed now has come from others since, and
        those who wait have their turn."""
        if self._granted <= self._crowd_granted:
            return False
        if not self.live:
            return self._at > self._crowd_owed
        return not self._owed or self._owed[0] > self._crowd_owed

    def read(self, reader: QueueReader, routes: Routes, end: i64, looks: i64) -> bool:
        """Send what is owed, then look at the next `looks` records of the journal below `end`, all of which have taken
        effect; True if there are more that can be read now."""
        if self._owed:
            self._pay(reader)
            return False
        while self._at < end and looks > 0 and self._may_send:
            found = reader.fetch(self, self._at, reference(self._at, 0, False, 1))
            if isinstance(found, Message):
                if self._wants(found, routes):
                    self._copy(found)
            elif found is NOT_NOW:
                self.unread = True
                return False
            self._at += 1
            looks -= 1
        if self._at >= end:
            self.live = True
            return False
        return self._may_send

    def _pay(self, reader: QueueReader) -> None:
        """Send what is owed, as far as the credit goes and it can be read now."""
        owed = self._owed
        while owed and self._may_send:
            found = reader.fetch(self, owed[0], reference(owed[0], 0, False, 1))
            if found is NOT_NOW:
                self.unread = True
                return
            if isinstance(found, Message):
                self._copy(found)
            owed.popleft()

    def _wants(self, message: Message, routes: Routes) -> bool:
        """Return whether a record of the journal is a message that was published here, for the other shard."""
        if message.kind != KIND_MESSAGE or message.flags & (FLAG_QOS | FLAG_RETAIN) == 0:
            return False
        if message.flags & FLAG_RETAIN and home_of(message, self._homes) == self.shard:
            return True
        if self._begins(message) and self._queues.may_have(message):
            return True
        return self.slot in routes.match(message.tenant, message.topic)

    def fall_back(self, offset: i64) -> None:
        """Read what is owed, and what takes effect now, at this offset, from the journal."""
        if self.live:
            self.live = False
            self._at = self._owed[0] if self._owed else offset
            self._owed.clear()

    def look_again(self) -> None:
        """Look at everything behind the position again: there is one more route, which what has passed by since was not
        compared with."""
        if self._owed:
            self.fall_back(self._owed[-1])

    def position(self, end: i64) -> i64:
        """Return the offset that the sender has come to: all below it that the other shard wants is sent. `end`: that of
        what has taken effect, where a live one is that owes nothing."""
        if self._owed:
            return self._owed[0]
        return end if self.live else self._at

    def look(self, end: i64) -> None:
        """Say how far the sender has looked, if that is further than what was said. `end`: how far a live sender
        has."""
        looked = self.position(end)
        if self.following and looked > self._said:
            self._said = looked
            self.wire.say(Looked(looked))

    def _copy(self, message: Message) -> None:
        if self._begins(message):
            copy = copy_of(message, self._source, message.offset)
            self.wire.say(Copied(copy, True, self._queues.user_of(message)))
        else:
            self.wire.say_copied(message, self._source)
        self._left -= weight_of(message)  # what raises was not sent, and costs nothing
        self._said = message.offset + 1
        self.copies += 1

    def _begins(self, message: Message) -> bool:
        """Return whether a device has published the message, to a topic that is at home in the other shard."""
        return message.flags & FLAG_FRAME != 0 and home_of(message, self._homes) == self.shard


def home_of(message: Message, homes: Homes) -> int:
    """Return the shard that keeps a retained message, and has the queue of its topic."""
    return homes.of_retained(message.tenant.encode("utf-8"), message.topic)
