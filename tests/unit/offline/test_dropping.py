"""`headrace session drop` in a data directory: what a start replays is what a broker would have written; nothing half
done."""

from __future__ import annotations

import errno
import shutil
from collections.abc import Sequence
from contextlib import suppress
from itertools import count
from pathlib import Path

import pytest

from harness import message
from headrace.core.homes import Homes
from headrace.core.ports.access import Access
from headrace.core.ports.settings import BrokerSettings
from headrace.core.records.event import SessionEnded, SessionName, SessionOpened, Subscribed, SubscriptionRow
from headrace.core.records.message import Message, decode_batch
from headrace.core.records.record import Record
from headrace.core.state.session import NEVER_EXPIRES
from headrace.core.state.state import Fold
from headrace.data.layout import Layout
from headrace.errors import BrokersOwn, NotThere
from headrace.journal.disk import DISK, Disk
from headrace.journal.errors import JournalError, JournalLocked
from headrace.journal.lock import lock_data_dir
from headrace.journal.log import LogSettings
from headrace.journal.reader import JournalReader
from headrace.mqtt.packets import Will
from headrace.offline import dropping
from headrace.offline.dropping import Rules
from headrace.offline.resharding import reshard
from headrace.storage.embedded.recovery import folded
from unit.data.journals import START_US, append, made
from unit.journal.test_restore import killed

LOG = LogSettings(reserve_bytes=0)
SHARDS = 3


def quietly(_line: str) -> None:
    """Nobody listens."""


def life(client_id: str = "c", incarnation: int = 0, will: Will | None = None) -> list[Record]:
    """A session with a subscription, and one message that waits for it. A killed broker has left it connected."""
    opened = SessionOpened.at(START_US, "default", client_id, 0, NEVER_EXPIRES, 5, will, 1000, None)
    row = SubscriptionRow("a/b", 1, False, False, 0, 0)
    return [opened, Subscribed.at(START_US, SessionName(incarnation), [row], [], []), message(b"a/b")]


def drop(data_dir: Path, client_id: str = "c", access: Access | None = None, disk: Disk = DISK) -> int:
    rules = Rules(LOG, BrokerSettings(), access)
    with dropping.opened(data_dir, "default", client_id, rules, quietly, disk) as stopped:
        return stopped.drop()


def records(directory: Path, start: int) -> list[Record]:
    """The records from an offset on."""
    reader = JournalReader(directory)
    batches = list(reader.scan(start, reader.high_watermark()))
    return [record for batch in batches for record in decode_batch(bytes(batch.body), batch.base_offset)]


def clients(fold: Fold) -> list[str]:
    return sorted(fold.tenant("default").sessions)


class Rule(Access):
    """Nobody may leave a will."""

    def may_leave_will(self, tenant: str, user: str | None, client_id: str, topic: bytes) -> bool:
        return False


class FullDisk(Disk):
    """A disk that has no space left once it `is_full`."""

    def __init__(self) -> None:
        self.is_full = False

    def allocate(self, fd: int, position: int, length: int) -> None:
        self._check()
        super().allocate(fd, position, length)

    def pwritev(self, fd: int, buffers: Sequence[bytes], position: int) -> int:
        self._check()
        return super().pwritev(fd, buffers, position)

    def _check(self) -> None:
        if self.is_full:
            raise OSError(errno.ENOSPC, "No space left on device")


def test_one_batch_ends_it_with_its_subscriptions_and_its_backlog(tmp_path: Path) -> None:
    append(tmp_path, [*life(), *life("other", 3)])
    assert drop(tmp_path) == 2
    [ended] = records(tmp_path, 6)
    assert isinstance(ended, SessionEnded)
    assert (ended.fields["reason"], ended.fields["code"], ended.dropped) == ("dropped", 0x98, 2)
    fold = folded(tmp_path)
    assert clients(fold) == ["other"]
    tenant = fold.tenant("default")
    assert [target.session.client_id for target in tenant.tree.match(b"a/b")] == ["other"]
    with pytest.raises(NotThere, match="no session 'c'"):
        drop(tmp_path)
    assert len(records(tmp_path, 6)) == 1


@pytest.mark.parametrize("delay_s", [0, 60])
def test_its_will_is_published_in_the_same_batch(tmp_path: Path, delay_s: int) -> None:
    append(tmp_path, life(will=Will("w", b"gone", 1, delay_s=delay_s)))
    drop(tmp_path)
    published, _, ended = records(tmp_path, 3)
    assert isinstance(published, Message)
    assert (published.topic, published.payload) == (b"w", b"gone")
    assert isinstance(ended, SessionEnded)


def test_a_will_that_the_rules_do_not_allow_any_more_is_not_published(tmp_path: Path) -> None:
    append(tmp_path, life(will=Will("w", b"gone", 1)))
    drop(tmp_path, access=Rule())
    assert not any(isinstance(record, Message) for record in records(tmp_path, 3))
    assert clients(folded(tmp_path)) == []


def test_of_several_shards_the_home_alone_is_written(tmp_path: Path) -> None:
    homes = Homes(SHARDS)
    candidates = [f"c{number}" for number in range(99)]
    names = [next(n for n in candidates if homes.of_client("default", n) == shard) for shard in range(SHARDS)]
    layout = made(tmp_path / "d", [life(name) for name in names])
    assert drop(layout.path, names[1]) == 1
    assert [len(records(directory, 3)) for directory in layout.directories()] == [0, 1, 0]
    left = [clients(folded(layout.directory(shard), shard, SHARDS)) for shard in range(SHARDS)]
    assert left == [[names[0]], [], [names[2]]]


def test_sessions_of_a_directory_that_was_divided_are_dropped_too(tmp_path: Path) -> None:
    append(tmp_path / "old", [*life(), *life("other", 3)])
    reshard(tmp_path / "old", tmp_path / "new", 2, quietly)
    assert drop(tmp_path / "new") == 2
    layout = Layout.open(tmp_path / "new")
    found = [clients(folded(layout.directory(shard), shard, 2)) for shard in range(2)]
    assert sorted(found) == [[], ["other"]]


def test_a_running_broker_keeps_its_directory(tmp_path: Path) -> None:
    append(tmp_path / "one", life())
    several = made(tmp_path / "several", [life("a"), life("b")]).path
    for data_dir in (tmp_path / "one", several):
        held = lock_data_dir(DISK, data_dir)
        try:
            with pytest.raises(JournalLocked):
                drop(data_dir)
        finally:
            DISK.close(held)


def test_a_worker_without_its_supervisor_keeps_its_shard(tmp_path: Path) -> None:
    layout = made(tmp_path / "several", [life("a"), life("b")])
    held = lock_data_dir(DISK, layout.directory(0))
    try:
        with pytest.raises(JournalLocked):
            drop(layout.path, "a")
    finally:
        DISK.close(held)


def test_a_full_disk_is_said_and_all_is_as_it_was(tmp_path: Path) -> None:
    append(tmp_path, life())
    disk = FullDisk()
    rules = Rules(LOG, BrokerSettings())
    with dropping.opened(tmp_path, "default", "c", rules, quietly, disk) as stopped:
        disk.is_full = True
        with pytest.raises((OSError, JournalError), match="No space left"):
            stopped.drop()
    assert clients(folded(tmp_path)) == ["c"]
    assert drop(tmp_path) == 1
    assert clients(folded(tmp_path)) == []


@pytest.mark.slow
@pytest.mark.interpreted
def test_killed_at_any_moment_it_is_dropped_or_as_it_was_and_can_be_run_again(tmp_path: Path) -> None:
    append(tmp_path / "d", life(will=Will("w", b"gone", 1)))
    for number in count(1):
        data_dir = tmp_path / str(number)
        shutil.copytree(tmp_path / "d", data_dir)
        was_killed = killed(lambda disk, where=data_dir: drop(where, disk=disk), number)  # type: ignore[misc]
        with suppress(NotThere):  # it was done
            assert drop(data_dir) == 1
        wills = [one for one in records(data_dir, 3) if isinstance(one, Message)]
        assert (clients(folded(data_dir)), len(wills)) == ([], 1)
        if not was_killed:
            assert number > 5
            return
        shutil.rmtree(data_dir)


def test_what_has_only_been_looked_at_is_as_it_was(tmp_path: Path) -> None:
    append(tmp_path, life())
    with dropping.opened(tmp_path, "default", "c", Rules(LOG, BrokerSettings()), quietly) as stopped:
        assert stopped.session.client_id == "c"
    assert clients(folded(tmp_path)) == ["c"]
    assert records(tmp_path, 3) == []


def test_the_brokers_own_are_refused_before_anything_is_opened(tmp_path: Path) -> None:
    with pytest.raises(BrokersOwn, match="bridge"):
        drop(tmp_path / "nowhere", "$bridge/x")
    assert not (tmp_path / "nowhere").exists()
