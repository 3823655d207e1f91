"""What two shards say to each other about one stream, and the wire that they say it on.

B follows A. B opens the conversation on a wire of its own, on which what is said arrives in order until it breaks:

    B -> A   Hello, Announced ..., Follow, then Wanted, Unwanted, Granted, Durable, Filled
    A -> B   Started, then Copied, Looked, Passed, Kept; Confirmed

and behind Hello what `group_frames` and `queue_frames` tell of, in both directions.

Hello names the epoch of B's owner, which is higher with each owner, and the number of the attempt, higher with each wire
of that owner. A talks on the wire with the newest of both and cuts the others, so that nothing late is ever believed.
"""

from __future__ import annotations

from typing import Final

from mypy_extensions import i64, mypyc_attr

from headrace.core.records.message import Copy, Message, copy_of

# What a copy or a message at QoS 0 counts as, beside its own bytes: 4 000 small ones are a window of 4 MiB, a few passes
# of the loop for whoever takes them.
OVERHEAD_BYTES: Final = 1024


class Frame:
    """One thing that a shard says to another."""


class Hello(Frame):
    """Shard `shard` wants to follow; nothing said on its wires of an older owner or attempt counts any more."""

    def __init__(self, shard: int, epoch: int, attempt: int) -> None:
        self.shard = shard
        self.epoch = epoch
        self.attempt = attempt


class Announced(Frame):
    """Some of the filters that B wants, with their tenants: all of them come before Follow."""

    def __init__(self, filters: list[tuple[str, str]]) -> None:
        self.filters = filters


class Follow(Frame):
    """Send what is mine from this offset on, as much as `granted` bytes. What is below was given by the owner of A that
    `start` tells of, and by those before it: offset and time of the record that it began with."""

    def __init__(self, offset: i64, granted: i64, start: tuple[int, int] = (0, 0)) -> None:
        self.offset: i64 = offset
        self.granted: i64 = granted
        self.start = start


class Started(Frame):
    """What A says from here on is of the owner that began with the record of this offset and time, which is durable."""

    def __init__(self, offset: i64, timestamp_us: i64) -> None:
        self.offset: i64 = offset
        self.timestamp_us: i64 = timestamp_us


class Wanted(Frame):
    """B wants one filter more; to be confirmed by its number."""

    def __init__(self, number: int, tenant: str, topic_filter: str) -> None:
        self.number = number
        self.tenant = tenant
        self.topic_filter = topic_filter


class Unwanted(Frame):
    """B has wanted a filter for long enough."""

    def __init__(self, tenant: str, topic_filter: str) -> None:
        self.tenant = tenant
        self.topic_filter = topic_filter


class Granted(Frame):
    """So many bytes may be sent, counted from the beginning of the wire."""

    def __init__(self, granted: i64) -> None:
        self.granted: i64 = granted


class Filled(Frame):
    """The disk that B writes to is full, or has space."""

    def __init__(self, full: bool) -> None:
        self.full = full


class Durable(Frame):
    """Everything of A below this offset that is B's is durable there: A need not keep it for B."""

    def __init__(self, offset: i64) -> None:
        self.offset: i64 = offset


class Kept(Frame):
    """A keeps much of its journal, for B too: B writes down how far it has come, and says so when that is durable."""


class Copied(Frame):
    """The next message of A's journal that is B's; everything before it was looked at. `begins`: a device has published
    it, so that its topic, which is at home in B, has a queue from there on. `user`: whose the device is, as
    `QueuePort.user_of` has it; "" of a message that begins nothing."""

    def __init__(self, copy: Copy, begins: bool = False, user: str = "") -> None:
        self.copy = copy
        self.begins = begins
        self.user = user


class Looked(Frame):
    """A has looked at everything below this offset; what was B's has been sent."""

    def __init__(self, offset: i64) -> None:
        self.offset: i64 = offset


class Passed(Frame):
    """A message at QoS 0, in its place among the copies."""

    def __init__(self, message: Message) -> None:
        self.message = message


class Confirmed(Frame):
    """A looks for what was wanted up to this number, from now on."""

    def __init__(self, number: int) -> None:
        self.number = number


@mypyc_attr(allow_interpreted_subclasses=True)
class Wire:
    """One side of a conversation. Whoever carries it tells the shard what comes (`heard`) and that it broke (`broken`),
    neither of them from within `say` or `cut`. `far`: the shard at its other side, which the near one notes."""

    far: int = -1

    @property
    def full(self) -> bool:
        """Return whether so much waits to leave that what can be said later is. When that has changed, the worker has
        a tick."""
        return False

    def say(self, frame: Frame) -> None:
        """Say something on the wire, behind what was said before. Does nothing once the wire has broken, which it does
        when something cannot be said."""
        raise NotImplementedError

    def say_copied(self, message: Message, source: int) -> None:
        """Say `Copied` of a message that shard `source` has in its journal, as `say` does."""
        self.say(Copied(copy_of(message, source, message.offset)))

    def cut(self) -> None:
        """End the conversation. Nothing that comes on this wire later is looked at."""
        raise NotImplementedError


def weight_of(message: Message) -> i64:
    """Return the bytes that a message counts as on a stream."""
    return OVERHEAD_BYTES + message.size
