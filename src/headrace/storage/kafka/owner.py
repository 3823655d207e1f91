"""How a worker owns a shard whose journal is a partition: a state machine without I/O. Events in, actions out
(`actions`).

It owns by an OWNED that it has read, and has one record under way at a time. A record is confirmed when it is known
where it stands and that it takes effect there: the report says the offset that was expected, so nothing is between it
and what was read; or the partition was read up to it. What a report does not say, or says late, is found out by
reading, and what reading does not find for 5 s is given up with its producer: then the shard is owned anew, *in place*
as long as nobody else has owned it meanwhile, and what the log lacks of the entry is appended under the new epoch. What
the old producer has still under way is void behind the new OWNED (`log_fold`).

Every reading begins with the record that was known last, which must be as it was: Kafka's log is cut at its end alone, so
whatever it has lost, that record is gone or another one. The one thing that shows nowhere at once: an unclean election
loses records while we own, others fill up exactly to where our next one is expected, and its report has that offset. The
next reading shows it, after 5 s without work or at any doubt.

    stage        it                                            goes on with
    IDLE         was made                                      own
    READING      reads to the end, to own then                 the end, and advice that is at most 1 s old: CLAIMING
    CLAIMING     has an OWNED under way, and reads for it      OWNING; another's OWNED: ENDED; 5 s or an error: READING
    OWNING       appends                                       a report in doubt, or 5 s idle: LOOKING; an error: READING
    LOOKING      owns, and reads to know what stands there     OWNING; 5 s without the record: READING
    ENDED        has said why (Replaced, Stale, Lost)

Time is in seconds, as whoever drives it reads it, and never goes back; `on_time` is to be called every 0.1 s or so.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from enum import Enum
from typing import Final

from headrace.storage.kafka.actions import (
    Action,
    Append,
    Ask,
    Away,
    Back,
    Confirmed,
    Delete,
    Lost,
    Owns,
    Passed,
    Purge,
    Read,
    Replaced,
    Replay,
    Stale,
)
from headrace.storage.kafka.entry import BatchEntry, Entry, FloorEntry
from headrace.storage.kafka.envelope import NO_OWNER, Epoch, pack_owned
from headrace.storage.kafka.log_fold import (
    Floored,
    LogFold,
    Marked,
    MissingRecords,
    NewOwner,
    Taken,
    TakenPart,
    Verdict,
    Void,
)

REPORTED_WITHIN_S: Final = 5.0
FRESH_S: Final = 1.0  # the advice of the group, and what was read, when OWNED is appended
READ_AGAIN_S: Final = 0.1
ALIVE_S: Final = 8.0  # from an owner that has appended since nobody takes the shard
READ_ANEW_S: Final = 10.0  # a reading that gives nothing, and has not come to its end
IDLE_LOOK_S: Final = 5.0
RECORD_BYTES_LEAST: Final = 64 << 10
TOO_LARGE: Final = "the record is larger than max.message.bytes"  # the error that `on_report` is told then


class Stage(Enum):
    """What the machine is doing."""

    IDLE = "idle"
    READING = "reading"
    CLAIMING = "claiming"
    OWNING = "owning"
    LOOKING = "looking"
    ENDED = "ended"


class Owner:
    """The owner of one shard, or who wants to be. `fold` is what is known of the partition."""

    def __init__(
        self,
        fold: LogFold,
        worker: str,
        draw: Callable[[], bytes],
        record_bytes_max: int,
        record_bytes_least: int = RECORD_BYTES_LEAST,
        numbered_from: int = 0,
        quiet_s: float = 0.0,
    ) -> None:
        """Begin where `fold` is. `draw` gives 16 random bytes, other ones at each call; `record_bytes_max` is how large
        the value of a record may be, and `record_bytes_least` how small the parts are made where Kafka refuses it.
        Numbers of readings and tokens of appends are above `numbered_from`. `quiet_s`: from an owner that appends nothing
        for so long the shard is taken, from another one once it has appended nothing for `ALIVE_S`; 0: at once."""
        self.fold = fold
        self.stage = Stage.IDLE
        self.epoch = NO_OWNER
        self.since = NO_OWNER  # the first epoch of this run
        self.actions: list[Action] = []
        self._worker = worker
        self._draw = draw
        self._record_bytes = record_bytes_max
        self._record_bytes_least = record_bytes_least
        self._waiting: deque[Entry] = deque()
        self._values: list[bytes] = []  # of the entry that is under way, and which of them is
        self._at = 0
        self._under_way = False
        self._token = numbered_from
        self._sent_at = 0.0
        self._reading = numbered_from
        self._heard_at = 0.0  # of the reading: when it began, or gave a record
        self._known_to = 0  # the fold's tail, when this reading began
        self._last_seen = False  # by this reading: the record that was known last is where it was
        self._read_again_at = math.inf
        self._looked_at = 0.0
        self._read_at = -math.inf  # the end of the partition
        self._advised_at = -math.inf
        self._bits = b""
        self._claimed_after: Epoch | None = None
        self._is_away = False
        self._quiet_s = quiet_s
        self._quiet_from = math.inf  # when it had first read to the end
        self._alive_at = -math.inf  # another owner has appended then
        self._pause_s = READ_AGAIN_S  # before it tries again; longer each time until something is confirmed

    def take_actions(self) -> list[Action]:
        """Return what is to be done now, in order."""
        actions, self.actions = self.actions, []
        return actions

    @property
    def is_idle(self) -> bool:
        """Return whether everything that was to be appended is confirmed."""
        return not self._waiting

    @property
    def numbered_to(self) -> int:
        """Return the highest number of a reading, or token of an append, that there ever was."""
        return max(self._reading, self._token)

    # What whoever drives it wants

    def own(self, now: float) -> None:
        """Begin to own the shard."""
        self.stage = Stage.READING
        self._read(now)

    def append(self, entry: Entry, now: float) -> None:
        """Append an entry behind those that were given before."""
        self._waiting.append(entry)
        self._send(now)

    def give_up(self) -> None:
        """Own the shard no more. What is not confirmed may be in the partition or not."""
        self._end()

    # What comes from outside

    def on_advice(self, now: float) -> None:
        """Note that the group says that the shard is to be ours."""
        self._advised_at = now
        if self.stage is Stage.READING and self._read_at > -math.inf:
            self._claim(now)

    def on_report(self, token: int, offset: int | None, error: str, now: float) -> None:
        """Note what Kafka says of the append with this token: the Kafka offset, None if it did not say; or an error."""
        if token != self._token or not self._under_way:
            return
        if error == TOO_LARGE:
            self._record_bytes = max(self._record_bytes_least, self._record_bytes // 2)
        if error:
            self._doubt_producer(error, now)
        elif self.stage is Stage.CLAIMING:
            return  # it is read
        elif offset is not None and self._is_lower(offset):
            self._lose(f"a record was appended at Kafka offset {offset}, which had another one before")
        elif self._is_expected(offset):
            self._stands(now)
        else:
            self._look(now)

    def on_record(self, reading: int, offset: int, value: bytes | None, now: float) -> None:
        """Take a record that was read: they come in order, from the offset on that `Read` had."""
        if reading != self._reading or offset < self.fold.tail - 1:
            return
        if offset == self.fold.tail - 1:
            self._last_seen = True
            if not self._is_last(value or b""):
                self._lose(f"another record is at Kafka offset {offset} than before")
            return
        if not self._knows_last():
            self._miss(f"Kafka offset {self.fold.tail - 1} is there no more")
            return
        try:
            verdict = self.fold.take(offset, value)
        except MissingRecords as error:
            self._miss(str(error))
            return
        self._last_seen = True
        self._heard_at = now
        self._note_life(verdict, now)
        self._judge(verdict, now)

    def on_end(self, reading: int, end: int, now: float) -> None:
        """Note that the reading came to the end of the partition: `end` is the Kafka offset behind the last record that
        all replicas in sync had, asked for since the reading began, and every record below it was told."""
        if reading != self._reading:
            return
        if end < self._known_to:
            self._lose(
                f"the partition ends at Kafka offset {end}, and what lay up to {self._known_to} was there"
            )
        elif not self._knows_last():
            self._miss(f"Kafka offset {self.fold.tail - 1} is there no more")
        elif end > self.fold.tail:  # it was not told all: whoever reads met something that has passed
            self._read_again_at = now + READ_AGAIN_S
        elif self.stage is Stage.READING:
            self._read_at = now
            self._quiet_from = min(self._quiet_from, now)
            self._claim(now)
        elif self.stage is Stage.LOOKING and not self._under_way:
            self._own_on(now)
        else:
            self._read_again_at = now + READ_AGAIN_S

    def on_missing(self, reading: int, start: int) -> None:
        """Note that the partition does not have the offset that was to be read: it begins at `start`."""
        if reading == self._reading:
            self._miss(f"the partition begins at Kafka offset {start} by now")

    def on_time(self, now: float) -> None:
        """Do what is due."""
        if self._under_way and now - self._sent_at >= REPORTED_WITHIN_S:
            self._doubt_producer(f"Kafka has not answered for {REPORTED_WITHIN_S:.0f} s", now)
        elif now >= self._read_again_at:
            self._read(now)
        elif self.stage is Stage.OWNING:
            if not self._under_way and now - self._looked_at >= IDLE_LOOK_S:
                self._look(now)
        elif self.stage not in (Stage.IDLE, Stage.ENDED) and now - self._heard_at >= READ_ANEW_S:
            self._say_away("the partition cannot be read")
            self._read(now)

    # Reading

    def _read(self, now: float) -> None:
        self._reading += 1
        self._heard_at = now
        self._read_again_at = math.inf
        self._known_to = self.fold.tail
        self._last_seen = False
        self.actions.append(Read(self._reading, max(0, self.fold.tail - 1)))

    def _knows_last(self) -> bool:
        return self._last_seen or self.fold.tail == 0

    def _is_last(self, value: bytes) -> bool:
        return self.fold.is_last(value)

    def _note_life(self, verdict: Verdict, now: float) -> None:
        """Note that the owner was at work after the partition had been read to its end, if a record says so."""
        if self._quiet_from <= now and not isinstance(verdict, Void):
            self._alive_at = now

    def _judge(self, verdict: Verdict, now: float) -> None:
        if isinstance(verdict, NewOwner):
            self._on_owned(verdict, now)
        elif isinstance(verdict, Taken) and self.since == NO_OWNER:
            self.actions.append(Replay(verdict.batch, self.fold.tail - 1, verdict.data))
        elif isinstance(verdict, Marked | Floored) and self.since == NO_OWNER:
            place = verdict.mark if isinstance(verdict, Marked) else verdict.floor
            self.actions.append(Passed(self.fold.tail - 1, place))
        elif isinstance(verdict, Taken | Marked | Floored) and self.since != NO_OWNER:
            self._on_own_record(verdict, now)
        elif isinstance(verdict, TakenPart) and self.stage is Stage.LOOKING and self._is_next(verdict):
            self._at += 1
            self._own_on(now)

    def _is_next(self, part: TakenPart) -> bool:
        return part.epoch == self.epoch and part.number == self._at

    def _on_own_record(self, verdict: Taken | Marked | Floored, now: float) -> None:
        """Take a record of ours that has turned up: what is under way, or was when its producer was given up."""
        if not self._waiting or not self._waiting[0].is_of(verdict):
            if isinstance(verdict, Taken):
                self._lose(f"somebody appends under our epoch, at Kafka offset {self.fold.tail - 1}")
            return
        self._confirm(verdict.epoch)
        if self.stage is Stage.LOOKING:
            self._own_on(now)

    def _on_owned(self, found: NewOwner, now: float) -> None:
        if found.epoch.bits == self._bits:
            self._owns(found.epoch, now)
        elif self.since != NO_OWNER or self.stage is Stage.CLAIMING:
            self._end()
            self.actions.append(Replaced(found.epoch, found.worker))

    def _miss(self, reason: str) -> None:
        """Note that the partition lacks records behind, or at, what was known last. Who has stood still for long finds it
        so after others have owned the shard, have written snapshots, and have deleted what those made needless."""
        self._end()
        self.actions.append(Stale(reason))

    # Owning

    def _claim(self, now: float) -> None:
        """Append OWNED, if what was read and what the group says are fresh enough; else make them so."""
        if self.fold.is_foreign and self.fold.owner == NO_OWNER:
            self._lose("it holds the journal of another topic, of which it is a copy, maybe")
            return
        if self._is_another_alive(now):
            self._read_again_at = now + READ_AGAIN_S
            return
        if now - self._read_at > FRESH_S:
            self._read_at = -math.inf
            self._read(now)
            return
        if self.since == NO_OWNER and now - self._advised_at > FRESH_S:
            self.actions.append(Ask())
            self._read_again_at = now + FRESH_S
            return
        if self._claimed_after != self.fold.owner:  # else the one that may be under way serves as well
            self._claimed_after = self.fold.owner
            self._bits = self._draw()
        self.stage = Stage.CLAIMING
        self._append(pack_owned(self.fold.seed, self._bits, self.fold.owner, self._worker), now)
        self._read(now)

    def _is_another_alive(self, now: float) -> bool:
        """Return whether the owner may well be at work. The group's advice is no proof that it is not: what the owner
        appends is one that it is, and whoever took the shard would close its clients for nothing."""
        if not self._quiet_s or self.since != NO_OWNER or self.fold.owner == NO_OWNER:
            return False
        return now - self._quiet_from < self._quiet_s or now - self._alive_at < ALIVE_S

    def _owns(self, epoch: Epoch, now: float) -> None:
        self.epoch = epoch
        if self.since == NO_OWNER:
            self.since = epoch
        self.actions.append(Owns(epoch, self.since))
        self._under_way = False
        self._values = []
        self._own_on(now)

    def _own_on(self, now: float) -> None:
        """Append again: what stands in the partition is known up to our own record."""
        if self._is_away:
            self._is_away = False
            self.actions.append(Back())
        self.stage = Stage.OWNING
        self._reading += 1  # what more that reading gives is read when it matters
        self._read_again_at = math.inf
        self._looked_at = now
        self._under_way = False
        self._send(now)

    def _doubt_producer(self, reason: str, now: float) -> None:
        """Give up the producer, and own anew in place."""
        self.actions.append(Purge())
        self._say_away(reason)
        self.stage = Stage.READING
        self._under_way = False
        self._values = []
        self._token += 1
        self._reading += 1
        self._read_at = -math.inf
        self._read_again_at = now + self._pause_s
        self._pause_s = min(2 * self._pause_s, REPORTED_WITHIN_S)

    def _say_away(self, reason: str) -> None:
        if not self._is_away:
            self._is_away = True
            self.actions.append(Away(reason))

    def _lose(self, reason: str) -> None:
        self._end()
        self.actions.append(Lost(reason))

    def _end(self) -> None:
        self.stage = Stage.ENDED
        self._under_way = False
        self._reading += 1
        self._read_again_at = math.inf
        self.actions.append(Purge())

    # Appending

    def _send(self, now: float) -> None:
        if self.stage is not Stage.OWNING or self._under_way or not self._waiting:
            return
        if not self._values:
            fold, entry = self.fold, self._waiting[0]
            self._values = entry.values(fold.seed, self.epoch, fold.next_offset, self._record_bytes)
            self._at = 0
        self._append(self._values[self._at], now)

    def _append(self, value: bytes, now: float) -> None:
        self._token += 1
        self._under_way = True
        self._sent_at = now
        self.actions.append(Append(self._token, value))

    def _is_lower(self, offset: int) -> bool:
        return offset < self.fold.tail

    def _is_expected(self, offset: int | None) -> bool:
        return offset == self.fold.tail

    def _stands(self, now: float) -> None:
        """Note that the record under way stands right behind all that is known."""
        fold, entry, value = self.fold, self._waiting[0], self._values[self._at]
        self._under_way = False
        self._looked_at = now
        if self._at < len(self._values) - 1:
            assert isinstance(entry, BatchEntry)
            piece = entry.piece(self._at, self._record_bytes)
            fold.append_part(fold.tail, value, piece, len(entry.data))
            self._at += 1
        else:
            fold.append(fold.tail, value, entry.end(fold.next_offset))
            self._confirm(self.epoch)
        self._send(now)

    def _confirm(self, epoch: Epoch) -> None:
        """Note that the first entry that waits is in the partition under an epoch of ours, and takes effect."""
        entry = self._waiting.popleft()
        self._pause_s = READ_AGAIN_S
        self._values = []
        self.actions.append(Confirmed(entry, self.fold.tail - 1, self.fold.next_offset, epoch))
        if isinstance(entry, FloorEntry):
            self.actions.append(Delete(entry.mark))

    def _look(self, now: float) -> None:
        """Read on, to know what stands in the partition."""
        self.stage = Stage.LOOKING
        self._read(now)
