"""The port of queue stores: where the user lets long backlogs of persistent sessions lie instead of in the journal.

The journal stays the truth, a store is a copy. One *stream* of a store is one queue of a session under one generation:
entries under their serial numbers, which only grow. What core asks for goes out as a request with a number; each is
answered once, by the method of the listener that its docstring names, on the loop, and never from within the request.
Nothing here waits, and nothing is decided here; whoever decides takes an answer that comes late, twice or never for what
it is.

Asked per put of several entries, never per message (decision 27: base classes, because compiled code calls them).
"""

from __future__ import annotations

from typing import Final

from mypy_extensions import i64, mypyc_attr

# What became of a request.
DONE: Final = 0  # it was done, or what was asked for was found
THERE: Final = (
    1  # an entry with this serial number, or a later one, is in the stream; something may have been put
)
ABSENT: Final = 2  # there is no such stream, and nothing was put
UNSURE: Final = 3  # it was sent, and nobody knows whether it was done
REFUSED: Final = 4  # it was not done: nobody is connected, or the store takes nothing now

# What a second look at who takes the puts of a connection has found.
SAME: Final = 0
ANOTHER: Final = 1
UNSETTLED: Final = 2  # what it has is on its way elsewhere

# Entries that are no message. A message is longer.
NOTHING: Final = b""  # it was gone when its turn came: the stream stays dense
IN_JOURNAL: Final = b"j"  # too large for the store: the journal keeps it


class StoreCapabilities:
    """What a kind of store can do, as data. Sizes in bytes, times in milliseconds.

    `atomic_put`: the entries of a put are there together or not at all. `dense_ids`: `look` says what is there.
    `tells_primary`: whoever takes the puts of a connection has a name, so that another one, a restarted one and one that
    was wiped are noticed; else each stream is compared before the journal lets go of it. `waits_for_replicas`: an answer
    to a put may wait for a copy. `forgets_ms`: what was answered may be lost within that time, 0: never. `keeps_context`:
    what is known of a client is kept beside its streams; elsewhere `keep_context` says only that a session has ended.
    """

    def __init__(
        self,
        kind: str,
        *,
        atomic_put: bool,
        dense_ids: bool,
        tells_primary: bool,
        waits_for_replicas: bool,
        forgets_ms: int,
        entry_bytes_max: int,
        put_bytes_max: int,
        put_entries_max: int,
        keeps_context: bool = True,
    ) -> None:
        self.kind = kind
        self.atomic_put = atomic_put
        self.dense_ids = dense_ids
        self.tells_primary = tells_primary
        self.waits_for_replicas = waits_for_replicas
        self.forgets_ms: i64 = forgets_ms
        self.entry_bytes_max: i64 = entry_bytes_max
        self.put_bytes_max: i64 = put_bytes_max
        self.put_entries_max: i64 = put_entries_max
        self.keeps_context = keeps_context


class QueueName:
    """The name of a stream: whose it is. `journal` is the uuid of the shard's journal in hexadecimal digits,
    `incarnation` that of the session; `generation` rises whenever a stream is made anew. `stores.names` makes keys of
    it."""

    def __init__(self, tenant: str, client_id: str, journal: str, generation: int, incarnation: int) -> None:
        self.tenant = tenant
        self.client_id = client_id
        self.journal = journal
        self.generation = generation
        self.incarnation = incarnation

    def __eq__(self, other: object) -> bool:
        return isinstance(other, QueueName) and self.parts() == other.parts()

    def __hash__(self) -> int:
        return hash(self.parts())

    def parts(self) -> tuple[str, str, str, int, int]:
        """Return the five parts, for comparisons."""
        return (self.tenant, self.client_id, self.journal, self.generation, self.incarnation)


@mypyc_attr(allow_interpreted_subclasses=True)
class Primary:
    """Whoever takes the puts of one connection, compared by identity: another connection, or another process, history or
    content behind the same one, is another object."""

    def __init__(self, name: str) -> None:
        self.name = name


class Context:
    """What is kept of a client beside its queue, for whoever looks into the store from outside."""

    def __init__(self, last_packet_id: int, last_serial: int, updated_us: int) -> None:
        self.last_packet_id = last_packet_id
        self.last_serial = last_serial
        self.updated_us = updated_us


class Found:
    """What a look has found in a stream: the serial numbers of its first and last entry and how many there are. `last`
    is the highest that was ever put where the store says so, also where entries are gone; `entry` is what is there under
    it, None where the store does not say."""

    def __init__(self, first: i64, last: i64, count: i64, entry: bytes | None = None) -> None:
        self.first = first
        self.last = last
        self.count = count
        self.entry = entry

    def is_dense(self) -> bool:
        """Return whether there are entries, and none is missing between the first and the last that was put."""
        return self.count > 0 and self.count == self.last - self.first + 1


@mypyc_attr(allow_interpreted_subclasses=True)
class StoreListener:
    """Hears the answers of a store. A number that it does not know, or not any more, says nothing to it."""

    def took(self, number: i64, outcome: int, primary: Primary | None) -> None:
        """Handle the answer to a put. With DONE `primary` is who has taken it."""
        raise NotImplementedError

    def looked(self, number: i64, outcome: int, found: Found | None, primary: Primary | None) -> None:
        """Handle the answer to a look; `found` with DONE, with ABSENT there is no stream."""
        raise NotImplementedError

    def read_back(
        self, number: i64, outcome: int, up_to: i64, serials: list[int], entries: list[bytes]
    ) -> None:
        """Handle the answer to a read: what there is up to the serial number `up_to`, in order. What was asked for up to
        there and is not among it is not in the store."""
        raise NotImplementedError

    def finished(self, number: i64, outcome: int) -> None:
        """Handle the answer to a trim, a delete or a context."""
        raise NotImplementedError

    def seen(self, number: i64, outcome: int) -> None:
        """Handle the answer to a sight: SAME, ANOTHER or UNSETTLED. After ANOTHER, answers to puts and looks name
        another primary."""
        raise NotImplementedError

    def scanned(self, number: i64, outcome: int, names: list[QueueName], cursor: str) -> None:
        """Handle the answer to a scan. `cursor` is where the next one goes on, "" at the end."""
        raise NotImplementedError

    def lost(self, primary: Primary) -> None:
        """Note that the connection to a primary is over. Requests that it has not answered are answered with UNSURE or
        REFUSED, before or after."""
        raise NotImplementedError

    def has_room(self) -> None:
        """Note that `QueueStore.room` was 0 and is not any more."""
        raise NotImplementedError


@mypyc_attr(allow_interpreted_subclasses=True)
class QueueStore:
    """A store of queues. Requests of one stream are done in the order in which they were made, as long as one
    connection lasts."""

    def __init__(self, capabilities: StoreCapabilities) -> None:
        self.capabilities = capabilities
        self.listener: StoreListener | None = None

    def place(self, name: str, tenant: str, client_id: str) -> str:
        """Return what people are told of where the queue of a client lies in the store that is called `name`."""
        return name

    def room(self) -> i64:
        """Return how many bytes of entries it takes now; 0: too many wait, or nobody is connected."""
        raise NotImplementedError

    def put(self, number: i64, name: QueueName, first: i64, entries: list[bytes], begins: bool) -> None:
        """Append entries under the serial numbers from `first` on. `begins`: the stream is made, and THERE is the answer
        where it held anything; else one that is not there stays away (ABSENT). Answered by `StoreListener.took`."""
        raise NotImplementedError

    def look(self, number: i64, name: QueueName) -> None:
        """Ask what is in a stream. Answered by `StoreListener.looked`, behind the puts before it."""
        raise NotImplementedError

    def read(self, number: i64, name: QueueName, first: i64, count: i64) -> None:
        """Read so many entries from the serial number `first` on. Answered by `StoreListener.read_back`."""
        raise NotImplementedError

    def trim(self, number: i64, name: QueueName, floor: i64) -> None:
        """Delete the entries below a serial number. Answered by `StoreListener.finished`."""
        raise NotImplementedError

    def delete(self, number: i64, name: QueueName) -> None:
        """Delete a stream, if there is one. Answered by `StoreListener.finished`."""
        raise NotImplementedError

    def sight(self, number: i64, primary: Primary) -> None:
        """Look again, behind the puts that it has answered, who takes those of a connection. Answered by
        `StoreListener.seen`; ANOTHER where the primary is known not to be the one any more."""
        raise NotImplementedError

    def keep_context(self, number: i64, name: QueueName, context: Context | None) -> None:
        """Keep what is known of a client beside its queues, or delete it. Answered by `StoreListener.finished`."""
        raise NotImplementedError

    def scan(self, number: i64, cursor: str) -> None:
        """Name some of the streams of all journals, from "" on, and of the contexts, whose generation and incarnation
        are 0. Answered by `StoreListener.scanned`."""
        raise NotImplementedError
