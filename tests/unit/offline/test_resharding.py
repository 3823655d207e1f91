"""What belongs to a client by name alone, without a session, goes to its home too, and each of it to one shard."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from headrace.core.homes import Homes
from headrace.core.records.message_id import Origin
from headrace.core.state.snapshots import restore
from headrace.core.state.state import Fold
from headrace.offline.resharding import entries
from headrace.storage.memory import MemoryJournal

TENANT = "tenänt"
EPOCHS = [(0, 1), (7, 3)]
NAMES = st.lists(st.text(st.characters(exclude_characters="\0", codec="utf-8"), max_size=8), unique=True)


def fold_of(names: list[str]) -> Fold:
    fold = Fold(MemoryJournal())
    tenant = fold.make(TENANT)
    for number, name in enumerate(names):
        tenant.producers.restore(f"{TENANT}{name}\0line".encode(), number, number)
        tenant.devices.own(name, "user")
        tenant.devices.restore(name.encode() + number.to_bytes(4, "big"), number, 0, 0)
    return fold


def owners(fold: Fold) -> list[str]:
    return list(fold.make(TENANT).devices.owners)


@given(NAMES, st.integers(2, 5))
def test_producers_and_devices_go_where_their_client_is_at_home(names: list[str], shards: int) -> None:
    whole, homes = fold_of(names), Homes(shards)
    for shard in range(shards):
        part = Fold(MemoryJournal())
        restore(part, [entries(whole, homes, shard, len(names), Origin("uuid", len(names), EPOCHS))])
        own = [name for name in names if homes.of_client(TENANT, name) == shard]
        assert owners(part) == own
        rows = [row for some in part.tenant(TENANT).producers.entries() for row in some]
        assert [row[0] for row in rows] == [f"{TENANT}{name}\0line".encode() for name in own]
        assert len(part.tenant(TENANT).devices) == len(own)
        assert part.origin is not None
        assert (part.origin.uuid, part.origin.end, part.origin.epochs) == ("uuid", len(names), EPOCHS)
