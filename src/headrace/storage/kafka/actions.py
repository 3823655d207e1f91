"""What the state machine of an owner (`owner`) wants done, or tells. Whoever drives it takes them in order and does them
in order; none is to be done once a later event has ended the machine but those that it gave itself."""

from __future__ import annotations

from dataclasses import dataclass

from headrace.journal.segment import Batch
from headrace.storage.kafka.entry import Entry
from headrace.storage.kafka.envelope import Epoch, Floor, Mark


@dataclass(frozen=True, slots=True)
class Read:
    """Read the partition from a Kafka offset to its end, and tell `Owner.on_record` of each, then `Owner.on_end`, with
    this number. The reading of a lower number is to end."""

    number: int
    offset: int


@dataclass(frozen=True, slots=True)
class Append:
    """Append a record, and tell `Owner.on_report` with this token what became of it."""

    token: int
    value: bytes


@dataclass(frozen=True, slots=True)
class Purge:
    """Give up the producer, with what it has under way, and append through a new one from now on."""


@dataclass(frozen=True, slots=True)
class Ask:
    """Have the group say whether the shard is to be ours, and tell `Owner.on_advice` if it is."""


@dataclass(frozen=True, slots=True)
class Replay:
    """Let a batch of the journal take effect that was written before the shard was ours. `offset` is Kafka's, of its last
    record; `data` is the batch as a segment file holds it."""

    batch: Batch
    offset: int
    data: bytes


@dataclass(frozen=True, slots=True)
class Passed:
    """Note a MARK or a FLOOR that took effect before the shard was ours: where readers may begin, and up to where it is
    deleted. `offset` is its Kafka offset."""

    offset: int
    place: Mark | Floor


@dataclass(frozen=True, slots=True)
class Owns:
    """Note that the shard is ours under `epoch`. `since` is the first epoch of this run, which peers know: it is the same
    one until memory goes, and equal to `epoch` at the first time."""

    epoch: Epoch
    since: Epoch


@dataclass(frozen=True, slots=True)
class Confirmed:
    """Note that an entry is durable and takes effect for every reader. `offset` is Kafka's, of its last record, which has
    this epoch; `next_offset` is the record offset that comes next behind it."""

    entry: Entry
    offset: int
    next_offset: int
    epoch: Epoch


@dataclass(frozen=True, slots=True)
class Delete:
    """Delete what the partition has below a Kafka offset, where there is a MARK. Doing it later, or twice, is
    harmless."""

    offset: int


@dataclass(frozen=True, slots=True)
class Away:
    """Note that Kafka does not take or give what it should, and why: nothing is confirmed until `Back`."""

    reason: str


@dataclass(frozen=True, slots=True)
class Back:
    """Note that Kafka takes and gives again, after `Away`."""


@dataclass(frozen=True, slots=True)
class Replaced:
    """Forget all state of the shard, and close its clients: another worker owns it. The machine has ended."""

    epoch: Epoch
    worker: str


@dataclass(frozen=True, slots=True)
class Stale:
    """Forget all state of the shard, if there is any, close its clients, and begin again with the newest snapshot: what
    the fold was to go on from is deleted by now, and nobody knows who owned the shard meanwhile. The machine has
    ended."""

    reason: str


@dataclass(frozen=True, slots=True)
class Lost:
    """Stop the shard and name it: Kafka has lost what it had acknowledged, and a person has to say what is to be. The
    machine has ended."""

    reason: str


Action = (
    Read
    | Append
    | Purge
    | Ask
    | Replay
    | Passed
    | Owns
    | Confirmed
    | Delete
    | Away
    | Back
    | Replaced
    | Stale
    | Lost
)
